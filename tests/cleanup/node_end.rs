//! The end of nodes of a cloud: used, abandoned, expired and held ones, and those of requests that others change.

use std::time::Duration;

use bytes::Bytes;
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::RequestState;
use nodepool_zk::locks::lock;
use nodepool_zk::locks::lock::Lock;
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::paths;
use serde_json::json;
use testkit::in_process_launcher::fake_cloud::{single_provider, start_fake_launcher};
use testkit::in_process_launcher::{
    Consumer, InProcessDaemon, SETTLE_TIME, node_record, on_paused_time, until, zookeeper,
};
use tokio::time::sleep;

/// Launches nodes of label `a` and locks them as a consumer.
async fn accepted(consumer: &Consumer, count: usize) -> Vec<(NodeId, Lock)> {
    let id = consumer.submit_labels(&vec!["a"; count]).await;
    assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
    consumer.accept(&id).await
}

async fn is_locked(consumer: &Consumer, id: &NodeId) -> bool {
    lock::contenders(&consumer.zk, &paths::node_lock(id)).await.is_ok_and(|contenders| !contenders.is_empty())
}

/// Changes a node as no launcher does by itself.
async fn change(consumer: &Consumer, id: &NodeId, change: impl FnOnce(&mut Node)) {
    let mut node = consumer.node(id).await.expect("the node exists");
    node.state_time = clock::now();
    change(&mut node);
    consumer.zk.set(&paths::node(id), Bytes::from(json::to_bytes(&node)), -1).await.unwrap();
}

#[test]
fn used_nodes_are_deleted_with_instances_unless_locked() {
    use NodeState::{Aborted, Building, Deleted, Deleting, Failed, InUse, Used};
    on_paused_time(async {
        let (_zookeeper, consumer, _process) = start_fake_launcher(&single_provider(
            json!({"fake": {"max-instances": 8}}),
            json!({"ignore-provider-quota": true}),
        ))
        .await;
        let mut nodes = accepted(&consumer, 8).await;
        let (in_use_node, held) = nodes.pop().unwrap();
        consumer.set_state(&in_use_node, InUse).await;
        for ((id, lock), state) in nodes.into_iter().zip([Used, InUse, Building, Failed, Aborted, Deleting, Deleted]) {
            change(&consumer, &id, |node| node.state = state).await;
            lock.release().await.unwrap();
        }
        // An interrupted deletion may have removed the lock directory and the instance already.
        consumer.create_node(&node_record(Deleted, None)).await;
        let began = clock::now();
        until("all nodes but one to be deleted", async || consumer.nodes().await.len() == 1).await;
        assert!((clock::now() - began).0 < 10.0, "two passes take ten seconds");
        sleep(SETTLE_TIME).await;
        assert_eq!(consumer.node_state(&in_use_node).await, Some(InUse));
        // The cloud has capacity for eight instances, and one is in use.
        let next = accepted(&consumer, 7).await;
        consumer.use_and_release(next).await;
        held.release().await.unwrap();
        until("the last node to be deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

#[test]
fn an_undeletable_node_stays_deleting_and_unlocked() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_fake_launcher(&single_provider(json!({"fake": {"delete-fails-every": 2}}), json!({}))).await;
        let nodes = accepted(&consumer, 2).await;
        consumer.use_and_release(nodes).await;
        until("only one node to remain", async || consumer.nodes().await.len() == 1).await;
        let (remaining, node) = consumer.nodes().await.remove(0);
        assert_eq!(node.state, NodeState::Deleting);
        until("the node to be unlocked", async || !is_locked(&consumer, &remaining).await).await;
        assert_eq!(consumer.node_state(&remaining).await, Some(NodeState::Deleting));
        until("the node to be deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

// The timeout of a deletion is ten minutes.
#[test]
fn a_deletion_that_times_out_is_restarted() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_fake_launcher(&single_provider(json!({"fake": {"delete-time": 900}}), json!({}))).await;
        let nodes = accepted(&consumer, 1).await;
        let id = nodes[0].0.clone();
        consumer.use_and_release(nodes).await;
        let began = clock::now();
        until("the deletion to run", async || is_locked(&consumer, &id).await).await;
        sleep(Duration::from_secs(590)).await;
        assert!(is_locked(&consumer, &id).await, "the timeout of ten minutes has not expired");
        until("the deletion to be cancelled", async || !is_locked(&consumer, &id).await).await;
        assert_eq!(consumer.node_state(&id).await, Some(NodeState::Deleting));
        until("another deletion to start", async || is_locked(&consumer, &id).await).await;
        sleep(Duration::from_secs(250)).await;
        until("the node to be deleted", async || consumer.node(&id).await.is_none()).await;
        let took = (clock::now() - began).0;
        assert!((900.0..920.0).contains(&took), "{took} s");
    });
}

#[test]
fn a_node_that_was_ready_for_too_long_is_replaced() {
    on_paused_time(async {
        let mut configuration = single_provider(json!({}), json!({}));
        configuration["labels"][0] = json!({"name": "a", "min-ready": 1, "max-ready-age": 20});
        let (_zookeeper, consumer, _process) = start_fake_launcher(&configuration).await;
        until("one node to be ready", async || consumer.ready_nodes().await == 1).await;
        let (first, node) = consumer.nodes().await.remove(0);
        until("the node to be deleted", async || consumer.node(&first).await.is_none()).await;
        let age = (clock::now() - node.state_time).0;
        assert!((20.0..26.0).contains(&age), "deleted at an age of {age} s");
        until("the next node to be ready", async || consumer.ready_nodes().await == 1).await;
        // A node locked by a consumer does not expire.
        let used = accepted(&consumer, 1).await;
        sleep(SETTLE_TIME).await;
        assert_eq!(consumer.node_state(&used[0].0).await, Some(NodeState::Ready));
    });
}

#[test]
fn a_held_node_is_reserved_until_it_expires_and_is_deleted() {
    for (limit, own, expected) in [(2.0, None, 2.0), (10.0, Some(3), 3.0), (3.0, Some(10), 3.0), (0.0, Some(4), 4.0)] {
        on_paused_time(async {
            let mut configuration = single_provider(json!({}), json!({"max-servers": 1}));
            configuration["max-hold-age"] = json!(limit);
            let (_zookeeper, consumer, _process) = start_fake_launcher(&configuration).await;
            let (id, held) = accepted(&consumer, 1).await.remove(0);
            change(&consumer, &id, |node| (node.state, node.hold_expiration) = (NodeState::Hold, own)).await;
            held.release().await.unwrap();
            let began = clock::now();
            let waiting = consumer.submit_labels(&["a"]).await;
            let request = consumer.wait_for_end(&waiting).await;
            assert_eq!(request.state, RequestState::Fulfilled);
            assert_ne!(request.nodes, std::slice::from_ref(&id));
            assert_eq!(consumer.node_state(&id).await, None);
            let took = (clock::now() - began).0;
            assert!((expected..expected + 6.0).contains(&took), "{took} s instead of {expected} s");
        });
    }
}

#[test]
fn a_node_held_without_limit_is_never_assigned() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_fake_launcher(&single_provider(json!({}), json!({"max-servers": 1}))).await;
        let (id, held) = accepted(&consumer, 1).await.remove(0);
        change(&consumer, &id, |node| node.state = NodeState::Hold).await;
        held.release().await.unwrap();
        let waiting = consumer.submit_labels(&["a"]).await;
        sleep(SETTLE_TIME).await;
        assert_eq!(consumer.request(&waiting).await.unwrap().state, RequestState::Pending);
        assert_eq!(consumer.node_state(&id).await, Some(NodeState::Hold));
    });
}

#[test]
fn nodes_without_a_pool_or_label_block_no_request() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        for state in [NodeState::Ready, NodeState::InUse, NodeState::Hold] {
            let (mut pool, mut label) = (node_record(state, None), node_record(state, None));
            (pool.pool, label.labels) = (None, Vec::new());
            consumer.create_node(&pool).await;
            consumer.create_node(&label).await;
        }
        let mut process = InProcessDaemon::new(&single_provider(json!({}), json!({"max-servers": 7})).to_string());
        process.run(&zookeeper);
        until("its pool to be registered", async || consumer.count("/nodepool/components/pool").await == 1).await;
        let id = consumer.submit_labels(&["a", "b"]).await;
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
    });
}

#[test]
fn a_node_taken_without_a_lock_is_replaced_for_the_request() {
    for taken in [NodeState::Hold, NodeState::Used, NodeState::Deleting, NodeState::Deleted] {
        on_paused_time(async {
            let (_zookeeper, consumer, process, id, node) = booting().await;
            change(&consumer, &node, |record| record.state = taken).await;
            let request = consumer.wait_for_end(&id).await;
            assert_eq!(request.state, RequestState::Fulfilled, "{taken}");
            assert!(!request.nodes.contains(&node), "{taken}");
            match taken {
                NodeState::Hold => assert_eq!(consumer.node_state(&node).await, Some(taken)),
                _ => until("the node to be deleted", async || consumer.node(&node).await.is_none()).await,
            }
            assert_eq!(process.shared.panics.count(), 0, "{taken}");
        });
    }
}

#[test]
fn a_request_finished_by_others_stays_finished_and_frees_its_node() {
    for state in [RequestState::Failed, RequestState::Fulfilled] {
        on_paused_time(async {
            let (_zookeeper, consumer, process, id, node) = booting().await;
            let mut request = consumer.request(&id).await.unwrap();
            request.state = state;
            consumer.zk.set(&paths::request(&id), Bytes::from(json::to_bytes(&request)), -1).await.unwrap();
            until("its node to be idle", async || consumer.node(&node).await.is_some_and(|node| node.is_idle())).await;
            assert_eq!(consumer.request(&id).await.unwrap().state, state);
            let again = consumer.submit_labels(&["a"]).await;
            assert_eq!(consumer.wait_for_end(&again).await.nodes, [node]);
            assert_eq!(process.shared.panics.count(), 0, "{state:?}");
        });
    }
}

/// Starts a launcher that boots a node for a request; returns both ids.
async fn booting() -> (MemoryZooKeeper, Consumer, InProcessDaemon, RequestId, NodeId) {
    let (zookeeper, consumer, process) =
        start_fake_launcher(&single_provider(json!({"fake": {"boot-time": 20}}), json!({}))).await;
    let id = consumer.submit_labels(&["a"]).await;
    let is_booting = async || consumer.nodes().await.iter().any(|(_, node)| node.external_id.is_string());
    until("its node to boot", is_booting).await;
    let node = consumer.nodes().await.remove(0).0;
    (zookeeper, consumer, process, id, node)
}
