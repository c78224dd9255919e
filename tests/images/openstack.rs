//! Images in Glance from upload to deletion: the same cases on simulated and real clouds, and faults of uploads.
//!
//! OS_CLIENT_CONFIG_FILE and OS_CLOUD name the real cloud; without them, only the simulated one is used.

use std::time::Duration;

use nodepool::actors::builder::builder::BuilderOptions;
use nodepool_model::records::image_build::BuildState;
use nodepool_model::records::image_upload::{UploadKey, UploadState};
use nodepool_model::records::request::RequestState;
use nodepool_model::records::time::Seconds;
use serde_json::{Value, json};
use testkit::in_process_builder::{Builder, BuilderHarness};
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_real_time};
use testkit::openstack_harness::client::OpenStackClient;
use testkit::openstack_harness::in_process_driver::InProcessDriver;
use testkit::openstack_harness::{TestCloud, clouds};
use testkit::wait;

/// A real cloud on a busy machine is slow.
const CLOUD_TIMEOUT: Duration = Duration::from_secs(180);

/// A builder with one image, `debian`, for one provider with a name of its own.
struct ImageHarness {
    harness: BuilderHarness,
    client: OpenStackClient,
    provider: String,
    builder: Builder,
}

impl ImageHarness {
    async fn new(cloud: &TestCloud, image: &str) -> Self {
        Self::with_options(cloud, image, |_| {}).await
    }

    async fn with_options(cloud: &TestCloud, image: &str, tune: impl FnOnce(&mut BuilderOptions)) -> Self {
        let harness = BuilderHarness::create();
        Self::with_builder(harness, cloud, image, tune).await
    }

    async fn with_builder(
        harness: BuilderHarness,
        cloud: &TestCloud,
        image: &str,
        tune: impl FnOnce(&mut BuilderOptions),
    ) -> Self {
        println!("--- on the cloud {}", cloud.name);
        let provider = format!("test-{}", uuid::Uuid::new_v4().simple());
        let image = format!("name: debian, {image}");
        let drivers = Box::new(InProcessDriver(cloud.clouds_yaml.clone()));
        let yaml = provider_yaml(&provider, cloud, "[{name: debian, meta: {colour: blue, min_ram: 64, agent: true}}]");
        let builder = harness.start_with_drivers(&[&image], &[&yaml], drivers, |options| {
            options.cleanup_interval = Seconds(0.5);
            tune(options);
        });
        Self { client: cloud.client().await, harness, provider, builder }
    }

    /// All images of the provider, in any state.
    async fn images(&self) -> Vec<Value> {
        let mut listed = self.client.get("image", &format!("/images?nodepool_provider_name={}", self.provider)).await;
        let Value::Array(images) = listed["images"].take() else { panic!("no list of images: {listed}") };
        images.into_iter().filter(|image| image["nodepool_provider_name"] == self.provider.as_str()).collect()
    }

    async fn until_ready(&self, number: usize) {
        wait::until(&format!("{number} uploads"), CLOUD_TIMEOUT, async || {
            self.harness.count_uploads("debian", &self.provider, UploadState::Ready).await == number
        })
        .await;
    }

    /// The ids of the uploads, in order.
    async fn ids(&self) -> Vec<String> {
        let uploads = self.harness.uploads("debian").await;
        uploads.iter().filter_map(|(_, upload)| Some(upload.external_id.as_ref()?.to_string())).collect()
    }

    /// Removes the image from the configuration, and waits until all uploads and images are deleted.
    async fn clean_up(self, cloud: &TestCloud) {
        let yaml = provider_yaml(&self.provider, cloud, "[]");
        self.builder.reconfigure(self.harness.yaml(&[], &[&yaml])).await;
        wait::until("everything to be deleted", CLOUD_TIMEOUT, async || {
            self.images().await.is_empty() && self.harness.builds("debian").await.is_empty()
        })
        .await;
    }
}

fn provider_yaml(name: &str, cloud: &TestCloud, images: &str) -> String {
    format!(
        "name: {name}, driver: openstack, cloud: {}, pools: [{{name: main, labels: []}}], diskimages: {images}",
        cloud.name
    )
}

#[test]
fn an_image_is_uploaded_with_its_metadata_and_later_deleted() {
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let harness = ImageHarness::new(&cloud, "formats: [raw], metadata: {os_distro: debian, min_disk: 1}").await;
            harness.until_ready(1).await;
            let [image] = &harness.images().await[..] else { panic!("one image") };
            let (key, upload) = harness.harness.uploads("debian").await.remove(0);
            assert_eq!(json!(upload.external_id), image["id"]);
            assert_eq!(json!(upload.external_name), image["name"]);
            let expected = json!({
                "status": "active", "disk_format": "qcow2", "container_format": "bare", "visibility": "private",
                "size": 6, "checksum": "4802fcebd761ca4f04c9a6320330fd10", "min_disk": 1, "min_ram": 64,
                "os_distro": "debian", "colour": "blue", "agent": "True",
                "nodepool_build_id": key.build, "nodepool_upload_id": "0000000001",
                "owner_specified.openstack.md5": "4802fcebd761ca4f04c9a6320330fd10",
                "owner_specified.openstack.object": format!("images/{}", image["name"].as_str().unwrap()),
            });
            for (name, value) in expected.as_object().unwrap() {
                assert_eq!(image[name], *value, "{name}");
            }
            assert_eq!(image["owner_specified.openstack.sha256"].as_str().map(str::len), Some(64));
            let first = image["id"].clone();
            for number in 1..=2 {
                harness.harness.request_build("debian").await;
                harness.harness.until_built("debian", if number == 1 { 2 } else { 3 }).await;
                wait::until("the upload", CLOUD_TIMEOUT, async || harness.ids().await.len() > number).await;
                if number == 1 {
                    harness.until_ready(2).await;
                }
            }
            wait::until("the first image to be deleted", CLOUD_TIMEOUT, async || {
                let images = harness.images().await;
                images.len() == 2 && !images.iter().any(|image| image["id"] == first)
            })
            .await;
            harness.clean_up(&cloud).await;
        }
    });
}

// The record of a failed upload is deleted.
#[test]
fn an_upload_survives_call_failures_and_creates_one_image() {
    on_real_time(async {
        let faults = [
            "lost-answer method=POST path=/images$ times=1",
            "truncated method=POST path=/images$ times=1",
            "500 method=POST path=/images$ times=1",
            "closed method=POST path=/images$ times=1",
            "closed method=PUT path=/file$ times=1",
            "lost-answer method=PUT path=/file$ times=1",
            "503 method=PUT path=/file$ times=2",
            "413 method=PUT path=/file$ times=1",
            "html method=GET path=/images/ times=1",
            "429 method=PUT path=/file$ times=1",
        ];
        let each = faults.map(async |fault| {
            let cloud = TestCloud::simulated(&["--fault", fault]).await;
            let harness = ImageHarness::new(&cloud, "formats: [raw]").await;
            harness.until_ready(1).await;
            wait::until(&format!("one image and one upload, {fault}"), CLOUD_TIMEOUT, async || {
                harness.images().await.len() == 1 && harness.harness.uploads("debian").await.len() == 1
            })
            .await;
            assert_eq!(json!(harness.ids().await[0]), harness.images().await[0]["id"], "{fault}");
        });
        futures::future::join_all(each).await;
    });
}

#[test]
fn an_interrupted_upload_leaves_a_failed_record_and_no_image() {
    on_real_time(async {
        let size = 3_000_000;
        let cloud = TestCloud::simulated(&["--uploads-break-at", "1"]).await;
        let harness = BuilderHarness::create();
        std::fs::write(harness.path("size"), size.to_string()).unwrap();
        let harness = ImageHarness::with_builder(harness, &cloud, "formats: [raw]", |options| {
            options.cleanup_interval = Seconds::ZERO
        })
        .await;
        // The time of the last failure. The records cannot be counted, because at most two failed ones exist at a time.
        let failed = async || {
            let uploads = harness.harness.uploads("debian").await.into_iter();
            let failed = uploads.filter(|(_, upload)| upload.state == UploadState::Failed);
            failed.map(|(_, upload)| upload.state_time).max()
        };
        for (number, at) in [1, 65_536, 1_000_000, size - 1, size].into_iter().enumerate() {
            cloud.simulation().knobs(json!({"uploads_break_at": at})).await;
            let before = failed().await;
            wait::until(&format!("failure {number} of an upload, at byte {at}"), CLOUD_TIMEOUT, async || {
                failed().await > before
            })
            .await;
        }
        cloud.simulation().knobs(json!({"uploads_break_at": 0})).await;
        harness.until_ready(1).await;
        let [image] = &harness.images().await[..] else { panic!("one image: {:?}", harness.images().await) };
        assert_eq!((&image["size"], &image["status"]), (&json!(size), &json!("active")));
    });
}

#[test]
fn image_deletion_is_retried_until_it_succeeds() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--fault", "500 method=DELETE path=/images/ times=6"]).await;
        let harness = ImageHarness::new(&cloud, "formats: [raw]").await;
        harness.until_ready(1).await;
        let id = harness.harness.builds("debian").await[0].0.clone();
        harness.harness.set_build("debian", &id, BuildState::Deleting).await;
        wait::until("the build to be deleted", CLOUD_TIMEOUT, async || {
            let builds = harness.harness.builds("debian").await;
            !builds.iter().any(|(other, _)| *other == id)
        })
        .await;
        wait::until("the image of the build to be deleted", CLOUD_TIMEOUT, async || {
            let images = harness.images().await;
            images.iter().all(|image| image["nodepool_build_id"] != id.as_str())
        })
        .await;
    });
}

// Launches use the newest ready upload, and fall back when it is deleted.
#[test]
fn a_server_boots_from_the_newest_upload_that_exists() {
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let harness = ImageHarness::new(&cloud, "formats: [raw]").await;
            harness.until_ready(1).await;
            harness.harness.request_build("debian").await;
            harness.until_ready(2).await;
            let launcher = harness.launcher(&cloud);
            let booted = async || harness.booted_image(&launcher).await;
            let ids = harness.ids().await;
            assert_eq!(booted().await, ids[1]);
            // The provider is paused, so no new upload replaces the deleted one.
            let paused = provider_yaml(&harness.provider, &cloud, "[{name: debian, pause: true}]");
            harness.builder.reconfigure(harness.harness.yaml(&["name: debian, formats: [raw]"], &[&paused])).await;
            let (newest, _) = harness.harness.uploads("debian").await.pop().unwrap();
            harness.harness.set_upload(&newest, |upload| upload.state = UploadState::Deleting).await;
            wait::until("the newest image to be deleted", CLOUD_TIMEOUT, async || harness.images().await.len() == 1)
                .await;
            assert_eq!(booted().await, ids[0]);
            launcher.stop();
            harness.clean_up(&cloud).await;
        }
    });
}

impl ImageHarness {
    /// A launcher on the same ZooKeeper, with a label that boots from the image.
    fn launcher(&self, cloud: &TestCloud) -> InProcessDaemon {
        let mut provider = cloud.provider(&self.provider);
        provider["cloud-images"] = json!([]);
        provider["diskimages"] = json!([{"name": "debian"}]);
        provider["pools"][0]["labels"] = json!([{"name": "a", "diskimage": "debian", "flavor-name": cloud.flavor}]);
        let yaml = json!({
            "zookeeper-servers": [{"host": "localhost", "port": 2181}], "labels": [{"name": "a"}],
            "diskimages": [{"name": "debian"}], "providers": [provider],
        });
        let drivers = Box::new(InProcessDriver(cloud.clouds_yaml.clone()));
        let mut process = InProcessDaemon::with_drivers(&yaml.to_string(), |_| {}, Some(drivers));
        process.run(&self.harness.zookeeper);
        process
    }

    /// The image that a new server boots from.
    async fn booted_image(&self, _launcher: &InProcessDaemon) -> String {
        let consumer = Consumer::of(&self.harness.zookeeper);
        let request = consumer.submit_labels(&["a"]).await;
        let ended = consumer.wait_for_end(&request).await;
        assert_eq!(ended.state, RequestState::Fulfilled);
        let nodes = consumer.accept(&request).await;
        let node = consumer.node(&nodes[0].0).await.expect("the node exists");
        let server = self.client.server(node.external_id.as_str().expect("the node has a server")).await;
        consumer.use_and_release(nodes).await;
        wait::until("the server to be deleted", CLOUD_TIMEOUT, async || {
            self.client.servers_of(&self.provider).await.is_empty()
        })
        .await;
        server["image"]["id"].as_str().expect("the server boots from an image").to_owned()
    }
}

// A snapshot inherits the properties of the image that its server booted from, but belongs to a user.
#[test]
fn a_user_snapshot_of_a_server_is_never_deleted() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&[]).await;
        let harness = ImageHarness::new(&cloud, "formats: [raw]").await;
        harness.until_ready(1).await;
        let (ready, _) = harness.harness.uploads("debian").await.remove(0);
        let stale = UploadKey { upload: "0000000007".into(), ..ready.clone() };
        for key in [&ready, &stale] {
            let snapshot = json!({
                "name": "mine", "disk_format": "raw", "container_format": "bare", "base_image_ref": "somewhere",
                "nodepool_build_id": key.build, "nodepool_upload_id": key.upload, "nodepool_provider_name": key.provider,
            });
            let (status, _) = harness.client.call(reqwest::Method::POST, "image", "/images", Some(snapshot)).await;
            assert!(status.is_success());
        }
        testkit::in_process_launcher::image_records::record_upload(
            &harness.harness.zk,
            &stale,
            UploadState::Uploading,
            5.0,
            None,
        )
        .await;
        wait::until("the upload without a builder to be deleted", CLOUD_TIMEOUT, async || {
            harness.harness.uploads("debian").await.len() == 1
        })
        .await;
        harness.harness.set_build("debian", &ready.build, BuildState::Deleting).await;
        wait::until("the build to be deleted", CLOUD_TIMEOUT, async || {
            let builds = harness.harness.builds("debian").await;
            !builds.iter().any(|(id, _)| *id == ready.build)
        })
        .await;
        let remaining = harness.images().await;
        assert_eq!(remaining.iter().filter(|image| image["name"] == "mine").count(), 2, "{remaining:?}");
    });
}
