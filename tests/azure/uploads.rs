//! Uploads and deletions of images.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nodepool_driver::job::{Job, Outcome};
use nodepool_model::config::upload_config::{Progress, UploadOrder};
use nodepool_model::records::ids::ExternalId;
use serde_json::json;
use sha2::{Digest, Sha256};
use testkit::clouds::azurite::Azurite;
use testkit::in_process_launcher::on_real_time;
use testkit::real;
use testkit::real::python::{self, Interpreter};

use crate::driver::{Harness, encode};

/// The name of an upload, and the mark of its provider.
const IMAGE: &str = "built-1700000001-9c0ada37";
const SIZE: usize = 9 * 1024 * 1024 + 512;
const PYTHON_TIMEOUT: Duration = Duration::from_secs(120);
const FLAGS: [&str; 4] = ["--check-footer", "false", "--upload-minimum", "512"];

fn order(folder: &Path) -> UploadOrder {
    let file = folder.join("image.vhd");
    std::fs::write(&file, vec![7; SIZE]).unwrap();
    let marks = [("nodepool_build_id", "b1"), ("nodepool_upload_id", "u1"), ("nodepool_provider_name", "az")];
    UploadOrder {
        image: "built".into(),
        name: "built-1700000001".to_owned(),
        file,
        size: SIZE as u64,
        format: "vhd".to_owned(),
        meta: BTreeMap::from([("team".to_owned(), json!("ci"))]),
        marks: marks.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        md5: None,
        sha256: None,
        may_exist: false,
        progress: Progress::default(),
    }
}

#[test]
fn an_image_is_uploaded_once_and_its_deletion_ends() {
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = Harness::start(&FLAGS, "", "", "").await;
        let id = ExternalId::text(IMAGE);
        let uploaded = harness.provider.run(Job::Upload(Arc::new(order(folder.path())))).await;
        assert_eq!(uploaded, Ok(Outcome::Uploaded(id.clone())));
        assert_eq!(harness.cloud.names("images").await, [IMAGE]);
        assert_eq!(harness.cloud.names("disks").await, Vec::<String>::new());
        let again = UploadOrder { may_exist: true, ..order(folder.path()) };
        let again = harness.provider.run(Job::Upload(Arc::new(again))).await;
        assert_eq!(again, Ok(Outcome::Uploaded(id.clone())));
        assert_eq!(harness.cloud.calls("image.create").await.len(), 1);
        assert_eq!(harness.provider.run(Job::DeleteImage(id.clone())).await, Ok(Outcome::Deleted));
        harness.assert_empty().await;
        let gone = harness.provider.run(Job::DeleteImage(id)).await;
        assert_eq!(gone.unwrap_err().kind(), "not-found");
    });
}

#[test]
fn a_failed_upload_fails_and_leaves_nothing() {
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = Harness::start(&FLAGS, "", "", "").await;
        for fault in ["403 action=pages.create", "InternalServerError in=operation action=image.create"] {
            harness.cloud.knobs(json!({"faults": [fault]})).await;
            let failed = harness.provider.run(Job::Upload(Arc::new(order(folder.path())))).await.unwrap_err();
            assert!(!failed.to_string().contains("sig="), "{failed}");
            harness.assert_empty().await;
        }
    });
}

#[test]
fn what_an_earlier_attempt_left_is_used_or_deleted() {
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = Harness::start(&FLAGS, "", "", "").await;
        let upload = order(folder.path());
        let marks = serde_json::to_string(&upload.marks).unwrap();
        // An earlier attempt has other names; others have the same marks for another image.
        for what in ["disk&prefix=built-1600000000", "disk&prefix=other-1600000000"] {
            harness.cloud.control(&format!("create?count=1&kind={what}&tags={}", encode(&marks))).await;
        }
        let order = UploadOrder { may_exist: true, ..upload };
        let uploaded = harness.provider.run(Job::Upload(Arc::new(order.clone()))).await;
        assert_eq!(uploaded, Ok(Outcome::Uploaded(ExternalId::text(IMAGE))));
        assert_eq!(harness.cloud.resources().await, ["disks other-1600000000", &format!("images {IMAGE}")]);
        // The image is found also by an attempt with another name.
        let order = UploadOrder { name: "built-1800000000".to_owned(), ..order };
        let again = harness.provider.run(Job::Upload(Arc::new(order))).await;
        assert_eq!(again, Ok(Outcome::Uploaded(ExternalId::text(IMAGE))));
        assert_eq!(harness.cloud.calls("image.create").await.len(), 1);
    });
}

#[test]
fn images_and_disks_of_others_are_neither_replaced_nor_deleted() {
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = Harness::start(&FLAGS, "", "", "").await;
        for kind in ["disk", "image"] {
            harness.cloud.control(&format!("create?count=1&kind={kind}&prefix={IMAGE}")).await;
            let failed = harness.provider.run(Job::Upload(Arc::new(order(folder.path())))).await.unwrap_err();
            assert!(failed.to_string().contains("another owner"), "{failed}");
        }
        let deleted = harness.provider.run(Job::DeleteImage(ExternalId::text(IMAGE))).await;
        assert_eq!(deleted.unwrap_err().kind(), "not-found");
        assert_eq!(harness.cloud.resources().await.len(), 2);
    });
}

#[test]
fn one_failed_look_at_an_operation_does_not_fail_an_upload() {
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = Harness::start(&FLAGS, "", "", "").await;
        for kind in ["500", "closed", "truncated", "403"] {
            harness.cloud.knobs(json!({"faults": [format!("{kind} action=operation times=1")]})).await;
            let uploaded = harness.provider.run(Job::Upload(Arc::new(order(folder.path())))).await;
            assert_eq!(uploaded, Ok(Outcome::Uploaded(ExternalId::text(IMAGE))), "{kind}");
            harness.provider.run(Job::DeleteImage(ExternalId::text(IMAGE))).await.unwrap();
        }
        assert_eq!(harness.cloud.calls("disk.create").await.len(), 4);
    });
}

/// Microsoft's emulator of blobs takes the pages as Azure does.
#[test]
fn azurite_accepts_the_pages_of_an_upload() {
    let Some(program) = Azurite::program() else {
        // Written to the stream itself: the test harness captures the output of a test that passes.
        let line = "SKIPPED: azurite is not installed (tests/run installs it if npm is there)\n";
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return;
    };
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = Harness::start(&FLAGS, "", "", "").await;
        let azurite = Azurite::start(program).await;
        let ask = async |arguments: &[&str]| {
            let arguments = [&[azurite.base()], arguments].concat();
            let printed = python::run(Interpreter::Azure, "azure_blob.py", &arguments, PYTHON_TIMEOUT).await;
            printed[0].as_str().unwrap().to_owned()
        };
        let url = ask(&["create", &SIZE.to_string()]).await;
        harness.cloud.knobs(json!({"page_blob_url": url})).await;
        let upload = order(folder.path());
        let content: Vec<u8> = (0..SIZE).map(|at| (at / 512 % 251) as u8).collect();
        std::fs::write(&upload.file, &content).unwrap();
        let uploaded = harness.provider.run(Job::Upload(Arc::new(upload))).await;
        assert_eq!(uploaded, Ok(Outcome::Uploaded(ExternalId::text(IMAGE))));
        let expected: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(ask(&["read"]).await, expected);
    });
}

#[test]
fn a_disk_with_a_footer_is_uploaded_as_it_is() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = Harness::start(&[], "", "", "").await;
        let file = folder.path().join("disk.vhd");
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", "vpc", "-o", "subformat=fixed,force_size=on"]).arg(&file).arg("21M");
        assert!(command.status().unwrap().success());
        let size = std::fs::metadata(&file).unwrap().len();
        let upload = UploadOrder { file, size, ..order(folder.path()) };
        let uploaded = harness.provider.run(Job::Upload(Arc::new(upload))).await;
        assert_eq!(uploaded, Ok(Outcome::Uploaded(ExternalId::text(IMAGE))));
    });
}
