//! Abandoned requests of pools that run only in other launchers: reset at once, or after a delay.

use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::RequestChange;
use nodepool_policy::cleanup::planner::{CleanupPlanner, Effect, Event};
use nodepool_policy::cleanup::rules::Repair;
use testkit::fixtures::{Fixture, FixtureSpec, build};

/// A request with a booting node of a provider that this process does not run; `other` is a pool of another launcher.
fn inputs(other: Option<&str>) -> Fixture {
    inputs_with_nodes(&["1 provider=elsewhere labels=a building allocated=200-1"], other)
}

fn inputs_with_nodes(nodes: &[&str], other: Option<&str>) -> Fixture {
    build(&FixtureSpec {
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
        requests: vec!["200-1 a pending".to_owned()],
        others: other.into_iter().map(str::to_owned).collect(),
        ..FixtureSpec::default()
    })
}

fn resets(planner: &mut CleanupPlanner, built: &Fixture) -> bool {
    let is_reset =
        |effect: &Effect| matches!(effect, Effect::Repair(Repair::Reset { request, .. }) if is_ours(request));
    planner.step(Event::Wake, &built.inputs()).iter().any(is_reset)
}

fn is_ours(request: &RequestChange) -> bool {
    request.id.as_str() == "200-0000000001"
}

#[test]
fn a_request_resumable_elsewhere_is_reset_after_a_delay() {
    let mut built = inputs(Some("other provider=elsewhere labels=a version=12.0.0"));
    let mut planner = CleanupPlanner::new(Seconds(28_800.0));
    assert!(!resets(&mut planner, &built));
    let due = planner.due().expect("another run is due");
    assert_eq!((due - built.monotonic_now()).0, 3.0);
    built.advance_to(due);
    assert!(resets(&mut planner, &built), "no launcher resumed it");
}

#[test]
fn a_request_that_no_pool_can_resume_is_reset_at_once() {
    let of_python = "other provider=elsewhere labels=a version=11.0.0";
    let of_another = "other provider=beside labels=a version=12.0.0";
    for other in [None, Some(of_python), Some(of_another)] {
        assert!(resets(&mut CleanupPlanner::new(Seconds(28_800.0)), &inputs(other)), "{other:?}");
    }
}

// Regression: an abandoned request was not served until its booting nodes were deleted, for which Nodepool 11 may take
// minutes.
#[test]
fn nodes_being_deleted_do_not_delay_a_reset() {
    let deleting = "2 provider=elsewhere labels=a deleting allocated=200-1 locked";
    assert!(resets(&mut CleanupPlanner::new(Seconds(28_800.0)), &inputs_with_nodes(&[deleting], None)));
    // Nodes being deleted do not prevent another pool from resuming the request with its booting node.
    let boots = "1 provider=elsewhere labels=a building allocated=200-1";
    let other = Some("other provider=elsewhere labels=a version=12.0.0");
    assert!(!resets(&mut CleanupPlanner::new(Seconds(28_800.0)), &inputs_with_nodes(&[boots, deleting], other)));
    let is_worked_on =
        inputs_with_nodes(&["1 provider=elsewhere labels=a building allocated=200-1 locked", deleting], None);
    assert!(!resets(&mut CleanupPlanner::new(Seconds(28_800.0)), &is_worked_on));
}
