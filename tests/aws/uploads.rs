//! Uploads of images to moto: the three import methods, faults, and the deletion of what they make.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use nodepool_driver::error::CloudError;
use nodepool_driver::job::{Job, JobEvent, Outcome};
use nodepool_model::config::upload_config::{
    BUILD_MARK, PROVIDER_MARK, Progress, StoredImage, UPLOAD_MARK, UploadOrder,
};
use nodepool_model::records::ids::ExternalId;
use serde_json::json;
use testkit::in_process_launcher::on_real_time;
use testkit::real;

use crate::driver::AwsHarness;

/// More than one part of an object, and the last block of a snapshot is not full.
const SIZE: usize = 20 * 1024 * 1024 + 1000;

fn image_file(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("debian.raw");
    let content: Vec<u8> = (0..SIZE).map(|index| (index / 1000) as u8).collect();
    std::fs::write(&path, content).unwrap();
    path
}

fn marks(upload: &str) -> BTreeMap<String, String> {
    let marks = [(BUILD_MARK, "b1"), (UPLOAD_MARK, upload), (PROVIDER_MARK, "west")];
    marks.map(|(mark, value)| (mark.to_owned(), value.to_owned())).into()
}

fn order(folder: &Path, upload: &str, may_exist: bool) -> UploadOrder {
    UploadOrder {
        image: "debian".into(),
        name: format!("debian-170000000{upload}"),
        file: image_file(folder),
        size: SIZE as u64,
        format: "raw".to_owned(),
        meta: BTreeMap::from([("team".to_owned(), json!("ci"))]),
        marks: marks(upload),
        md5: None,
        sha256: None,
        may_exist,
        progress: Progress::default(),
    }
}

fn upload(order: UploadOrder) -> Job {
    Job::Upload(Arc::new(order))
}

async fn start(method: &str) -> AwsHarness {
    let provider = format!(
        "object-storage: {{bucket-name: nodepool-images}}, diskimages: [{{name: debian, import-method: {method}, \
         tags: {{team: ci}}, volume-type: gp3, volume-size: 30, iops: 4000}}], image-import-timeout: 60"
    );
    AwsHarness::start(&provider, "", "").await
}

async fn stored(harness: &mut AwsHarness) -> Vec<StoredImage> {
    let listed = harness.provider.run(Job::ListImages).await.unwrap();
    let Outcome::Images(images) = listed else { panic!("{listed:?}") };
    images.into_iter().filter(|image| image.meta.contains_key(UPLOAD_MARK)).collect()
}

async fn objects(harness: &AwsHarness) -> usize {
    harness.ec2.objects("nodepool-images").await.len()
}

async fn upload_and_delete(method: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = start(method).await;
    let order = order(folder.path(), "1", false);
    let progress = order.progress.clone();
    let uploaded = harness.provider.run(upload(order)).await.unwrap();
    let Outcome::Uploaded(id) = uploaded else { panic!("{uploaded:?}") };
    assert!(id.to_string().starts_with("ami-"), "{id}");
    assert_eq!(progress.get(), SIZE as u64);
    assert_eq!(objects(&harness).await, 0, "the object was only for the import");
    let images = stored(&mut harness).await;
    let [image] = &images[..] else { panic!("{images:?}") };
    assert!(image.id == id && image.has_marks(&marks("1")), "{image:?}");
    assert_eq!(image.meta.get("team").map(String::as_str), Some("ci"));
    assert_eq!(harness.provider.run(Job::DeleteImage(id.clone())).await, Ok(Outcome::Deleted));
    assert_eq!(stored(&mut harness).await, [], "its snapshots are deleted with it");
    let gone = harness.provider.run(Job::DeleteImage(id)).await.unwrap_err();
    assert!(matches!(gone, CloudError::NotFound(_)), "{gone}");
}

#[test]
fn an_image_is_imported_as_a_snapshot_and_deleted() {
    if real::skipped() {
        return;
    }
    on_real_time(upload_and_delete("snapshot"));
}

#[test]
fn an_image_is_imported_as_an_image_and_deleted() {
    if real::skipped() {
        return;
    }
    on_real_time(upload_and_delete("image"));
}

#[test]
fn an_image_is_written_block_by_block_and_deleted() {
    if real::skipped() {
        return;
    }
    on_real_time(upload_and_delete("ebs-direct"));
}

#[test]
fn blocks_that_were_written_are_not_sent_again() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = start("ebs-direct").await;
        let fault = json!({"action": "PutSnapshotBlock", "skip": 7, "times": 3, "error": {"code": "InternalServerException", "status": 500}});
        harness.rule(fault).await;
        let uploaded = harness.provider.run(upload(order(folder.path(), "1", false))).await;
        assert!(matches!(uploaded, Ok(Outcome::Uploaded(_))), "{uploaded:?}");
        assert_eq!(harness.count("PutSnapshotBlock").await, SIZE.div_ceil(512 * 1024) + 3);
    });
}

#[test]
fn a_part_whose_credentials_have_expired_is_sent_again() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        for (method, action, code) in
            [("snapshot", "UploadPart", "ExpiredToken"), ("ebs-direct", "PutSnapshotBlock", "ExpiredTokenException")]
        {
            let mut harness = start(method).await;
            harness.rule(json!({"action": action, "times": 1, "error": {"code": code, "status": 400}})).await;
            // One part.
            let order = UploadOrder { size: 1000, ..order(folder.path(), "1", false) };
            let uploaded = harness.provider.run(upload(order)).await;
            assert!(matches!(uploaded, Ok(Outcome::Uploaded(_))), "{uploaded:?}");
            assert_eq!(harness.count(action).await, 2, "{action}");
        }
    });
}

#[test]
fn a_failed_import_names_its_reason_and_leaves_nothing() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        for method in ["snapshot", "image"] {
            let mut harness = start(method).await;
            harness.moto.set_knobs(json!({"imports": {"failure": "ClientError: no partition table"}})).await;
            let failed = harness.provider.run(upload(order(folder.path(), "1", false))).await.unwrap_err();
            assert!(failed.to_string().contains("no partition table"), "{failed}");
            assert_eq!((objects(&harness).await, stored(&mut harness).await), (0, vec![]));
        }
    });
}

#[test]
fn an_image_of_an_earlier_attempt_is_used() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = start("snapshot").await;
        let uploaded = harness.provider.run(upload(order(folder.path(), "1", false))).await.unwrap();
        assert_eq!(harness.provider.run(upload(order(folder.path(), "1", true))).await.unwrap(), uploaded);
        assert_eq!(stored(&mut harness).await.len(), 1);
    });
}

#[test]
fn the_image_of_another_upload_with_the_same_name_is_not_taken() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = start("ebs-direct").await;
        harness.provider.run(upload(order(folder.path(), "1", false))).await.unwrap();
        let same_name = UploadOrder { marks: marks("2"), ..order(folder.path(), "1", false) };
        harness
            .rule(json!({"action": "RegisterImage", "times": 1, "error": {"code": "InvalidAMIName.Duplicate"}}))
            .await;
        let failed = harness.provider.run(upload(same_name)).await.unwrap_err();
        assert!(failed.to_string().contains("another AMI has the name"), "{failed}");
    });
}

#[test]
fn an_account_that_may_not_read_imports_writes_blocks() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = start("ebs-direct").await;
        for action in ["DescribeImportSnapshotTasks", "DescribeImportImageTasks"] {
            harness.rule(json!({"action": action, "times": 100, "error": {"code": "UnauthorizedOperation"}})).await;
        }
        let uploaded = harness.provider.run(upload(order(folder.path(), "1", false))).await.unwrap();
        assert_eq!(harness.provider.run(upload(order(folder.path(), "1", true))).await.unwrap(), uploaded);
        assert_eq!(stored(&mut harness).await.len(), 1);
    });
}

#[test]
fn lost_responses_make_no_second_image() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = start("snapshot").await;
        for action in ["CompleteMultipartUpload", "ImportSnapshot", "RegisterImage"] {
            harness.rule(json!({"action": action, "times": 1, "cut": "after"})).await;
        }
        let uploaded = harness.provider.run(upload(order(folder.path(), "1", false))).await;
        assert!(matches!(uploaded, Ok(Outcome::Uploaded(_))), "{uploaded:?}");
        let images = stored(&mut harness).await;
        assert_eq!(images.len(), 1, "{images:?}");
        assert_eq!(objects(&harness).await, 0);
    });
}

#[test]
fn an_object_that_a_broken_upload_left_is_found_and_deleted() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = start("snapshot").await;
        harness.moto.set_knobs(json!({"imports": {"polls": 100}})).await;
        harness.provider.submit(1, upload(order(folder.path(), "1", false)));
        loop {
            if let (1, JobEvent::InstanceKnown(id)) = harness.provider.next().await {
                assert_eq!(id, ExternalId::text("object:debian-1700000001.raw"));
                break;
            }
        }
        testkit::wait::until("the import to begin", std::time::Duration::from_secs(60), async || {
            harness.count("ImportSnapshot").await == 1
        })
        .await;
        harness.provider.abandon(1);
        harness.provider.wait_for_end().await.1.unwrap_err();
        let images = stored(&mut harness).await;
        let object = images.iter().find(|image| image.id.to_string().starts_with("object:")).expect("it is listed");
        assert!(object.has_marks(&marks("1")));
        for image in images {
            assert_eq!(harness.provider.run(Job::DeleteImage(image.id)).await, Ok(Outcome::Deleted));
        }
        assert_eq!(objects(&harness).await, 0);
    });
}
