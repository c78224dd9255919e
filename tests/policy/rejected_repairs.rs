//! What follows when ZooKeeper refuses a write of ours: another try, but only on another picture.

use crate::fixtures::{FixtureSpec, build};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::WriteError;
use nodepool_policy::cleanup::planner::{CleanupPlanner, Effect, Event};
use nodepool_policy::cleanup::rules::Repair;

/// The key of the repair that an effect asks for.
fn repairs(effects: &[Effect]) -> Vec<String> {
    let repair = |effect: &Effect| match effect {
        Effect::Repair(repair @ Repair::Retire { .. }) => Some(repair.key()),
        _ => None,
    };
    effects.iter().filter_map(repair).collect()
}

// A repair was refused after the lock that stood in its way had gone, and nobody looked again until the next tick.
#[test]
fn a_rejected_repair_is_retried_on_a_newer_snapshot() {
    let spec = "hosts: [h1 labels=a check=not-needed]\nnodes: [1 host=h1 slot=0 used]\nexpect: ''\n";
    let spec: FixtureSpec = serde_yaml::from_str(spec).unwrap();
    let mut built = build(&spec);
    let mut planner = CleanupPlanner::new(Seconds(28_800.0));
    let asked = repairs(&planner.step(Event::Wake, &built.inputs()));
    assert_eq!(asked, ["node 0000000001"]);
    for error in [WriteError::Conflict, WriteError::Contended] {
        // The picture of the lock's end comes while the repair is under way.
        built.snapshot.revision += 1;
        assert!(repairs(&planner.step(Event::Wake, &built.inputs())).is_empty(), "it is under way");
        let refused = Event::Repaired(asked[0].clone(), Err(error));
        assert!(planner.step(refused, &built.inputs()).is_empty());
        assert_eq!(planner.due(), Some(built.monotonic_now()), "a look is due at once");
        assert_eq!(repairs(&planner.step(Event::Wake, &built.inputs())), asked);
    }
    let refused = Event::Repaired(asked[0].clone(), Err(WriteError::Contended));
    assert!(planner.step(refused, &built.inputs()).is_empty());
    assert_eq!(planner.due(), None, "nothing has changed since, so nothing would be different");
}
