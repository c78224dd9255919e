//! The real diskimage-builder: an image that our builder uploads to moto, and a node that our launcher boots from it.
//!
//! The test runs only with `tests/run`.

use std::time::Duration;

use nodepool::actors::process::context::LauncherOptions;
use nodepool_model::records::image_build::BuildState;
use nodepool_model::records::image_upload::UploadState;
use nodepool_zk::paths;
use serde_json::{Value, json};
use testkit::clouds::moto::{BUCKET, KEY_NAME, Moto, REGION, Site};
use testkit::clouds::simulated_ec2::in_process_aws;
use testkit::diskimage_builder::{has_loop_devices, tools};
use testkit::in_process_builder::BuilderHarness;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_real_time};
use testkit::{programs, real, wait};

use crate::ec2::Ec2;

const BUILD_TIMEOUT: Duration = Duration::from_secs(300);

/// The configuration of both programs: one image, and a label that boots it.
fn configuration(harness: &BuilderHarness, site: &Site, method: &str) -> String {
    let tools = tools();
    let path = format!("{}:{}:/usr/sbin:/sbin", tools.display(), std::env::var("PATH").unwrap_or_default());
    // The image of 1 GiB has room for the journal of its file system.
    let image = json!({
        "name": "tiny", "elements": ["tiny"], "build-timeout": 300, "username": "worker",
        "dib-cmd": format!("{}/disk-image-create -n", tools.display()),
        "env-vars": {"PATH": path, "DIB_IMAGE_SIZE": "1"},
    });
    let label = json!({"name": "small", "diskimage": "tiny", "instance-type": "t3.medium", "key-name": KEY_NAME});
    let pool = json!({
        "name": "main", "host-key-checking": false, "subnet-id": site.subnets[0],
        "security-group-id": site.security_group, "labels": [label],
    });
    json!({
        "zookeeper-servers": [{"host": "localhost", "port": 2181}], "images-dir": harness.path("images"),
        "build-log-dir": harness.path("logs"), "elements-dir": programs::repository().join("tests/elements"),
        "labels": [{"name": "small"}], "diskimages": [image],
        "providers": [{
            "name": "west", "driver": "aws", "region-name": REGION, "rate": 1000,
            "object-storage": {"bucket-name": BUCKET}, "diskimages": [{"name": "tiny", "import-method": method}],
            "pools": [pool],
        }],
    })
    .to_string()
}

/// Builds the image, uploads it by this method, and boots a node from it.
async fn boot_a_built_image(method: &str) {
    let moto = Moto::start().await;
    let (site, ec2) = (moto.site().await, Ec2::new(moto.base()));
    let driver = || Box::new(in_process_aws(moto.base(), "testing", "testing"));
    let harness = BuilderHarness::create();
    let config = configuration(&harness, &site, method);
    let _builder = harness.start_with_yaml(&config, driver(), |_| {});
    wait::until("the upload", BUILD_TIMEOUT, async || {
        assert_eq!(harness.count_builds("tiny", BuildState::Failed).await, 0, "the build fails");
        harness.count_uploads("tiny", "west", UploadState::Ready).await == 1
    })
    .await;
    let (build, record) = harness.builds("tiny").await.remove(0);
    assert_eq!(record.formats.iter().map(String::as_str).collect::<Vec<_>>(), ["raw"]);
    let file = harness.path("images").join(format!("tiny-{build}.raw"));
    assert_eq!(std::fs::metadata(file).unwrap().len(), 1 << 30);
    let (key, upload) = harness.uploads("tiny").await.remove(0);
    let image = upload.external_id.expect("a ready upload has an id").to_string();
    assert!(image.starts_with("ami-"), "{image}");
    assert_eq!(ec2.objects(BUCKET).await, Vec::<String>::new());

    let quick = |options: &mut LauncherOptions| options.delete_interval.0 = 0.2;
    let mut launcher = InProcessDaemon::with_drivers(&config, quick, Some(driver()));
    launcher.run(&harness.zookeeper);
    let consumer = Consumer::of(&harness.zookeeper);
    wait::until("the pool to be registered", BUILD_TIMEOUT, async || {
        consumer.count("/nodepool/components/pool").await == 1
    })
    .await;
    let request = consumer.submit_labels(&["small"]).await;
    let node = consumer.fulfilled_nodes(&request).await.remove(0);
    let node: Value = consumer.raw_node(&node).await;
    assert_eq!((&node["image_id"], &node["username"]), (&json!(paths::image_upload(&key)), &json!("worker")));
    let id = node["external_id"]["instance"].as_str().expect("external_id names the instance");
    let instance = ec2.ok("DescribeInstances", &[("InstanceId.1", id)]).await;
    assert_eq!(instance.find("imageId").text(), image);
}

#[test]
fn a_node_boots_from_a_real_image_that_was_written_block_by_block() {
    if real::skipped() || !has_loop_devices() {
        return;
    }
    on_real_time(boot_a_built_image("ebs-direct"));
}

#[test]
fn a_node_boots_from_a_real_image_that_was_imported_as_a_snapshot() {
    if real::skipped() || !has_loop_devices() {
        return;
    }
    on_real_time(boot_a_built_image("snapshot"));
}
