//! A launcher with a metastatic provider and the provider of its backing nodes, and looks at their nodes.

use nodepool_model::records::backing::{BACKING_PRIORITY, BackingRecord, Slot};
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_zk::locks::lock;
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::paths;
use serde_json::{Value, json};
use testkit::in_process_launcher::fake_cloud::{merge, provider, start_fake_launcher};
use testkit::in_process_launcher::{Consumer, InProcessDaemon, until};

pub const OWNER: &str = "NodePool:metastatic:meta";

/// Provider `meta` with the label `small` on backing nodes of label `a`, which provider `lab` launches. The keys are
/// added to those of the label and of the pool.
pub fn configuration(label_keys: Value, pool_keys: Value) -> Value {
    let mut label = json!({"name": "small", "backing-label": "a", "max-parallel-jobs": 2, "grace-time": 2});
    merge(&mut label, label_keys);
    let mut pool = json!({"name": "main", "labels": [label]});
    merge(&mut pool, pool_keys);
    json!({
        "zookeeper-servers": [{"host": "localhost"}],
        "labels": [{"name": "a"}, {"name": "b"}, {"name": "small"}],
        "providers": [
            provider("lab", json!({}), json!({"host-key-checking": false, "max-servers": 20})),
            {"name": "meta", "driver": "metastatic", "pools": [pool]},
        ],
    })
}

pub async fn start(label_keys: Value, pool_keys: Value) -> (MemoryZooKeeper, Consumer, InProcessDaemon) {
    start_fake_launcher(&configuration(label_keys, pool_keys)).await
}

/// A launcher whose only server is taken, so that a request of it for a backing node waits.
pub struct Blocked {
    pub configuration: Value,
    pub zookeeper: MemoryZooKeeper,
    pub consumer: Consumer,
    pub launcher: InProcessDaemon,
    /// The request whose node is the only server.
    pub blocker: RequestId,
    /// The request for a node that waits for a backing node.
    pub request: RequestId,
}

impl Blocked {
    /// Returns when the backing node is requested. The keys are added to those of the label.
    pub async fn start(label_keys: Value) -> Self {
        let mut configuration = configuration(json!({"backing-label": "b"}), json!({}));
        merge(&mut configuration["providers"][1]["pools"][0]["labels"][0], label_keys);
        configuration["providers"][0]["pools"][0]["max-servers"] = json!(1);
        let (zookeeper, consumer, launcher) = start_fake_launcher(&configuration).await;
        let blocker = consumer.submit_labels(&["a"]).await;
        consumer.fulfilled_nodes(&blocker).await;
        let request = consumer.submit_labels(&["small"]).await;
        let blocked = Self { configuration, zookeeper, consumer, launcher, blocker, request };
        until("a request for a backing node", async || blocked.backing_requests().await.len() == 1).await;
        blocked
    }

    pub async fn backing_requests(&self) -> Vec<RequestId> {
        let ids = self.consumer.requests().await.into_iter();
        ids.filter(|id| id.priority() == BACKING_PRIORITY).collect()
    }

    /// Returns the only server, and waits until the node is ready.
    pub async fn unblock(&self) -> NodeId {
        finish(&self.consumer, &self.blocker).await;
        self.consumer.fulfilled_nodes(&self.request).await.remove(0)
    }

    pub fn reload(&self, configuration: &Value) {
        std::fs::write(&self.launcher.file, configuration.to_string()).unwrap();
    }
}

/// Requests one node, and returns it when the request is fulfilled.
pub async fn small_node(consumer: &Consumer) -> (RequestId, NodeId) {
    let request = consumer.submit_labels(&["small"]).await;
    let node = consumer.fulfilled_nodes(&request).await.remove(0);
    (request, node)
}

pub async fn slot_of(consumer: &Consumer, node: &NodeId) -> Slot {
    Slot::of(&consumer.node(node).await.unwrap()).expect("the node has a slot")
}

/// The backing nodes that the provider owns, by their records.
pub async fn backing_nodes(consumer: &Consumer) -> Vec<(NodeId, Node, BackingRecord)> {
    let nodes = consumer.nodes().await.into_iter();
    nodes.filter_map(|(id, node)| BackingRecord::of(&node, OWNER).map(|record| (id, node, record))).collect()
}

/// Waits until this number of backing nodes is in use.
pub async fn until_backing_nodes(consumer: &Consumer, count: usize) {
    until(&format!("{count} backing nodes in use"), async || {
        let nodes = backing_nodes(consumer).await;
        nodes.iter().filter(|(_, node, _)| node.state == NodeState::InUse).count() == count
    })
    .await;
}

/// Data of the contender that holds the lock of a node; `None` if it is not locked.
pub async fn holder(consumer: &Consumer, node: &NodeId) -> Option<String> {
    let directory = paths::node_lock(node);
    let name = lock::contenders(&consumer.zk, &directory).await.unwrap().into_iter().next()?;
    let (data, _) = consumer.zk.get(&format!("{directory}/{name}")).await.unwrap();
    Some(String::from_utf8(data.to_vec()).unwrap())
}

/// Accepts a fulfilled request, uses its nodes and returns them.
pub async fn finish(consumer: &Consumer, request: &RequestId) {
    let locked = consumer.accept(request).await;
    consumer.use_and_release(locked).await;
}
