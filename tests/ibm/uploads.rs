//! Uploads of images: to a bucket of moto, and imports from there into the simulated IBM VPC, which does not read them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nodepool_driver::error::CloudError;
use nodepool_driver::job::{Job, JobEvent, Outcome};
use nodepool_model::config::upload_config::{
    BUILD_MARK, PROVIDER_MARK, Progress, StoredImage, UPLOAD_MARK, UploadOrder,
};
use nodepool_model::records::ids::ExternalId;
use serde_json::json;
use testkit::clouds::moto::{BUCKET, Moto};
use testkit::clouds::simulated_ibm::SimulatedIbm;
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::launch_order;
use testkit::{real, wait};

use crate::driver::{Harness, QUICK};

/// More than one part of an object.
const SIZE: usize = 20 * 1024 * 1024 + 1000;
const BUILDS: [&str; 2] = ["1e998824122a4ab296c43fedc6d46c1a", "2e998824122a4ab296c43fedc6d46c1b"];
const TIMEOUT: Duration = Duration::from_secs(60);

fn marks(build: &str, upload: &str) -> BTreeMap<String, String> {
    let marks = [(BUILD_MARK, build), (UPLOAD_MARK, upload), (PROVIDER_MARK, "dallas")];
    marks.map(|(mark, value)| (mark.to_owned(), value.to_owned())).into()
}

fn order(folder: &Path, build: &str, may_exist: bool) -> UploadOrder {
    let file = folder.join("built.qcow2");
    std::fs::write(&file, (0..SIZE).map(|index| (index / 1000) as u8).collect::<Vec<u8>>()).unwrap();
    UploadOrder {
        image: "built".into(),
        name: "npimage0000000001".to_owned(),
        file,
        size: SIZE as u64,
        format: "qcow2".to_owned(),
        meta: BTreeMap::new(),
        marks: marks(build, "0000000001"),
        md5: None,
        sha256: None,
        may_exist,
        progress: Progress::default(),
    }
}

fn upload(order: UploadOrder) -> Job {
    Job::Upload(Arc::new(order))
}

pub fn section(moto: &Moto) -> String {
    format!(
        "object-storage: {{instance-name: nodepool-cos, endpoint: '{}', bucket-name: {BUCKET}}}, diskimages: \
         [{{name: built, operating-system: debian-12-amd64}}]",
        moto.base()
    )
}

/// A provider with tokens, and the S3 server with its bucket.
async fn start(flags: &[&str]) -> (Moto, Harness) {
    let moto = Moto::start().await;
    moto.bucket(BUCKET).await;
    let cloud = SimulatedIbm::start_with_tokens(&[&QUICK[..], &["--image-s", "1"], flags].concat()).await;
    let harness = Harness::on(cloud, &section(&moto), "", "diskimage: built").await;
    (moto, harness)
}

async fn stored(harness: &mut Harness) -> Vec<StoredImage> {
    let listed = harness.provider.run(Job::ListImages).await.unwrap();
    let Outcome::Images(images) = listed else { panic!("{listed:?}") };
    images
}

async fn uploaded(harness: &mut Harness, order: UploadOrder) -> ExternalId {
    match harness.provider.run(upload(order)).await {
        Ok(Outcome::Uploaded(id)) => id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn images_of_two_builds_are_uploaded_booted_and_deleted() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let (_moto, mut harness) = start(&[]).await;
        // Nothing was uploaded yet: the bucket is empty, and the group of images does not exist.
        assert_eq!(stored(&mut harness).await, []);
        let order_of = |build| order(folder.path(), build, false);
        let first = order_of(BUILDS[0]);
        let progress = first.progress.clone();
        let ids = [uploaded(&mut harness, first).await, uploaded(&mut harness, order_of(BUILDS[1])).await];
        assert_eq!(progress.get(), SIZE as u64);
        let images = stored(&mut harness).await;
        assert_eq!(images.len(), 2, "the objects were only for the import: {images:?}");
        for (id, build) in ids.iter().zip(BUILDS) {
            let image = images.iter().find(|image| image.id == *id).unwrap();
            assert!(image.has_marks(&marks(build, "0000000001")), "{image:?}");
        }
        let imports = harness.cloud.calls("create_image").await;
        let href = imports[0]["body"]["file"]["href"].as_str().unwrap();
        assert!(href.starts_with("cos://us-west/nodepool-images/npimage0000000001-1e99"), "{href}");

        let mut launch = launch_order("dallas", "0000000001", 1);
        launch.image = Some(ids[0].clone());
        harness.launch_as(launch).await.unwrap();
        let creation = &harness.cloud.calls("create_instance").await[0];
        assert_eq!(creation["body"]["image"], json!({"id": ids[0].to_string()}));

        for id in ids {
            assert_eq!(harness.provider.run(Job::DeleteImage(id.clone())).await, Ok(Outcome::Deleted));
            let gone = harness.provider.run(Job::DeleteImage(id)).await.unwrap_err();
            assert!(matches!(gone, CloudError::NotFound(_)), "{gone}");
        }
        assert_eq!(stored(&mut harness).await, []);
    });
}

#[test]
fn an_image_of_an_earlier_attempt_is_used() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let (_moto, mut harness) = start(&[]).await;
        let id = uploaded(&mut harness, order(folder.path(), BUILDS[0], false)).await;
        assert_eq!(uploaded(&mut harness, order(folder.path(), BUILDS[0], true)).await, id);
        assert_eq!(harness.cloud.calls("create_image").await.len(), 1);
    });
}

#[test]
fn lost_responses_make_no_second_image() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let faults = [
            "--fault",
            "lost-answer action=create_image times=1",
            "--fault",
            "lost-answer action=create_resource_group times=1",
        ];
        let (moto, mut harness) = start(&faults).await;
        moto.add_rule(json!({"action": "CompleteMultipartUpload", "times": 1, "cut": "after"})).await;
        uploaded(&mut harness, order(folder.path(), BUILDS[0], false)).await;
        assert_eq!(stored(&mut harness).await.len(), 1);
    });
}

#[test]
fn failed_looks_at_an_import_do_not_fail_it() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let (_moto, mut harness) = start(&[]).await;
        let faults = ["500", "404", "403", "closed", "truncated"];
        let faults = faults.map(|kind| format!("{kind} action=get_image times=1"));
        harness.cloud.knobs(json!({"faults": faults})).await;
        uploaded(&mut harness, order(folder.path(), BUILDS[0], false)).await;
        assert_eq!(harness.cloud.calls("create_image").await.len(), 1);
    });
}

#[test]
fn a_failed_import_names_its_reason_and_leaves_nothing() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let (_moto, mut harness) = start(&["--image-fault", "image_data_corrupted times=1"]).await;
        harness.provider.submit(1, upload(order(folder.path(), BUILDS[0], false)));
        let mut known = Vec::new();
        let failed = loop {
            match harness.provider.next().await {
                (1, JobEvent::InstanceKnown(id)) => known.push(id),
                (1, JobEvent::Finished(result)) => break result.unwrap_err(),
                _ => {}
            }
        };
        assert!(failed.to_string().contains("image_data_corrupted"), "{failed}");
        let image = known.pop().unwrap();
        assert!(known[0].to_string().starts_with("object:npimage0000000001-"), "{known:?}");
        // The deletion of the failed image deletes the object, too.
        assert_eq!(stored(&mut harness).await.len(), 2);
        assert_eq!(harness.provider.run(Job::DeleteImage(image)).await, Ok(Outcome::Deleted));
        assert_eq!(stored(&mut harness).await, []);
    });
}

#[test]
fn what_a_broken_upload_left_is_replaced() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let (_moto, mut harness) = start(&["--fault", "hang action=create_image times=1"]).await;
        harness.cloud.knobs(json!({"hang_s": 5})).await;
        harness.provider.submit(1, upload(order(folder.path(), BUILDS[0], false)));
        wait::until("the import to begin", TIMEOUT, async || harness.cloud.calls("create_image").await.len() == 1)
            .await;
        harness.provider.abandon(1);
        harness.provider.wait_for_end().await.1.unwrap_err();
        let left = stored(&mut harness).await;
        assert!(left.len() == 1 && left[0].id.to_string().starts_with("object:"), "{left:?}");
        uploaded(&mut harness, order(folder.path(), BUILDS[0], true)).await;
        assert_eq!(stored(&mut harness).await.len(), 1);
    });
}
