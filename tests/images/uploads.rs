//! Image uploads: their providers, the metadata sent to the cloud, the record, and retries after a failure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool::actors::runtime::clock;
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::image_build::BuildState;
use nodepool_model::records::image_upload::UploadState;
use nodepool_model::records::time::{Seconds, Timestamp};
use nodepool_zk::locks::lock::try_lock;
use nodepool_zk::paths;
use python_yaml::diagnostics::Diagnostic;
use testkit::executable;
use testkit::in_process_builder::image_cloud::ImageCloud;
use testkit::in_process_builder::{BuilderHarness, names};
use testkit::in_process_launcher::{on_real_time, until};

const DEBIAN: &str = "name: debian, formats: [raw], username: admin, python-path: /py, metadata: {a: top, b: top}";
const TAKES_DEBIAN: &str = "name: one, cloud: c, diskimages: [{name: debian, meta: {b: own, flag: true}}]";

#[test]
fn a_build_is_uploaded_to_every_provider_in_its_format() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let raw = "name: two, cloud: c, fake: {image-format: raw}, image-name-format: '{image_name}_{upload_id}', \
                   diskimages: [{name: debian}]";
        let other = "name: three, cloud: c, diskimages: [{name: other}]";
        let _builder = harness.start_for(
            &[DEBIAN, "name: other, formats: [raw], pause: true"],
            &[TAKES_DEBIAN, raw, other],
            |_| {},
        );
        harness.until_uploaded("debian", "one", 1).await;
        harness.until_uploaded("debian", "two", 1).await;
        let (build, _) = harness.builds("debian").await.remove(0);
        let uploads = harness.uploads("debian").await;
        let (key, record) = uploads.iter().find(|(key, _)| key.provider.as_str() == "one").unwrap();
        assert_eq!(key.upload.as_str(), "0000000001");
        assert_eq!((record.format.as_deref(), record.username.as_deref()), (Some("qcow2"), Some("admin")));
        assert_eq!(record.python_path.as_deref(), Some("/py"));
        let name = record.external_name.clone().unwrap();
        assert!(name.strip_prefix("debian-").unwrap().parse::<u64>().is_ok(), "{name}");
        let [order] = &harness.cloud.orders_of("one")[..] else { panic!("one order") };
        let texts: BTreeMap<&str, String> =
            order.meta.iter().map(|(key, value)| (key.as_str(), value.to_string())).collect();
        assert_eq!(
            texts,
            BTreeMap::from([("a", "\"top\"".to_owned()), ("b", "\"own\"".to_owned()), ("flag", "true".to_owned()),])
        );
        let marks = [
            ("nodepool_build_id", build.as_str()),
            ("nodepool_provider_name", "one"),
            ("nodepool_upload_id", "0000000001"),
        ];
        assert_eq!(order.marks, marks.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        let file = harness.path("images").join(format!("debian-{build}.qcow2"));
        assert_eq!((&order.file, order.size, order.format.as_str()), (&file, 6, "qcow2"));
        // The command writes no checksums, so the builder computes them.
        assert_eq!(order.md5.as_deref(), Some("4802fcebd761ca4f04c9a6320330fd10"));
        assert_eq!(order.sha256.as_ref().map(String::len), Some(64));
        let (key, record) = uploads.iter().find(|(key, _)| key.provider.as_str() == "two").unwrap();
        assert_eq!(record.external_name.as_deref(), Some(format!("debian_{}", key.upload).as_str()));
        assert_eq!(record.format.as_deref(), Some("raw"));
        assert!(names(&harness.path("images")).contains(&format!("debian-{build}.raw.sha256")));
    });
}

#[test]
fn paused_providers_get_no_uploads_but_paused_images_do() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let paused = "name: one, cloud: c, diskimages: [{name: debian, pause: true}, {name: held}]";
        harness.put_foreign_build("held", 10.0, &["qcow2"]).await;
        let (id, _) = harness.builds("held").await.remove(0);
        std::fs::write(harness.path("images").join(format!("held-{id}.qcow2")), "image\n").unwrap();
        let images = [DEBIAN, "name: held, formats: [qcow2], pause: true"];
        let _builder = harness.start_for(&images, &[paused], |_| {});
        harness.until_built("debian", 1).await;
        harness.until_uploaded("held", "one", 1).await;
        assert_eq!(harness.uploads("debian").await.len(), 0);
        assert_eq!(harness.cloud.state().orders.len(), 1);
    });
}

#[test]
fn a_failed_upload_is_retried_after_the_others() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.cloud.state().upload_failures.insert("one", 1);
        let two = "name: two, cloud: c, diskimages: [{name: debian}]";
        let _builder = harness.start_for(&[DEBIAN], &[TAKES_DEBIAN, two], |options| options.upload_workers = 1);
        harness.until_uploaded("debian", "one", 1).await;
        let order: Vec<String> = harness.cloud.state().orders.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(order, ["one", "two", "one"]);
        assert_eq!(harness.count_uploads("debian", "one", UploadState::Failed).await, 1);
        let uploads = harness.uploads("debian").await;
        let failed = uploads.iter().find(|(_, upload)| upload.state == UploadState::Failed).unwrap();
        assert_eq!((&failed.1.external_id, &failed.1.external_name, &failed.1.username), (&None, &None, &None));
    });
}

fn hook(harness: &BuilderHarness, script: &str) -> String {
    let path = harness.path("hook");
    executable::install(&path, &format!("#!/bin/sh\n{script}\n"));
    format!("name: one, cloud: c, post-upload-hook: {}, diskimages: [{{name: debian}}]", path.display())
}

#[test]
fn a_hook_runs_for_each_image_and_a_rejected_image_is_deleted() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let directory = harness.folder.path().display().to_string();
        let provider =
            hook(&harness, &format!("echo \"$1 $2 $3\" >> {directory}/hooked; test ! -e {directory}/refuse"));
        harness.create_flag_file("refuse");
        let _builder = harness.start_for(&[DEBIAN], &[&provider], |_| {});
        until("a rejected image", async || harness.count_uploads("debian", "one", UploadState::Failed).await > 0).await;
        until("its image to be deleted", async || harness.cloud.state().deletions > 0).await;
        harness.remove_flag_file("refuse");
        harness.until_uploaded("debian", "one", 1).await;
        let (build, _) = harness.builds("debian").await.remove(0);
        let uploads = harness.uploads("debian").await;
        let id = uploads.last().unwrap().1.external_id.clone().unwrap();
        let line = format!("one {id} {directory}/images/debian-{build}.qcow2");
        assert_eq!(std::fs::read_to_string(harness.path("hooked")).unwrap().lines().last(), Some(line.as_str()));
        assert_eq!(harness.cloud.ids(), [id.to_string()]);
    });
}

#[test]
fn a_hanging_hook_times_out_and_failed_deletion_is_recorded() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let provider = hook(&harness, "sleep 1000");
        harness.cloud.state().delete_failures = usize::MAX;
        let _builder = harness.start_for(&[DEBIAN], &[&provider], |options| {
            options.hook_timeout = Seconds(0.2);
            options.upload_interval = Seconds(1000.0);
        });
        until("a failure", async || harness.count_uploads("debian", "one", UploadState::Failed).await == 1).await;
        let [(_, failed)] = &harness.uploads("debian").await[..] else { panic!("one upload") };
        assert_eq!(failed.external_id, Some(ExternalId::text("image-1")));
    });
}

#[test]
fn an_upload_in_progress_elsewhere_is_not_repeated() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.put_foreign_build("debian", 10.0, &["qcow2"]).await;
        let (id, _) = harness.builds("debian").await.remove(0);
        let directory = paths::image_uploads_lock(&"debian".into(), &id, &"one".into());
        let lock = try_lock(&harness.zk, &directory, "").await.unwrap().expect("the lock is free");
        let file = harness.path("images").join(format!("debian-{id}.qcow2"));
        std::fs::write(&file, "image\n").unwrap();
        let elsewhere = "name: other, formats: [qcow2]";
        harness.put_foreign_build("other", 20.0, &["qcow2"]).await;
        let provider = "name: one, cloud: c, diskimages: [{name: debian}, {name: other}, {name: third}]";
        let third = "name: third, formats: [qcow2]";
        let _builder = harness.start_for(&["name: debian, formats: [qcow2]", elsewhere, third], &[provider], |_| {});
        harness.until_uploaded("third", "one", 1).await;
        assert_eq!((harness.uploads("debian").await.len(), harness.uploads("other").await.len()), (0, 0));
        lock.release().await.unwrap();
        harness.until_uploaded("debian", "one", 1).await;
        assert_eq!(harness.uploads("other").await.len(), 0);
    });
}

#[test]
fn an_invalid_image_name_format_creates_no_record() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let odd = "name: one, cloud: c, image-name-format: '{image_name}-{colour}', diskimages: [{name: debian}]";
        let two = "name: two, cloud: c, diskimages: [{name: debian}]";
        let _builder = harness.start_for(&[DEBIAN], &[odd, two], |_| {});
        harness.until_uploaded("debian", "two", 1).await;
        assert_eq!(harness.uploads("debian").await.len(), 1);
        assert_eq!(harness.cloud.orders_of("one").len(), 0);
    });
}

// The builder crashed during the upload, or between the upload and the write of its record.
#[test]
fn an_upload_of_a_dead_builder_is_resumed() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let builder = harness.start_for(&[DEBIAN], &[TAKES_DEBIAN], |_| {});
        harness.until_uploaded("debian", "one", 1).await;
        builder.process.stop();
        builder.running.await.unwrap();
        let (key, record) = harness.uploads("debian").await.remove(0);
        harness
            .set_upload(&key, |upload| {
                upload.state = UploadState::Uploading;
                upload.external_id = None;
            })
            .await;
        let _builder = harness.start_for(&[DEBIAN], &[TAKES_DEBIAN], |_| {});
        harness.until_uploaded("debian", "one", 1).await;
        let [(again, resumed)] = &harness.uploads("debian").await[..] else { panic!("one upload") };
        assert_eq!((again, &resumed.external_id), (&key, &record.external_id));
        assert!(harness.cloud.orders_of("one").last().unwrap().may_exist);
        assert_eq!(harness.cloud.ids().len(), 1);
    });
}

#[test]
fn an_added_provider_gets_the_newest_build_without_a_rebuild() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let builder = harness.start_for(&[DEBIAN], &[TAKES_DEBIAN], |_| {});
        harness.until_uploaded("debian", "one", 1).await;
        let two = "name: two, cloud: c, diskimages: [{name: debian}]";
        builder.reconfigure(harness.yaml(&[DEBIAN], &[TAKES_DEBIAN, two])).await;
        harness.until_uploaded("debian", "two", 1).await;
        assert_eq!(harness.count_builds("debian", BuildState::Ready).await, 1);
        assert_eq!(harness.uploads("debian").await.len(), 2);
    });
}

#[test]
fn uploads_run_in_parallel_only_across_workers() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.cloud.state().hanging_providers.push("one");
        let two = "name: two, cloud: c, diskimages: [{name: debian}]";
        let _builder = harness.start_for(&[DEBIAN], &[TAKES_DEBIAN, two], |options| options.upload_workers = 2);
        harness.until_uploaded("debian", "two", 1).await;
        assert_eq!(harness.count_uploads("debian", "one", UploadState::Uploading).await, 1);
    });
}

/// A cloud whose driver fails to open until the flag is set, as if clouds.yaml did not exist until then.
struct DelayedDrivers {
    is_available: Arc<AtomicBool>,
    cloud: ImageCloud,
}

impl ExtraDrivers for DelayedDrivers {
    fn names(&self) -> Vec<&'static str> {
        self.cloud.names()
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        match self.is_available.load(Relaxed) {
            true => self.cloud.open(section, start),
            false => Err(vec![Diagnostic::error(section.section.at, "no clouds.yaml")]),
        }
    }
}

#[test]
fn a_provider_that_starts_late_gets_its_uploads() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let is_available = Arc::<AtomicBool>::default();
        let drivers = DelayedDrivers { is_available: is_available.clone(), cloud: harness.cloud.clone() };
        let _builder = harness.start_with_drivers(&[DEBIAN], &[TAKES_DEBIAN], Box::new(drivers), |_| {});
        harness.until_built("debian", 1).await;
        is_available.store(true, Relaxed);
        harness.until_uploaded("debian", "one", 1).await;
    });
}

// Regression: launchers used the older image until the clock had reached its timestamp.
#[test]
fn an_upload_is_newer_than_one_with_a_future_timestamp() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let _builder = harness.start_for(&[DEBIAN], &[TAKES_DEBIAN], |_| {});
        harness.until_uploaded("debian", "one", 1).await;
        let (old, _) = harness.uploads("debian").await.remove(0);
        harness.set_upload(&old, |upload| upload.state_time = Timestamp(clock::now().0 + 3600.0)).await;
        harness.request_build("debian").await;
        harness.until_uploaded("debian", "one", 2).await;
        let newest = harness.uploads("debian").await.into_iter().max_by_key(|(_, upload)| upload.state_time);
        assert_ne!(newest.expect("there are two uploads").0.build, old.build);
    });
}
