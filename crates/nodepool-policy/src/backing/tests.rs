//! Tests of the planner on small snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::planner::{ActionKey, BackingAction, BackingInputs, BackingOrder, BackingPlanner, request};
use nodepool_driver::facts::{BackingLabel, LaunchConfig, LaunchLabel, Login};
use nodepool_model::records::backing::{BackingRecord, Slot};
use nodepool_model::records::ids::{LabelName, NodeId};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::{LockState, Snapshot, Versioned, WriteError};

const OWNER: &str = "NodePool:metastatic:meta";

struct World {
    snapshot: Snapshot,
    planner: BackingPlanner,
    launch_config: Arc<LaunchConfig>,
    unread: BTreeSet<NodeId>,
    own: BTreeSet<NodeId>,
    now_s: f64,
}

fn launch_config(label: BackingLabel) -> Arc<LaunchConfig> {
    let label = LaunchLabel {
        need: None,
        image: None,
        login: Login::default(),
        host_key_checking: false,
        console_log: false,
        unavailable: None,
        backing: Some(Arc::new(label)),
    };
    let labels = BTreeMap::from([("main".into(), BTreeMap::from([("small".into(), label)]))]);
    Arc::new(LaunchConfig {
        attempts: 3,
        timeout: Seconds(60.0),
        boot_timeout: Seconds(60.0),
        zones: Vec::new(),
        resource_kinds: Vec::new(),
        labels,
    })
}

fn terms() -> BackingLabel {
    BackingLabel {
        label: "big".into(),
        slots: 2,
        grace_time: Seconds(60.0),
        min_retention_time: Seconds::ZERO,
        max_age: None,
        max_failures: None,
    }
}

impl World {
    fn new(terms: BackingLabel) -> Self {
        let mut snapshot = Snapshot::default();
        snapshot.connected = true;
        let planner = BackingPlanner::new("meta".into(), "one".to_owned());
        let launch_config = launch_config(terms);
        Self { snapshot, planner, launch_config, unread: BTreeSet::new(), own: BTreeSet::new(), now_s: 1000.0 }
    }

    fn put(&mut self, id: &str, holder: Option<&str>, node: Node) {
        let version = self.snapshot.node(&id.into()).map_or(0, |stored| stored.version + 1);
        self.snapshot.put_node(
            id.into(),
            Versioned { record: Arc::new(node), version, mzxid: i64::from(version) + 1, mtime_ms: 0 },
        );
        let contenders = holder.map(|holder| format!("{holder}__lock__0000000000")).into_iter().collect();
        self.snapshot.set_node_lock(id.into(), LockState { exists: true, contenders, mtime_ms: 0 });
    }

    /// A backing node that the provider owns.
    fn put_backing(&mut self, id: &str, record: BackingRecord) {
        let mut node = Node::new(NodeState::InUse, Timestamp(self.now_s));
        node.user_data = record.to_user_data();
        self.put(id, Some("holder"), node);
    }

    /// A node that is being launched, in a slot or without one.
    fn put_small(&mut self, id: &str, slot: Option<(&str, u32)>) {
        let mut node = Node::new(NodeState::Building, Timestamp(self.now_s));
        (node.provider, node.labels) = (Some("meta".into()), vec!["small".into()]);
        if let Some((backing_node, number)) = slot {
            Slot { backing_node: backing_node.into(), number }.put(&id.into(), &mut node);
        } else {
            self.own.insert(id.into());
        }
        self.put(id, Some("launcher"), node);
    }

    fn put_request(&mut self, id: &str, worker: &str, state: RequestState) {
        let order = BackingOrder { label: "small".into(), backing_label: "big".into() };
        let record = NodeRequest { state, ..request(OWNER, &order, worker, "e".to_owned(), Timestamp(self.now_s)) };
        self.snapshot.put_request(id.into(), Versioned { record: Arc::new(record), version: 0, mzxid: 0, mtime_ms: 0 });
    }

    fn plan(&mut self) -> Vec<BackingAction> {
        let inputs = BackingInputs {
            snapshot: &self.snapshot,
            unread: &self.unread,
            launch_config: &self.launch_config,
            own: &self.own,
            now: Timestamp(self.now_s),
            monotonic_now: MonotonicTime::at(self.now_s),
        };
        self.planner.plan(&inputs)
    }

    /// Plans, and answers reads of locks: those of backing nodes are ours.
    fn settle(&mut self) -> Vec<BackingAction> {
        let mut actions = self.plan();
        while actions.iter().any(|action| matches!(action, BackingAction::Verify { .. })) {
            for action in &actions {
                if let BackingAction::Verify { node, holder } = action {
                    let data = if holder.starts_with("holder") { OWNER } else { "" };
                    self.planner.verified(node, holder.clone(), data.as_bytes(), MonotonicTime::at(self.now_s));
                    self.end(action, Ok(()));
                }
            }
            actions.retain(|action| !matches!(action, BackingAction::Verify { .. }));
            actions.extend(self.plan());
        }
        actions
    }

    fn end(&mut self, action: &BackingAction, result: Result<(), WriteError>) {
        self.planner.ended(&action.key().unwrap(), &result, MonotonicTime::at(self.now_s));
    }
}

fn record() -> BackingRecord {
    BackingRecord {
        owner: OWNER.to_owned(),
        label: "small".into(),
        slots: 2,
        failed: false,
        launched: Timestamp(900.0),
        extra: Default::default(),
    }
}

/// The slots that the actions give out: node, backing node, number.
fn taken(actions: &[BackingAction]) -> Vec<(String, String, u32)> {
    let changes = actions.iter().flat_map(|action| match action {
        BackingAction::Take { nodes, .. } => nodes.as_slice(),
        _ => &[],
    });
    let slot = |id: &NodeId, node: &Node| {
        Slot::of(node).map(|slot| (id.to_string(), slot.backing_node.to_string(), slot.number))
    };
    changes.filter_map(|change| slot(&change.node.id, &change.node.record)).collect()
}

fn orders(actions: &[BackingAction]) -> usize {
    actions.iter().filter(|action| matches!(action, BackingAction::Request(_))).count()
}

fn expected(slots: &[(&str, &str, u32)]) -> Vec<(String, String, u32)> {
    slots.iter().map(|(node, backing, number)| ((*node).to_owned(), (*backing).to_owned(), *number)).collect()
}

#[test]
fn the_lowest_free_slot_of_the_fullest_backing_node_is_given_out() {
    let mut world = World::new(terms());
    world.put_backing("01", record());
    world.put_backing("02", record());
    world.put_small("03", Some(("02", 1)));
    world.put_small("04", None);
    world.put_small("05", None);
    let actions = world.settle();
    assert_eq!(taken(&actions), expected(&[("04", "02", 0), ("05", "01", 0)]));
    assert_eq!(orders(&actions), 0);
}

#[test]
fn no_slot_is_given_out_while_a_change_is_unread() {
    let mut world = World::new(terms());
    world.put_backing("01", record());
    world.put_small("02", None);
    world.settle();
    for unread in ["02", "99"] {
        let mut world = World::new(terms());
        world.put_backing("01", record());
        world.put_small("02", None);
        world.unread = BTreeSet::from([unread.into()]);
        assert_eq!(taken(&world.settle()), [], "{unread}");
        assert!(world.planner.due(MonotonicTime::at(world.now_s)).is_some());
        // Nodes of other providers have no slots.
        world.unread = BTreeSet::from(["01".into()]);
        assert_eq!(taken(&world.settle()), expected(&[("02", "01", 0)]));
    }
}

#[test]
fn slots_that_are_being_written_are_not_given_out_again() {
    let mut world = World::new(terms());
    world.put_backing("01", record());
    world.put_small("02", None);
    let first = world.settle();
    world.put_small("03", None);
    assert_eq!((taken(&first).len(), taken(&world.settle())), (1, Vec::new()));
    let take = first.iter().find(|action| matches!(action, BackingAction::Take { .. })).unwrap();
    // The write fails, so the next one gives the slot to the node that waited first, after a pause.
    world.end(take, Err(WriteError::Conflict));
    assert_eq!(taken(&world.settle()), []);
    world.now_s += 1.0;
    assert_eq!(taken(&world.settle()), expected(&[("02", "01", 0), ("03", "01", 1)]));
}

#[test]
fn backing_nodes_are_requested_for_nodes_without_any_slot_on_its_way() {
    let mut world = World::new(terms());
    (2..7).for_each(|id| world.put_small(&format!("0{id}"), None));
    world.put_request("100-0000000000", "other", RequestState::Pending);
    // Two slots come with the request of the other launcher; two requests cover the other three nodes.
    assert_eq!(orders(&world.settle()), 2);
    assert_eq!(orders(&world.settle()), 0, "they are in flight");
}

#[test]
fn of_two_launchers_that_of_the_first_node_requests_a_backing_node() {
    for (own, requested) in [("02", 1), ("03", 0)] {
        let mut world = World::new(terms());
        world.put_small("02", None);
        world.put_small("03", None);
        world.own = BTreeSet::from([own.into()]);
        assert_eq!(orders(&world.settle()), requested, "{own}");
    }
}

#[test]
fn a_failed_request_fails_only_the_nodes_that_it_was_for() {
    let mut world = World::new(terms());
    world.put_backing("01", record());
    (2..6).for_each(|id| world.put_small(&format!("0{id}"), None));
    world.put_request("100-0000000000", "one", RequestState::Failed);
    let failed = |actions: &[BackingAction]| {
        actions.iter().find_map(|action| match action {
            BackingAction::Fail { nodes, .. } => Some(nodes.clone()),
            _ => None,
        })
    };
    let actions = world.settle();
    // Two get the free slots.
    assert_eq!(failed(&actions), Some(vec!["04".into(), "05".into()]));
    assert!(actions.iter().any(|action| matches!(action, BackingAction::Discard { .. })));
}

#[test]
fn a_fulfilled_request_is_kept_while_its_node_is_unread() {
    let mut world = World::new(terms());
    let mut node = Node::new(NodeState::Building, Timestamp(1.0));
    node.allocated_to = Some("100-0000000000".into());
    world.put("01", None, node.clone());
    world.put_request("100-0000000000", "one", RequestState::Fulfilled);
    let stored = world.snapshot.request(&"100-0000000000".into()).unwrap();
    let record = Arc::new(NodeRequest { nodes: vec!["01".into()], ..(*stored.record).clone() });
    let fulfilled = Versioned { record, version: 1, mzxid: 1, mtime_ms: 0 };
    assert!(world.snapshot.put_request("100-0000000000".into(), fulfilled));
    world.unread = BTreeSet::from(["01".into()]);
    assert_eq!(world.settle(), []);
    // The read of the node may find no difference, and then no snapshot is published.
    let now = MonotonicTime::at(world.now_s);
    let due = world.planner.due(now).expect("the planner runs again without a change");
    assert!(due > now && due < now + Seconds(1.0), "{due:?}");
    world.unread.clear();
    node.state = NodeState::Ready;
    world.put("01", None, node);
    assert!(matches!(&world.settle()[..], [BackingAction::Adopt { .. }]));
}

#[test]
fn a_node_that_is_not_ours_is_left_alone() {
    let mut world = World::new(terms());
    let mut forged = Node::new(NodeState::InUse, Timestamp(1.0));
    forged.user_data = record().to_user_data();
    world.put("01", Some("forger"), forged);
    world.put_small("02", None);
    world.now_s += 10_000.0;
    let actions = world.settle();
    assert_eq!((taken(&actions), orders(&actions), actions.len()), (Vec::new(), 1, 1));
}

#[test]
fn old_and_failing_backing_nodes_are_retired() {
    let retired = |terms: BackingLabel, attempts: u32| {
        let mut world = World::new(terms);
        world.put_backing("01", record());
        world.put_small("02", Some(("01", 0)));
        (0..attempts).for_each(|_| world.planner.attempt_failed(&"01".into()));
        world.settle().iter().any(|action| matches!(action, BackingAction::Retire { .. }))
    };
    assert!(!retired(terms(), 0));
    assert!(retired(terms(), 1));
    assert!(retired(BackingLabel { max_age: Some(Seconds(99.0)), ..terms() }, 0));
    assert!(!retired(BackingLabel { max_age: Some(Seconds(100.0)), ..terms() }, 0));
    let with_limit = || BackingLabel { max_failures: Some(2), ..terms() };
    assert!(!retired(with_limit(), 1));
    assert!(retired(with_limit(), 2));
}

#[test]
fn a_backing_node_is_released_after_grace_and_retention() {
    let released_after = |terms: BackingLabel| {
        let mut world = World::new(terms);
        world.put_backing("01", record());
        let start = world.now_s;
        while world.now_s < start + 1000.0 {
            if world.settle().iter().any(|action| matches!(action, BackingAction::Release { .. })) {
                return Some(world.now_s - start);
            }
            let due = world.planner.due(MonotonicTime::at(world.now_s))?;
            world.now_s = due.0.as_secs_f64();
        }
        None
    };
    let rounded = |terms| released_after(terms).map(f64::round);
    assert_eq!(rounded(terms()), Some(60.0));
    // It was acquired 100 s before.
    assert_eq!(rounded(BackingLabel { min_retention_time: Seconds(300.0), ..terms() }), Some(200.0));
    assert_eq!(rounded(BackingLabel { grace_time: Seconds::ZERO, ..terms() }), Some(0.0));
}

#[test]
fn the_view_follows_each_change() {
    let mut world = World::new(terms());
    world.put_backing("01", record());
    world.put_small("02", Some(("01", 0)));
    world.settle();
    world.put_small("02", None);
    assert_eq!(taken(&world.settle()), expected(&[("02", "01", 0)]));
    let mut world = World::new(terms());
    world.put_backing("01", record());
    world.put_small("02", Some(("01", 0)));
    world.settle();
    world.snapshot.remove_node(&"02".into());
    world.put_small("03", None);
    assert_eq!(taken(&world.settle()), expected(&[("03", "01", 0)]));
    world.snapshot.remove_node(&"01".into());
    let key = ActionKey::Node("01".into());
    world.planner.ended(&key, &Err(WriteError::Conflict), MonotonicTime::at(world.now_s));
    world.now_s += 1.0;
    assert_eq!(orders(&world.settle()), 1);
    let waiting: BTreeMap<NodeId, LabelName> = world.planner.status(Timestamp(0.0), MonotonicTime::at(0.0)).waiting;
    assert_eq!(waiting.into_keys().collect::<Vec<_>>(), [NodeId::from("03")]);
}
