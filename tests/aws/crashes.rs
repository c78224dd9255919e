//! Launcher processes that are killed while they launch on a dedicated host: nothing is left in the cloud.

use std::time::Duration;

use nodepool_model::records::ids::RequestId;
use nodepool_zk::client::connect;
use nodepool_zk::paths;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::clouds::moto::as_paths;
use testkit::clouds::simulated_ec2::{REGION, SimulatedEc2};
use testkit::in_process_launcher::Consumer;
use testkit::real;
use testkit::real::nodepool_process::NodepoolProcess;
use testkit::{embedded_zk, programs, wait};
use zookeeper_server::EmbeddedServer;

use crate::simulated::configuration;

/// Timeout for a launcher on a busy machine, whose predecessor's session has to expire.
const TIMEOUT: Duration = Duration::from_secs(120);

struct Harness {
    cloud: SimulatedEc2,
    consumer: Consumer,
    config: String,
    _zookeeper: EmbeddedServer,
    _home: TempDir,
}

impl Harness {
    async fn start(flags: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let cloud = SimulatedEc2::start(&[&["--terminate-s", "0.1"], flags].concat()).await;
        let zookeeper = embedded_zk::start(&home.path().join("zookeeper")).await;
        let port = zookeeper.address().port();
        let consumer = Consumer { zk: connect(embedded_zk::client(port)).await.unwrap() };
        let label = "cloud-image: base, instance-type: m5.large, dedicated-host: true";
        let config = configuration("", &format!("availability-zone: {REGION}a"), &[("small", label)]);
        let config = config.replacen("{host: localhost}", &format!("{{host: 127.0.0.1, port: {port}}}"), 1);
        Self { cloud, consumer, config, _zookeeper: zookeeper, _home: home }
    }

    fn launcher(&self) -> NodepoolProcess {
        let environment = self.cloud.environment();
        let arguments = ["-d", "--no-webapp"];
        NodepoolProcess::start_in(&as_paths(&environment), programs::launcher(), &self.config, &arguments)
    }

    async fn submit(&self) -> RequestId {
        nodepool_zk::locks::lock::make_path(&self.consumer.zk, "/nodepool/requests").await.unwrap();
        self.consumer.submit_labels(&["small"]).await
    }

    /// The only node's external id, as soon as it names these parts.
    async fn external_id(&self, parts: &[&str]) -> Value {
        wait::until_some(&format!("a record that names {parts:?}"), TIMEOUT, async || {
            let node = self.consumer.nodes().await.pop()?.0;
            let id = self.consumer.raw_node(&node).await["external_id"].take();
            (id.as_object()?.keys().eq(parts)).then_some(id)
        })
        .await
    }

    async fn region(&self) -> Value {
        self.cloud.state().await["regions"][REGION].take()
    }

    /// The request is served by another launcher, and withdrawn. All nodes, instances and hosts are then deleted.
    async fn finish(&self, request: &RequestId) {
        let mut launcher = self.launcher();
        self.consumer.fulfilled_nodes(request).await;
        let nodes = self.consumer.accept(request).await;
        self.consumer.use_and_release(nodes).await;
        wait::until("the end of all nodes", TIMEOUT, async || self.consumer.nodes().await.is_empty()).await;
        let region = self.region().await;
        assert!(region["instances"].as_object().unwrap().keys().all(|state| state == "terminated"), "{region}");
        assert!(region["hosts"].as_object().unwrap().keys().all(|state| state == "released"), "{region}");
        assert!(launcher.stop(TIMEOUT).await.success());
    }
}

#[tokio::test]
async fn a_launcher_killed_between_host_and_instance_leaves_neither() {
    if real::skipped() {
        return;
    }
    let harness = Harness::start(&["--boot-s", "0.1", "--fault", "hang action=RunInstances"]).await;
    let mut launcher = harness.launcher();
    let request = harness.submit().await;
    let id = harness.external_id(&["host"]).await;
    wait::until("a launch without a response", TIMEOUT, async || !harness.cloud.calls("RunInstances").await.is_empty())
        .await;
    launcher.kill();
    assert_eq!(harness.region().await["hosts"], json!({"available": 1}), "{id}");
    harness.cloud.knobs(json!({"faults": []})).await;
    harness.finish(&request).await;
}

#[tokio::test]
async fn a_launcher_killed_after_its_instance_exists_leaves_nothing() {
    if real::skipped() {
        return;
    }
    let harness = Harness::start(&["--boot-s", "20"]).await;
    let mut launcher = harness.launcher();
    let request = harness.submit().await;
    let id = harness.external_id(&["host", "instance"]).await;
    launcher.kill();
    let region = harness.region().await;
    assert_eq!((&region["hosts"], &region["instances"]), (&json!({"available": 1}), &json!({"pending": 1})), "{id}");
    harness.finish(&request).await;
}

#[tokio::test]
async fn the_host_of_a_withdrawn_request_is_released_after_a_crash() {
    if real::skipped() {
        return;
    }
    let harness = Harness::start(&["--boot-s", "600"]).await;
    let mut launcher = harness.launcher();
    let request = harness.submit().await;
    harness.external_id(&["host", "instance"]).await;
    launcher.kill();
    harness.consumer.zk.delete(&paths::request(&request), -1).await.unwrap();
    let mut launcher = harness.launcher();
    wait::until("the end of all nodes", TIMEOUT, async || harness.consumer.nodes().await.is_empty()).await;
    let region = harness.region().await;
    assert_eq!((&region["hosts"], &region["instances"]), (&json!({"released": 1}), &json!({"terminated": 1})));
    assert!(launcher.stop(TIMEOUT).await.success());
}
