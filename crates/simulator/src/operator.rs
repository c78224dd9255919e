//! Operator actions, as Nodepool 11's command line performs them: under the node's lock, and without comparing
//! versions.

use std::time::Duration;

use super::configuration::{ALL_LABELS, PROVIDERS};
use super::history::RunHistory;
use super::workload::Workload;
use bytes::Bytes;
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::NodeId;
use nodepool_model::records::image_upload::UploadState;
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState, Writer};
use nodepool_policy::invariants::images::ImageObservation;
use nodepool_policy::invariants::nodes::Observation;
use nodepool_zk::locks::lock;
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::paths;
use testkit::in_process_launcher::Consumer;
use zookeeper_server::types::{CreateMode, Op, ZkError};

/// Finds an idle node, and adds consumers that request nodes with one of its labels at the same time.
async fn contended_idle_node(operator: &Consumer, workload: &Workload, nth: usize) -> Option<NodeId> {
    let idle: Vec<(NodeId, Node)> = operator.nodes().await.into_iter().filter(|(_, node)| node.is_idle()).collect();
    let (id, node) = idle.get(nth % idle.len().max(1))?;
    if let Some(requested) =
        ALL_LABELS.into_iter().find(|requested| node.labels.iter().any(|label| label.as_str() == *requested))
    {
        (0..4).for_each(|number| workload.add_consumer(Duration::ZERO, nth as u64 * 4 + number, vec![requested]));
        // A launcher may decide before the operator has the lock, and write after that.
        tokio::time::sleep(Duration::from_millis(20) * nth as u32).await;
    }
    Some(id.clone())
}

/// Deletes an idle node: locks and reads it, and writes the record with state deleting some seconds later. Returns
/// whether one existed.
pub async fn delete_idle(zookeeper: MemoryZooKeeper, workload: Workload, nth: usize) -> bool {
    let operator = Consumer::of(&zookeeper);
    let Some(id) = contended_idle_node(&operator, &workload, nth).await else { return false };
    let zk = operator.zk.clone();
    let Ok(Some(held)) = lock::try_lock(&zk, &paths::node_lock(&id), "").await else { return false };
    let node = operator.node(&id).await.filter(Node::is_idle);
    if let Some(mut node) = node.clone() {
        tokio::time::sleep(Duration::from_secs(5)).await;
        node.set_state(NodeState::Deleting, Writer::Operator, clock::now());
        write(&operator, &id, &node).await;
    }
    held.release().await.expect("the operator's lock is not broken");
    node.is_some()
}

/// Deletes the record of an idle node with all znodes below it. Its server remains. Returns whether one existed.
pub async fn delete_record(zookeeper: MemoryZooKeeper, history: RunHistory, nth: usize) -> bool {
    let operator = Consumer::of(&zookeeper);
    let is_ours = |node: &Node| node.provider.as_ref().is_some_and(|provider| PROVIDERS.contains(&provider.as_str()));
    let nodes = operator.nodes().await.into_iter();
    let idle: Vec<NodeId> = nodes.filter(|(_, node)| node.is_idle() && is_ours(node)).map(|(id, _)| id).collect();
    let Some(id) = idle.get(nth % idle.len().max(1)) else { return false };
    let path = paths::node(id);
    let Ok((_, stat)) = operator.zk.get(&path).await else { return false };
    let below = operator.zk.children(&path).await.map(|(names, _)| names).unwrap_or_default();
    let mut ops: Vec<Op> = below.iter().map(|name| Op::delete(format!("{path}/{name}"), -1)).collect();
    ops.push(Op::delete(path, stat.version));
    history.observe(Observation::Erased(id));
    match operator.zk.multi(ops).await {
        // The node was assigned, locked or deleted meanwhile.
        Err(ZkError::Multi { .. }) => {
            history.observe(Observation::EraseCancelled(id));
            false
        }
        Ok(_) => true,
        Err(error) => panic!("an operator cannot remove node {id}: {error}"),
    }
}

/// Holds an idle node for a while, so that it is not assigned, and then deletes it. Returns whether one existed.
pub async fn hold_idle(zookeeper: MemoryZooKeeper, workload: Workload, nth: usize, duration: Duration) -> bool {
    let operator = Consumer::of(&zookeeper);
    let Some(id) = contended_idle_node(&operator, &workload, nth).await else { return false };
    let zk = operator.zk.clone();
    let Ok(Some(held)) = lock::try_lock(&zk, &paths::node_lock(&id), "").await else { return false };
    let node = operator.node(&id).await.filter(Node::is_idle);
    if let Some(mut node) = node.clone() {
        node.set_state(NodeState::Hold, Writer::Operator, clock::now());
        write(&operator, &id, &node).await;
    }
    held.release().await.expect("the operator's lock is not broken");
    if node.is_some() {
        actix_rt::spawn(async move {
            tokio::time::sleep(duration).await;
            delete_held(&operator, &id, NodeState::Deleting).await;
        });
    }
    node.is_some()
}

/// Ends the hold of a node, if it still exists: Zuul writes the state used, operators write deleting.
pub async fn delete_held(operator: &Consumer, id: &NodeId, state: NodeState) {
    let zk = operator.zk.clone();
    while operator.node(id).await.is_some() {
        if let Ok(Some(held)) = lock::try_lock(&zk, &paths::node_lock(id), "").await {
            if let Some(mut node) = operator.node(id).await.filter(|node| node.state == NodeState::Hold) {
                let writer = if state == NodeState::Used { Writer::Consumer } else { Writer::Operator };
                node.set_state(state, writer, clock::now());
                write(operator, id, &node).await;
            }
            return held.release().await.expect("the operator's lock is not broken");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Deletes nodes that a killed Nodepool 11 launcher abandoned while it accepted a request: in state init, of a deleted
/// request. No other launcher may touch nodes of its provider.
pub async fn delete_abandoned_nodes(zookeeper: MemoryZooKeeper, provider: &'static str) {
    let operator = Consumer::of(&zookeeper);
    loop {
        tokio::time::sleep(Duration::from_secs(60)).await;
        for (id, mut node) in operator.nodes().await {
            let is_of_provider = node.provider.as_ref().is_some_and(|its| its.as_str() == provider);
            let Some(request) = node.allocated_to.as_ref().filter(|_| is_of_provider && node.state == NodeState::Init)
            else {
                continue;
            };
            if !matches!(operator.zk.exists(&paths::request(request)).await, Ok(None)) {
                continue;
            }
            let zk = operator.zk.clone();
            if let Ok(Some(held)) = lock::try_lock(&zk, &paths::node_lock(&id), "").await {
                node.set_state(NodeState::Deleting, Writer::Operator, clock::now());
                write(&operator, &id, &node).await;
                held.release().await.expect("the operator's lock is not broken");
            }
        }
    }
}

/// Requests a build of an image.
pub async fn request_build(zookeeper: MemoryZooKeeper, image: &'static str) {
    let operator = Consumer::of(&zookeeper);
    let path = paths::image_build_request(&image.into());
    match operator.zk.create(&path, Bytes::new(), CreateMode::Persistent).await {
        Ok(_) | Err(ZkError::NodeExists | ZkError::NoNode) => {}
        Err(error) => panic!("an operator cannot request a build of {image}: {error}"),
    }
}

/// Deletes an upload in state ready. Returns whether one existed.
pub async fn delete_upload(zookeeper: MemoryZooKeeper, history: RunHistory, nth: usize) -> bool {
    let operator = Consumer::of(&zookeeper);
    let Some((key, mut upload)) = history.ready_upload(nth) else { return false };
    history.observe_image(ImageObservation::ManuallyDeleted(&key));
    upload.set_state(UploadState::Deleting, clock::now());
    match operator.zk.set(&paths::image_upload(&key), Bytes::from(json::to_bytes(&upload)), -1).await {
        Ok(_) => true,
        Err(ZkError::NoNode) => false,
        Err(error) => panic!("an operator cannot write {}: {error}", key.image_id()),
    }
}

async fn write(operator: &Consumer, id: &NodeId, node: &Node) {
    match operator.zk.set(&paths::node(id), Bytes::from(json::to_bytes(node)), -1).await {
        Ok(_) | Err(ZkError::NoNode) => {}
        Err(error) => panic!("an operator cannot write node {id}: {error}"),
    }
}
