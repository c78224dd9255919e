//! Decisions about evictions, on hand-made inputs: the idle node to delete, and the retry after a failure.

use crate::pool_harness::PoolHarness;
use nodepool_model::snapshot::WriteError;
use nodepool_policy::pool::{Effect, Event};

// Found by simulation seed 76: the launcher retried forever without a back-off.
#[test]
fn a_failed_eviction_is_not_retried_on_the_same_snapshot() {
    let mut harness = PoolHarness::with_capacity(1.0, "200-1 a", &["7 labels=b age=400"]);
    let evicts = |effects: Vec<Effect>| effects.iter().any(|effect| matches!(effect, Effect::Evict(_)));
    let woken = harness.step(Event::Wake);
    assert!(evicts(woken.clone()), "the idle node is evicted: {woken:?}");
    harness.step(Event::Claimed(harness.request.clone(), Ok(Vec::new())));
    assert!(!evicts(harness.step(Event::Evicted(Err(WriteError::Conflict)))));
    assert!(!evicts(harness.step(Event::Wake)), "nothing has changed");
    harness.built.snapshot.revision += 1;
    assert!(evicts(harness.step(Event::Wake)), "the snapshot changed");
    harness.step(Event::Evicted(Err(WriteError::Conflict)));
    assert!(evicts(harness.step(Event::Tick)), "a later tick retries");
}

/// The idle node that is evicted for a request, in a pool with this capacity.
fn evicted(capacity: f64, request: &str, nodes: &[&str]) -> Option<String> {
    let effects = PoolHarness::with_capacity(capacity, request, nodes).step(Event::Wake);
    effects.into_iter().find_map(|effect| match effect {
        Effect::Evict(change) => Some(change.id.to_string()),
        _ => None,
    })
}

// Found by simulation seed 5947: four nodes of a label, of which the request needed one, used the capacity for its
// other labels.
#[test]
fn idle_nodes_beyond_the_demand_of_a_label_are_evicted() {
    let evicted = |request: &str, nodes: &[&str]| evicted(3.0, request, nodes);
    let three = ["7 labels=a age=400", "8 labels=a age=500", "9 labels=a age=450"];
    assert_eq!(evicted("200-1 a,b,b", &three).as_deref(), Some("0000000008"), "the oldest one");
    assert_eq!(evicted("200-1 a,a,b", &three).as_deref(), Some("0000000008"));
    assert_eq!(evicted("200-1 a,a,b", &["7 labels=a", "8 labels=a", "9 labels=a locked"]), None, "both are needed");
    assert_eq!(evicted("200-1 a,a,a reuse=no", &three).as_deref(), Some("0000000008"));
}

// Regression: such nodes were never deleted, so the request waited forever for their capacity.
#[test]
fn idle_nodes_that_no_request_can_use_are_evicted() {
    let evicted = |request: &str, nodes: &[&str]| evicted(2.0, request, nodes);
    let of_a_removed_label = ["7 labels=removed age=400", "8 labels=removed age=500"];
    assert_eq!(evicted("200-1 a", &of_a_removed_label).as_deref(), Some("0000000008"));
    let of_two_zones = ["7 labels=a zone=one age=500", "8 labels=b zone=two age=400"];
    assert_eq!(
        evicted("200-1 a,b", &of_two_zones).as_deref(),
        Some("0000000008"),
        "the first node determines the zone"
    );
    let of_one_zone = ["7 labels=a zone=one age=500", "8 labels=b zone=one age=400"];
    assert_eq!(
        evicted("200-1 a,b,a", &of_one_zone),
        None,
        "both are needed, and an eviction would not make the rest fit"
    );
}
