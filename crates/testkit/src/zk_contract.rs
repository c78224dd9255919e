//! Contract of `Connection`: one list of cases, run against the memory store and every server.

use std::time::Duration;

use CreateMode::{Ephemeral, EphemeralSequential, Persistent, PersistentSequential};
use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use nodepool_zk::{SessionState, Zk};
use zookeeper_server::types::{CreateMode, EventKind, Op, OpReply, Stat, WatchEvent, ZkError};

/// A server that opens sessions. Dropping the last handle of a session ends it.
pub trait Server: Sync {
    fn connect(&self) -> BoxFuture<'static, Zk>;
}

/// Runs every case below its own root znode, which may be on a shared server.
pub async fn run(server: &dyn Server) {
    for (name, case) in CASES {
        println!("case: {name}");
        let zk = server.connect().await;
        let root = format!("/contract-{}", uuid::Uuid::new_v4().simple());
        created(&zk, &root, Persistent).await;
        let harness = ContractHarness { server, zk, root };
        tokio::time::timeout(Duration::from_secs(60), case(harness)).await.unwrap_or_else(|_| panic!("{name} hangs"));
    }
}

struct ContractHarness<'a> {
    server: &'a dyn Server,
    zk: Zk,
    root: String,
}

impl ContractHarness<'_> {
    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }
}

type Case = for<'a> fn(ContractHarness<'a>) -> BoxFuture<'a, ()>;

const CASES: &[(&str, Case)] = &[
    ("what is written is read back with its stat", |harness| reads_back(harness).boxed()),
    ("sequence numbers count every child and are not reused", |harness| sequences(harness).boxed()),
    ("an ephemeral znode is deleted with its session and watchers are notified", |harness| ephemerals(harness).boxed()),
    ("each failure has its own error", |harness| failures(harness).boxed()),
    ("versions guard set, delete and check", |harness| versions(harness).boxed()),
    ("a transaction replies to each of its operations", |harness| transactions(harness).boxed()),
    ("a failed transaction names its operation and does nothing", |harness| failed_transactions(harness).boxed()),
    ("deleting and creating a directory in a transaction proves it empty", |harness| emptiness(harness).boxed()),
    ("a recursive watch reports every change below it in order", |harness| recursive_watch(harness).boxed()),
    ("a one-shot watch resolves at creation, change and removal", |harness| one_shot_watch(harness).boxed()),
    ("two watches of one session on one path are both notified", |harness| watches_side_by_side(harness).boxed()),
    ("many reads at once are answered one by one and in order", |harness| many_reads(harness).boxed()),
    ("requests made one after another are carried out in that order", |harness| pipelining(harness).boxed()),
    ("data up to a million bytes is accepted, beyond 1 MiB rejected", |harness| sizes(harness).boxed()),
    ("bad paths are rejected and the session continues", |harness| bad_paths(harness).boxed()),
    ("sessions see each other's writes", |harness| two_sessions(harness).boxed()),
    ("the streams of a session that ended end too", |harness| end_of_session(harness).boxed()),
];

async fn created(zk: &Zk, path: &str, mode: CreateMode) -> String {
    zk.create(path, Bytes::new(), mode).await.unwrap_or_else(|error| panic!("create {path}: {error}")).0
}

async fn next(stream: &mut BoxStream<'static, WatchEvent>) -> (EventKind, String) {
    let event = tokio::time::timeout(Duration::from_secs(10), stream.next()).await.expect("no event in ten seconds");
    let event = event.expect("the stream ended");
    (event.kind, event.path)
}

async fn reads_back(harness: ContractHarness<'_>) {
    let (zk, path) = (&harness.zk, harness.at("a"));
    let (name, stat) = zk.create(&path, Bytes::from_static(b"one"), Persistent).await.unwrap();
    assert_eq!(name, path);
    assert_eq!((stat.version, stat.ephemeral_owner, stat.data_length, stat.czxid), (0, 0, 3, stat.mzxid));
    assert_eq!(zk.get(&path).await.unwrap(), (Bytes::from_static(b"one"), stat));
    assert_eq!(zk.exists(&path).await.unwrap(), Some(stat));
    let set = zk.set(&path, Bytes::from_static(b"three"), -1).await.unwrap();
    assert_eq!((set.version, set.data_length, set.czxid), (1, 5, stat.czxid));
    assert!(set.mzxid > stat.mzxid);
    assert_eq!(zk.get(&path).await.unwrap(), (Bytes::from_static(b"three"), set));
    created(zk, &harness.at("a/b"), Persistent).await;
    created(zk, &harness.at("a/c"), Persistent).await;
    let (mut names, stat) = zk.children(&path).await.unwrap();
    names.sort();
    assert_eq!((names, stat.num_children, stat.cversion), (vec!["b".to_owned(), "c".to_owned()], 2, 2));
    zk.delete(&harness.at("a/b"), -1).await.unwrap();
    assert_eq!(zk.exists(&harness.at("a/b")).await.unwrap(), None);
    let stat = zk.exists(&path).await.unwrap().unwrap();
    assert_eq!((stat.num_children, stat.cversion, stat.version), (1, 3, 1));
    zk.sync(&path).await.unwrap();
}

async fn sequences(harness: ContractHarness<'_>) {
    let (zk, prefix) = (&harness.zk, harness.at("n-"));
    assert_eq!(created(zk, &harness.at("lock"), Persistent).await, harness.at("lock"));
    assert_eq!(created(zk, &prefix, PersistentSequential).await, harness.at("n-0000000001"));
    zk.delete(&harness.at("n-0000000001"), -1).await.unwrap();
    assert_eq!(created(zk, &prefix, EphemeralSequential).await, harness.at("n-0000000002"));
    assert_eq!(created(zk, &harness.at(""), PersistentSequential).await, harness.at("0000000003"));
    // The proof of a leak derives from this whether a node id was ever issued.
    let stat = zk.exists(&harness.root).await.unwrap().unwrap();
    assert_eq!((stat.cversion + stat.num_children) / 2, 4, "{stat:?}");
}

async fn ephemerals(harness: ContractHarness<'_>) {
    let other = harness.server.connect().await;
    let path = created(&other, &harness.at("e"), Ephemeral).await;
    let stat = harness.zk.exists(&path).await.unwrap().unwrap();
    assert_eq!(stat.ephemeral_owner, other.session_id());
    assert_ne!(other.session_id(), harness.zk.session_id());
    let rejected = other.create(&format!("{path}/child"), Bytes::new(), Persistent).await;
    assert_eq!(rejected.unwrap_err(), ZkError::NoChildrenForEphemerals);
    let mut stream = harness.zk.watch(&harness.root).await.unwrap();
    drop(other);
    assert_eq!(next(&mut stream).await, (EventKind::Deleted, path.clone()));
    assert_eq!(harness.zk.exists(&path).await.unwrap(), None);
}

async fn failures(harness: ContractHarness<'_>) {
    let (zk, missing) = (&harness.zk, harness.at("missing"));
    assert_eq!(zk.get(&missing).await.unwrap_err(), ZkError::NoNode);
    assert_eq!(zk.children(&missing).await.unwrap_err(), ZkError::NoNode);
    assert_eq!(zk.set(&missing, Bytes::new(), -1).await.unwrap_err(), ZkError::NoNode);
    assert_eq!(zk.delete(&missing, -1).await.unwrap_err(), ZkError::NoNode);
    let below = format!("{missing}/below");
    assert_eq!(zk.create(&below, Bytes::new(), Persistent).await.unwrap_err(), ZkError::NoNode);
    assert_eq!(zk.create(&harness.root, Bytes::new(), Persistent).await.unwrap_err(), ZkError::NodeExists);
    created(zk, &harness.at("child"), Persistent).await;
    assert_eq!(zk.delete(&harness.root, -1).await.unwrap_err(), ZkError::NotEmpty);
}

async fn versions(harness: ContractHarness<'_>) {
    let (zk, path) = (&harness.zk, created(&harness.zk, &harness.at("v"), Persistent).await);
    assert_eq!(zk.set(&path, Bytes::new(), 3).await.unwrap_err(), ZkError::BadVersion);
    assert_eq!(zk.set(&path, Bytes::new(), 0).await.unwrap().version, 1);
    assert_eq!(zk.set(&path, Bytes::new(), 0).await.unwrap_err(), ZkError::BadVersion);
    let check = |version| zk.multi(vec![Op::check(path.as_str(), version)]);
    assert_eq!(check(1).await.unwrap(), [OpReply::Checked]);
    assert_eq!(check(-1).await.unwrap(), [OpReply::Checked]);
    assert_eq!(check(2).await.unwrap_err().root(), &ZkError::BadVersion);
    assert_eq!(zk.delete(&path, 0).await.unwrap_err(), ZkError::BadVersion);
    zk.delete(&path, 1).await.unwrap();
}

async fn transactions(harness: ContractHarness<'_>) {
    let (zk, path) = (&harness.zk, harness.at("t"));
    let replies = zk
        .multi(vec![
            Op::create(path.as_str(), "x", Persistent),
            Op::create(format!("{path}/s"), "", EphemeralSequential),
            Op::set(path.as_str(), "yy", 0),
            Op::check(path.as_str(), 1),
            Op::delete(format!("{path}/s0000000000"), -1),
        ])
        .await
        .unwrap();
    let [OpReply::Created { path: first }, OpReply::Created { path: second }, OpReply::Set(stat), rest @ ..] =
        &replies[..]
    else {
        panic!("{replies:?}")
    };
    assert_eq!((first.as_str(), second.as_str()), (path.as_str(), format!("{path}/s0000000000").as_str()));
    assert_eq!((stat.version, stat.data_length, stat.mzxid), (1, 2, stat.czxid));
    assert_eq!(rest, [OpReply::Checked, OpReply::Deleted]);
    // The next conditional write of a created znode expects this version.
    let created_path = harness.at("made");
    zk.multi(vec![Op::create(created_path.as_str(), "x", Persistent)]).await.unwrap();
    assert_eq!(zk.get(&created_path).await.unwrap().1.version, Stat::of_new().version);
    assert_eq!(zk.multi(Vec::new()).await.unwrap(), []);
}

async fn failed_transactions(harness: ContractHarness<'_>) {
    let (zk, path) = (&harness.zk, created(&harness.zk, &harness.at("t"), Persistent).await);
    let before = zk.get(&path).await.unwrap();
    let failed = zk
        .multi(vec![
            Op::set(path.as_str(), "changed", -1),
            Op::create(format!("{path}/a"), "", Persistent),
            Op::delete(harness.at("missing"), -1),
            Op::check(path.as_str(), 9),
        ])
        .await;
    assert_eq!(failed.unwrap_err(), ZkError::Multi { index: 2, source: Box::new(ZkError::NoNode) });
    assert_eq!(zk.get(&path).await.unwrap(), before);
    assert_eq!(zk.children(&path).await.unwrap().0, Vec::<String>::new());
}

async fn emptiness(harness: ContractHarness<'_>) {
    let (zk, lock) = (&harness.zk, created(&harness.zk, &harness.at("lock"), Persistent).await);
    let proof = || vec![Op::delete(lock.as_str(), -1), Op::create(lock.as_str(), "", Persistent)];
    assert_eq!(zk.multi(proof()).await.unwrap().len(), 2);
    let contender = created(zk, &format!("{lock}/x__lock__"), EphemeralSequential).await;
    assert_eq!(contender, format!("{lock}/x__lock__0000000000"), "a re-created directory counts from zero");
    let rejected = ZkError::Multi { index: 0, source: Box::new(ZkError::NotEmpty) };
    assert_eq!(zk.multi(proof()).await.unwrap_err(), rejected);
}

async fn recursive_watch(harness: ContractHarness<'_>) {
    let (writer, path) = (harness.server.connect().await, harness.at("w"));
    let mut stream = harness.zk.watch(&path).await.unwrap(); // before the znode exists
    created(&writer, &harness.at("beside"), Persistent).await;
    created(&writer, &harness.at("wider"), Persistent).await;
    created(&writer, &path, Persistent).await;
    let child = created(&writer, &format!("{path}/c"), Persistent).await;
    writer.set(&child, Bytes::from_static(b"x"), -1).await.unwrap();
    writer
        .multi(vec![Op::delete(child.as_str(), -1), Op::set(path.as_str(), "", -1), Op::delete(path.as_str(), -1)])
        .await
        .unwrap();
    created(&writer, &path, Persistent).await;
    let expected = [
        (EventKind::Created, &path),
        (EventKind::Created, &child),
        (EventKind::DataChanged, &child),
        (EventKind::Deleted, &child),
        (EventKind::DataChanged, &path),
        (EventKind::Deleted, &path),
        (EventKind::Created, &path),
    ];
    for (kind, path) in expected {
        assert_eq!(next(&mut stream).await, (kind, path.clone()));
    }
}

async fn one_shot_watch(harness: ContractHarness<'_>) {
    let (zk, path) = (&harness.zk, harness.at("o"));
    let soon = |future| tokio::time::timeout(Duration::from_secs(10), future);
    let (stat, changed) = zk.exists_and_watch(&path).await.unwrap();
    assert_eq!(stat, None);
    let (_, mut other_changed) = zk.exists_and_watch(&harness.at("beside")).await.unwrap();
    let other = harness.server.connect().await;
    created(&other, &path, Persistent).await;
    soon(changed).await.expect("the creation is reported");
    let (stat, changed) = zk.exists_and_watch(&path).await.unwrap();
    assert_eq!(stat.map(|stat| stat.version), Some(0));
    other.set(&path, Bytes::new(), -1).await.unwrap();
    soon(changed).await.expect("the change is reported");
    let (_, changed) = zk.exists_and_watch(&path).await.unwrap();
    created(&other, &format!("{path}/child"), Ephemeral).await;
    other.delete(&format!("{path}/child"), -1).await.unwrap();
    other.delete(&path, -1).await.unwrap();
    soon(changed).await.expect("the removal is reported");
    assert!((&mut other_changed).now_or_never().is_none(), "nothing happened at the other path");
}

async fn watches_side_by_side(harness: ContractHarness<'_>) {
    let (zk, path) = (&harness.zk, harness.at("s"));
    let mut above = zk.watch(&harness.root).await.unwrap();
    let mut at = zk.watch(&path).await.unwrap();
    let (_, first) = zk.exists_and_watch(&path).await.unwrap();
    let (_, second) = zk.exists_and_watch(&path).await.unwrap();
    created(zk, &path, Persistent).await;
    assert_eq!(next(&mut above).await, (EventKind::Created, path.clone()));
    assert_eq!(next(&mut at).await, (EventKind::Created, path.clone()));
    tokio::time::timeout(Duration::from_secs(10), futures::future::join(first, second)).await.expect("both resolve");
    drop(at);
    zk.delete(&path, -1).await.unwrap();
    assert_eq!(next(&mut above).await, (EventKind::Deleted, path), "dropping one stream leaves the other");
}

async fn pipelining(harness: ContractHarness<'_>) {
    let (zk, path) = (&harness.zk, harness.at("p"));
    let create = zk.create(&path, Bytes::new(), Persistent);
    let set = zk.set(&path, Bytes::from_static(b"later"), 0);
    let read = zk.get(&path);
    let deleted = zk.delete(&path, 1);
    let missing = zk.exists(&path);
    assert_eq!(missing.await.unwrap(), None);
    deleted.await.unwrap();
    assert_eq!(read.await.unwrap().0, "later");
    assert_eq!(set.await.unwrap().version, 1);
    create.await.unwrap();
    let prefix = harness.at("many-");
    let requests = (0..1_000).map(|_| zk.create(&prefix, Bytes::new(), PersistentSequential));
    for (index, reply) in join_all(requests.collect::<Vec<_>>()).await.into_iter().enumerate() {
        assert_eq!(reply.unwrap().0, format!("{prefix}{:010}", index + 1));
    }
}

async fn many_reads(harness: ContractHarness<'_>) {
    let zk = &harness.zk;
    let paths: Vec<String> = (0..100).map(|index| harness.at(&format!("n{index}"))).collect();
    for (index, path) in paths.iter().enumerate().filter(|(index, _)| index % 3 != 0) {
        zk.create(path, Bytes::from(index.to_string()), Persistent).await.unwrap();
    }
    created(zk, &format!("{}/child", paths[1]), Persistent).await;
    let answers = zk.get_many(&paths).await.unwrap();
    assert_eq!(answers.len(), paths.len());
    for (index, (answer, path)) in answers.into_iter().zip(&paths).enumerate() {
        assert_eq!(answer, zk.get(path).await, "{path}");
        match answer {
            Ok((data, stat)) => {
                assert_eq!((data, stat.num_children), (Bytes::from(index.to_string()), i32::from(index == 1)));
            }
            Err(error) => assert_eq!((error, index % 3), (ZkError::NoNode, 0)),
        }
    }
    assert_eq!(zk.get_many(&[]).await, Ok(Vec::new()));
}

async fn sizes(harness: ContractHarness<'_>) {
    let (zk, path) = (&harness.zk, harness.at("big"));
    let fits = Bytes::from(vec![b'x'; 1_000_000]);
    zk.create(&path, fits.clone(), Persistent).await.unwrap();
    let too_large = Bytes::from(vec![b'x'; 1024 * 1024 + 1]);
    let is_too_large = |error: ZkError| matches!(error.root(), ZkError::TooLarge { .. });
    assert!(is_too_large(zk.set(&path, too_large.clone(), -1).await.unwrap_err()));
    assert!(is_too_large(zk.create(&harness.at("no"), too_large.clone(), Persistent).await.unwrap_err()));
    assert!(is_too_large(zk.multi(vec![Op::set(path.as_str(), too_large, -1)]).await.unwrap_err()));
    assert_eq!(zk.get(&path).await.unwrap().0, fits);
}

async fn bad_paths(harness: ContractHarness<'_>) {
    for bad in ["relative", "/double//slash", "/end/", "/a/./b", "/a/..", "/control\u{1}", "/emoji\u{1f600}"] {
        let rejected = harness.zk.create(bad, Bytes::new(), Persistent).await.unwrap_err();
        assert!(matches!(rejected, ZkError::BadArguments(_) | ZkError::NoNode), "{bad:?}: {rejected}");
    }
    assert!(harness.zk.exists(&harness.root).await.unwrap().is_some());
}

async fn two_sessions(harness: ContractHarness<'_>) {
    let other = harness.server.connect().await;
    let path = created(&harness.zk, &harness.at("shared"), Persistent).await;
    other.sync(&path).await.unwrap();
    let stat = other.set(&path, Bytes::from_static(b"theirs"), 0).await.unwrap();
    harness.zk.sync(&path).await.unwrap();
    assert_eq!(harness.zk.get(&path).await.unwrap(), (Bytes::from_static(b"theirs"), stat));
}

async fn end_of_session(harness: ContractHarness<'_>) {
    let other = harness.server.connect().await;
    let state = other.session();
    assert_eq!(*state.borrow(), SessionState::Connected);
    let mut stream = other.watch(&harness.root).await.unwrap();
    let (_, changed) = other.exists_and_watch(&harness.at("x")).await.unwrap();
    drop(other);
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.next()).await.expect("the stream ends");
    assert_eq!(ended, None);
    tokio::time::timeout(Duration::from_secs(10), changed).await.expect("a one-shot watch resolves too");
}
