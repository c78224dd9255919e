//! Client during restarts of the embedded server: its session, watches, queued requests, mirror and locks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use nodepool_model::records::ids::{BuildId, ImageName, NodeId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::Snapshot;
use nodepool_zk::client::{ConnectOptions, connect};
use nodepool_zk::locks::lock;
use nodepool_zk::mirror::mirror::Mirror;
use nodepool_zk::txn::store::Store;
use nodepool_zk::{Connection, SessionState, Zk, paths};
use zookeeper_server::types::{CreateMode, EventKind, Op, WatchEvent, ZkError};
use zookeeper_server::{EmbeddedOptions, EmbeddedServer};

const TIMEOUT: Duration = Duration::from_secs(30);
const LOCK: &str = "/counting/lock";
const COUNTER: &str = "/counting/counter";

/// The next event that is not a `Resync`.
async fn next(stream: &mut BoxStream<'static, WatchEvent>) -> (EventKind, String) {
    let read = async {
        loop {
            let event = stream.next().await.expect("the stream has not ended");
            if event.kind != EventKind::Resync {
                return (event.kind, event.path);
            }
        }
    };
    tokio::time::timeout(TIMEOUT, read).await.expect("an event is received in time")
}

#[tokio::test]
async fn requests_during_an_outage_are_executed_once_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    let port = server.address().port();
    let options = ConnectOptions { request_deadline: Some(TIMEOUT), ..testkit::embedded_zk::client(port) };
    let zk = connect(options).await.unwrap();
    zk.create("/mine", Bytes::new(), CreateMode::Ephemeral).await.unwrap();
    let mut before = zk.watch("/before").await.unwrap();
    let mut state = zk.session();
    server.stop().await;
    tokio::time::timeout(TIMEOUT, state.wait_for(|state| *state == SessionState::Suspended)).await.unwrap().unwrap();
    let watch = zk.watch("/during");
    let created = zk.create("/during", Bytes::new(), CreateMode::Persistent);
    let set = zk.set("/during", Bytes::from_static(b"x"), 0);
    let restarted = EmbeddedOptions { first_port: port, ..testkit::embedded_zk::options(directory.path()) };
    let server = EmbeddedServer::start(restarted).await.expect("the port is available again");
    assert_eq!(server.address().port(), port);
    let mut during = tokio::time::timeout(TIMEOUT, watch).await.unwrap().unwrap();
    assert_eq!(created.await.unwrap().0, "/during");
    assert_eq!(set.await.unwrap().version, 1);
    assert_eq!(zk.exists("/mine").await.unwrap().expect("the ephemeral survives").ephemeral_owner, zk.session_id());
    zk.create("/before", Bytes::new(), CreateMode::Persistent).await.unwrap();
    zk.delete("/during", -1).await.unwrap();
    assert_eq!(next(&mut before).await, (EventKind::Created, "/before".to_owned()));
    // Each event arrives once, although both the new connection and the queued request could have set the watch.
    for kind in [EventKind::Created, EventKind::DataChanged, EventKind::Deleted] {
        assert_eq!(next(&mut during).await, (kind, "/during".to_owned()));
    }
    zk.close().await;
    server.stop().await;
}

fn copy(from: &Path, to: &Path) {
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        // The directory also contains a folder of certificates.
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
}

async fn restarted(directory: &Path, port: u16) -> EmbeddedServer {
    let options = EmbeddedOptions { first_port: port, ..testkit::embedded_zk::options(directory) };
    EmbeddedServer::start(options).await.expect("the port is available again")
}

// A backup contains sessions, so the client's session resumes on an older state. With the mirror's snapshot, a launcher
// would assign nodes that do not exist.
#[tokio::test]
async fn a_zookeeper_restored_from_a_backup_is_detected() {
    for creates in [true, false] {
        let (directory, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let server = testkit::embedded_zk::start(directory.path()).await;
        let port = server.address().port();
        let options = ConnectOptions { session_timeout: TIMEOUT, ..testkit::embedded_zk::client(port) };
        let zk: Zk = connect(options).await.unwrap();
        let mirror = Mirror::start(zk.clone(), &tokio::runtime::Handle::current()).await.unwrap();
        let record = || Bytes::from(json::to_bytes(&Node::new(NodeState::Ready, Timestamp(1.0))));
        let create = async || zk.create(&paths::node_prefix(), record(), CreateMode::PersistentSequential).await;
        let (first, _) = create().await.unwrap();
        server.stop().await;
        copy(directory.path(), backup.path());

        let server = restarted(directory.path(), port).await;
        let mut snapshots = mirror.subscribe();
        let newest = if creates { create().await.unwrap().1 } else { zk.set(&first, record(), -1).await.unwrap() };
        let contains_write =
            |snapshot: &Snapshot| snapshot.connected && snapshot.nodes().any(|(_, node)| node.mzxid == newest.mzxid);
        tokio::time::timeout(TIMEOUT, snapshots.wait_for(contains_write))
            .await
            .expect("the write is mirrored")
            .unwrap();
        server.stop().await;

        copy(backup.path(), directory.path());
        let server = restarted(directory.path(), port).await;
        tokio::time::timeout(TIMEOUT, mirror.store_rolled_back()).await.expect("the rollback is detected");
        assert!(!mirror.snapshot().connected, "the snapshot is not used for decisions any more");
        server.stop().await;
    }
}

// The coordinator limits replies to four megabytes; without the fallback no launcher could start with such records.
#[tokio::test]
async fn a_bulk_read_beyond_the_reply_limit_falls_back_to_single_reads() {
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    let zk: Zk = connect(testkit::embedded_zk::client(server.address().port())).await.unwrap();
    lock::make_path(&zk, paths::NODES).await.unwrap();
    for _ in 0..6 {
        let data = Bytes::from(vec![b' '; 900_000]);
        zk.create(&paths::node_prefix(), data, CreateMode::PersistentSequential).await.unwrap();
    }
    let mirror = Mirror::start(zk, &tokio::runtime::Handle::current()).await.unwrap();
    assert_eq!(mirror.snapshot().unreadable().count(), 6);
    server.stop().await;
}

// Without the fallback, no build of such an image could begin, and leak detection could prove no leak.
#[tokio::test]
async fn large_records_are_read_before_builds_and_by_leak_detection() {
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    let zk: Zk = connect(testkit::embedded_zk::client(server.address().port())).await.unwrap();
    let image = ImageName::from("debian");
    lock::make_path(&zk, &paths::image_builds(&image)).await.unwrap();
    lock::make_path(&zk, paths::NODES).await.unwrap();
    let mut nodes = Vec::new();
    for number in 0..6 {
        let data = Bytes::from(format!(r#"{{"state": "ready", "state_time": 1.0, "x": "{}"}}"#, "x".repeat(900_000)));
        let build = paths::image_build(&image, &BuildId::from(format!("{number:010}")));
        zk.create(&build, data.clone(), CreateMode::Persistent).await.unwrap();
        let (node, _) = zk.create(&paths::node_prefix(), data, CreateMode::PersistentSequential).await.unwrap();
        nodes.push(NodeId::from(paths::name(&node)));
    }
    let mirror = Mirror::start(zk.clone(), &tokio::runtime::Handle::current()).await.unwrap();
    let store = Store::new(zk, Arc::new(mirror));
    assert_eq!(store.read_builds(&image).await.unwrap().len(), 6);
    let read = store.read_latest(&nodes).await.unwrap();
    assert_eq!(read.values().filter(|node| node.is_some()).count(), 6);
    server.stop().await;
}

/// Counters of the writes of one worker.
#[derive(Default)]
struct RunStats {
    done: u64,
    unknown: u64,
}

/// Increments the counter under the lock, `turns` times. Another client's write would fail the version check.
async fn count_under_lock(zk: Zk, turns: usize) -> RunStats {
    let mut stats = RunStats::default();
    for _ in 0..turns {
        let held = lock::lock(&zk, LOCK, "").await.expect("the session is alive");
        let (data, stat) = loop {
            match zk.get(COUNTER).await {
                Ok(found) => break found,
                Err(error) => assert!(matches!(error, ZkError::Unknown(_)), "{error}"),
            }
        };
        let next = std::str::from_utf8(&data).unwrap().parse::<u64>().unwrap() + 1;
        match zk.multi(vec![held.fence(), Op::set(COUNTER, next.to_string(), stat.version)]).await {
            Ok(_) => stats.done += 1,
            Err(ZkError::Unknown(_)) => stats.unknown += 1,
            Err(error) => panic!("another client wrote under our lock: {error}"),
        }
        if let Err(error) = held.release().await {
            assert!(matches!(error, ZkError::Unknown(_)), "{error}");
        }
    }
    stats
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_survive_server_restarts_and_leave_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = testkit::embedded_zk::start(directory.path()).await;
    let port = server.address().port();
    // Long enough that no session expires during a restart.
    let options = ConnectOptions { session_timeout: Duration::from_secs(40), ..testkit::embedded_zk::client(port) };
    let watcher: Zk = connect(options.clone()).await.unwrap();
    lock::make_path(&watcher, LOCK).await.unwrap();
    watcher.create(COUNTER, Bytes::from_static(b"0"), CreateMode::Persistent).await.unwrap();
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let zk: Zk = connect(options.clone()).await.unwrap();
        workers.spawn(count_under_lock(zk, 60));
    }
    let mut restarts = 0;
    let mut stats = RunStats::default();
    while !workers.is_empty() {
        match tokio::time::timeout(Duration::from_millis(100), workers.join_next()).await {
            Ok(Some(ended)) => {
                let part = ended.unwrap();
                stats.done += part.done;
                stats.unknown += part.unknown;
            }
            Ok(None) => {}
            Err(_) if restarts < 6 => {
                restarts += 1;
                server.stop().await;
                let restarted = EmbeddedOptions { first_port: port, ..testkit::embedded_zk::options(directory.path()) };
                server = EmbeddedServer::start(restarted).await.expect("the port is available again");
            }
            Err(_) => {}
        }
    }
    assert!(restarts > 0, "the workers ended before the first restart");
    let (data, _) = watcher.get(COUNTER).await.unwrap();
    let count = std::str::from_utf8(&data).unwrap().parse::<u64>().unwrap();
    assert!(
        (stats.done..=stats.done + stats.unknown).contains(&count),
        "the counter is {count}, with {} acknowledged writes and {} without a reply",
        stats.done,
        stats.unknown
    );
    let emptied = async {
        while !lock::contenders(&watcher, LOCK).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, emptied).await.expect("no contender is leaked");
    server.stop().await;
}

#[tokio::test]
async fn a_fulfilment_larger_than_a_packet_is_chunked() {
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    let zk = connect(testkit::embedded_zk::client(server.address().port())).await.unwrap();
    let store =
        Store::new(zk.clone(), Arc::new(Mirror::start(zk.clone(), &tokio::runtime::Handle::current()).await.unwrap()));
    let mut record = Node::new(NodeState::Ready, Timestamp(1.0));
    record.labels = vec!["a".into()];
    record.attributes = serde_json::Value::from("x".repeat(200_000)).into();
    let mut nodes = Vec::new();
    for _ in 0..12 {
        nodes.push(store.register(record.clone()).await.unwrap());
    }
    let request = NodeRequest::new(vec!["a".into(); 12], "tester", Timestamp(1.0));
    let data = Bytes::from(json::to_bytes(&request));
    let (path, _) = zk.create(&paths::request_prefix("200"), data, CreateMode::PersistentSequential).await.unwrap();
    let request = RequestId::from(paths::name(&path));
    let mut snapshots = store.mirror().subscribe();
    let is_mirrored = snapshots.wait_for(|snapshot| snapshot.request(&request).is_some());
    let snapshot = tokio::time::timeout(TIMEOUT, is_mirrored).await.unwrap().unwrap();
    let changes = nodes
        .iter()
        .map(|id| snapshot.node(id).unwrap().change(id.clone(), |record| record.allocated_to = Some(request.clone())));
    let fulfilled = snapshot.request(&request).unwrap().change(request.clone(), |record| {
        record.set_state(RequestState::Fulfilled, Timestamp(2.0));
        record.nodes = nodes.clone();
    });
    store.fulfill(fulfilled, changes.collect()).await.unwrap();
    for id in &nodes {
        let (data, _) = zk.get(&paths::node(id)).await.unwrap();
        assert_eq!(json::from_bytes::<Node>(&data).unwrap().allocated_to.as_ref(), Some(&request));
    }
    let (data, _) = zk.get(&path).await.unwrap();
    assert_eq!(json::from_bytes::<NodeRequest>(&data).unwrap().state, RequestState::Fulfilled);
    zk.close().await;
    server.stop().await;
}
