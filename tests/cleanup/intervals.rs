//! Intervals and minimum ages of the launcher's clean-up: the rules, and the flags that set them.
//!
//! The test of the flags runs a launcher process on an embedded coordinator.

use std::time::Duration;

use bytes::Bytes;
use nodepool::actors::process::context::LauncherOptions;
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::RequestId;
use nodepool_model::records::node::NodeState;
use nodepool_model::records::time::Seconds;
use nodepool_zk::locks::lock;
use nodepool_zk::memory::{Fault, MemoryZooKeeper};
use nodepool_zk::{Zk, paths};
use testkit::daemon_process::{Coordinator, PROCESS_TIMEOUT, WorkDir};
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, start_process, yaml};
use testkit::wait;
use tokio::time::sleep;
use zookeeper_server::types::CreateMode;

const EMPTY_NODE: &str = "/nodepool/nodes/0000009999";

async fn launcher(tune: impl FnOnce(&mut LauncherOptions)) -> (MemoryZooKeeper, Consumer, InProcessDaemon) {
    start_process(InProcessDaemon::with(&yaml("lab", &["name: fake-h1, labels: [a]"], ""), tune), 1).await
}

async fn create(zk: &Zk, path: &str) {
    lock::make_path(zk, paths::parent(path).unwrap()).await.unwrap();
    zk.create(path, Bytes::new(), CreateMode::Persistent).await.unwrap();
}

async fn exists(zk: &Zk, path: &str) -> bool {
    zk.exists(path).await.unwrap().is_some()
}

/// Number of seconds until the znode is deleted.
async fn seconds_until_deleted(zk: &Zk, path: &str) -> f64 {
    let began = clock::now();
    while exists(zk, path).await {
        sleep(Duration::from_millis(20)).await;
        assert!((clock::now() - began).0 < 100_000.0, "{path} is never deleted");
    }
    (clock::now() - began).0
}

#[test]
fn an_old_lock_of_a_deleted_request_is_deleted_with_its_contender() {
    on_paused_time(async {
        let (zookeeper, consumer, _process) = launcher(|options| options.lock_cleanup = Seconds(1000.0)).await;
        let peer: Zk = zookeeper.connect();
        // A Nodepool 11 launcher that locks an already deleted request leaves its contender behind.
        let deleted = RequestId::from("200-0000009999");
        let _abandoned = lock::try_lock(&peer, &paths::request_lock(&deleted), "").await.unwrap().unwrap();
        // The peer also locks an existing request, which this launcher cannot serve.
        let waiting = consumer.submit_labels(&["a", "a"]).await;
        let _held = lock::try_lock(&peer, &paths::request_lock(&waiting), "").await.unwrap().unwrap();
        sleep(Duration::from_secs(900)).await;
        assert_eq!(consumer.count(&paths::request_lock(&deleted)).await, 1, "the lock is younger than the limit");
        sleep(Duration::from_secs(200)).await;
        assert!(!exists(&consumer.zk, &paths::request_lock(&deleted)).await);
        sleep(Duration::from_secs(2000)).await;
        assert_eq!(consumer.count(&paths::request_lock(&waiting)).await, 1, "the request exists");
    });
}

#[test]
fn lock_cleanup_is_the_age_of_locks_to_delete() {
    for age in [2.5, 30.25] {
        on_paused_time(async {
            let tune = |options: &mut LauncherOptions| {
                (options.lock_cleanup, options.cleanup_interval) = (Seconds(age), Seconds(0.25));
            };
            let (_zookeeper, consumer, _process) = launcher(tune).await;
            let stale = paths::request_lock(&RequestId::from("200-0000009999"));
            create(&consumer.zk, &stale).await;
            let lifetime = seconds_until_deleted(&consumer.zk, &stale).await;
            assert!((age - 0.05..age + 0.35).contains(&lifetime), "{lifetime} s instead of {age} s");
        });
    }
}

#[test]
fn cleanup_interval_bounds_the_age_of_empty_nodes() {
    for interval in [0.5, 100.25] {
        on_paused_time(async {
            let (_zookeeper, consumer, _process) =
                launcher(|options| options.cleanup_interval = Seconds(interval)).await;
            let mut longest: f64 = 0.0;
            for _ in 0..3 {
                create(&consumer.zk, EMPTY_NODE).await;
                longest = longest.max(seconds_until_deleted(&consumer.zk, EMPTY_NODE).await);
            }
            assert!((interval * 0.9..interval + 0.1).contains(&longest), "{longest} s instead of {interval} s");
        });
    }
}

#[test]
fn delete_interval_is_the_retry_delay_of_deletions() {
    for interval in [0.75, 40.5] {
        on_paused_time(async {
            let tune = |options: &mut LauncherOptions| {
                (options.delete_interval, options.cleanup_interval) = (Seconds(interval), Seconds(100_000.0));
                options.watermark_sleep = Seconds(100_000.0);
            };
            let (zookeeper, consumer, process) = launcher(tune).await;
            let mut longest: f64 = 0.0;
            for _ in 0..3 {
                let request = consumer.submit_labels(&["a"]).await;
                consumer.wait_for_end(&request).await;
                let (id, lock) = consumer.accept(&request).await.remove(0);
                consumer.set_state(&id, NodeState::InUse).await;
                consumer.set_state(&id, NodeState::Used).await;
                sleep(Duration::from_millis(interval as u64 * 100)).await;
                zookeeper.fail_next(process.session_id, 1, Fault::BeforeApplying);
                lock.release().await.unwrap();
                longest = longest.max(seconds_until_deleted(&consumer.zk, &paths::node(&id)).await);
                testkit::in_process_launcher::until("the next node", async || consumer.ready_nodes().await == 1).await;
            }
            assert!((interval * 0.2..interval + 0.1).contains(&longest), "{longest} s with {interval} s");
        });
    }
}

#[tokio::test]
async fn cleanup_flags_accept_decimals() {
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
    work_dir.configure(&coordinator.configuration());
    let flags = ["-f", "--lock-cleanup", "0.5", "--delete-interval", "0.25", "--cleanup-interval", "0.25"];
    let _launcher = work_dir.launcher(&flags);
    work_dir.wait_until_ready().await;
    let zk: Zk = coordinator.session().await;
    let stale = paths::request_lock(&RequestId::from("200-0000009999"));
    for path in [stale.as_str(), EMPTY_NODE] {
        create(&zk, path).await;
    }
    // With the default values neither znode would be deleted within a minute.
    wait::until("both to be deleted", PROCESS_TIMEOUT, async || {
        !exists(&zk, &stale).await && !exists(&zk, EMPTY_NODE).await
    })
    .await;
}
