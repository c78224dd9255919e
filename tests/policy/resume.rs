//! Requests that a launcher left, of pools that only others have: whether they are waited for.

use crate::fixtures::{Fixture, FixtureSpec, build};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::RequestChange;
use nodepool_policy::cleanup::planner::{CleanupPlanner, Effect, Event};
use nodepool_policy::cleanup::rules::Repair;

/// A request with a node that boots where nobody of this process launches; another pool like that one is registered, or not.
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
    let due = planner.due().expect("it is looked at again");
    assert_eq!((due - built.monotonic_now()).0, 3.0);
    built.advance_to(due);
    assert!(resets(&mut planner, &built), "nobody went on with it");
}

#[test]
fn a_request_that_no_pool_can_resume_is_reset_at_once() {
    let of_python = "other provider=elsewhere labels=a version=11.0.0";
    let of_another = "other provider=beside labels=a version=12.0.0";
    for other in [None, Some(of_python), Some(of_another)] {
        assert!(resets(&mut CleanupPlanner::new(Seconds(28_800.0)), &inputs(other)), "{other:?}");
    }
}

// A Nodepool 11 that deletes what boots for a request that its launcher left may take minutes over that, and so long nobody served it.
#[test]
fn nodes_being_deleted_do_not_delay_a_reset() {
    let going = "2 provider=elsewhere labels=a deleting allocated=200-1 locked";
    assert!(resets(&mut CleanupPlanner::new(Seconds(28_800.0)), &inputs_with_nodes(&[going], None)));
    // Nor do they keep anybody from going on with what boots in their place.
    let boots = "1 provider=elsewhere labels=a building allocated=200-1";
    let other = Some("other provider=elsewhere labels=a version=12.0.0");
    assert!(!resets(&mut CleanupPlanner::new(Seconds(28_800.0)), &inputs_with_nodes(&[boots, going], other)));
    let is_worked_on =
        inputs_with_nodes(&["1 provider=elsewhere labels=a building allocated=200-1 locked", going], None);
    assert!(!resets(&mut CleanupPlanner::new(Seconds(28_800.0)), &is_worked_on));
}
