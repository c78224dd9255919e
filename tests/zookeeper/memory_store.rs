//! Controls of the in-memory store: lost connections, expired sessions, failing requests, time.

use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use nodepool_zk::memory::{Fault, MemoryZooKeeper};
use nodepool_zk::{Connection, SessionState};
use zookeeper_server::types::{CreateMode, EventKind, WatchEvent, ZkError};

fn event(kind: EventKind, path: &str) -> Option<WatchEvent> {
    Some(WatchEvent { kind, path: path.into() })
}

// A resync announces the events missed while suspended, so that caches are read again.
#[tokio::test(start_paused = true)]
async fn a_suspended_session_keeps_its_ephemerals_and_resyncs_when_resumed() {
    let zookeeper = MemoryZooKeeper::new();
    let (zk, other) = (zookeeper.connect(), zookeeper.connect());
    zk.create("/a", Bytes::new(), CreateMode::Ephemeral).await.unwrap();
    let mut stream = zk.watch("/").await.unwrap();
    let (_, changed) = zk.exists_and_watch("/a").await.unwrap();
    zookeeper.suspend(zk.session_id());
    assert_eq!(*zk.session().borrow(), SessionState::Suspended);
    changed.now_or_never().expect("a change of state resolves a one-shot watch");
    let mut waiting = zk.create("/late", Bytes::new(), CreateMode::Persistent);
    assert!((&mut waiting).now_or_never().is_none());
    other.create("/missed", Bytes::new(), CreateMode::Persistent).await.unwrap();
    assert!(other.exists("/a").await.unwrap().is_some());
    assert_eq!(other.exists("/late").await.unwrap(), None, "queued requests are not executed yet");
    assert!(stream.next().now_or_never().is_none());
    zookeeper.resume(zk.session_id());
    assert_eq!(waiting.await.unwrap().0, "/late");
    assert_eq!(stream.next().await, event(EventKind::Resync, "/"));
    assert_eq!(stream.next().await, event(EventKind::Created, "/late"));
    assert_eq!(*zk.session().borrow(), SessionState::Connected);
}

#[tokio::test]
async fn an_expired_session_loses_its_ephemerals_and_fails_requests() {
    let zookeeper = MemoryZooKeeper::new();
    let (zk, other) = (zookeeper.connect(), zookeeper.connect());
    zk.create("/a", Bytes::new(), CreateMode::Ephemeral).await.unwrap();
    let mut stream = zk.watch("/").await.unwrap();
    let mut state = zk.session();
    zookeeper.suspend(zk.session_id());
    let waiting = zk.get("/a");
    zookeeper.expire(zk.session_id());
    assert_eq!(waiting.await.unwrap_err(), ZkError::SessionExpired);
    assert_eq!(zk.get("/a").await.unwrap_err(), ZkError::SessionExpired);
    assert_eq!(other.exists("/a").await.unwrap(), None);
    assert_eq!(stream.next().await, None);
    state.wait_for(|state| *state == SessionState::Expired).await.unwrap();
}

#[tokio::test]
async fn a_failed_request_is_executed_or_not_as_configured() {
    let zookeeper = MemoryZooKeeper::new();
    let zk = zookeeper.connect();
    for (fault, there) in [(Fault::BeforeApplying, false), (Fault::AfterApplying, true)] {
        zookeeper.fail_next(zk.session_id(), 1, fault);
        let lost = zk.create("/a", Bytes::new(), CreateMode::Persistent).await;
        assert!(matches!(lost, Err(ZkError::Unknown(_))), "{lost:?}");
        assert_eq!(zk.exists("/a").await.unwrap().is_some(), there, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn znodes_are_stamped_by_the_test_clock() {
    let zookeeper = MemoryZooKeeper::new();
    let zk = zookeeper.connect();
    let start = zookeeper.now_ms();
    tokio::time::sleep(Duration::from_secs(5)).await;
    zookeeper.advance(Duration::from_secs(3_600));
    let (_, stat) = zk.create("/a", Bytes::new(), CreateMode::Persistent).await.unwrap();
    assert_eq!(stat.ctime, start + 3_605_000);
}

#[tokio::test]
async fn a_rejected_write_counts_as_a_transaction() {
    let zookeeper = MemoryZooKeeper::new();
    let zk = zookeeper.connect();
    let before = zookeeper.last_zxid();
    assert_eq!(zk.exists("/a").await.unwrap(), None);
    assert_eq!(zookeeper.last_zxid(), before);
    zk.delete("/a", -1).await.unwrap_err();
    assert_eq!(zookeeper.last_zxid(), before + 1);
}
