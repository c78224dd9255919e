//! Steps of the wall clock during a timeout or a back-off: both are measured in monotonic time.

use crate::pool_harness::PoolHarness;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::JobEvent;
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::WriteError;
use nodepool_policy::cleanup::planner::{self, CleanupPlanner};
use nodepool_policy::pool::{Effect, Event};
use testkit::fixtures::{FixtureSpec, node_id};

/// One hour: longer than any wait in this file, so a step cannot end a wait by chance.
const BACK_AND_AHEAD: [Seconds; 2] = [Seconds(-3600.0), Seconds(3600.0)];

#[test]
fn the_boot_timeout_is_independent_of_clock_steps() {
    for by in BACK_AND_AHEAD {
        let mut harness = PoolHarness::new("a");
        harness.start_launches();
        let due = harness.pool.due().expect("the wait is bounded");
        assert_eq!(due - harness.built.monotonic_now(), Seconds(60.0));
        harness.built.set_clock(by);
        assert_eq!(harness.step(Event::Clock), [], "no time has passed");
        assert_eq!(harness.pool.due(), Some(due));
        harness.built.advance_to(due);
        let effects = harness.step(Event::Clock);
        assert!(matches!(&effects[..], [Effect::Abandon { node }] if *node == harness.nodes[0]), "{effects:?}");
    }
}

#[test]
fn the_backoff_of_a_zone_is_independent_of_clock_steps() {
    for by in BACK_AND_AHEAD {
        let mut harness = PoolHarness::new("a");
        harness.set_zones(&["z1", "z2"]);
        harness.start_launches();
        let refused = JobEvent::Finished(Err(CloudError::NoZone("z2".to_owned())));
        harness.step(Event::JobUpdate(harness.nodes[0].clone(), refused));
        harness.built.snapshot.remove_node(&harness.nodes[0]);
        harness.built.set_clock(by);
        assert_eq!(harness.step(Event::Wake), [], "the pool backs off");
        harness.built.advance_to(harness.pool.due().expect("a retry is due"));
        assert!(matches!(&harness.step(Event::Clock)[..], [Effect::Extend { .. }]));
    }
}

#[test]
fn deletion_backoff_is_independent_of_clock_steps() {
    for by in BACK_AND_AHEAD {
        let nodes = vec!["1 labels=a used".to_owned()];
        let mut built = PoolHarness::from_spec(&FixtureSpec {
            hosts: vec!["h1 labels=a".to_owned()],
            nodes,
            ..FixtureSpec::default()
        })
        .built;
        let mut planner = CleanupPlanner::new(Seconds(28_800.0));
        let deletions = |effects: Vec<planner::Effect>| effects.len();
        assert_eq!(deletions(planner.step(planner::Event::Wake, &built.inputs())), 1);
        let refused = Err(WriteError::Failed("injected cloud error".to_owned()));
        planner.step(planner::Event::Repaired(format!("node {}", node_id("1")), refused), &built.inputs());
        built.set_clock(by);
        assert_eq!(deletions(planner.step(planner::Event::Wake, &built.inputs())), 0, "the planner backs off");
        let due = planner.due().expect("a retry is due");
        assert!((due - built.monotonic_now()).0 <= 5.0);
        built.advance_to(due);
        assert_eq!(deletions(planner.step(planner::Event::Wake, &built.inputs())), 1);
    }
}

#[test]
fn the_backoff_of_a_deletion_doubles_up_to_ten_minutes() {
    let nodes = vec!["1 labels=a used".to_owned()];
    let hosts = vec!["h1 labels=a".to_owned()];
    let mut built = PoolHarness::from_spec(&FixtureSpec { hosts, nodes, ..FixtureSpec::default() }).built;
    let mut planner = CleanupPlanner::new(Seconds(28_800.0));
    let mut delays = Vec::new();
    for _ in 0..9 {
        assert_eq!(planner.step(planner::Event::Wake, &built.inputs()).len(), 1);
        let refused = Err(WriteError::Failed("injected cloud error".to_owned()));
        planner.step(planner::Event::Repaired(format!("node {}", node_id("1")), refused), &built.inputs());
        let due = planner.due().expect("a retry is due");
        delays.push((due - built.monotonic_now()).0);
        built.advance_to(due);
    }
    assert_eq!(delays, [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]);
}
