//! Locks shared with kazoo on Apache ZooKeeper: mutual exclusion, fairness, no leaked contenders.

use std::sync::Arc;
use std::time::Duration;

use nodepool_zk::client::{ConnectOptions, RealConnection, connect};
use nodepool_zk::locks::lock;
use nodepool_zk::{Connection, Zk, paths};
use serde_json::json;
use testkit::real::python::{self, Interpreter, Script};
use testkit::real::zookeeper::{self, Server};
use testkit::{real, wait};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Our client and a kazoo process, below a common chroot.
struct KazooPair {
    zk: Arc<RealConnection>,
    kazoo: Script,
    address: String,
}

impl KazooPair {
    async fn start(server: &Server) -> Self {
        let address = server.chroot("locks").await;
        let zk = client(&address).await;
        Self { zk, kazoo: kazoo(&address), address }
    }

    fn zk(&self) -> Zk {
        self.zk.clone()
    }

    async fn contenders(&self, directory: &str) -> Vec<String> {
        lock::contenders(&self.zk(), directory).await.unwrap()
    }

    async fn has_contenders(&self, directory: &str, count: usize) {
        wait::until("the expected number of contenders", TIMEOUT, async || {
            self.contenders(directory).await.len() == count
        })
        .await;
    }
}

async fn client(address: &str) -> Arc<RealConnection> {
    let (server, chroot) = address.split_once('/').unwrap();
    let (host, port) = server.rsplit_once(':').unwrap();
    let plain = ConnectOptions::plain(host, port.parse().unwrap());
    connect(ConnectOptions { chroot: format!("/{chroot}"), ..plain }).await.unwrap()
}

fn kazoo(address: &str) -> Script {
    python::spawn(Interpreter::Reference, "kazoo_lock.py", &[address])
}

#[tokio::test]
async fn our_locks_and_kazoo_locks_exclude_each_other() {
    if real::skipped() {
        return;
    }
    let server = Server::start(zookeeper::Options::default()).await;
    let mut pair = KazooPair::start(&server).await;
    let directory = paths::request_lock(&"200-0000000001".into());
    let attempt = json!({"do": "acquire", "path": directory, "blocking": false});
    let ours = lock::try_lock(&pair.zk(), &directory, "").await.unwrap().expect("the lock is free");
    assert_eq!(pair.kazoo.call(attempt.clone()).await, json!(false));
    assert_eq!(pair.contenders(&directory).await, [paths::name(ours.path())], "kazoo's attempt leaves no contender");
    let (data, stat) = pair.zk.get(ours.path()).await.unwrap();
    assert_eq!((data.len(), stat.ephemeral_owner), (0, pair.zk.session_id()));
    ours.release().await.unwrap();
    assert_eq!(pair.kazoo.call(attempt).await, json!(true));
    assert!(lock::try_lock(&pair.zk(), &directory, "").await.unwrap().is_none());
    let remaining = pair.contenders(&directory).await;
    assert_eq!(remaining.len(), 1, "our attempt leaves no contender: {remaining:?}");
    // Contenders of both clients have names of the same form.
    let (unique, sequence) = remaining[0].split_once("__lock__").unwrap();
    assert!(unique.len() == 32 && sequence.len() == 10, "{remaining:?}");
    pair.kazoo.call(json!({"do": "release", "path": directory})).await;
    assert!(lock::try_lock(&pair.zk(), &directory, "").await.unwrap().is_some());
}

#[tokio::test]
async fn our_locks_and_kazoo_locks_share_one_fifo_queue() {
    if real::skipped() {
        return;
    }
    let server = Server::start(zookeeper::Options::default()).await;
    let mut pair = KazooPair::start(&server).await;
    let mut second = kazoo(&pair.address);
    let directory = "/nodepool/elections/stats".to_owned();
    let acquire = json!({"do": "acquire", "path": directory});
    let release = json!({"do": "release", "path": directory});
    assert_eq!(pair.kazoo.call(acquire.clone()).await, json!(true));
    // Queue behind kazoo's first lock: ours, kazoo's second, ours again.
    let first = tokio::spawn({
        let (zk, directory) = (pair.zk(), directory.clone());
        async move { lock::lock(&zk, &directory, "nl01-1").await.unwrap() }
    });
    pair.has_contenders(&directory, 2).await;
    second.send(&acquire).await;
    pair.has_contenders(&directory, 3).await;
    let last = tokio::spawn({
        let (zk, directory) = (pair.zk(), directory.clone());
        async move { lock::lock_within(&zk, &directory, "nl01-2", TIMEOUT).await.unwrap().expect("acquired in time") }
    });
    pair.has_contenders(&directory, 4).await;
    let listed = pair.kazoo.call(json!({"do": "contenders", "path": directory})).await;
    assert_eq!(listed, json!(["kazoo", "nl01-1", "kazoo", "nl01-2"]), "identifiers as kazoo reads them");
    assert!(!first.is_finished() && !last.is_finished());
    pair.kazoo.call(release.clone()).await;
    let held = first.await.unwrap();
    assert!(!last.is_finished());
    held.release().await.unwrap();
    assert_eq!(second.reply(TIMEOUT).await, Ok(json!(true)));
    assert!(!last.is_finished());
    second.call(release).await;
    last.await.unwrap().release().await.unwrap();
    assert_eq!(pair.contenders(&directory).await, Vec::<String>::new());
}

// A contender whose timeout expires is deleted, whichever client it waits for.
#[tokio::test]
async fn lock_timeouts_of_both_clients_leave_no_contender() {
    if real::skipped() {
        return;
    }
    let server = Server::start(zookeeper::Options::default()).await;
    let mut pair = KazooPair::start(&server).await;
    let directory = paths::request_lock(&"100-0000000001".into());
    assert_eq!(pair.kazoo.call(json!({"do": "acquire", "path": directory})).await, json!(true));
    let waited = lock::lock_within(&pair.zk(), &directory, "", Duration::from_millis(300)).await.unwrap();
    assert!(waited.is_none());
    assert_eq!(pair.contenders(&directory).await.len(), 1);
    // An attempt that is cancelled while it waits leaves no contender either.
    let zk = pair.zk();
    let cancelled = tokio::time::timeout(Duration::from_millis(100), lock::lock(&zk, &directory, "")).await;
    assert!(cancelled.is_err());
    pair.has_contenders(&directory, 1).await;
    // A killed kazoo holds the lock until its session expires; a broken lock is free immediately.
    assert!(lock::break_lock(&pair.zk(), &directory).await.unwrap());
    let ours = lock::try_lock(&pair.zk(), &directory, "").await.unwrap().expect("a broken lock is free");
    let in_vain = json!({"do": "acquire", "path": directory, "timeout": 0.3});
    let mut other = kazoo(&pair.address);
    assert_eq!(other.call(in_vain).await, json!(false));
    assert_eq!(pair.contenders(&directory).await, [paths::name(ours.path())]);
}

/// Two clients of each kind increment one number under the lock; a violation of the lock would lose an increment.
#[tokio::test]
async fn no_increment_is_lost_when_both_clients_count() {
    if real::skipped() {
        return;
    }
    const TURNS: usize = 40;
    let server = Server::start(zookeeper::Options::default()).await;
    let mut pair = KazooPair::start(&server).await;
    let directory = "/nodepool/elections/count";
    pair.kazoo.call(json!({"do": "create", "path": "/nodepool/counter", "data": "0"})).await;
    let ours = (0..2).map(|_| {
        let address = pair.address.clone();
        tokio::spawn(async move {
            let zk: Zk = client(&address).await;
            for _ in 0..TURNS {
                let held = lock::lock(&zk, directory, "").await.unwrap();
                let (data, _) = zk.get("/nodepool/counter").await.unwrap();
                let count: usize = std::str::from_utf8(&data).unwrap().parse().unwrap();
                zk.set("/nodepool/counter", (count + 1).to_string().into(), -1).await.unwrap();
                held.release().await.unwrap();
            }
        })
    });
    let theirs = (0..2).map(|_| {
        let mut kazoo = kazoo(&pair.address);
        tokio::spawn(async move {
            for _ in 0..TURNS {
                assert_eq!(kazoo.call(json!({"do": "acquire", "path": directory})).await, json!(true));
                let count = kazoo.call(json!({"do": "get", "path": "/nodepool/counter"})).await;
                let count: usize = count.as_str().unwrap().parse().unwrap();
                kazoo.call(json!({"do": "set", "path": "/nodepool/counter", "data": (count + 1).to_string()})).await;
                kazoo.call(json!({"do": "release", "path": directory})).await;
            }
        })
    });
    for counting in ours.chain(theirs).collect::<Vec<_>>() {
        counting.await.unwrap();
    }
    let (data, _) = pair.zk.get("/nodepool/counter").await.unwrap();
    assert_eq!(data, (4 * TURNS).to_string());
}
