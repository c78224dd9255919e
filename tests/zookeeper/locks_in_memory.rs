//! Locks and elections on the in-memory store: holders, waiters, and no leaked contenders.

use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use nodepool_zk::locks::{election, lock};
use nodepool_zk::memory::{Fault, MemoryZooKeeper};
use nodepool_zk::{SessionState, Zk, paths};
use zookeeper_server::types::{CreateMode, ZkError};

const LOCK: &str = "/nodepool/requests-lock/200-0000000001";

fn session(zookeeper: &MemoryZooKeeper) -> (Zk, i64) {
    let zk: Zk = zookeeper.connect();
    let id = zk.session_id();
    (zk, id)
}

async fn contenders(zk: &Zk) -> Vec<String> {
    lock::contenders(zk, LOCK).await.unwrap()
}

/// Runs background tasks until the lock directory has `count` contenders.
async fn settles_at(zk: &Zk, count: usize) {
    let settled = async {
        while contenders(zk).await.len() != count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), settled)
        .await
        .unwrap_or_else(|_| panic!("the lock never has {count} contenders"));
}

#[tokio::test]
async fn a_failed_lock_attempt_leaves_only_the_holder() {
    let zookeeper = MemoryZooKeeper::new();
    let ((zk, id), (other, _)) = (session(&zookeeper), session(&zookeeper));
    let held = lock::try_lock(&zk, LOCK, "").await.unwrap().expect("the lock is free");
    let name = paths::name(held.path());
    let (unique, sequence) = name.split_once("__lock__").unwrap();
    assert!(unique.len() == 32 && unique.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{name}");
    assert_eq!(sequence, "0000000000");
    let (data, stat) = zk.get(held.path()).await.unwrap();
    assert_eq!((data.len(), stat.ephemeral_owner), (0, id));
    assert_eq!(held.directory(), LOCK);
    assert!(lock::try_lock(&other, LOCK, "").await.unwrap().is_none());
    assert!(lock::try_lock(&zk, LOCK, "").await.unwrap().is_none(), "locks are not reentrant");
    assert_eq!(contenders(&zk).await, [name]);
    held.release().await.unwrap();
    assert_eq!(contenders(&zk).await, Vec::<String>::new());
    assert!(lock::try_lock(&other, LOCK, "").await.unwrap().is_some());
}

#[tokio::test]
async fn dropping_a_lock_releases_it() {
    let (zk, _) = session(&MemoryZooKeeper::new());
    drop(lock::try_lock(&zk, LOCK, "").await.unwrap().unwrap());
    assert_eq!(contenders(&zk).await, Vec::<String>::new(), "the release is sent immediately");
}

#[tokio::test]
async fn lock_waiters_are_served_in_fifo_order() {
    let zookeeper = MemoryZooKeeper::new();
    let (zk, _) = session(&zookeeper);
    let held = lock::try_lock(&zk, LOCK, "").await.unwrap().unwrap();
    let (order, mut served) = tokio::sync::mpsc::unbounded_channel();
    for index in 0..5 {
        let ((zk, _), order) = (session(&zookeeper), order.clone());
        let waiting = tokio::spawn(async move {
            let mine = lock::lock(&zk, LOCK, "").await.unwrap();
            order.send(index).unwrap();
            mine.release().await.unwrap();
        });
        settles_at(&zk_of(&zookeeper), index + 2).await;
        drop(waiting);
    }
    held.release().await.unwrap();
    for index in 0..5 {
        assert_eq!(served.recv().await, Some(index));
    }
}

fn zk_of(zookeeper: &MemoryZooKeeper) -> Zk {
    zookeeper.connect()
}

#[tokio::test(start_paused = true)]
async fn a_lock_timeout_leaves_no_contender() {
    let zookeeper = MemoryZooKeeper::new();
    let ((zk, _), (other, _)) = (session(&zookeeper), session(&zookeeper));
    let held = lock::try_lock(&zk, LOCK, "").await.unwrap().unwrap();
    let started = tokio::time::Instant::now();
    assert!(lock::lock_within(&other, LOCK, "", Duration::from_secs(5)).await.unwrap().is_none());
    assert_eq!(started.elapsed().as_secs(), 5);
    assert_eq!(contenders(&zk).await, [paths::name(held.path())]);
    drop(held);
    assert!(lock::lock_within(&other, LOCK, "", Duration::ZERO).await.is_ok());
}

#[tokio::test]
async fn a_lock_attempt_cancelled_at_any_step_leaves_no_contender() {
    let zookeeper = MemoryZooKeeper::new();
    let (zk, _) = session(&zookeeper);
    let held = lock::try_lock(&zk, LOCK, "").await.unwrap().unwrap();
    for polls in 0..40 {
        let mut attempt = Box::pin(lock::lock(&zk, LOCK, ""));
        for _ in 0..polls {
            assert!(attempt.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        drop(attempt);
        settles_at(&zk, 1).await;
    }
    assert_eq!(contenders(&zk).await, [paths::name(held.path())]);
}

#[tokio::test]
async fn a_lock_attempt_with_a_lost_reply_finds_its_contender() {
    let zookeeper = MemoryZooKeeper::new();
    let (zk, id) = session(&zookeeper);
    lock::make_path(&zk, LOCK).await.unwrap();
    for fault in [Fault::AfterApplying, Fault::BeforeApplying] {
        zookeeper.fail_next(id, 1, fault);
        let held = lock::try_lock(&zk, LOCK, "").await.unwrap().expect("the lock is acquired, with one contender");
        assert_eq!(contenders(&zk).await, [paths::name(held.path())], "{fault:?}");
        held.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn lock_failures_leave_nothing_after_reconnection() {
    let zookeeper = MemoryZooKeeper::new();
    let ((zk, id), (other, _)) = (session(&zookeeper), session(&zookeeper));
    lock::make_path(&zk, LOCK).await.unwrap();
    for failures in 1..12 {
        for fault in [Fault::AfterApplying, Fault::BeforeApplying] {
            zookeeper.fail_next(id, failures, fault);
            match lock::try_lock(&zk, LOCK, "").await {
                Ok(Some(held)) => drop(held.release().await),
                Ok(None) => panic!("the lock is free"),
                Err(error) => assert!(matches!(error, ZkError::Unknown(_)), "{error}"),
            }
            settles_at(&other, 0).await;
            // Unused faults must not affect the next round.
            while zk.exists("/").await.is_err() {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_keeps_its_place_over_a_lost_connection() {
    let zookeeper = MemoryZooKeeper::new();
    let ((holder, _), (zk, id)) = (session(&zookeeper), session(&zookeeper));
    let held = lock::try_lock(&holder, LOCK, "").await.unwrap().unwrap();
    let waiting = tokio::spawn(async move { lock::lock(&zk, LOCK, "").await });
    settles_at(&holder, 2).await;
    zookeeper.suspend(id);
    let second = contenders(&holder).await[1].clone();
    held.release().await.unwrap();
    zookeeper.resume(id);
    let lock = waiting.await.unwrap().unwrap();
    assert_eq!(paths::name(lock.path()), second);
}

#[tokio::test]
async fn a_waiter_whose_session_expires_gets_an_error() {
    let zookeeper = MemoryZooKeeper::new();
    let ((holder, _), (zk, id)) = (session(&zookeeper), session(&zookeeper));
    let _held = lock::try_lock(&holder, LOCK, "").await.unwrap().unwrap();
    let waiting = tokio::spawn(async move { lock::lock(&zk, LOCK, "").await.err() });
    settles_at(&holder, 2).await;
    zookeeper.expire(id);
    assert_eq!(waiting.await.unwrap(), Some(ZkError::SessionExpired));
}

#[tokio::test]
async fn locking_does_not_recreate_a_deleted_record() {
    let (zk, _) = session(&MemoryZooKeeper::new());
    lock::make_path(&zk, paths::NODES).await.unwrap();
    let orphaned_lock = paths::node_lock(&"0000000007".into());
    assert_eq!(lock::try_lock(&zk, &orphaned_lock, "").await.unwrap_err(), ZkError::NoNode);
    assert_eq!(zk.children(paths::NODES).await.unwrap().0, Vec::<String>::new());
    zk.create("/nodepool/nodes/0000000007", Bytes::new(), CreateMode::Persistent).await.unwrap();
    assert!(lock::try_lock(&zk, &orphaned_lock, "").await.unwrap().is_some());
}

#[tokio::test]
async fn a_lock_that_was_broken_fences_off_its_holder() {
    let zookeeper = MemoryZooKeeper::new();
    let ((zk, _), (other, _)) = (session(&zookeeper), session(&zookeeper));
    let held = lock::try_lock(&zk, LOCK, "").await.unwrap().unwrap();
    zk.multi(vec![held.fence()]).await.unwrap();
    assert!(lock::break_lock(&other, LOCK).await.unwrap());
    assert_eq!(zk.multi(vec![held.fence()]).await.unwrap_err().root(), &ZkError::NoNode);
    assert!(!lock::break_lock(&other, LOCK).await.unwrap(), "the lock has no holder");
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_released_in_a_transaction_is_not_released_again() {
    let zookeeper = MemoryZooKeeper::new();
    let (zk, _) = session(&zookeeper);
    let held = lock::try_lock(&zk, LOCK, "").await.unwrap().unwrap();
    zk.multi(vec![held.release_op()]).await.unwrap();
    let before = zookeeper.last_zxid();
    held.mark_released();
    tokio::task::yield_now().await;
    assert_eq!(zookeeper.last_zxid(), before);
}

#[tokio::test]
async fn a_persistent_lock_outlives_its_session_until_broken() {
    let zookeeper = MemoryZooKeeper::new();
    let ((zk, _), (other, _)) = (session(&zookeeper), session(&zookeeper));
    let path = lock::try_lock_persistent(&zk, LOCK, "NodePool:metastatic:x").await.unwrap().unwrap();
    assert!(lock::try_lock_persistent(&other, LOCK, "").await.unwrap().is_none());
    drop(zk);
    assert_eq!(other.get(&path).await.unwrap().0, "NodePool:metastatic:x");
    assert!(lock::try_lock(&other, LOCK, "").await.unwrap().is_none());
    assert!(lock::break_lock(&other, LOCK).await.unwrap());
    assert!(lock::try_lock(&other, LOCK, "").await.unwrap().is_some());
}

#[tokio::test]
async fn foreign_children_are_no_contenders() {
    let (zk, _) = session(&MemoryZooKeeper::new());
    lock::make_path(&zk, LOCK).await.unwrap();
    zk.create(&format!("{LOCK}/0-foreign"), Bytes::new(), CreateMode::Persistent).await.unwrap();
    assert!(lock::try_lock(&zk, LOCK, "").await.unwrap().is_some());
}

#[tokio::test]
async fn the_next_candidate_leads_when_the_leader_resigns_or_dies() {
    let zookeeper = MemoryZooKeeper::new();
    let ((zk, id), (second, _), (third, _)) = (session(&zookeeper), session(&zookeeper), session(&zookeeper));
    let directory = paths::ELECTION_STATS;
    let first = election::lead(&zk, directory, &election::candidate("nl01", 42)).await.unwrap();
    assert!(first.is_certain());
    let leader = lock::contenders(&third, directory).await.unwrap().remove(0);
    assert_eq!(third.get(&format!("{directory}/{leader}")).await.unwrap().0, "nl01-42");
    let mut next = Box::pin(election::lead(&second, directory, "nl02-1"));
    assert!((&mut next).now_or_never().is_none());
    zookeeper.expire(id);
    first.lost().await;
    assert!(!first.is_certain());
    let next = next.await.unwrap();
    next.resign().await.unwrap();
    election::lead(&third, directory, "nl03-1").await.unwrap();
    assert_eq!(*second.session().borrow(), SessionState::Connected);
}
