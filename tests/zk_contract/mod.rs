//! What every `Connection` owes: one list of cases, run against the memory store and every server.

use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use nodepool_zk::{SessionState, Zk};
use zookeeper_server::types::{CreateMode, EventKind, Op, OpReply, Stat, WatchEvent, ZkError};

use CreateMode::{Ephemeral, EphemeralSequential, Persistent, PersistentSequential};

/// How a server gives out sessions. Dropping the last handle of one ends it.
pub trait Server: Sync {
    fn connect(&self) -> BoxFuture<'static, Zk>;
}

/// Runs every case below a root of its own, which may lie on a server that others use too.
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
    ("what is written is read back with its stat", |bench| reads_back(bench).boxed()),
    ("sequence numbers count every child and are not reused", |bench| sequences(bench).boxed()),
    ("an ephemeral znode goes with its session, and watchers hear of it", |bench| ephemerals(bench).boxed()),
    ("each refusal has its own error", |bench| refusals(bench).boxed()),
    ("versions guard set, delete and check", |bench| versions(bench).boxed()),
    ("a transaction answers each of its operations", |bench| transactions(bench).boxed()),
    ("a failed transaction names its operation and does nothing", |bench| failed_transactions(bench).boxed()),
    ("deleting and creating a directory in a transaction proves it empty", |bench| emptiness(bench).boxed()),
    ("a recursive watch tells everything below it in order", |bench| recursive_watch(bench).boxed()),
    ("a one-shot watch resolves at creation, change and removal", |bench| one_shot_watch(bench).boxed()),
    ("two watches of one session on one path both hear of a change", |bench| watches_side_by_side(bench).boxed()),
    ("many reads at once answer one by one and in order", |bench| many_reads(bench).boxed()),
    ("requests made one after another are carried out in that order", |bench| pipelining(bench).boxed()),
    ("data up to a million bytes is taken, beyond 1 MiB refused", |bench| sizes(bench).boxed()),
    ("bad paths are refused and the session goes on", |bench| bad_paths(bench).boxed()),
    ("sessions see each other's writes", |bench| two_sessions(bench).boxed()),
    ("the streams of a session that ended end too", |bench| end_of_session(bench).boxed()),
];

async fn created(zk: &Zk, path: &str, mode: CreateMode) -> String {
    zk.create(path, Bytes::new(), mode).await.unwrap_or_else(|error| panic!("create {path}: {error}")).0
}

async fn next(stream: &mut BoxStream<'static, WatchEvent>) -> (EventKind, String) {
    let event = tokio::time::timeout(Duration::from_secs(10), stream.next()).await.expect("no event in ten seconds");
    let event = event.expect("the stream ended");
    (event.kind, event.path)
}

async fn reads_back(bench: ContractHarness<'_>) {
    let (zk, path) = (&bench.zk, bench.at("a"));
    let (name, stat) = zk.create(&path, Bytes::from_static(b"one"), Persistent).await.unwrap();
    assert_eq!(name, path);
    assert_eq!((stat.version, stat.ephemeral_owner, stat.data_length, stat.czxid), (0, 0, 3, stat.mzxid));
    assert_eq!(zk.get(&path).await.unwrap(), (Bytes::from_static(b"one"), stat));
    assert_eq!(zk.exists(&path).await.unwrap(), Some(stat));
    let set = zk.set(&path, Bytes::from_static(b"three"), -1).await.unwrap();
    assert_eq!((set.version, set.data_length, set.czxid), (1, 5, stat.czxid));
    assert!(set.mzxid > stat.mzxid);
    assert_eq!(zk.get(&path).await.unwrap(), (Bytes::from_static(b"three"), set));
    created(zk, &bench.at("a/b"), Persistent).await;
    created(zk, &bench.at("a/c"), Persistent).await;
    let (mut names, stat) = zk.children(&path).await.unwrap();
    names.sort();
    assert_eq!((names, stat.num_children, stat.cversion), (vec!["b".to_owned(), "c".to_owned()], 2, 2));
    zk.delete(&bench.at("a/b"), -1).await.unwrap();
    assert_eq!(zk.exists(&bench.at("a/b")).await.unwrap(), None);
    let stat = zk.exists(&path).await.unwrap().unwrap();
    assert_eq!((stat.num_children, stat.cversion, stat.version), (1, 3, 1));
    zk.sync(&path).await.unwrap();
}

async fn sequences(bench: ContractHarness<'_>) {
    let (zk, prefix) = (&bench.zk, bench.at("n-"));
    assert_eq!(created(zk, &bench.at("lock"), Persistent).await, bench.at("lock"));
    assert_eq!(created(zk, &prefix, PersistentSequential).await, bench.at("n-0000000001"));
    zk.delete(&bench.at("n-0000000001"), -1).await.unwrap();
    assert_eq!(created(zk, &prefix, EphemeralSequential).await, bench.at("n-0000000002"));
    assert_eq!(created(zk, &bench.at(""), PersistentSequential).await, bench.at("0000000003"));
    // By this the proof of a leak tells whether a number was ever given.
    let stat = zk.exists(&bench.root).await.unwrap().unwrap();
    assert_eq!((stat.cversion + stat.num_children) / 2, 4, "{stat:?}");
}

async fn ephemerals(bench: ContractHarness<'_>) {
    let other = bench.server.connect().await;
    let path = created(&other, &bench.at("e"), Ephemeral).await;
    let stat = bench.zk.exists(&path).await.unwrap().unwrap();
    assert_eq!(stat.ephemeral_owner, other.session_id());
    assert_ne!(other.session_id(), bench.zk.session_id());
    let refused = other.create(&format!("{path}/child"), Bytes::new(), Persistent).await;
    assert_eq!(refused.unwrap_err(), ZkError::NoChildrenForEphemerals);
    let mut stream = bench.zk.watch(&bench.root).await.unwrap();
    drop(other);
    assert_eq!(next(&mut stream).await, (EventKind::Deleted, path.clone()));
    assert_eq!(bench.zk.exists(&path).await.unwrap(), None);
}

async fn refusals(bench: ContractHarness<'_>) {
    let (zk, missing) = (&bench.zk, bench.at("missing"));
    assert_eq!(zk.get(&missing).await.unwrap_err(), ZkError::NoNode);
    assert_eq!(zk.children(&missing).await.unwrap_err(), ZkError::NoNode);
    assert_eq!(zk.set(&missing, Bytes::new(), -1).await.unwrap_err(), ZkError::NoNode);
    assert_eq!(zk.delete(&missing, -1).await.unwrap_err(), ZkError::NoNode);
    let below = format!("{missing}/below");
    assert_eq!(zk.create(&below, Bytes::new(), Persistent).await.unwrap_err(), ZkError::NoNode);
    assert_eq!(zk.create(&bench.root, Bytes::new(), Persistent).await.unwrap_err(), ZkError::NodeExists);
    created(zk, &bench.at("child"), Persistent).await;
    assert_eq!(zk.delete(&bench.root, -1).await.unwrap_err(), ZkError::NotEmpty);
}

async fn versions(bench: ContractHarness<'_>) {
    let (zk, path) = (&bench.zk, created(&bench.zk, &bench.at("v"), Persistent).await);
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

async fn transactions(bench: ContractHarness<'_>) {
    let (zk, path) = (&bench.zk, bench.at("t"));
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
    // What is written next of what was made names the version that is expected of it.
    let made = bench.at("made");
    zk.multi(vec![Op::create(made.as_str(), "x", Persistent)]).await.unwrap();
    assert_eq!(zk.get(&made).await.unwrap().1.version, Stat::of_new().version);
    assert_eq!(zk.multi(Vec::new()).await.unwrap(), []);
}

async fn failed_transactions(bench: ContractHarness<'_>) {
    let (zk, path) = (&bench.zk, created(&bench.zk, &bench.at("t"), Persistent).await);
    let before = zk.get(&path).await.unwrap();
    let failed = zk
        .multi(vec![
            Op::set(path.as_str(), "changed", -1),
            Op::create(format!("{path}/a"), "", Persistent),
            Op::delete(bench.at("missing"), -1),
            Op::check(path.as_str(), 9),
        ])
        .await;
    assert_eq!(failed.unwrap_err(), ZkError::Multi { index: 2, source: Box::new(ZkError::NoNode) });
    assert_eq!(zk.get(&path).await.unwrap(), before);
    assert_eq!(zk.children(&path).await.unwrap().0, Vec::<String>::new());
}

async fn emptiness(bench: ContractHarness<'_>) {
    let (zk, lock) = (&bench.zk, created(&bench.zk, &bench.at("lock"), Persistent).await);
    let proof = || vec![Op::delete(lock.as_str(), -1), Op::create(lock.as_str(), "", Persistent)];
    assert_eq!(zk.multi(proof()).await.unwrap().len(), 2);
    let contender = created(zk, &format!("{lock}/x__lock__"), EphemeralSequential).await;
    assert_eq!(contender, format!("{lock}/x__lock__0000000000"), "a directory created anew counts from zero");
    let refused = ZkError::Multi { index: 0, source: Box::new(ZkError::NotEmpty) };
    assert_eq!(zk.multi(proof()).await.unwrap_err(), refused);
}

async fn recursive_watch(bench: ContractHarness<'_>) {
    let (writer, path) = (bench.server.connect().await, bench.at("w"));
    let mut stream = bench.zk.watch(&path).await.unwrap(); // before the znode exists
    created(&writer, &bench.at("beside"), Persistent).await;
    created(&writer, &bench.at("wider"), Persistent).await;
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

async fn one_shot_watch(bench: ContractHarness<'_>) {
    let (zk, path) = (&bench.zk, bench.at("o"));
    let soon = |future| tokio::time::timeout(Duration::from_secs(10), future);
    let (stat, changed) = zk.exists_and_watch(&path).await.unwrap();
    assert_eq!(stat, None);
    let (_, mut beside) = zk.exists_and_watch(&bench.at("beside")).await.unwrap();
    let other = bench.server.connect().await;
    created(&other, &path, Persistent).await;
    soon(changed).await.expect("the creation is told");
    let (stat, changed) = zk.exists_and_watch(&path).await.unwrap();
    assert_eq!(stat.map(|stat| stat.version), Some(0));
    other.set(&path, Bytes::new(), -1).await.unwrap();
    soon(changed).await.expect("the change is told");
    let (_, changed) = zk.exists_and_watch(&path).await.unwrap();
    created(&other, &format!("{path}/child"), Ephemeral).await;
    other.delete(&format!("{path}/child"), -1).await.unwrap();
    other.delete(&path, -1).await.unwrap();
    soon(changed).await.expect("the removal is told");
    assert!((&mut beside).now_or_never().is_none(), "nothing happened at the other path");
}

async fn watches_side_by_side(bench: ContractHarness<'_>) {
    let (zk, path) = (&bench.zk, bench.at("s"));
    let mut above = zk.watch(&bench.root).await.unwrap();
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

async fn pipelining(bench: ContractHarness<'_>) {
    let (zk, path) = (&bench.zk, bench.at("p"));
    let create = zk.create(&path, Bytes::new(), Persistent);
    let set = zk.set(&path, Bytes::from_static(b"later"), 0);
    let read = zk.get(&path);
    let gone = zk.delete(&path, 1);
    let missing = zk.exists(&path);
    assert_eq!(missing.await.unwrap(), None);
    gone.await.unwrap();
    assert_eq!(read.await.unwrap().0, "later");
    assert_eq!(set.await.unwrap().version, 1);
    create.await.unwrap();
    let prefix = bench.at("many-");
    let requests = (0..1_000).map(|_| zk.create(&prefix, Bytes::new(), PersistentSequential));
    for (index, reply) in join_all(requests.collect::<Vec<_>>()).await.into_iter().enumerate() {
        assert_eq!(reply.unwrap().0, format!("{prefix}{:010}", index + 1));
    }
}

async fn many_reads(bench: ContractHarness<'_>) {
    let zk = &bench.zk;
    let paths: Vec<String> = (0..100).map(|index| bench.at(&format!("n{index}"))).collect();
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

async fn sizes(bench: ContractHarness<'_>) {
    let (zk, path) = (&bench.zk, bench.at("big"));
    let fits = Bytes::from(vec![b'x'; 1_000_000]);
    zk.create(&path, fits.clone(), Persistent).await.unwrap();
    let too_large = Bytes::from(vec![b'x'; 1024 * 1024 + 1]);
    let is_too_large = |error: ZkError| matches!(error.root(), ZkError::TooLarge { .. });
    assert!(is_too_large(zk.set(&path, too_large.clone(), -1).await.unwrap_err()));
    assert!(is_too_large(zk.create(&bench.at("no"), too_large.clone(), Persistent).await.unwrap_err()));
    assert!(is_too_large(zk.multi(vec![Op::set(path.as_str(), too_large, -1)]).await.unwrap_err()));
    assert_eq!(zk.get(&path).await.unwrap().0, fits);
}

async fn bad_paths(bench: ContractHarness<'_>) {
    for bad in ["relative", "/double//slash", "/end/", "/a/./b", "/a/..", "/control\u{1}", "/emoji\u{1f600}"] {
        let refused = bench.zk.create(bad, Bytes::new(), Persistent).await.unwrap_err();
        assert!(matches!(refused, ZkError::BadArguments(_) | ZkError::NoNode), "{bad:?}: {refused}");
    }
    assert!(bench.zk.exists(&bench.root).await.unwrap().is_some());
}

async fn two_sessions(bench: ContractHarness<'_>) {
    let other = bench.server.connect().await;
    let path = created(&bench.zk, &bench.at("shared"), Persistent).await;
    other.sync(&path).await.unwrap();
    let stat = other.set(&path, Bytes::from_static(b"theirs"), 0).await.unwrap();
    bench.zk.sync(&path).await.unwrap();
    assert_eq!(bench.zk.get(&path).await.unwrap(), (Bytes::from_static(b"theirs"), stat));
}

async fn end_of_session(bench: ContractHarness<'_>) {
    let other = bench.server.connect().await;
    let state = other.session();
    assert_eq!(*state.borrow(), SessionState::Connected);
    let mut stream = other.watch(&bench.root).await.unwrap();
    let (_, changed) = other.exists_and_watch(&bench.at("x")).await.unwrap();
    drop(other);
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.next()).await.expect("the stream ends");
    assert_eq!(ended, None);
    tokio::time::timeout(Duration::from_secs(10), changed).await.expect("a one-shot watch resolves too");
}
