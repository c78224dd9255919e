//! Slots of static hosts that several launchers, or operators, fill and free: decisions on hand-made inputs.

use std::sync::Arc;

use nodepool_driver::facts::ProviderFacts;
use nodepool_model::records::ids::NodeId;
use nodepool_model::records::node::Node;
use nodepool_model::records::static_host::HostCheck;
use nodepool_model::records::time::{MonotonicTime, Seconds};
use nodepool_model::snapshot::{Snapshot, Versioned, WriteError};
use nodepool_policy::cleanup::planner::{CleanupPlanner, Effect, Event};
use nodepool_policy::cleanup::rules::Repair;
use testkit::fixtures::{Fixture, FixtureSpec, build, node_id};

/// The clean-up planner of a launcher whose host checks always have the same result.
struct Launcher {
    built: Fixture,
    planner: CleanupPlanner,
    check_result: HostCheck,
}

impl Launcher {
    fn new(name: &str, check: &str, nodes: &[&str]) -> Self {
        let spec = FixtureSpec {
            hosts: vec![format!("h1 labels=a check={check}")],
            nodes: nodes.iter().map(|line| (*line).to_owned()).collect(),
            ..FixtureSpec::default()
        };
        let built = build(&spec);
        let finding = facts(&built).static_hosts[0].check.clone();
        Self { built, planner: CleanupPlanner::new(Seconds(28_800.0)).with_name(name), check_result: finding }
    }

    fn wake(&mut self) -> Vec<Effect> {
        self.planner.step(Event::Wake, &self.built.inputs())
    }

    fn due(&self) -> MonotonicTime {
        self.planner.due().expect("a back-off is due")
    }

    /// Performs the effects of an event in the shared tree and at the host; returns the number of nodes that they
    /// register.
    fn run_effects(&mut self, event: Event, tree: &mut SharedTree) -> usize {
        self.built.snapshot = tree.snapshot.clone();
        let mut registered = 0;
        for effect in self.planner.step(event, &self.built.inputs()) {
            let event = match effect {
                Effect::Register { key, node } => {
                    registered += 1;
                    Event::Registered(key, Ok(tree.add(*node)))
                }
                Effect::Repair(Repair::Retire { node, version }) => {
                    let result = tree.remove(&node, version);
                    Event::Repaired(format!("node {node}"), result)
                }
                Effect::Inspect { provider, host } => {
                    let check = self.check_result.clone().with_check_time(self.built.now);
                    let facts = self.built.facts.get_mut(&provider).unwrap();
                    Arc::make_mut(facts).record_check(&host, check);
                    Event::Inspected(provider, host)
                }
                other => panic!("{other:?}"),
            };
            self.planner.step(event, &self.built.inputs());
        }
        registered
    }
}

fn facts(built: &Fixture) -> &ProviderFacts {
    built.facts.values().next().unwrap()
}

/// The state that both launchers observe.
struct SharedTree {
    snapshot: Snapshot,
    next: u32,
}

impl SharedTree {
    fn add(&mut self, node: Node) -> NodeId {
        self.next += 1;
        let id = node_id(&self.next.to_string());
        let stored = Versioned { record: Arc::new(node), version: 0, mzxid: self.next.into(), mtime_ms: 0 };
        self.snapshot.put_node(id.clone(), stored);
        self.snapshot.revision += 1;
        id
    }

    fn remove(&mut self, id: &NodeId, version: i32) -> Result<(), WriteError> {
        if self.snapshot.node(id).is_none_or(|stored| stored.version != version) {
            return Err(WriteError::Conflict);
        }
        self.snapshot.remove_node(id);
        self.snapshot.revision += 1;
        Ok(())
    }
}

const IN_USE: &str = "1 host=h1 slot=0 in-use locked age=5";

/// Number of nodes that two launchers with these check results register in 15 s after the known node becomes `node`.
fn registered(checks: [&str; 2], node: &str) -> usize {
    let mut launchers = [Launcher::new("one", checks[0], &[IN_USE]), Launcher::new("other", checks[1], &[IN_USE])];
    launchers.iter_mut().for_each(|launcher| assert_eq!(launcher.wake(), []));
    let mut tree = SharedTree { snapshot: Launcher::new("", checks[0], &[node]).built.snapshot, next: 100 };
    let mut count = 0;
    for tenth in 0..150 {
        for launcher in &mut launchers {
            launcher.built.advance_to(MonotonicTime::at(10_000.0 + f64::from(tenth) / 10.0));
            let event = if tenth == 0 { Event::Sweep } else { Event::Wake };
            count += launcher.run_effects(event, &mut tree);
        }
    }
    assert_eq!(tree.snapshot.node_count(), 1, "the slot has one node in the end");
    count
}

#[test]
fn launchers_that_disagree_about_a_host_back_off() {
    for checks in [["passed", "failed"], ["failed", "passed"], ["not-needed", "failed"]] {
        let count = registered(checks, "1 host=h1 slot=0 age=5");
        assert!((1..=3).contains(&count), "{checks:?}: {count} registrations in 15 s");
    }
}

#[test]
fn the_launcher_that_freed_a_slot_fills_it() {
    for check in ["passed", "not-needed"] {
        assert_eq!(registered([check, check], "1 host=h1 slot=0 used"), 1);
    }
}

#[test]
fn a_slot_freed_by_others_is_filled_after_backoff_and_a_check() {
    for check in ["passed", "not-needed"] {
        let mut launcher = Launcher::new("one", check, &["1 host=h1 slot=0"]);
        assert_eq!(launcher.wake(), []);
        launcher.built.snapshot.remove_node(&node_id("1"));
        assert_eq!(launcher.wake(), [], "the launcher that freed it may fill it");
        let backoff = launcher.due() - launcher.built.monotonic_now();
        assert!((5.0..10.0).contains(&backoff.0), "{backoff:?}");
        launcher.built.advance_to(launcher.due());
        let effects = launcher.wake();
        assert!(matches!(&effects[..], [Effect::Inspect { .. }]), "{effects:?}");
        assert_eq!(launcher.wake(), [], "the check is in flight");

        let Effect::Inspect { provider, host } = effects.into_iter().next().unwrap() else { unreachable!() };
        let check = launcher.check_result.clone().with_check_time(launcher.built.now);
        Arc::make_mut(launcher.built.facts.get_mut(&provider).unwrap()).record_check(&host, check);
        assert_eq!(launcher.wake(), [], "the facts precede the end of the check");
        launcher.planner.step(Event::Inspected(provider, host), &launcher.built.inputs());
        assert_eq!(launcher.due(), launcher.built.monotonic_now(), "a run is due immediately");
        let effects = launcher.wake();
        assert!(matches!(&effects[..], [Effect::Register { .. }]), "{effects:?}");
    }
}

#[test]
fn a_slot_filled_meanwhile_is_not_filled_again() {
    let mut launcher = Launcher::new("one", "not-needed", &["1 host=h1 slot=0"]);
    launcher.wake();
    let stored = launcher.built.snapshot.node(&node_id("1")).unwrap().clone();
    launcher.built.snapshot.remove_node(&node_id("1"));
    launcher.wake();
    let due = launcher.due();
    launcher.built.snapshot.put_node(node_id("2"), stored);
    assert_eq!(launcher.wake(), []);
    launcher.built.advance_to(due);
    assert_eq!(launcher.wake(), []);
}

#[test]
fn a_slot_is_refilled_at_once_after_an_own_deletion() {
    // A used node, a node that an operator marked as deleting, and a node whose record names another slot.
    for (slot, state) in [(0, "used"), (0, "deleting"), (7, "used")] {
        let node = format!("1 host=h1 slot={slot} {state}");
        let mut launcher = Launcher::new("one", "not-needed", &[&format!("1 host=h1 slot={slot} in-use locked")]);
        assert_eq!(launcher.wake(), []);
        launcher.built.snapshot = Launcher::new("one", "not-needed", &[&node]).built.snapshot;
        let effects = launcher.planner.step(Event::Sweep, &launcher.built.inputs());
        assert!(matches!(&effects[..], [Effect::Repair(Repair::Retire { .. })]), "{node}: {effects:?}");
        launcher.built.snapshot.remove_node(&node_id("1"));
        assert_eq!(launcher.wake(), [], "{node}");
        launcher.planner.step(Event::Repaired("node 0000000001".to_owned(), Ok(())), &launcher.built.inputs());
        let effects = launcher.wake();
        assert!(matches!(&effects[..], [Effect::Register { .. }]), "{node}: {effects:?}");
    }
}

/// A launcher with this node, whose record has a server: an earlier driver of the provider has launched it.
fn launcher_with_a_server(node: &str) -> Launcher {
    let mut launcher = Launcher::new("one", "not-needed", &[node]);
    let mut stored = launcher.built.snapshot.node(&node_id("1")).unwrap().clone();
    let record = Arc::make_mut(&mut stored.record);
    record.launcher = Some("launcher-lab-main".to_owned());
    record.external_id = serde_json::Value::from("server-1").into();
    launcher.built.snapshot.remove_node(&node_id("1"));
    launcher.built.snapshot.put_node(node_id("1"), stored);
    launcher
}

#[test]
fn nodes_of_a_previous_driver_are_kept_and_reported_once() {
    for node in ["1 host=h1 slot=0", "1 host=h1 slot=0 used", "1 host=h1 slot=0 deleting", "1 host=h9 slot=0"] {
        let mut launcher = launcher_with_a_server(node);
        let effects = launcher.planner.step(Event::Sweep, &launcher.built.inputs());
        let is_reported =
            |effect: &Effect| matches!(effect, Effect::Undeletable { nodes, .. } if *nodes == [node_id("1")]);
        let is_registered = |effect: &Effect| matches!(effect, Effect::Register { .. });
        assert!(
            effects.iter().any(is_reported) && effects.iter().any(is_registered) && effects.len() == 2,
            "{node}: {effects:?}"
        );
        assert_eq!(launcher.planner.step(Event::Sweep, &launcher.built.inputs()), [], "{node}");
    }
}
