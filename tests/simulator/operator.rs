//! What people do by hand, with the command line of the original: under the node's lock, and with no eye on versions.

use std::time::Duration;

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
use zookeeper_server::types::{CreateMode, Op, ZkError};

use super::configuration::{ALL_LABELS, PROVIDERS};
use super::history::RunHistory;
use super::workload::Workload;
use crate::in_process_launcher::Consumer;

/// An idle node, in the very moment in which several ask for such a one.
async fn contended_idle_node(operator: &Consumer, workload: &Workload, nth: usize) -> Option<NodeId> {
    let idle: Vec<(NodeId, Node)> = operator.nodes().await.into_iter().filter(|(_, node)| node.is_idle()).collect();
    let (id, node) = idle.get(nth % idle.len().max(1))?;
    if let Some(requested) =
        ALL_LABELS.into_iter().find(|requested| node.labels.iter().any(|label| label.as_str() == *requested))
    {
        (0..4).for_each(|number| workload.add_consumer(Duration::ZERO, nth as u64 * 4 + number, vec![requested]));
        // Who serves it may have decided before the lock is there, and write after that.
        tokio::time::sleep(Duration::from_millis(20) * nth as u32).await;
    }
    Some(id.clone())
}

/// Deletes an idle node: locks it, reads it, and writes what was read as deleting a while later. Whether there was one.
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
    held.release().await.expect("nobody breaks the lock of an operator");
    node.is_some()
}

/// Removes the record of an idle node, with what is below it. Its server is left over. Whether there was one.
pub async fn delete_record(zookeeper: MemoryZooKeeper, history: RunHistory, nth: usize) -> bool {
    let operator = Consumer::of(&zookeeper);
    let is_ours = |node: &Node| node.provider.as_ref().is_some_and(|provider| PROVIDERS.contains(&provider.as_str()));
    let nodes = operator.nodes().await.into_iter();
    let idle: Vec<NodeId> = nodes.filter(|(_, node)| node.is_idle() && is_ours(node)).map(|(id, _)| id).collect();
    let Some(id) = idle.get(nth % idle.len().max(1)) else { return false };
    let path = paths::node(id);
    let Ok((_, seen)) = operator.zk.get(&path).await else { return false };
    let below = operator.zk.children(&path).await.map(|(names, _)| names).unwrap_or_default();
    let mut ops: Vec<Op> = below.iter().map(|name| Op::delete(format!("{path}/{name}"), -1)).collect();
    ops.push(Op::delete(path, seen.version));
    history.observe(Observation::Erased(id));
    match operator.zk.multi(ops).await {
        // It was given to somebody meanwhile, is locked, or has gone.
        Err(ZkError::Multi { .. }) => {
            history.observe(Observation::EraseCancelled(id));
            false
        }
        Ok(_) => true,
        Err(error) => panic!("an operator cannot remove node {id}: {error}"),
    }
}

/// Keeps an idle node for a while, so that nobody is given it, and lets it go then. Whether there was one.
pub async fn hold_idle(zookeeper: MemoryZooKeeper, crowd: Workload, nth: usize, duration: Duration) -> bool {
    let operator = Consumer::of(&zookeeper);
    let Some(id) = contended_idle_node(&operator, &crowd, nth).await else { return false };
    let zk = operator.zk.clone();
    let Ok(Some(held)) = lock::try_lock(&zk, &paths::node_lock(&id), "").await else { return false };
    let node = operator.node(&id).await.filter(Node::is_idle);
    if let Some(mut node) = node.clone() {
        node.set_state(NodeState::Hold, Writer::Operator, clock::now());
        write(&operator, &id, &node).await;
    }
    held.release().await.expect("nobody breaks the lock of an operator");
    if node.is_some() {
        actix_rt::spawn(async move {
            tokio::time::sleep(duration).await;
            delete_held(&operator, &id, NodeState::Deleting).await;
        });
    }
    node.is_some()
}

/// Lets a node go that is held, if it is still there: `used` is what Zuul writes (zookeeper.md Z15), people have it deleted.
pub async fn delete_held(operator: &Consumer, id: &NodeId, state: NodeState) {
    let zk = operator.zk.clone();
    while operator.node(id).await.is_some() {
        if let Ok(Some(held)) = lock::try_lock(&zk, &paths::node_lock(id), "").await {
            if let Some(mut node) = operator.node(id).await.filter(|node| node.state == NodeState::Hold) {
                let writer = if state == NodeState::Used { Writer::Consumer } else { Writer::Operator };
                node.set_state(state, writer, clock::now());
                write(operator, id, &node).await;
            }
            return held.release().await.expect("nobody breaks the lock of an operator");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Ends what a Nodepool 11 forgets that dies while it takes a request up: nodes that were not begun, of a request that goes meanwhile.
/// Nobody else may touch what is of its provider.
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
                held.release().await.expect("nobody breaks the lock of an operator");
            }
        }
    }
}

/// Wants an image built anew.
pub async fn request_build(zookeeper: MemoryZooKeeper, image: &'static str) {
    let operator = Consumer::of(&zookeeper);
    let path = paths::image_build_request(&image.into());
    match operator.zk.create(&path, Bytes::new(), CreateMode::Persistent).await {
        Ok(_) | Err(ZkError::NodeExists | ZkError::NoNode) => {}
        Err(error) => panic!("an operator cannot ask for {image}: {error}"),
    }
}

/// Lets an upload go that is ready. Whether there was one.
pub async fn delete_upload(zookeeper: MemoryZooKeeper, book: RunHistory, nth: usize) -> bool {
    let operator = Consumer::of(&zookeeper);
    let Some((key, mut upload)) = book.ready_upload(nth) else { return false };
    book.observe_image(ImageObservation::ManuallyDeleted(&key));
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
