//! Replies to own writes that arrive late: after the events of these writes, which the snapshot shows at once or not at
//! all, and after the events of later foreign writes, which it keeps.
//!
//! ZooKeeper is in memory, and time is real.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::Timestamp;
use nodepool_zk::locks::lock;
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::mirror::mirror::Mirror;
use nodepool_zk::txn::store::Store;
use nodepool_zk::{Zk, paths};
use testkit::delayed_replies::delayed_replies;
use tokio::sync::watch;
use zookeeper_server::types::CreateMode;

struct DelayedWriteHarness {
    other: Zk,
    store: Store,
    release_replies: watch::Sender<bool>,
}

async fn start_harness() -> DelayedWriteHarness {
    let zookeeper = MemoryZooKeeper::new();
    let other: Zk = zookeeper.connect();
    for container in ["/nodepool/nodes", "/nodepool/requests"] {
        lock::make_path(&other, container).await.unwrap();
    }
    let (zk, release_replies) = delayed_replies(zookeeper.connect(), false);
    let mirror = Mirror::start(zk.clone(), &tokio::runtime::Handle::current()).await.unwrap();
    DelayedWriteHarness { other, store: Store::new(zk, Arc::new(mirror)), release_replies }
}

impl DelayedWriteHarness {
    /// Waits for a snapshot that satisfies the condition; panics with `what` after ten seconds.
    async fn wait_for_snapshot(&self, what: &str, condition: impl Fn(&nodepool_model::snapshot::Snapshot) -> bool) {
        let mut snapshots = self.store.mirror().subscribe();
        let matching = snapshots.wait_for(|snapshot| condition(snapshot));
        tokio::time::timeout(Duration::from_secs(10), matching).await.unwrap_or_else(|_| panic!("{what}")).unwrap();
    }
}

fn ready() -> Node {
    Node::new(NodeState::Ready, Timestamp(1.0))
}

// Regression: a request that was deleted as soon as it was fulfilled reappeared in the snapshot, and its nodes stayed
// assigned.
#[tokio::test]
async fn a_node_deleted_before_its_write_reply_stays_deleted() {
    let harness = start_harness().await;
    let (request, node) = (RequestId::from("200-0000000001"), NodeId::from("0000000001"));
    let record = NodeRequest::new(vec!["a".into()], "tester", Timestamp(1.0));
    let (at_request, at_node) = (paths::request(&request), paths::node(&node));
    harness.other.create(&at_request, json::to_bytes(&record).into(), CreateMode::Persistent).await.unwrap();
    harness.other.create(&at_node, json::to_bytes(&ready()).into(), CreateMode::Persistent).await.unwrap();
    harness
        .wait_for_snapshot("no snapshot shows the request and the node", |snapshot| {
            snapshot.request(&request).is_some() && snapshot.node(&node).is_some()
        })
        .await;
    let snapshot = harness.store.mirror().snapshot();
    let fulfilled = snapshot.request(&request).unwrap().change(request.clone(), |record| {
        record.set_state(RequestState::Fulfilled, Timestamp(2.0));
        record.nodes = vec![node.clone()];
    });
    let assigned = snapshot.node(&node).unwrap().change(node.clone(), |record| {
        record.allocated_to = Some(request.clone());
    });
    let others = async {
        // The snapshot shows an own write only after its event or reply. Other clients can read it earlier.
        while harness.other.exists(&at_request).await.unwrap().unwrap().version == 0 {
            tokio::task::yield_now().await;
        }
        harness.other.delete(&at_request, -1).await.unwrap();
        harness.other.delete(&paths::node_lock(&node), -1).await.unwrap();
        harness.other.delete(&at_node, -1).await.unwrap();
        harness
            .wait_for_snapshot("the snapshot still shows the request or the node", |snapshot| {
                snapshot.request(&request).is_none() && snapshot.node(&node).is_none()
            })
            .await;
        harness.release_replies.send_replace(true);
    };
    let (written, ()) = join(harness.store.fulfill(fulfilled, vec![assigned]), others).await;
    written.unwrap();
    let snapshot = harness.store.mirror().snapshot();
    assert!(snapshot.request(&request).is_none() && snapshot.node(&node).is_none());
}

#[tokio::test]
async fn a_node_deleted_before_its_create_reply_stays_deleted() {
    let harness = start_harness().await;
    let others = async {
        harness.wait_for_snapshot("no snapshot shows the node", |snapshot| snapshot.node_count() == 1).await;
        let id = harness.store.mirror().snapshot().nodes().next().unwrap().0.clone();
        harness.other.delete(&paths::node(&id), -1).await.unwrap();
        harness.wait_for_snapshot("the snapshot still shows the node", |snapshot| snapshot.node_count() == 0).await;
        harness.release_replies.send_replace(true);
    };
    let (registered, ()) = join(harness.store.register(ready()), others).await;
    registered.unwrap();
    assert_eq!(harness.store.mirror().snapshot().node_count(), 0);
}

// Regression: the deletion of a request was visible before its node was idle, which the same transaction had written.
#[tokio::test]
async fn the_changes_of_one_transaction_become_visible_together() {
    let harness = start_harness().await;
    let (request, node, later) = (RequestId::from("900-0000000001"), NodeId::from("0000000001"), NodeId::from("2"));
    let mut allocated = ready();
    allocated.allocated_to = Some(request.clone());
    let record = NodeRequest::new(vec!["a".into()], "tester", Timestamp(1.0));
    let create = async |path: String, data: Vec<u8>| {
        harness.other.create(&path, data.into(), CreateMode::Persistent).await.unwrap();
    };
    create(paths::request(&request), json::to_bytes(&record)).await;
    create(paths::node(&node), json::to_bytes(&allocated)).await;
    harness.wait_for_snapshot("no snapshot shows the node", |snapshot| snapshot.node(&node).is_some()).await;
    let snapshot = harness.store.mirror().snapshot();
    let idle = snapshot.node(&node).unwrap().change(node.clone(), |record| record.allocated_to = None);
    let others = async {
        while harness.other.exists(&paths::request(&request)).await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
        // The events of the transaction precede this one.
        create(paths::node(&later), json::to_bytes(&ready())).await;
        harness.wait_for_snapshot("no snapshot shows the later node", |snapshot| snapshot.node(&later).is_some()).await;
        let snapshot = harness.store.mirror().snapshot();
        assert!(snapshot.request(&request).is_some() && !snapshot.node(&node).unwrap().record.is_idle());
        harness.release_replies.send_replace(true);
    };
    let (written, ()) = join(harness.store.finish_min_ready(&request, vec![idle]), others).await;
    written.unwrap();
    let snapshot = harness.store.mirror().snapshot();
    assert!(snapshot.request(&request).is_none() && snapshot.node(&node).unwrap().record.is_idle());
}
