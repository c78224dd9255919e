//! The tree's rules, one small case each.

#![allow(unused_must_use)] // most cases check only a part of a write's result

use super::*;
use crate::types::EventKind::{ChildrenChanged, Created, DataChanged, Deleted};

const NOW: i64 = 1_000;

fn tree() -> Tree {
    let mut tree = Tree::new();
    for id in 1..=3 {
        let opened = tree.open_session(Session { id, password: [0; 16], timeout_ms: 10_000 });
        assert!(opened.result.is_ok());
    }
    tree
}

fn create(path: &str, mode: CreateMode) -> Write {
    Op::create(path, "x", mode).into()
}

/// Applies a write that must succeed, as session 1.
fn must(tree: &mut Tree, write: Write) -> Applied {
    let applied = tree.apply(1, NOW, write);
    assert!(applied.result.is_ok(), "{:?}", applied.result);
    applied
}

fn make(tree: &mut Tree, path: &str) -> String {
    match must(tree, create(path, CreateMode::Persistent)).result {
        Ok(WriteResult::Created { path, .. }) => path,
        other => panic!("{other:?}"),
    }
}

fn make_sequential(tree: &mut Tree, path: &str) -> String {
    match must(tree, create(path, CreateMode::PersistentSequential)).result {
        Ok(WriteResult::Created { path, .. }) => path,
        other => panic!("{other:?}"),
    }
}

fn fails(tree: &mut Tree, write: Write) -> Failure {
    tree.apply(1, NOW, write).result.expect_err("must fail")
}

/// The state that a restart would find, to check that a failed write left no trace.
fn dump(tree: &Tree) -> String {
    let znodes: Vec<_> = tree.records().map(|(path, record)| (path, record, tree.stat(path))).collect();
    format!("{znodes:?} {:?}", tree.ephemerals)
}

#[test]
fn a_fresh_tree_has_the_stats_of_a_fresh_zookeeper() {
    let tree = Tree::new();
    let shape = |path: &str| tree.stat(path).map(|stat| (stat.cversion, stat.num_children, stat.czxid));
    assert_eq!(shape("/"), Ok((-1, 1, 0)));
    assert_eq!(shape("/zookeeper"), Ok((-2, 2, 0)));
    assert_eq!(shape(""), Ok((-1, 1, 0)));
}

#[test]
fn a_created_znode_carries_its_transaction_and_its_parents_stat_moves() {
    let mut tree = tree();
    make(&mut tree, "/a");
    let applied = must(&mut tree, create("/a/b", CreateMode::Ephemeral));
    let (data, stat) = tree.get("/a/b").unwrap();
    assert_eq!(data, "x");
    assert_eq!((stat.czxid, stat.mzxid, stat.pzxid), (applied.zxid, applied.zxid, applied.zxid));
    assert_eq!((stat.ctime, stat.mtime, stat.ephemeral_owner, stat.data_length), (NOW, NOW, 1, 1));
    let parent = tree.stat("/a").unwrap();
    assert_eq!((parent.pzxid, parent.cversion, parent.num_children, parent.version), (applied.zxid, 1, 1, 0));
}

#[test]
fn every_child_creation_advances_the_sequence_and_nothing_sets_it_back() {
    let mut tree = tree();
    make(&mut tree, "/a");
    make(&mut tree, "/a/lock");
    assert_eq!(make_sequential(&mut tree, "/a/n-"), "/a/n-0000000001");
    must(&mut tree, Op::delete("/a/n-0000000001", -1).into());
    assert_eq!(make_sequential(&mut tree, "/a/"), "/a/0000000002");
    assert_eq!(tree.stat("/a").unwrap().cversion, 4);
    assert_eq!(make_sequential(&mut tree, "/top"), "/top0000000001");
}

#[test]
fn a_sequence_goes_negative_after_the_last_positive_number() {
    let mut tree = tree();
    make(&mut tree, "/a");
    tree.znodes.get_mut("/a").unwrap().record.creations = i32::MAX;
    assert_eq!(make_sequential(&mut tree, "/a/n"), "/a/n2147483647");
    assert_eq!(make_sequential(&mut tree, "/a/n"), "/a/n-2147483648");
}

#[test]
fn refusals_have_zookeepers_reason_and_take_a_transaction_id() {
    let mut tree = tree();
    make(&mut tree, "/a");
    make(&mut tree, "/a/b");
    must(&mut tree, create("/e", CreateMode::Ephemeral));
    let persistent = |path: &str| create(path, CreateMode::Persistent);
    let big = Bytes::from(vec![0; DATA_LIMIT + 1]);
    let cases: Vec<(Write, Failure)> = vec![
        (persistent("/a"), Failure::NodeExists),
        (persistent("/"), Failure::NodeExists),
        (persistent("/x/y"), Failure::NoNode),
        (persistent("/e/y"), Failure::NoChildrenForEphemerals),
        (Op::set("/x", "", -1).into(), Failure::NoNode),
        (Op::set("/a", "", 1).into(), Failure::BadVersion),
        (Op::check("/a", 1).into(), Failure::BadVersion),
        (Op::check("/x", -1).into(), Failure::NoNode),
        (Op::delete("/x", -1).into(), Failure::NoNode),
        (Op::delete("/a", -1).into(), Failure::NotEmpty),
        (Op::delete("/a", 5).into(), Failure::BadVersion),
        (Op::set("/a", big.clone(), -1).into(), Failure::TooLarge { size: DATA_LIMIT + 1 }),
        (Op::create("/big", big, CreateMode::Persistent).into(), Failure::TooLarge { size: DATA_LIMIT + 1 }),
        (Write::SetAcl { path: "/a".into(), acl: Arc::from([]), version: -1 }, Failure::InvalidAcl),
        (Write::SetAcl { path: "/a".into(), acl: Acl::open(), version: 7 }, Failure::BadVersion),
    ];
    for (write, expected) in cases {
        let (before, zxid) = (dump(&tree), tree.last_zxid());
        assert_eq!(fails(&mut tree, write.clone()), expected, "{write:?}");
        assert_eq!((dump(&tree), tree.last_zxid()), (before, zxid + 1), "{write:?}");
    }
    for path in ["/", "/zookeeper", "nothing", "/a\0"] {
        assert!(matches!(fails(&mut tree, Op::delete(path, -1).into()), Failure::BadArguments(_)), "{path:?}");
    }
    for path in ["noslash", "/a//b", "/a/", "/a/.."] {
        let reason = fails(&mut tree, persistent(path));
        assert!(matches!(reason, Failure::BadArguments(_) | Failure::NoNode), "{path:?}: {reason}");
    }
}

#[test]
fn a_transaction_sees_its_own_steps() {
    let mut tree = tree();
    let writes = vec![
        create("/a", CreateMode::Persistent),
        create("/a/n", CreateMode::PersistentSequential),
        Op::set("/a", "y", 0).into(),
        Op::check("/a", 1).into(),
        Op::delete("/a/n0000000000", 0).into(),
        Op::delete("/a", 1).into(),
        create("/a", CreateMode::Ephemeral),
    ];
    let applied = must(&mut tree, Write::Multi(writes));
    let stat = tree.stat("/a").unwrap();
    assert_eq!((stat.czxid, stat.version, stat.ephemeral_owner), (applied.zxid, 0, 1));
    assert!(applied.dirty_keys.contains(&DirtyKey::Znode("/a/n0000000000".into())));
    assert_eq!(tree.record("/a/n0000000000"), None);
}

#[test]
fn a_transaction_that_fails_names_the_operation_and_leaves_no_trace() {
    let mut tree = tree();
    make(&mut tree, "/a");
    make(&mut tree, "/a/b");
    must(&mut tree, create("/e", CreateMode::Ephemeral));
    tree.add_watch(2, "/", WatchKind::Recursive);
    tree.add_watch(2, "/a", WatchKind::Data);
    let before = dump(&tree);
    let writes = vec![
        Op::set("/a", "new", -1).into(),
        Op::delete("/e", -1).into(),
        create("/e", CreateMode::Persistent),
        Op::delete("/a/b", -1).into(),
        create("/a/c", CreateMode::EphemeralSequential),
        Write::SetAcl { path: "/a".into(), acl: Acl::open(), version: -1 },
        Op::check("/a", 9).into(),
        Op::delete("/never", -1).into(),
    ];
    let applied = tree.apply(1, NOW, Write::Multi(writes));
    let expected = Failure::Multi { index: 6, source: Box::new(Failure::BadVersion) };
    assert_eq!(applied.result, Err(expected));
    assert_eq!((applied.events, applied.dirty_keys), (vec![], vec![]));
    assert_eq!(dump(&tree), before);
    assert_eq!(tree.has_watch(2, "/a", WatchFilter::Only(WatchKind::Data)), Ok(()));
}

#[test]
fn closing_a_session_removes_ephemerals_and_watches_in_one_step() {
    let mut tree = tree();
    make(&mut tree, "/a");
    must(&mut tree, create("/a/one", CreateMode::Ephemeral));
    must(&mut tree, create("/a/two", CreateMode::EphemeralSequential));
    tree.add_watch(1, "/a", WatchKind::Persistent);
    tree.add_watch(2, "/a", WatchKind::Recursive);
    let zxid = tree.last_zxid();
    let closed = tree.close_session(1);
    assert_eq!((closed.zxid, tree.last_zxid()), (zxid + 1, zxid + 1));
    assert_eq!(summarize(&closed.events), [(2, Deleted, "/a/one"), (2, Deleted, "/a/two0000000001")]);
    assert_eq!((tree.stat("/a").unwrap().num_children, tree.ephemeral_count(), tree.watch_count()), (0, 0, 1));
    assert_eq!(fails(&mut tree, create("/b", CreateMode::Persistent)), Failure::SessionExpired);
    assert_eq!(tree.close_session(1).result, Err(Failure::SessionExpired));
}

fn summarize(fired: &[Fired]) -> Vec<(i64, EventKind, &str)> {
    fired.iter().map(|fired| (fired.session, fired.event.kind, fired.event.path.as_str())).collect()
}

#[test]
fn each_kind_of_watch_receives_the_events_zookeeper_sends() {
    use WatchKind::{Children, Data, Persistent, Recursive};
    // The events of session 2 for create, set, child create, child set, child delete, delete; it watches /a with one
    // kind.
    let all: [(WatchKind, Vec<(EventKind, &str)>); 4] = [
        (Data, vec![(Created, "/a")]),
        (Children, vec![(ChildrenChanged, "/a")]),
        (
            Persistent,
            vec![
                (Created, "/a"),
                (DataChanged, "/a"),
                (ChildrenChanged, "/a"),
                (ChildrenChanged, "/a"),
                (Deleted, "/a"),
            ],
        ),
        (
            Recursive,
            vec![
                (Created, "/a"),
                (DataChanged, "/a"),
                (Created, "/a/b"),
                (DataChanged, "/a/b"),
                (Deleted, "/a/b"),
                (Deleted, "/a"),
            ],
        ),
    ];
    for (kind, expected) in all {
        let mut tree = tree();
        tree.add_watch(2, "/a", kind);
        let mut events = Vec::new();
        for write in [
            create("/a", CreateMode::Persistent),
            Op::set("/a", "", -1).into(),
            create("/a/b", CreateMode::Persistent),
            Op::set("/a/b", "", -1).into(),
            Op::delete("/a/b", -1).into(),
            Op::delete("/a", -1).into(),
        ] {
            events.extend(must(&mut tree, write).events.into_iter().map(|fired| (fired.event.kind, fired.event.path)));
        }
        let events: Vec<_> = events.iter().map(|(kind, path)| (*kind, path.as_str())).collect();
        assert_eq!(events, expected, "{kind:?}");
    }
}

#[test]
fn a_session_receives_each_event_once_whatever_it_watches() {
    let mut tree = tree();
    make(&mut tree, "/a");
    for kind in [WatchKind::Data, WatchKind::Children, WatchKind::Persistent, WatchKind::Recursive] {
        tree.add_watch(2, "/a", kind);
    }
    tree.add_watch(2, "/", WatchKind::Recursive);
    let applied = must(&mut tree, Op::delete("/a", -1).into());
    assert_eq!(summarize(&applied.events), [(2, Deleted, "/a")]);
    assert_eq!(tree.watch_count(), 3, "the two persistent ones at the path and the one above remain");
}

#[test]
fn a_watch_on_a_name_ignores_longer_names() {
    let mut tree = tree();
    tree.add_watch(2, "/a", WatchKind::Recursive);
    let applied = must(&mut tree, create("/ab", CreateMode::Persistent));
    assert_eq!(applied.events, []);
}

#[test]
fn removing_a_watch_takes_the_kind_asked_for() {
    let mut tree = tree();
    tree.add_watch(2, "/a", WatchKind::Data);
    tree.add_watch(2, "/a", WatchKind::Recursive);
    let data = WatchFilter::Only(WatchKind::Data);
    assert_eq!(tree.remove_watch(1, "/a", WatchFilter::Any), Err(Failure::NoWatcher));
    assert_eq!(tree.remove_watch(2, "/a", data), Ok(()));
    assert_eq!(tree.remove_watch(2, "/a", data), Err(Failure::NoWatcher));
    assert_eq!(tree.has_watch(2, "/a", WatchFilter::Any), Ok(()));
    tree.forget_watches(2);
    assert_eq!(tree.watch_count(), 0);
}

#[test]
fn watches_set_after_a_reconnect_fire_what_one_shot_ones_missed() {
    let mut tree = tree();
    for path in ["/same", "/changed", "/parent", "/quiet"] {
        make(&mut tree, path);
    }
    let seen_zxid = tree.last_zxid();
    must(&mut tree, Op::set("/changed", "", -1).into());
    make(&mut tree, "/parent/child");
    make(&mut tree, "/new");
    let paths = |paths: &[&str]| paths.iter().map(|&path| path.to_owned()).collect::<Vec<_>>();
    let fired = tree.set_watches(
        2,
        WatchList {
            last_zxid_seen: seen_zxid,
            data: paths(&["/same", "/changed", "/gone"]),
            exist: paths(&["/new", "/still-missing"]),
            children: paths(&["/parent", "/quiet", "/gone"]),
            persistent: paths(&["/p"]),
            recursive: paths(&["/parent"]),
        },
    );
    let expected = [
        (2, DataChanged, "/changed"),
        (2, Deleted, "/gone"),
        (2, Created, "/new"),
        (2, ChildrenChanged, "/parent"),
        (2, Deleted, "/gone"),
    ];
    assert_eq!(summarize(&fired), expected);
    assert_eq!(tree.watch_count(), 5);
}

#[test]
fn a_tree_is_rebuilt_from_its_records() {
    let mut tree = tree();
    make(&mut tree, "/a");
    make_sequential(&mut tree, "/a/n");
    must(&mut tree, create("/a/e", CreateMode::Ephemeral));
    let records: Vec<_> = tree.records().map(|(path, record)| (path.clone(), record.clone())).collect();
    let sessions: Vec<_> = tree.sessions().cloned().collect();
    let restored = Tree::restore(tree.last_zxid(), tree.last_session(), records.clone(), sessions).unwrap();
    assert_eq!(dump(&restored), dump(&tree));
    assert_eq!((restored.last_zxid(), restored.last_session()), (tree.last_zxid(), 3));
    let without = |missing: &str| records.iter().filter(|(path, _)| path != missing).cloned().collect::<Vec<_>>();
    assert_eq!(Tree::restore(9, 3, without("/"), vec![]).unwrap_err(), Inconsistent::NoRoot);
    assert!(matches!(Tree::restore(9, 3, without("/a"), vec![]).unwrap_err(), Inconsistent::NoParent(_)));
    assert!(matches!(Tree::restore(9, 3, records, vec![]).unwrap_err(), Inconsistent::NoOwner { session: 1, .. }));
}
