//! Repairs that ZooKeeper rejects: each is retried, but only on a newer snapshot.

use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::WriteError;
use nodepool_policy::cleanup::planner::{CleanupPlanner, Effect, Event};
use nodepool_policy::cleanup::rules::Repair;
use testkit::fixtures::{FixtureSpec, build};

/// The keys of the repairs among the effects.
fn repairs(effects: &[Effect]) -> Vec<String> {
    let repair = |effect: &Effect| match effect {
        Effect::Repair(repair @ Repair::Retire { .. }) => Some(repair.key()),
        _ => None,
    };
    effects.iter().filter_map(repair).collect()
}

// Regression: a repair was rejected after the lock that blocked it was released, and no run followed until the next
// tick.
#[test]
fn a_rejected_repair_is_retried_on_a_newer_snapshot() {
    let spec = "hosts: [h1 labels=a check=not-needed]\nnodes: [1 host=h1 slot=0 used]\nexpect: ''\n";
    let spec: FixtureSpec = serde_yaml::from_str(spec).unwrap();
    let mut built = build(&spec);
    let mut planner = CleanupPlanner::new(Seconds(28_800.0));
    let keys = repairs(&planner.step(Event::Wake, &built.inputs()));
    assert_eq!(keys, ["node 0000000001"]);
    for error in [WriteError::Conflict, WriteError::Contended] {
        // The snapshot without the lock is published while the repair is in flight.
        built.snapshot.revision += 1;
        assert!(repairs(&planner.step(Event::Wake, &built.inputs())).is_empty(), "the repair is in flight");
        let refused = Event::Repaired(keys[0].clone(), Err(error));
        assert!(planner.step(refused, &built.inputs()).is_empty());
        assert_eq!(planner.due(), Some(built.monotonic_now()), "a run is due immediately");
        assert_eq!(repairs(&planner.step(Event::Wake, &built.inputs())), keys);
    }
    let refused = Event::Repaired(keys[0].clone(), Err(WriteError::Contended));
    assert!(planner.step(refused, &built.inputs()).is_empty());
    assert_eq!(planner.due(), None, "the snapshot has not changed");
}
