//! The real diskimage-builder: an image in two formats from an element that needs no network, and its upload to Glance.
//!
//! The test runs only with `tests/run`: on the simulated cloud, and on a real one if OS_CLIENT_CONFIG_FILE and OS_CLOUD
//! name it.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nodepool_drivers::common::checksums;
use nodepool_model::records::image_build::BuildState;
use nodepool_model::records::image_upload::UploadState;
use serde_json::{Value, json};
use testkit::diskimage_builder::{has_loop_devices, tools};
use testkit::in_process_builder::BuilderHarness;
use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::clouds;
use testkit::openstack_harness::in_process_driver::InProcessDriver;
use testkit::{programs, real, wait};

const BUILD_TIMEOUT: Duration = Duration::from_secs(300);

fn begins_with(file: &Path, magic: &[u8]) -> bool {
    let mut start = vec![0; magic.len()];
    std::fs::File::open(file).unwrap().read_exact(&mut start).unwrap();
    start == magic
}

// The checksums of diskimage-builder are used as they are.
#[test]
fn a_real_image_is_built_in_two_formats_and_uploaded_intact() {
    if real::skipped() || !has_loop_devices() {
        return;
    }
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let (harness, tools) = (BuilderHarness::create(), tools());
            let path = format!("{}:{}:/usr/sbin:/sbin", tools.display(), std::env::var("PATH").unwrap_or_default());
            let elements = programs::repository().join("tests/elements");
            // The image of 1 GiB has room for the journal of its file system.
            let image = json!({
                "name": "tiny", "formats": ["raw", "qcow2"], "elements": ["tiny"], "build-timeout": 300,
                "dib-cmd": format!("{}/disk-image-create -n", tools.display()),
                "env-vars": {"PATH": path, "DIB_IMAGE_SIZE": "1"},
            });
            let provider = format!("test-{}", uuid::Uuid::new_v4().simple());
            let yaml = |images: Value| {
                json!({
                    "zookeeper-servers": [{"host": "localhost", "port": 2181}], "images-dir": harness.path("images"),
                    "build-log-dir": harness.path("logs"), "elements-dir": elements, "diskimages": [image],
                    "providers": [{
                        "name": provider, "driver": "openstack", "cloud": cloud.name, "diskimages": images,
                        "pools": [{"name": "main", "labels": []}],
                    }],
                })
                .to_string()
            };
            let drivers = Box::new(InProcessDriver(cloud.clouds_yaml.clone()));
            let builder = harness.start_with_yaml(&yaml(json!([{"name": "tiny"}])), drivers, |options| {
                options.cleanup_interval = nodepool_model::records::time::Seconds(0.5);
            });
            let log = || {
                let logs = std::fs::read_dir(harness.path("logs")).into_iter().flatten().flatten();
                logs.map(|entry| std::fs::read_to_string(entry.path()).unwrap_or_default()).collect::<String>()
            };
            wait::until("the upload", BUILD_TIMEOUT, async || {
                assert_eq!(harness.count_builds("tiny", BuildState::Failed).await, 0, "{}", log());
                harness.count_uploads("tiny", &provider, UploadState::Ready).await == 1
            })
            .await;
            let (id, build) = harness.builds("tiny").await.remove(0);
            assert_eq!(build.formats.iter().map(String::as_str).collect::<Vec<_>>(), ["qcow2", "raw"]);
            let file = |format: &str| harness.path("images").join(format!("tiny-{id}.{format}"));
            assert!(begins_with(&file("qcow2"), b"QFI\xfb"));
            assert_eq!(std::fs::metadata(file("raw")).unwrap().len(), 1 << 30);
            assert!(log().ends_with("Exit code: 0\n"));
            let sums = checksums::compute(&file("qcow2"), &Arc::default()).unwrap();
            assert_eq!(checksums::read(&file("qcow2")), sums);
            let client = cloud.client().await;
            let uploaded = harness.uploads("tiny").await[0].1.external_id.clone().unwrap();
            let image = client.get("image", &format!("/images/{uploaded}")).await;
            assert_eq!((&image["checksum"], &image["status"]), (&json!(sums.md5), &json!("active")));
            builder.reconfigure(yaml(json!([]))).await;
            wait::until("the image to be deleted", BUILD_TIMEOUT, async || {
                client.get("image", &format!("/images/{uploaded}")).await.is_null()
            })
            .await;
        }
    });
}
