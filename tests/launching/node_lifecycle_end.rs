//! The end of nodes of a cloud (used, abandoned, held, expired), and requests that a launcher or consumer abandoned.

use std::time::Duration;

use crate::in_process_launcher::fake_cloud::{self, provider, single_provider, start_fake_launcher};
use crate::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, until, zookeeper};
use bytes::Bytes;
use nodepool::actors::process::context::{LauncherOptions, SessionEnd};
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::Seconds;
use nodepool_zk::locks::lock;
use nodepool_zk::locks::lock::Lock;
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::paths;
use serde_json::json;
use tokio::time::sleep;
use zookeeper_server::types::CreateMode;

/// Longer than any interval of a launcher: every action that is due has been performed.
const SETTLE_TIME: Duration = Duration::from_secs(300);

/// Launches nodes of label `a` and locks them as a consumer.
async fn accepted(consumer: &Consumer, count: usize) -> Vec<(NodeId, Lock)> {
    let id = consumer.submit_labels(&vec!["a"; count]).await;
    assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
    consumer.accept(&id).await
}

async fn is_locked(consumer: &Consumer, id: &NodeId) -> bool {
    lock::contenders(&consumer.zk, &paths::node_lock(id)).await.is_ok_and(|contenders| !contenders.is_empty())
}

async fn state(consumer: &Consumer, id: &NodeId) -> Option<NodeState> {
    consumer.node(id).await.map(|node| node.state)
}

async fn create(consumer: &Consumer, node: &Node) -> NodeId {
    lock::make_path(&consumer.zk, "/nodepool/nodes").await.unwrap();
    let data = Bytes::from(json::to_bytes(node));
    let (path, _) = consumer.zk.create(&paths::node_prefix(), data, CreateMode::PersistentSequential).await.unwrap();
    NodeId::from(paths::name(&path))
}

/// Writes a change of a node that no launcher makes by itself.
async fn change(consumer: &Consumer, id: &NodeId, change: impl FnOnce(&mut Node)) {
    let mut node = consumer.node(id).await.expect("the node exists");
    node.state_time = clock::now();
    change(&mut node);
    consumer.zk.set(&paths::node(id), Bytes::from(json::to_bytes(&node)), -1).await.unwrap();
}

/// A node of the pool, allocated to a request or not.
fn record(state: NodeState, request: Option<&RequestId>) -> Node {
    let mut node = Node::new(state, clock::now());
    (node.provider, node.pool, node.labels) = (Some("lab".into()), Some("main".into()), vec!["a".into()]);
    node.allocated_to = request.cloned();
    node
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
        create(&consumer, &record(Deleted, None)).await;
        let began = clock::now();
        until("all but one are deleted", async || consumer.nodes().await.len() == 1).await;
        assert!((clock::now() - began).0 < 10.0, "two passes take ten seconds");
        sleep(SETTLE_TIME).await;
        assert_eq!(state(&consumer, &in_use_node).await, Some(InUse));
        // The cloud has capacity for eight instances, and has one.
        let next = accepted(&consumer, 7).await;
        consumer.use_and_release(next).await;
        held.release().await.unwrap();
        until("the last one is deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

#[test]
fn an_undeletable_node_stays_deleting_and_unlocked() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_fake_launcher(&single_provider(json!({"fake": {"delete-fails-every": 2}}), json!({}))).await;
        let nodes = accepted(&consumer, 2).await;
        consumer.use_and_release(nodes).await;
        until("one node remains", async || consumer.nodes().await.len() == 1).await;
        let (remaining, node) = consumer.nodes().await.remove(0);
        assert_eq!(node.state, NodeState::Deleting);
        until("the node is unlocked", async || !is_locked(&consumer, &remaining).await).await;
        assert_eq!(state(&consumer, &remaining).await, Some(NodeState::Deleting));
        until("the node is deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

// A deletion times out after ten minutes, and another one is started.
#[test]
fn a_deletion_that_times_out_is_restarted() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_fake_launcher(&single_provider(json!({"fake": {"delete-time": 900}}), json!({}))).await;
        let nodes = accepted(&consumer, 1).await;
        let id = nodes[0].0.clone();
        consumer.use_and_release(nodes).await;
        let began = clock::now();
        until("the deletion is running", async || is_locked(&consumer, &id).await).await;
        sleep(Duration::from_secs(590)).await;
        assert!(is_locked(&consumer, &id).await, "the timeout of ten minutes has not expired");
        until("the deletion is cancelled", async || !is_locked(&consumer, &id).await).await;
        assert_eq!(state(&consumer, &id).await, Some(NodeState::Deleting));
        until("another deletion is started", async || is_locked(&consumer, &id).await).await;
        sleep(Duration::from_secs(250)).await;
        until("the node is deleted", async || consumer.node(&id).await.is_none()).await;
        let took = (clock::now() - began).0;
        assert!((900.0..920.0).contains(&took), "{took} s");
    });
}

#[test]
fn a_partly_fulfilled_request_restarts_with_its_ready_nodes() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        lock::make_path(&consumer.zk, "/nodepool/requests").await.unwrap();
        let mut request = NodeRequest::new(vec!["a".into(), "b".into(), "a".into()], "tester", clock::now());
        request.set_state(RequestState::Pending, clock::now());
        let id = consumer.submit(request).await;
        let mut good = record(NodeState::Ready, Some(&id));
        good.external_id = "a-server".into();
        let good = create(&consumer, &good).await;
        let unfinished = create(&consumer, &record(NodeState::Init, Some(&id))).await;
        let mut process = InProcessDaemon::new(&single_provider(json!({}), json!({})).to_string());
        process.run(&zookeeper);
        let request = consumer.wait_for_end(&id).await;
        assert_eq!((request.state, request.nodes.len()), (RequestState::Fulfilled, 3));
        assert!(request.nodes.contains(&good) && !request.nodes.contains(&unfinished), "{:?}", request.nodes);
        assert_eq!(state(&consumer, &unfinished).await, None);
    });
}

#[test]
fn a_node_that_was_ready_for_too_long_is_replaced() {
    on_paused_time(async {
        let mut configuration = single_provider(json!({}), json!({}));
        configuration["labels"][0] = json!({"name": "a", "min-ready": 1, "max-ready-age": 20});
        let (_zookeeper, consumer, _process) = start_fake_launcher(&configuration).await;
        until("one node is ready", async || consumer.ready_nodes().await == 1).await;
        let (first, node) = consumer.nodes().await.remove(0);
        until("the node is deleted", async || consumer.node(&first).await.is_none()).await;
        let age = (clock::now() - node.state_time).0;
        assert!((20.0..26.0).contains(&age), "deleted at an age of {age} s");
        until("the next node is ready", async || consumer.ready_nodes().await == 1).await;
        // A node locked by a consumer does not expire.
        let used = accepted(&consumer, 1).await;
        sleep(SETTLE_TIME).await;
        assert_eq!(state(&consumer, &used[0].0).await, Some(NodeState::Ready));
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
            assert_eq!(state(&consumer, &id).await, None);
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
        assert_eq!(state(&consumer, &id).await, Some(NodeState::Hold));
    });
}

#[test]
fn a_session_lost_during_a_launch_is_recovered_by_another() {
    on_paused_time(async {
        let configuration = single_provider(json!({"fake": {"boot-time": 20}}), json!({})).to_string();
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let (mut first, mut second) = (InProcessDaemon::new(&configuration), InProcessDaemon::new(&configuration));
        let running = first.run(&zookeeper);
        until("its pool is registered", async || consumer.count("/nodepool/components/pool").await == 1).await;
        let id = consumer.submit_labels(&["a", "b"]).await;
        until("its nodes are booting", async || {
            let nodes = consumer.nodes().await;
            nodes.iter().filter(|(_, node)| node.external_id.is_string()).count() == 2
        })
        .await;
        zookeeper.expire(first.session_id);
        let ended = zookeeper.last_zxid();
        assert_eq!(running.await.unwrap(), SessionEnd::Expired);
        sleep(SETTLE_TIME).await;
        assert_eq!(zookeeper.last_zxid(), ended, "nothing is written");
        assert_eq!(consumer.request(&id).await.unwrap().state, RequestState::Pending);
        second.run(&zookeeper);
        let request = consumer.wait_for_end(&id).await;
        assert_eq!((request.state, request.nodes.len()), (RequestState::Fulfilled, 2));
        until("the nodes of the first session are deleted", async || consumer.nodes().await.len() == 2).await;
    });
}

#[test]
fn booting_nodes_of_a_dead_launcher_are_adopted_at_once() {
    on_paused_time(async {
        let configuration = single_provider(json!({"fake": {"boot-time": 20}}), json!({})).to_string();
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        // With this interval no periodic pass helps.
        let rarely_polling = |options: &mut LauncherOptions| options.watermark_sleep = Seconds(1000.0);
        let (mut first, mut second) = (
            InProcessDaemon::with(&configuration, rarely_polling),
            InProcessDaemon::with(&configuration, rarely_polling),
        );
        first.run(&zookeeper);
        until("its pool is registered", async || consumer.count("/nodepool/components/pool").await == 1).await;
        let requests = [consumer.submit_labels(&["a", "b"]).await, consumer.submit_labels(&["a"]).await];
        until("its nodes are booting", async || {
            let nodes = consumer.nodes().await;
            nodes.iter().filter(|(_, node)| node.external_id.is_string()).count() == 3
        })
        .await;
        let booting: Vec<NodeId> = consumer.nodes().await.into_iter().map(|(id, _)| id).collect();
        // A launcher without this provider is notified as early, and does not reset the requests.
        let elsewhere = fake_cloud::configuration(&[provider("elsewhere", json!({}), json!({}))]).to_string();
        let mut third = InProcessDaemon::with(&elsewhere, rarely_polling);
        third.run(&zookeeper);
        until("another pool is registered", async || consumer.count("/nodepool/components/pool").await == 2).await;
        second.run(&zookeeper);
        until("all pools are registered", async || consumer.count("/nodepool/components/pool").await == 3).await;
        // The second launcher has completed its first clean-up pass.
        sleep(Duration::from_secs(5)).await;
        zookeeper.expire(first.session_id);
        let is_locked = async |id: &RequestId| {
            let directory = paths::request_lock(id);
            lock::contenders(&consumer.zk, &directory).await.is_ok_and(|contenders| !contenders.is_empty())
        };
        let expired = clock::now();
        until("both requests are locked", async || is_locked(&requests[0]).await && is_locked(&requests[1]).await)
            .await;
        assert!((clock::now() - expired).0 < 1.0, "the requests are resumed at once");
        for id in &requests {
            let nodes = consumer.wait_for_end(id).await.nodes;
            assert!(nodes.iter().all(|node| booting.contains(node)), "{nodes:?} of {booting:?}");
        }
    });
}

#[test]
fn unaccepted_nodes_of_a_dead_consumer_are_kept_for_the_request() {
    on_paused_time(async {
        let (zookeeper, consumer, _process) = start_fake_launcher(&single_provider(json!({}), json!({}))).await;
        let dying = Consumer::of(&zookeeper);
        let accepted = dying.submit_labels(&["a"]).await;
        let fulfilled = dying.submit_labels(&["a"]).await;
        let unaccepted = dying.wait_for_end(&fulfilled).await.nodes.remove(0);
        dying.wait_for_end(&accepted).await;
        let (used, _lock) = dying.accept(&accepted).await.remove(0);
        dying.set_state(&used, NodeState::InUse).await;
        zookeeper.expire(dying.zk.session_id());
        until("the accepted node is deleted", async || consumer.node(&used).await.is_none()).await;
        sleep(SETTLE_TIME).await;
        let node = consumer.node(&unaccepted).await.unwrap();
        assert_eq!((node.state, node.allocated_to.as_ref()), (NodeState::Ready, Some(&fulfilled)));
        consumer.zk.delete(&paths::request(&fulfilled), -1).await.unwrap();
        until("the other node is idle", async || consumer.node(&unaccepted).await.is_some_and(|node| node.is_idle()))
            .await;
    });
}

#[test]
fn nodes_without_a_pool_or_label_block_no_request() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        for state in [NodeState::Ready, NodeState::InUse, NodeState::Hold] {
            let (mut pool, mut label) = (record(state, None), record(state, None));
            (pool.pool, label.labels) = (None, Vec::new());
            create(&consumer, &pool).await;
            create(&consumer, &label).await;
        }
        let mut process = InProcessDaemon::new(&single_provider(json!({}), json!({"max-servers": 7})).to_string());
        process.run(&zookeeper);
        until("its pool is registered", async || consumer.count("/nodepool/components/pool").await == 1).await;
        let id = consumer.submit_labels(&["a", "b"]).await;
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
    });
}

/// Starts a launcher that boots a node for a request; returns both ids.
async fn booting() -> (MemoryZooKeeper, Consumer, InProcessDaemon, RequestId, NodeId) {
    let (zookeeper, consumer, process) =
        start_fake_launcher(&single_provider(json!({"fake": {"boot-time": 20}}), json!({}))).await;
    let id = consumer.submit_labels(&["a"]).await;
    let is_booting = async || consumer.nodes().await.iter().any(|(_, node)| node.external_id.is_string());
    until("its node is booting", is_booting).await;
    let node = consumer.nodes().await.remove(0).0;
    (zookeeper, consumer, process, id, node)
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
                NodeState::Hold => assert_eq!(state(&consumer, &node).await, Some(taken)),
                _ => until("the node is deleted", async || consumer.node(&node).await.is_none()).await,
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
            until("its node is idle", async || consumer.node(&node).await.is_some_and(|node| node.is_idle())).await;
            assert_eq!(consumer.request(&id).await.unwrap().state, state);
            let again = consumer.submit_labels(&["a"]).await;
            assert_eq!(consumer.wait_for_end(&again).await.nodes, [node]);
            assert_eq!(process.shared.panics.count(), 0, "{state:?}");
        });
    }
}
