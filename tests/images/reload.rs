//! Reloads of a builder's configuration: work that was decided with the old files does not begin.

use std::fs::File;
use std::io::Write;

use nodepool_model::records::image_build::BuildState;
use nodepool_model::records::image_upload::UploadState;
use nodepool_model::records::time::Seconds;
use nodepool_zk::paths;
use nodepool_zk::txn::delete_tree::delete_tree;
use testkit::in_process_builder::{Builder, BuilderHarness};
use testkit::in_process_launcher::on_real_time;

const DEBIAN: &str = "name: debian, formats: [qcow2]";
const FEDORA: &str = "name: fedora, formats: [qcow2]";
const ONE: &str = "name: one, cloud: c, diskimages: [{name: debian}]";
const TWO: &str = "name: two, cloud: c, diskimages: [{name: debian}]";

/// Changes the file and keeps it open, which defers its load to the polls.
fn write_open(builder: &Builder, yaml: &str) -> File {
    let mut file = File::create(&builder.process.file).unwrap();
    file.write_all(yaml.as_bytes()).unwrap();
    file
}

// After `nodepool erase`, the builder uploaded the image again, because it had not read the changed file yet.
#[test]
fn a_removed_provider_is_not_uploaded_to_before_the_file_is_loaded() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let builder = harness.start_for(&[DEBIAN], &[ONE, TWO], |_| {});
        harness.until_uploaded("debian", "one", 1).await;
        harness.until_uploaded("debian", "two", 1).await;
        let before = builder.process.shared.active_config();
        let _file = write_open(&builder, &harness.yaml(&[DEBIAN], &[TWO]));
        let (build, _) = harness.builds("debian").await.remove(0);
        let uploads = paths::image_provider(&"debian".into(), &build, &"one".into());
        delete_tree(harness.zk.as_ref(), &uploads).await.unwrap();
        builder.until_reconfigured(before).await;
        assert_eq!(harness.cloud.orders_of("one").len(), 1);
        assert!(harness.uploads("debian").await.iter().all(|(key, _)| key.provider.as_str() == "two"));
    });
}

#[test]
fn a_removed_image_is_not_built_before_the_file_is_loaded() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let builder = harness.start(&[DEBIAN, FEDORA]);
        harness.until_built("debian", 1).await;
        harness.until_built("fedora", 1).await;
        let before = builder.process.shared.active_config();
        let _file = write_open(&builder, &harness.yaml(&[FEDORA], &[]));
        harness.request_build("debian").await;
        builder.until_reconfigured(before).await;
        assert_eq!((harness.calls().len(), harness.builds("debian").await.len()), (2, 1));
    });
}

#[test]
fn a_broken_file_does_not_stop_builds_and_uploads() {
    on_real_time(async {
        let harness = BuilderHarness::create();
        let builder = harness.start_for(&[DEBIAN], &[ONE], |options| options.build_interval = Seconds(0.1));
        harness.until_uploaded("debian", "one", 1).await;
        std::fs::write(&builder.process.file, "labels: [").unwrap();
        harness.request_build("debian").await;
        harness.until_uploaded("debian", "one", 2).await;
        assert_eq!(harness.count_builds("debian", BuildState::Ready).await, 2);
        assert_eq!(harness.count_uploads("debian", "one", UploadState::Failed).await, 0);
    });
}
