//! OpenStack harness: an in-process launcher on one cloud with a ZooKeeper in memory, and the deletion of its servers
//! after the test.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use super::TestCloud;
use super::client::OpenStackClient;
use super::in_process_driver::InProcessDriver;
use crate::in_process_launcher::{Consumer, InProcessDaemon, zookeeper};
use crate::wait;
use futures::FutureExt;
use nodepool::actors::process::context::{LauncherOptions, SessionEnd};
use nodepool::actors::runtime::messages::ExplainRequest;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::node::Node;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_zk::memory::MemoryZooKeeper;
use serde_json::{Value, json};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Timeout that suits a real cloud on a busy machine.
pub const CLOUD_TIMEOUT: Duration = Duration::from_secs(180);

pub struct OpenStackHarness {
    pub client: OpenStackClient,
    pub consumer: Consumer,
    pub process: InProcessDaemon,
    pub zookeeper: MemoryZooKeeper,
    /// The name of the launcher's first provider, which no other test uses.
    pub provider: String,
    running: tokio::task::JoinHandle<SessionEnd>,
}

/// Runs a case with a launcher whose providers `configure` derives from a provider name, and leaves no server behind.
pub async fn with_launcher(
    cloud: &TestCloud,
    configure: impl FnOnce(&str) -> Vec<Value>,
    case: impl AsyncFnOnce(&mut OpenStackHarness),
) {
    with_tuned_launcher(cloud, configure, |_| {}, case).await;
}

/// `with_launcher` with other options.
pub async fn with_tuned_launcher(
    cloud: &TestCloud,
    configure: impl FnOnce(&str) -> Vec<Value>,
    tune: impl FnOnce(&mut LauncherOptions),
    case: impl AsyncFnOnce(&mut OpenStackHarness),
) {
    println!("--- on the cloud {}", cloud.name);
    let filter = Targets::new().with_target("nodepool", LevelFilter::DEBUG);
    let output = tracing_subscriber::fmt::layer().with_test_writer();
    let _ = tracing_subscriber::registry().with(output).with(filter).try_init();
    let provider = format!("test-{}", uuid::Uuid::new_v4().simple());
    let mut harness = OpenStackHarness::start(cloud, configure(&provider), provider, tune).await;
    let outcome = AssertUnwindSafe(case(&mut harness)).catch_unwind().await;
    harness.shut_down(outcome.is_ok()).await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// A configuration file with these providers and their labels.
pub fn configuration(providers: &[Value]) -> String {
    let pools = providers.iter().flat_map(|provider| provider["pools"].as_array().into_iter().flatten());
    let labels = pools.flat_map(|pool| pool["labels"].as_array().into_iter().flatten());
    let names: BTreeSet<&str> = labels.filter_map(|label| label["name"].as_str()).collect();
    let labels: Vec<Value> = names.into_iter().map(|name| json!({"name": name})).collect();
    let images = providers.iter().flat_map(|provider| provider["diskimages"].as_array().into_iter().flatten());
    let images: Vec<Value> = images.map(|image| json!({"name": image["name"], "elements": ["vm"]})).collect();
    json!({
        "zookeeper-servers": [{"host": "localhost"}], "labels": labels, "providers": providers, "diskimages": images,
    })
    .to_string()
}

/// A launcher that does not run yet.
fn launcher(cloud: &TestCloud, yaml: &str, tune: impl FnOnce(&mut LauncherOptions)) -> InProcessDaemon {
    let mut process = InProcessDaemon::with(yaml, |options| {
        options.cleanup_interval.0 = 2.0;
        options.delete_interval.0 = 1.0;
        tune(options);
    });
    let drivers = InProcessDriver(cloud.clouds_yaml.clone());
    Arc::get_mut(&mut process.shared).expect("the context is not shared yet").drivers = Some(Box::new(drivers));
    process
}

impl OpenStackHarness {
    async fn start(
        cloud: &TestCloud,
        providers: Vec<Value>,
        provider: String,
        tune: impl FnOnce(&mut LauncherOptions),
    ) -> OpenStackHarness {
        let client = cloud.client().await;
        let mut process = launcher(cloud, &configuration(&providers), tune);
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let running = process.run(&zookeeper);
        wait::until("a pool to be registered", CLOUD_TIMEOUT, async || {
            consumer.count("/nodepool/components/pool").await > 0
        })
        .await;
        OpenStackHarness { client, consumer, process, zookeeper, provider, running }
    }

    /// Stops the launcher without a graceful shutdown, and starts another one.
    pub async fn restart(&mut self, cloud: &TestCloud) {
        self.process.stop();
        (&mut self.running).await.expect("the task is not aborted");
        let yaml = std::fs::read_to_string(&self.process.file).expect("the file exists as long as its process");
        self.process = launcher(cloud, &yaml, |_| {});
        self.running = self.process.run(&self.zookeeper);
    }

    /// Stops the launcher, and deletes the servers that a failed case left behind.
    async fn shut_down(&mut self, succeeded: bool) {
        self.process.stop();
        let ended = tokio::time::timeout(CLOUD_TIMEOUT, &mut self.running).await;
        let leftover_servers = self.client.servers_of(&self.provider).await;
        for server in &leftover_servers {
            self.client.delete_server(server["id"].as_str().expect("a server has an id")).await;
        }
        if succeeded {
            assert!(leftover_servers.is_empty(), "servers were not deleted: {leftover_servers:?}");
            let ended = ended.expect("a stopped launcher ends").expect("the task is not aborted");
            assert_eq!(ended, SessionEnd::Stopped);
        }
    }

    pub async fn wait_for_end(&self, id: &RequestId) -> NodeRequest {
        wait::until_some(&format!("the end of request {id}"), CLOUD_TIMEOUT, async || {
            let request = self.consumer.request(id).await.expect("only the requestor deletes its request");
            matches!(request.state, RequestState::Fulfilled | RequestState::Failed).then_some(request)
        })
        .await
    }

    pub async fn wait_until_fulfilled(&self, id: &RequestId) -> Vec<Node> {
        let request = self.wait_for_end(id).await;
        assert_eq!(request.state, RequestState::Fulfilled, "{}", self.wait_reason(id).await);
        let mut nodes = Vec::new();
        for id in &request.nodes {
            nodes.push(self.node(id).await);
        }
        nodes
    }

    /// Submits a request and waits until it is fulfilled.
    pub async fn obtain_nodes(&self, labels: &[&str]) -> (RequestId, Vec<Node>) {
        let id = self.consumer.submit_labels(labels).await;
        let nodes = self.wait_until_fulfilled(&id).await;
        (id, nodes)
    }

    pub async fn node(&self, id: &NodeId) -> Node {
        self.consumer.node(id).await.unwrap_or_else(|| panic!("node {id} does not exist"))
    }

    /// Accepts a request and releases its nodes as used.
    pub async fn accept_and_release(&self, id: &RequestId) {
        let nodes = self.consumer.accept(id).await;
        self.consumer.use_and_release(nodes).await;
    }

    /// Waits until all nodes and all servers of the provider are deleted.
    pub async fn wait_until_empty(&self) {
        wait::until("the nodes to be deleted", CLOUD_TIMEOUT, async || self.consumer.nodes().await.is_empty()).await;
        wait::until("the servers to be deleted", CLOUD_TIMEOUT, async || {
            self.client.servers_of(&self.provider).await.is_empty()
        })
        .await;
    }

    /// The reasons that all pools give for the wait of a request.
    pub async fn wait_reason(&self, id: &RequestId) -> String {
        let replies =
            self.process.shared.explain_registry.request_all(ExplainRequest(id.clone()), Duration::from_secs(5)).await;
        let verdicts = replies.into_iter().filter_map(|(_, reply)| reply.ok().flatten());
        verdicts.map(|verdict| verdict.reason).collect::<Vec<_>>().join("; ")
    }

    /// Waits until the reasons of the request contain a text.
    pub async fn wait_for_reason(&self, id: &RequestId, text: &str) {
        let mut reason = String::new();
        let what = format!("{text:?} among the reasons of request {id}");
        wait::until(&what, CLOUD_TIMEOUT, async || {
            let now = self.wait_reason(id).await;
            if now != reason {
                println!("request {id}: {now}");
                reason = now;
            }
            reason.contains(text)
        })
        .await;
    }
}

/// The id of a node's server.
pub fn server_of(node: &Node) -> &str {
    node.external_id.as_str().unwrap_or_else(|| panic!("the node has no server: {node:?}"))
}
