//! The compound writes: their cost, their conditions, and foreign children below the znodes that they change.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nodepool::actors::runtime::clock;
use nodepool_model::records::component::ComponentKind;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::snapshot::{NodeChange, RequestChange, WriteError};
use nodepool_zk::locks::lock;
use nodepool_zk::locks::lock::Lock;
use nodepool_zk::memory::{Fault, MemoryZooKeeper};
use nodepool_zk::mirror::mirror::Mirror;
use nodepool_zk::txn::launch::HeldNode;
use nodepool_zk::txn::store::Store;
use nodepool_zk::{Zk, paths};
use testkit::in_process_launcher::{Consumer, on_paused_time, zookeeper};
use tokio::time::Instant;
use zookeeper_server::types::CreateMode;

/// A store, one idle node and one request for it.
struct TransactionHarness {
    zookeeper: MemoryZooKeeper,
    other: Consumer,
    store: Store,
    node: NodeId,
    request: RequestId,
}

impl TransactionHarness {
    async fn new() -> Self {
        let zookeeper = zookeeper();
        let zk: Zk = zookeeper.connect();
        let store =
            Store::new(zk.clone(), Arc::new(Mirror::start(zk, &tokio::runtime::Handle::current()).await.unwrap()));
        let mut node = Node::new(NodeState::Ready, clock::now());
        (node.provider, node.pool) = (Some("lab".into()), Some("main".into()));
        node.labels = vec!["a".into()];
        let node = store.register(node).await.unwrap();
        let other = Consumer::of(&zookeeper);
        let request = other.submit_labels(&["a"]).await;
        let case = Self { zookeeper, other, store, node, request };
        case.wait_for_mirror().await;
        case
    }

    /// Waits until the mirror has received all events.
    async fn wait_for_mirror(&self) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    fn fulfilment(&self) -> (RequestChange, Vec<NodeChange>) {
        let snapshot = self.store.mirror().snapshot();
        let node = snapshot.node(&self.node).unwrap();
        let node = node.change(self.node.clone(), |record| record.allocated_to = Some(self.request.clone()));
        let request =
            snapshot.request(&self.request).unwrap().change(self.request.clone(), |record: &mut NodeRequest| {
                record.set_state(RequestState::Fulfilled, clock::now());
                record.nodes = vec![self.node.clone()];
            });
        (request, vec![node])
    }

    async fn create(&self, path: &str) {
        self.other.zk.create(path, Bytes::new(), CreateMode::Persistent).await.unwrap();
    }

    async fn assert_fulfilled(&self) {
        assert_eq!(self.other.request(&self.request).await.unwrap().state, RequestState::Fulfilled);
        assert_eq!(self.other.node(&self.node).await.unwrap().allocated_to.as_ref(), Some(&self.request));
        for directory in [paths::node_lock(&self.node), paths::request_lock(&self.request)] {
            assert!(lock::contenders(&self.other.zk, &directory).await.unwrap_or_default().is_empty());
        }
    }

    async fn assert_untouched(&self) {
        assert_eq!(self.other.request(&self.request).await.unwrap().state, RequestState::Requested);
        assert_eq!(self.other.node(&self.node).await.unwrap().allocated_to, None);
    }
}

#[test]
fn fulfilling_a_request_is_one_transaction() {
    for directories in [vec![], vec!["request"], vec!["node"], vec!["request", "node"]] {
        on_paused_time(async {
            let case = TransactionHarness::new().await;
            for directory in &directories {
                let path = if *directory == "node" {
                    paths::node_lock(&case.node)
                } else {
                    paths::request_lock(&case.request)
                };
                case.create(&path).await;
            }
            case.wait_for_mirror().await;
            let (request, nodes) = case.fulfilment();
            let before = case.zookeeper.last_zxid();
            case.store.fulfill(request, nodes).await.unwrap();
            assert_eq!(case.zookeeper.last_zxid() - before, 1, "{directories:?}");
            case.assert_fulfilled().await;
            let directory_exists = case.other.zk.exists(&paths::request_lock(&case.request)).await.unwrap().is_some();
            assert_eq!(
                directory_exists,
                directories.contains(&"request"),
                "a foreign directory is kept, no other one remains"
            );
        });
    }
}

#[test]
fn a_writer_observes_its_own_write_at_once() {
    on_paused_time(async {
        let case = TransactionHarness::new().await;
        let (request, nodes) = case.fulfilment();
        case.store.fulfill(request, nodes).await.unwrap();
        let snapshot = case.store.mirror().snapshot();
        assert_eq!(snapshot.request(&case.request).unwrap().record.state, RequestState::Fulfilled);
        assert!(!snapshot.node(&case.node).unwrap().record.is_idle());
    });
}

#[test]
fn a_held_snapshot_never_changes() {
    on_paused_time(async {
        let case = TransactionHarness::new().await;
        let held = case.store.mirror().snapshot();
        case.store.remove_node(&case.node, 0).await.unwrap();
        assert!(case.store.mirror().snapshot().node(&case.node).is_none());
        assert!(held.node(&case.node).is_some());
    });
}

#[test]
fn the_event_of_an_own_write_publishes_no_second_snapshot() {
    on_paused_time(async {
        let case = TransactionHarness::new().await;
        let mirror = case.store.mirror();
        let mut snapshots = mirror.subscribe();
        case.store.register(Node::new(NodeState::Ready, clock::now())).await.unwrap();
        case.wait_for_mirror().await;
        let with_one_more = snapshots.latest_and_mark_seen().revision;
        case.store.remove_node(&case.node, 0).await.unwrap();
        case.wait_for_mirror().await;
        assert_eq!(snapshots.latest_and_mark_seen().revision, with_one_more + 1, "one snapshot for a deletion");
        case.store.register(Node::new(NodeState::Ready, clock::now())).await.unwrap();
        case.wait_for_mirror().await;
        assert_eq!(snapshots.latest_and_mark_seen().revision, with_one_more + 2, "one snapshot for a creation");
    });
}

#[test]
fn a_foreign_lock_prevents_any_change() {
    for known in [true, false] {
        for locked in ["node", "request"] {
            on_paused_time(async {
                let case = TransactionHarness::new().await;
                let (request, nodes) = case.fulfilment();
                let path =
                    if locked == "node" { paths::node_lock(&case.node) } else { paths::request_lock(&case.request) };
                let held = lock::try_lock(&case.other.zk, &path, "").await.unwrap().unwrap();
                if known {
                    case.wait_for_mirror().await;
                }
                let error = case.store.fulfill(request, nodes).await.unwrap_err();
                assert_eq!(error, WriteError::Contended, "{locked}, known to the mirror: {known}");
                case.assert_untouched().await;
                assert_eq!(lock::contenders(&case.other.zk, &path).await.unwrap().len(), 1, "our contender is deleted");
                held.release().await.unwrap();
            });
        }
    }
}

#[test]
fn lock_directories_with_foreign_children_use_the_slow_path() {
    on_paused_time(async {
        let case = TransactionHarness::new().await;
        let (node_lock, request_lock) = (paths::node_lock(&case.node), paths::request_lock(&case.request));
        for path in [&node_lock, &format!("{node_lock}/strange"), &request_lock, &format!("{request_lock}/strange")] {
            case.create(path).await;
        }
        case.wait_for_mirror().await;
        let (request, nodes) = case.fulfilment();
        case.store.fulfill(request, nodes).await.unwrap();
        case.assert_fulfilled().await;
    });
}

#[test]
fn a_finished_request_is_neither_fulfilled_nor_claimed() {
    on_paused_time(async {
        let case = TransactionHarness::new().await;
        let (request, nodes) = case.fulfilment();
        let snapshot = case.store.mirror().snapshot();
        let claimed = snapshot.request(&case.request).unwrap().change(case.request.clone(), |record| {
            record.set_state(RequestState::Pending, clock::now());
        });
        let mut failed = case.other.request(&case.request).await.unwrap();
        failed.set_state(RequestState::Failed, clock::now());
        let (path, failed) = (paths::request(&case.request), Bytes::from(json::to_bytes(&failed)));
        case.other.zk.set(&path, failed.clone(), -1).await.unwrap();
        assert_eq!(case.store.fulfill(request, nodes).await, Err(WriteError::Conflict));
        let new = Node::new(NodeState::Init, clock::now());
        assert_eq!(case.store.claim(claimed, Vec::new(), vec![new]).await.unwrap_err(), WriteError::Conflict);
        assert_eq!(case.other.zk.get(&path).await.unwrap().0, failed);
        assert_eq!(case.other.nodes().await.len(), 1, "no node is created");
        let contenders = lock::contenders(&case.other.zk, &paths::request_lock(&case.request)).await;
        assert!(contenders.unwrap_or_default().is_empty(), "the request is unlocked");
    });
}

#[test]
fn a_record_that_changed_meanwhile_is_a_conflict() {
    on_paused_time(async {
        let case = TransactionHarness::new().await;
        let (request, nodes) = case.fulfilment();
        let mut held = case.other.node(&case.node).await.unwrap();
        held.state = NodeState::Hold;
        case.other.zk.set(&paths::node(&case.node), Bytes::from(json::to_bytes(&held)), -1).await.unwrap();
        assert_eq!(case.store.fulfill(request, nodes).await, Err(WriteError::Conflict));
        case.assert_untouched().await;
    });
}

#[test]
fn a_node_is_deleted_recursively_unless_locked() {
    on_paused_time(async {
        let case = TransactionHarness::new().await;
        let lock_directory = paths::node_lock(&case.node);
        for path in [&lock_directory, &format!("{lock_directory}/strange"), &format!("{}/odd", paths::node(&case.node))]
        {
            case.create(path).await;
        }
        let held = lock::try_lock(&case.other.zk, &lock_directory, "").await.unwrap().unwrap();
        assert_eq!(case.store.remove_node(&case.node, 0).await, Err(WriteError::Contended));
        held.release().await.unwrap();
        assert_eq!(case.store.remove_node(&case.node, 7).await, Err(WriteError::Conflict), "a stale version");
        case.store.remove_node(&case.node, 0).await.unwrap();
        assert!(case.other.node(&case.node).await.is_none());
        assert!(case.store.mirror().snapshot().node(&case.node).is_none());
    });
}

#[test]
fn a_node_is_released_only_if_its_request_was_deleted() {
    on_paused_time(async {
        let case = TransactionHarness::new().await;
        let (request, nodes) = case.fulfilment();
        case.store.fulfill(request, nodes).await.unwrap();
        let release = || {
            let snapshot = case.store.mirror().snapshot();
            snapshot.node(&case.node).unwrap().change(case.node.clone(), |record| record.allocated_to = None)
        };
        assert_eq!(case.store.release(&case.request, release()).await, Err(WriteError::Conflict));
        case.other.zk.delete(&paths::request(&case.request), -1).await.unwrap();
        case.store.release(&case.request, release()).await.unwrap();
        assert!(case.other.node(&case.node).await.unwrap().is_idle());
    });
}

#[test]
fn fulfilling_a_deleted_request_leaves_no_traces() {
    for (is_large, is_strange, is_known) in
        [(false, false, false), (false, true, false), (false, false, true), (true, false, false), (true, true, true)]
    {
        let case_name = format!("large: {is_large}, strange children: {is_strange}, known: {is_known}");
        on_paused_time(async {
            let case = TransactionHarness::new().await;
            let request_lock = paths::request_lock(&case.request);
            if is_strange {
                for path in [&request_lock, &format!("{request_lock}/strange")] {
                    case.create(path).await;
                }
                case.wait_for_mirror().await;
            }
            let (request, mut nodes) = case.fulfilment();
            if is_large {
                // More than fits into one transaction.
                let mut record = Node::clone(&nodes[0].record);
                record.comment = Some("x".repeat(950_000));
                nodes[0].record = record;
            }
            case.other.zk.delete(&paths::request(&case.request), -1).await.unwrap();
            if is_known {
                case.wait_for_mirror().await;
            }
            assert_eq!(case.store.fulfill(request, nodes).await, Err(WriteError::Conflict), "{case_name}");
            case.wait_for_mirror().await;
            assert!(case.other.request(&case.request).await.is_none(), "{case_name}");
            assert!(case.other.node(&case.node).await.unwrap().is_idle(), "{case_name}");
            for directory in [&request_lock, &paths::node_lock(&case.node)] {
                let contenders = lock::contenders(&case.other.zk, directory).await.unwrap_or_default();
                assert!(contenders.is_empty(), "{case_name}: {contenders:?}");
            }
            let directory_exists = case.other.zk.exists(&request_lock).await.unwrap().is_some();
            // A chunked write first takes the lock as peers do, and leaves its directory to the clean-up.
            assert_eq!(directory_exists, is_strange || is_large, "{case_name}");
        });
    }
}

// Found by tests/crash/launcher.rs: a chunked reset freed nodes of a request that was fulfilled after the decision.
#[test]
fn a_stale_reset_after_fulfilment_frees_nothing() {
    for is_large in [false, true] {
        on_paused_time(async {
            let case = TransactionHarness::new().await;
            if is_large {
                case.zookeeper.limit_transactions(1);
            }
            // The state of a chunked fulfilment after its last node is allocated: the request is still pending.
            let (fulfilled, nodes) = case.fulfilment();
            let mut pending = case.other.request(&case.request).await.unwrap();
            pending.set_state(RequestState::Pending, clock::now());
            let set = async |path: String, data: Vec<u8>| case.other.zk.set(&path, data.into(), -1).await.unwrap();
            set(paths::request(&case.request), json::to_bytes(&pending)).await;
            set(paths::node(&case.node), json::to_bytes(&nodes[0].record)).await;
            case.wait_for_mirror().await;
            let snapshot = case.store.mirror().snapshot();
            let request = snapshot.request(&case.request).unwrap();
            let reset = request.change(case.request.clone(), |record| {
                record.set_state(RequestState::Requested, clock::now());
            });
            let node = snapshot.node(&case.node).unwrap();
            let freed = node.change(case.node.clone(), |record| record.allocated_to = None);
            set(paths::request(&case.request), json::to_bytes(&fulfilled.record)).await;
            assert_eq!(case.store.reset(reset, vec![freed]).await, Err(WriteError::Conflict), "large: {is_large}");
            case.assert_fulfilled().await;
        });
    }
}

// An operator marks one of the nodes as deleting between two steps.
#[test]
fn a_chunked_fulfilment_fails_if_a_node_changed() {
    on_paused_time(async {
        let case = TransactionHarness::new().await;
        case.zookeeper.limit_transactions(1);
        // More nodes follow, so that the operator's write precedes the last step.
        let mut ready = case.other.node(&case.node).await.unwrap();
        ready.labels = vec!["b".into()];
        for _ in 0..5 {
            case.store.register(ready.clone()).await.unwrap();
        }
        let (request, mut nodes) = case.fulfilment();
        let snapshot = case.store.mirror().snapshot();
        let others = snapshot.nodes().filter(|(id, _)| **id != case.node);
        let allocate = |record: &mut Node| record.allocated_to = Some(case.request.clone());
        nodes.extend(others.map(|(id, node)| node.change(id.clone(), allocate)));
        let (other, watched) = (case.other.clone(), paths::node(&case.node));
        let interference = tokio::spawn(async move {
            loop {
                let (_, changed) = other.zk.exists_and_watch(&watched).await.unwrap();
                changed.await;
                let mut node = other.node(&NodeId::from(paths::name(&watched))).await.unwrap();
                if node.allocated_to.is_some() {
                    node.state = NodeState::Deleting;
                    other.zk.set(&watched, Bytes::from(json::to_bytes(&node)), -1).await.unwrap();
                    return;
                }
            }
        });
        assert_eq!(case.store.fulfill(request, nodes).await, Err(WriteError::Conflict));
        interference.await.unwrap();
        assert_eq!(case.other.request(&case.request).await.unwrap().state, RequestState::Pending);
    });
}

// The request is locked before its first node is allocated. Without the lock it would count as abandoned.
#[test]
fn a_chunked_fulfilment_is_locked_at_every_step() {
    on_paused_time(async {
        let case = TransactionHarness::new().await;
        case.zookeeper.limit_transactions(1);
        let (request, nodes) = case.fulfilment();
        let (batches, mut received) = tokio::sync::mpsc::channel(100);
        case.store.mirror().stream_transitions(batches);
        case.store.fulfill(request, nodes).await.unwrap();
        case.wait_for_mirror().await;
        let mut pending = 0;
        while let Ok(batch) = received.try_recv() {
            let snapshot = batch.snapshot;
            if snapshot.request(&case.request).unwrap().record.state == RequestState::Pending {
                pending += 1;
                assert!(snapshot.is_request_locked(&case.request), "{snapshot:?}");
            }
        }
        assert!(pending > 0, "a pending request is observed");
        case.assert_fulfilled().await;
        assert!(!case.store.mirror().snapshot().is_request_locked(&case.request));
    });
}

/// New nodes as in a claim, one for each label.
fn new_nodes(case: &TransactionHarness, labels: &[&str]) -> Vec<Node> {
    let node = |label: &&str| {
        let mut node = Node::new(NodeState::Init, clock::now());
        node.labels = vec![(*label).into()];
        node.allocated_to = Some(case.request.clone());
        node
    };
    labels.iter().map(node).collect()
}

fn pending(case: &TransactionHarness) -> RequestChange {
    let snapshot = case.store.mirror().snapshot();
    let pending = |record: &mut NodeRequest| record.set_state(RequestState::Pending, clock::now());
    snapshot.request(&case.request).unwrap().change(case.request.clone(), pending)
}

/// The changes of the nodes to `building`.
fn building(case: &TransactionHarness, nodes: &[NodeId]) -> Vec<NodeChange> {
    let snapshot = case.store.mirror().snapshot();
    let to_building = |id: &NodeId| {
        let record = snapshot.node(id).unwrap();
        record.change(id.clone(), |record: &mut Node| record.state = NodeState::Building)
    };
    nodes.iter().map(to_building).collect()
}

async fn locks_of_nodes(case: &TransactionHarness, nodes: &[NodeId]) -> usize {
    let mut count = 0;
    for node in nodes {
        count += lock::contenders(&case.other.zk, &paths::node_lock(node)).await.unwrap_or_default().len();
    }
    count
}

// One request for more nodes than fit into a transaction.
#[test]
fn a_chunked_launch_is_claimed_started_and_resumed() {
    for max_bytes in [1, 3_000, 700_000] {
        on_paused_time(async {
            let case = TransactionHarness::new().await;
            case.zookeeper.limit_transactions(max_bytes);
            let (_, reuse) = case.fulfilment();
            let labels = ["b", "c", "d", "e", "f"];
            let claimed = case.store.claim(pending(&case), reuse, new_nodes(&case, &labels)).await.unwrap();
            assert_eq!(case.other.request(&case.request).await.unwrap().state, RequestState::Pending);
            assert_eq!(case.other.node(&case.node).await.unwrap().allocated_to.as_ref(), Some(&case.request));
            let more = case.store.extend(&claimed.lock, Vec::new(), new_nodes(&case, &["g", "h"])).await.unwrap();
            let nodes = [claimed.nodes, more].concat();
            for (node, label) in nodes.iter().zip(labels.iter().chain(&["g", "h"])) {
                let node = case.other.node(node).await.unwrap();
                assert_eq!((node.state, node.labels), (NodeState::Init, vec![(*label).into()]), "limit {max_bytes}");
            }
            let locks = case.store.begin(building(&case, &nodes)).await.unwrap();
            assert_eq!((locks.len(), locks_of_nodes(&case, &nodes).await), (7, 7), "limit {max_bytes}");
            for (lock, node) in locks.iter().zip(&nodes) {
                assert!(lock.path().starts_with(&paths::node(node)), "{} is the lock of {node}", lock.path());
                assert_eq!(case.other.node(node).await.unwrap().state, NodeState::Building);
            }
            // The launcher exits, and another one resumes the request.
            drop((claimed.lock, locks));
            case.wait_for_mirror().await;
            let (lock, locks) = case.store.adopt(pending(&case), building(&case, &nodes)).await.unwrap();
            assert!(lock.path().starts_with(&paths::request_lock(&case.request)));
            assert_eq!((locks.len(), locks_of_nodes(&case, &nodes).await), (7, 7), "limit {max_bytes}");
        });
    }
}

#[test]
fn a_failed_chunk_leaves_no_lock() {
    on_paused_time(async {
        let case = TransactionHarness::new().await;
        case.zookeeper.limit_transactions(1);
        let request_locks = async || {
            let directory = paths::request_lock(&case.request);
            lock::contenders(&case.other.zk, &directory).await.unwrap_or_default().len()
        };
        // Another client has locked the node to be reused.
        let foreign_lock = lock::try_lock(&case.other.zk, &paths::node_lock(&case.node), "").await.unwrap().unwrap();
        let (_, reuse) = case.fulfilment();
        let began = Instant::now();
        let rejected = case.store.claim(pending(&case), reuse, new_nodes(&case, &["b"])).await;
        assert_eq!(rejected.unwrap_err(), WriteError::Conflict);
        assert!(
            began.elapsed() >= Duration::from_millis(500),
            "an immediate error would be retried on an unchanged snapshot"
        );
        case.wait_for_mirror().await;
        assert_eq!((request_locks().await, case.other.nodes().await.len()), (0, 1), "no node was created for it");
        foreign_lock.release().await.unwrap();
        case.wait_for_mirror().await;

        let claimed = case.store.claim(pending(&case), Vec::new(), new_nodes(&case, &["b", "c", "d"])).await.unwrap();
        let changes = building(&case, &claimed.nodes);
        // The last node is deleted by another client.
        case.other.zk.delete(&paths::node(&claimed.nodes[2]), -1).await.unwrap();
        assert_eq!(case.store.begin(changes.clone()).await.unwrap_err(), WriteError::Conflict);
        case.wait_for_mirror().await;
        assert_eq!(locks_of_nodes(&case, &claimed.nodes).await, 0);
        drop(claimed.lock);
        case.wait_for_mirror().await;
        let adopted = case.store.adopt(pending(&case), changes).await;
        assert_eq!(adopted.unwrap_err(), WriteError::Conflict);
        case.wait_for_mirror().await;
        assert_eq!((request_locks().await, locks_of_nodes(&case, &claimed.nodes).await), (0, 0));
    });
}

// A node freed by one step is allocated to another request before the last step.
#[test]
fn a_failed_chunked_request_ends_though_its_nodes_were_reassigned() {
    on_paused_time(async {
        let case = TransactionHarness::new().await;
        case.zookeeper.limit_transactions(1);
        let labels = ["b", "c", "d", "e", "f", "g"];
        let claimed = case.store.claim(pending(&case), Vec::new(), new_nodes(&case, &labels)).await.unwrap();
        let locks = case.store.begin(building(&case, &claimed.nodes)).await.unwrap();
        let snapshot = case.store.mirror().snapshot();
        let free = |record: &mut Node| (record.state, record.allocated_to) = (NodeState::Ready, None);
        let freed = |(id, lock): (&NodeId, Lock)| HeldNode {
            lock,
            change: Some(snapshot.node(id).unwrap().change(id.clone(), free)),
        };
        let freed: Vec<HeldNode> = claimed.nodes.iter().zip(locks).map(freed).collect();
        let (other, watched, failed_request) =
            (case.other.clone(), paths::node(&claimed.nodes[0]), case.request.clone());
        let (_, changed) = other.zk.exists_and_watch(&watched).await.unwrap();
        let reassignment = tokio::spawn(async move {
            changed.await;
            let mut node = other.node(&NodeId::from(paths::name(&watched))).await.unwrap();
            assert_eq!((node.state, node.allocated_to), (NodeState::Ready, None));
            node.allocated_to = Some(RequestId::from("200-0000000099"));
            other.zk.set(&watched, Bytes::from(json::to_bytes(&node)), -1).await.unwrap();
            other.request(&failed_request).await.unwrap().state
        });
        let fail = |record: &mut NodeRequest| record.set_state(RequestState::Failed, clock::now());
        let failed = snapshot.request(&case.request).unwrap().change(case.request.clone(), fail);
        case.store.finish(Some((claimed.lock, Some(failed))), freed).await.unwrap();
        assert_eq!(
            reassignment.await.unwrap(),
            RequestState::Pending,
            "the request is still pending when the node is reassigned"
        );
        assert_eq!(case.other.request(&case.request).await.unwrap().state, RequestState::Failed);
    });
}

// Found by tests/fault_injection/main.rs: a pool whose registration reply was lost registered a second time.
#[test]
fn a_component_is_registered_once_despite_a_lost_reply() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let zk: Zk = zookeeper.connect();
        let mirror = Mirror::start(zk.clone(), &tokio::runtime::Handle::current()).await.unwrap();
        let store = Store::new(zk.clone(), Arc::new(mirror));
        let data = |id: &str| format!(r#"{{"kind": "pool", "id": "{id}"}}"#).into_bytes();
        let register =
            async |id: &str, again| store.register_component(ComponentKind::Pool, "here", data(id), again).await;
        let first = register("one", false).await.unwrap();
        for (fault, id, all) in [(Fault::AfterApplying, "two", 2), (Fault::BeforeApplying, "three", 3)] {
            zookeeper.fail_next(zk.session_id(), 1, fault);
            register(id, false).await.unwrap_err();
            let path = register(id, true).await.unwrap();
            assert_ne!(path, first);
            assert_eq!(zk.get(&path).await.unwrap().0, data(id));
            assert_eq!(zk.children(&paths::components(ComponentKind::Pool)).await.unwrap().0.len(), all);
        }
        // A registration of another session does not count.
        let other: Zk = zookeeper.connect();
        let prefix = paths::component_prefix(ComponentKind::Pool, "here");
        other.create(&prefix, data("four").into(), CreateMode::EphemeralSequential).await.unwrap();
        register("four", true).await.unwrap();
        assert_eq!(zk.children(&paths::components(ComponentKind::Pool)).await.unwrap().0.len(), 5);
    });
}
