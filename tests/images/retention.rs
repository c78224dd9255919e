//! Deletion and retention: old, interrupted and failed builds and uploads, images without a provider, and their files.

use std::collections::BTreeSet;
use std::path::Path;

use nodepool::actors::builder::builder::BuilderOptions;
use nodepool_drivers::common::image_files::ImagesDir;
use nodepool_model::records::ids::BuildId;
use nodepool_model::records::image_build::{BuildKey, BuildState};
use nodepool_model::records::image_upload::{UploadKey, UploadState};
use nodepool_model::records::time::Seconds;
use nodepool_zk::paths;
use testkit::in_process_builder::{Builder, BuilderHarness, names};
use testkit::in_process_launcher::{on_real_time, until};

const DEBIAN: &str = "name: debian, formats: [raw], elements: [vm]";
const ONE: &str = "name: one, cloud: c, diskimages: [{name: debian}]";
const TWO: &str = "name: two, cloud: c, diskimages: [{name: debian}]";

fn with_short_cleanup_interval(options: &mut BuilderOptions) {
    options.cleanup_interval = Seconds(0.2);
}

fn start(harness: &BuilderHarness, images: &[&str], providers: &[&str]) -> Builder {
    harness.start_for(images, providers, with_short_cleanup_interval)
}

/// Whether files or a claim of the build exist.
fn has_files(harness: &BuilderHarness, id: &BuildId) -> bool {
    let images = harness.path("images");
    let claims = images.join(".builds");
    let claims = if claims.exists() { names(&claims) } else { BTreeSet::new() };
    names(&images).iter().chain(&claims).any(|name| name.contains(id.as_str()))
}

fn formats(harness: &BuilderHarness, id: &BuildId) -> BTreeSet<String> {
    let prefix = format!("debian-{id}.");
    names(&harness.path("images")).iter().filter_map(|name| name.strip_prefix(&prefix)).map(str::to_owned).collect()
}

async fn until_deleted(harness: &BuilderHarness, id: &BuildId) {
    until(&format!("build {id} to be deleted"), async || {
        !harness.builds("debian").await.iter().any(|(existing, _)| existing == id) && !has_files(harness, id)
    })
    .await;
}

/// Requests another build and waits until all providers have it.
async fn build_again(harness: &BuilderHarness, providers: &[&str]) -> BuildId {
    let before: BTreeSet<BuildId> = harness.builds("debian").await.into_iter().map(|(id, _)| id).collect();
    harness.request_build("debian").await;
    let newest = async || {
        let builds = harness.builds("debian").await;
        builds.into_iter().find(|(id, build)| !before.contains(id) && build.state == BuildState::Ready)
    };
    until("another build", async || newest().await.is_some()).await;
    let (id, _) = newest().await.unwrap();
    for provider in providers {
        until(&format!("its upload to {provider}"), async || {
            let uploads = harness.uploads("debian").await;
            uploads.iter().any(|(key, upload)| {
                key.build == id && key.provider.as_str() == *provider && upload.state == UploadState::Ready
            })
        })
        .await;
    }
    id
}

#[test]
fn only_the_current_and_the_previous_build_are_kept() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let _builder = start(&harness, &[DEBIAN], &[ONE, TWO]);
        let mut ids = Vec::new();
        harness.until_uploaded("debian", "one", 1).await;
        ids.push(harness.builds("debian").await[0].0.clone());
        for _ in 0..2 {
            ids.push(build_again(&harness, &["one", "two"]).await);
        }
        until_deleted(&harness, &ids[0]).await;
        assert!(has_files(&harness, &ids[1]) && has_files(&harness, &ids[2]));
        until("its images to be deleted", async || harness.cloud.ids().len() == 4).await;
        assert_eq!(harness.uploads("debian").await.len(), 4);
        assert_eq!(harness.count_builds("debian", BuildState::Ready).await, 2);
    });
}

#[test]
fn an_old_build_is_kept_while_a_provider_has_nothing_newer() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let builder = start(&harness, &[DEBIAN], &[ONE, TWO]);
        harness.until_uploaded("debian", "one", 1).await;
        harness.until_uploaded("debian", "two", 1).await;
        let first = harness.builds("debian").await[0].0.clone();
        let paused = "name: two, cloud: c, diskimages: [{name: debian, pause: true}]";
        builder.reconfigure(harness.yaml(&[DEBIAN], &[ONE, paused])).await;
        for _ in 0..3 {
            build_again(&harness, &["one"]).await;
        }
        until("the surplus uploads of provider one to be deleted", async || {
            harness.count_uploads("debian", "one", UploadState::Ready).await == 2
        })
        .await;
        let uploads = harness.uploads("debian").await;
        assert!(uploads.iter().any(|(key, _)| key.build == first && key.provider.as_str() == "two"), "{uploads:?}");
        assert!(has_files(&harness, &first));
    });
}

#[test]
fn removing_an_image_from_a_provider_deletes_only_its_uploads() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let builder = start(&harness, &[DEBIAN], &[ONE, TWO]);
        harness.until_uploaded("debian", "one", 1).await;
        harness.until_uploaded("debian", "two", 1).await;
        builder.reconfigure(harness.yaml(&[DEBIAN], &["name: one, cloud: c, diskimages: []", TWO])).await;
        until("its uploads to be deleted", async || harness.uploads("debian").await.len() == 1).await;
        assert_eq!(harness.count_uploads("debian", "two", UploadState::Ready).await, 1);
        let ids = harness.cloud.ids();
        assert_eq!(ids.len(), 1, "{ids:?}");
        // Uploads of a provider that is no longer configured at all are not touched.
        builder.reconfigure(harness.yaml(&[DEBIAN], &["name: one, cloud: c, diskimages: []"])).await;
        build_again(&harness, &[]).await;
        assert_eq!(harness.count_uploads("debian", "two", UploadState::Ready).await, 1);
    });
}

#[test]
fn an_unconfigured_image_is_deleted_completely() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let builder = start(&harness, &[DEBIAN], &[ONE]);
        harness.until_uploaded("debian", "one", 1).await;
        let id = harness.builds("debian").await[0].0.clone();
        builder
            .reconfigure(harness.yaml(&["name: other, formats: [raw]"], &["name: one, cloud: c, diskimages: []"]))
            .await;
        until_deleted(&harness, &id).await;
        assert_eq!(harness.cloud.ids().len(), 0);
        assert!(harness.zk.exists(&paths::image(&"debian".into())).await.unwrap().is_some());
    });
}

#[test]
fn a_builder_without_the_provider_keeps_builds_of_others() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.put_foreign_build("debian", 10.0, &["raw"]).await;
        let _builder = start(&harness, &[DEBIAN, "name: other, formats: [raw]"], &[]);
        harness.until_built("other", 1).await;
        // Each failed build is deleted by a full clean-up, so several full clean-ups run.
        for age in [100.0, 200.0, 300.0] {
            harness.put_foreign_build("debian", age, &["raw"]).await;
            let builds = harness.builds("debian").await;
            let (failed, _) =
                builds.iter().min_by(|(_, one), (_, other)| one.state_time.0.total_cmp(&other.state_time.0)).unwrap();
            harness.set_build("debian", failed, BuildState::Failed).await;
            until_deleted(&harness, failed).await;
        }
        assert_eq!(harness.builds("debian").await.len(), 1);
    });
}

#[test]
fn files_are_deleted_first_and_cloud_deletion_is_retried() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let _builder = start(&harness, &[DEBIAN], &[ONE]);
        harness.until_uploaded("debian", "one", 1).await;
        let first = harness.builds("debian").await[0].0.clone();
        harness.cloud.state().delete_failures = 6;
        harness.set_build("debian", &first, BuildState::Deleting).await;
        until("its files to be deleted", async || !has_files(&harness, &first)).await;
        assert_eq!(harness.uploads("debian").await.iter().filter(|(key, _)| key.build == first).count(), 1);
        until_deleted(&harness, &first).await;
        assert!(harness.cloud.state().deletions >= 7);
        until("the upload of the rebuilt image", async || {
            harness.count_uploads("debian", "one", UploadState::Ready).await == 1
        })
        .await;
    });
}

#[test]
fn an_upload_deleted_by_command_is_uploaded_again() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        // With this interval no full clean-up runs.
        let _builder = harness.start_for(&[DEBIAN], &[ONE], |options| options.cleanup_interval = Seconds(1000.0));
        harness.until_uploaded("debian", "one", 1).await;
        let (key, _) = harness.uploads("debian").await.remove(0);
        harness.set_upload(&key, |upload| upload.state = UploadState::Deleting).await;
        until("another upload", async || {
            let uploads = harness.uploads("debian").await;
            uploads.len() == 1 && uploads[0].0 != key && uploads[0].1.state == UploadState::Ready
        })
        .await;
        let (again, _) = harness.uploads("debian").await.remove(0);
        assert_eq!(again.build, key.build);
        assert_eq!(harness.cloud.ids(), ["image-2"]);
    });
}

#[test]
fn cloud_images_of_a_dead_builder_are_deleted_before_their_record() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.put_foreign_build("debian", 10.0, &["qcow2"]).await;
        let (build, _) = harness.builds("debian").await.remove(0);
        let key = UploadKey {
            provider: "one".into(),
            image: "debian".into(),
            build: build.clone(),
            upload: "0000000007".into(),
        };
        testkit::in_process_launcher::image_records::record_upload(
            &harness.zk,
            &key,
            UploadState::Uploading,
            5.0,
            None,
        )
        .await;
        let marks = |upload: &'static str, provider: &'static str| {
            [
                ("nodepool_build_id", build.as_str()),
                ("nodepool_upload_id", upload),
                ("nodepool_provider_name", provider),
            ]
        };
        harness.cloud.put("leaked", &marks("0000000007", "one"));
        harness.cloud.put("another-upload", &marks("0000000001", "one"));
        harness.cloud.put("another-provider", &marks("0000000007", "two"));
        harness.cloud.put("foreign", &[]);
        let _builder = start(&harness, &["name: debian, formats: [qcow2]"], &[ONE]);
        until("the record to be deleted", async || harness.uploads("debian").await.is_empty()).await;
        assert_eq!(harness.cloud.ids(), ["another-provider", "another-upload", "foreign"]);
    });
}

#[test]
fn an_abandoned_record_is_deleted_without_the_image_of_a_ready_upload() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let _builder = start(&harness, &[DEBIAN], &[ONE]);
        harness.until_uploaded("debian", "one", 1).await;
        let (ready, upload) = harness.uploads("debian").await.remove(0);
        let abandoned = UploadKey { upload: "0000000099".into(), ..ready.clone() };
        let image = upload.external_id.as_ref().unwrap().to_string();
        testkit::in_process_launcher::image_records::record_upload(
            &harness.zk,
            &abandoned,
            UploadState::Uploading,
            5.0,
            Some(&image),
        )
        .await;
        until("the record to be deleted", async || harness.uploads("debian").await.len() == 1).await;
        assert_eq!(harness.uploads("debian").await[0].0, ready);
        assert_eq!(harness.cloud.ids(), [image]);
    });
}

#[test]
fn failed_builds_and_uploads_are_kept_until_the_next_full_cleanup() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.create_flag_file("fail");
        let _builder = harness.start_for(&[DEBIAN], &[ONE], |options| {
            options.cleanup_interval = Seconds(1.0);
            options.build_interval = Seconds(1000.0);
        });
        until("a failed build", async || harness.count_builds("debian", BuildState::Failed).await == 1).await;
        let id = harness.builds("debian").await[0].0.clone();
        until_deleted(&harness, &id).await;
        let harness = BuilderHarness::create();
        harness.cloud.state().upload_failures.insert("one", 1);
        let _builder = harness.start_for(&[DEBIAN], &[ONE], |options| {
            options.cleanup_interval = Seconds(1.0);
            options.upload_interval = Seconds(2.0);
        });
        until("a failed upload", async || harness.count_uploads("debian", "one", UploadState::Failed).await == 1).await;
        until("one ready upload", async || {
            let uploads = harness.uploads("debian").await;
            uploads.len() == 1 && uploads[0].1.state == UploadState::Ready
        })
        .await;
    });
}

#[test]
fn a_build_of_a_dead_builder_is_deleted_with_its_files() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.create_flag_file("hang");
        let builder = start(&harness, &[DEBIAN], &[ONE]);
        until("the command to run", async || !harness.calls().is_empty()).await;
        let id = harness.builds("debian").await[0].0.clone();
        harness.zookeeper.expire(builder.session_id);
        builder.running.await.unwrap();
        std::fs::write(harness.path("images").join(format!("debian-{id}.raw")), "partial").unwrap();
        harness.remove_flag_file("hang");
        let _builder = start(&harness, &[DEBIAN], &[ONE]);
        until_deleted(&harness, &id).await;
        harness.until_uploaded("debian", "one", 1).await;
    });
}

// Nodepool 11 deletes such files; this builder deletes only files of claimed builds.
#[test]
fn unrelated_files_are_never_deleted() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let foreign_files = ["notes-2024.txt", "debian-deadbeef.raw", "debian-11-abc.qcow2"];
        foreign_files.iter().for_each(|name| std::fs::write(harness.path("images").join(name), "x").unwrap());
        let _builder = start(&harness, &[DEBIAN], &[ONE]);
        harness.until_uploaded("debian", "one", 1).await;
        let first = harness.builds("debian").await[0].0.clone();
        harness.set_build("debian", &first, BuildState::Deleting).await;
        until_deleted(&harness, &first).await;
        assert!(foreign_files.iter().all(|name| harness.path("images").join(name).exists()));
    });
}

// The record is deleted while the builder that has the files is down. Files of Nodepool 11 have no claim at first.
#[test]
fn a_restarted_builder_deletes_files_of_its_previous_process() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let builder = harness.start_for(&[DEBIAN], &[ONE], |_| {});
        harness.until_uploaded("debian", "one", 1).await;
        builder.process.stop();
        builder.running.await.unwrap();
        let id = harness.builds("debian").await[0].0.clone();
        // Nodepool 11 leaves no claims.
        std::fs::remove_dir_all(harness.path("images/.builds")).unwrap();
        let builder = start(&harness, &[DEBIAN], &[ONE]);
        let claim = harness.path("images/.builds").join(format!("debian-{id}"));
        until("the claim", async || Path::exists(&claim)).await;
        builder.process.stop();
        builder.running.await.unwrap();
        // Another builder has deleted the record meanwhile.
        nodepool_zk::txn::delete_tree::delete_tree(harness.zk.as_ref(), &paths::image_build(&"debian".into(), &id))
            .await
            .unwrap();
        let _builder = start(&harness, &[DEBIAN], &[ONE]);
        until_deleted(&harness, &id).await;
    });
}

#[test]
fn formats_uploaded_everywhere_are_deleted_unless_kept() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.cloud.state().upload_failures.insert("three", usize::MAX);
        let image = "name: debian, delete-after-upload: true, keep-formats: [qcow2], elements: [vm]";
        let provider = |name: &str, format: &str| {
            format!("name: {name}, cloud: c, fake: {{image-format: {format}}}, diskimages: [{{name: debian}}]")
        };
        let providers = [provider("one", "qcow2"), provider("two", "raw"), provider("three", "vhd")];
        let providers = providers.each_ref().map(String::as_str);
        let builder = harness.start_for(&[image], &providers, with_short_cleanup_interval);
        harness.until_uploaded("debian", "one", 1).await;
        harness.until_uploaded("debian", "two", 1).await;
        let (id, _) = harness.builds("debian").await.remove(0);
        until("the raw file to be deleted", async || !formats(&harness, &id).contains("raw")).await;
        let sums = |format: &str| [format.to_owned(), format!("{format}.md5"), format!("{format}.sha256")];
        let expected: BTreeSet<String> = ["d".to_owned()].into_iter().chain(sums("qcow2")).chain(sums("vhd")).collect();
        assert_eq!(formats(&harness, &id), expected);
        // The `.d` folder is deleted only with the build, regardless of the formats that remain.
        builder.reconfigure(harness.yaml(&["name: other, formats: [raw]"], &[])).await;
        harness.until_built("other", 1).await;
        assert_eq!(
            harness.count_builds("debian", BuildState::Ready).await,
            1,
            "uploads of unconfigured providers keep the build"
        );
    });
}

#[test]
fn a_build_without_its_directory_is_deleted() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let _builder = start(&harness, &[DEBIAN], &[ONE]);
        harness.until_uploaded("debian", "one", 1).await;
        let (id, _) = harness.builds("debian").await.remove(0);
        std::fs::remove_dir_all(harness.path("images").join(format!("debian-{id}.d"))).unwrap();
        harness.set_build("debian", &id, BuildState::Deleting).await;
        until_deleted(&harness, &id).await;
    });
}

#[test]
fn an_upload_that_failed_and_could_not_be_deleted_is_deleted_later() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.put_foreign_build("debian", 10.0, &["qcow2"]).await;
        let (build, _) = harness.builds("debian").await.remove(0);
        let key = UploadKey { provider: "one".into(), image: "debian".into(), build, upload: "0000000001".into() };
        harness.cloud.put("leaked", &[]);
        testkit::in_process_launcher::image_records::record_upload(
            &harness.zk,
            &key,
            UploadState::Failed,
            5.0,
            Some("leaked"),
        )
        .await;
        let _builder = start(&harness, &["name: debian, formats: [qcow2]"], &[ONE]);
        until("the record to be deleted", async || harness.uploads("debian").await.is_empty()).await;
        assert!(harness.cloud.ids().is_empty());
    });
}

// If a builder dies while a cloud stores its image, the image may appear only after the search for it.
#[test]
fn a_late_cloud_image_is_deleted_with_its_upload() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let _builder = start(&harness, &[DEBIAN], &[ONE]);
        harness.until_uploaded("debian", "one", 1).await;
        let (key, _) = harness.uploads("debian").await.remove(0);
        let marks = key.marks();
        let marks: Vec<(&str, &str)> = marks.iter().map(|(mark, value)| (mark.as_str(), value.as_str())).collect();
        harness.cloud.put("late", &marks);
        harness.set_upload(&key, |upload| upload.state = UploadState::Deleting).await;
        until("both images to be deleted", async || {
            let ids = harness.cloud.ids();
            !ids.contains(&"late".to_owned()) && !ids.contains(&"image-1".to_owned())
        })
        .await;
    });
}

#[test]
fn files_of_an_old_build_are_deleted_during_a_rebuild() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        harness.create_flag_file("hang");
        let _builder = start(&harness, &[DEBIAN], &[ONE]);
        until("the command to run", async || !harness.calls().is_empty()).await;
        let before = BuildKey { image: "debian".into(), build: "00000000deadbeef".into() };
        let images = ImagesDir::new(harness.path("images"));
        images.claim(&before).unwrap();
        std::fs::write(images.file(&before, "raw"), "partial").unwrap();
        until("the files of the failed build to be deleted", async || !images.file(&before, "raw").exists()).await;
        assert_eq!(harness.calls().len(), 1, "the same build is still running");
    });
}

// The cloud may have images of failed uploads, so the records of the uploads are kept until the images can be listed.
// The number of these records is bounded.
#[test]
fn failed_uploads_do_not_accumulate_while_a_cloud_is_down() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        {
            let mut state = harness.cloud.state();
            state.upload_failures.insert("one", usize::MAX);
            state.lists_fail = true;
        }
        let _builder = harness.start_for(&[DEBIAN], &[ONE], |options| {
            options.cleanup_interval = Seconds(0.2);
            options.upload_interval = Seconds(0.05);
        });
        let mut max_records = 0;
        until("thirty attempts", async || {
            max_records = max_records.max(harness.uploads("debian").await.len());
            harness.cloud.orders_of("one").len() >= 30
        })
        .await;
        assert!(max_records <= 4, "{max_records} records of one upload");
        {
            let mut state = harness.cloud.state();
            state.upload_failures.clear();
            state.lists_fail = false;
        }
        until("exactly one upload, which is ready", async || {
            let uploads = harness.uploads("debian").await;
            uploads.len() == 1 && uploads[0].1.state == UploadState::Ready
        })
        .await;
        assert_eq!(harness.cloud.ids().len(), 1);
    });
}
