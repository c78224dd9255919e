//! Tenant limits while requests are claimed.

use std::sync::Arc;

use crate::pool_harness::PoolHarness;
use nodepool_model::records::ids::{LauncherId, PoolId};
use nodepool_model::records::resources::Resources;
use nodepool_model::snapshot::WriteError;
use nodepool_policy::invariants::nodes::check_usage_totals;
use nodepool_policy::pool::{Effect, Event, Pool};
use nodepool_policy::scheduler::tenant_usage::PendingTenantUsage;
use testkit::fixtures::{FixtureSpec, LAUNCHER, node_id, request_id};

/// Three requests for one node each, of a tenant with a limit of two.
fn three_requests_for_two() -> PoolHarness {
    PoolHarness::from_spec(&FixtureSpec {
        hosts: vec!["h1 labels=a".to_owned()],
        requests: ["200-1 a tenant=t", "200-2 a tenant=t", "200-3 a tenant=t"].map(str::to_owned).into(),
        tenants: vec!["t instances=2".to_owned()],
        ..FixtureSpec::default()
    })
}

fn claims(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Claim(_))).count()
}

// Regression: all simultaneous requests were claimed before the first one counted.
#[test]
fn simultaneous_requests_do_not_exceed_the_tenant_limit() {
    let mut harness = three_requests_for_two();
    assert_eq!(claims(&harness.step(Event::Wake)), 2);
    let why = harness.pool.last_verdict(&request_id("200-3"), &harness.built.snapshot).unwrap();
    assert_eq!(why.reason, "tenant t is at its limit: needs instances 1, free 0");
    assert_eq!(claims(&harness.step(Event::Wake)), 0, "nothing has changed");
    // A rejected claim uses nothing.
    harness.step(Event::Claimed(request_id("200-1"), Err(WriteError::Conflict)));
    assert_eq!(claims(&harness.step(Event::Wake)), 1);
}

#[test]
fn pending_tenant_usage_ends_when_the_nodes_exist() {
    let mut harness = three_requests_for_two();
    harness.built.snapshot.remove_request(&request_id("200-3"));
    harness.built.snapshot.remove_request(&request_id("200-2"));
    harness.start_launches();
    assert!(harness.pool.pending_usage().is_empty(), "the snapshot contains the nodes");
    let tenant = "t".into();
    assert_eq!(harness.built.snapshot.usage_totals.used_by_tenant(&tenant).get("instances"), 1.0);
}

// Two pools of one process decide on the same snapshot.
#[test]
fn pools_of_one_process_share_the_tenant_limit() {
    let mut harness = three_requests_for_two();
    let other = LauncherId::from("launcher-other-main");
    let usage: PendingTenantUsage =
        [(request_id("200-9"), ("t".into(), Resources::none().with("instances", 1.0)))].into_iter().collect();
    assert!(!harness.built.shared_pools.publish_pending_usage(&other, &usage), "no pool needs another run");
    harness.pool.update_leases(&harness.built.shared_pools);
    assert_eq!(claims(&harness.step(Event::Wake)), 1);
    assert!(
        harness.built.shared_pools.publish_pending_usage(&other, &PendingTenantUsage::new()),
        "other pools have capacity again"
    );
    harness.pool.update_leases(&harness.built.shared_pools);
    assert_eq!(claims(&harness.step(Event::Wake)), 1);

    // The second pool respects the usage of the first as well.
    let mut second = Pool::new(PoolId::new("lab", "second"), other);
    let ours = Arc::new(harness.pool.pending_usage().clone());
    assert_eq!(ours.len(), 2);
    harness.built.shared_pools.publish_pending_usage(&LauncherId::from(LAUNCHER), &ours);
    second.update_leases(&harness.built.shared_pools);
    assert_eq!(claims(&second.step(Event::Wake, &harness.built.inputs())), 0);
}

/// Two requests of one node each, of a tenant with a limit of two, beside the given nodes.
fn two_requests_for_two(nodes: &[&str]) -> PoolHarness {
    PoolHarness::from_spec(&FixtureSpec {
        hosts: vec!["h1 labels=a".to_owned()],
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
        requests: vec!["200-1 a tenant=t".to_owned(), "200-2 a tenant=t".to_owned()],
        tenants: vec!["t instances=2".to_owned()],
        ..FixtureSpec::default()
    })
}

// Regression: idle nodes that were released unused counted for their last tenant, which could then never get another
// node.
#[test]
fn idle_nodes_count_towards_no_tenant() {
    let used = |nodes: &[&str]| {
        two_requests_for_two(nodes).built.snapshot.usage_totals.used_by_tenant(&"t".into()).get("instances")
    };
    assert_eq!(used(&["7 labels=b tenant=t", "8 labels=b tenant=t"]), 0.0);
    for state in ["ready", "building", "in-use", "used", "hold", "deleting"] {
        assert_eq!(used(&[&format!("7 labels=b {state} allocated=200-9 tenant=t"), "8 labels=b tenant=t"]), 1.0);
    }
    let mut harness = two_requests_for_two(&["7 labels=b tenant=t", "8 labels=b tenant=t"]);
    assert_eq!(claims(&harness.step(Event::Wake)), 2);
    // The node is allocated to a request of the tenant, and released.
    let mut change = harness.built.snapshot.node(&node_id("7")).unwrap().change(node_id("7"), |_| {});
    for (owner, expected) in [(Some("200-9"), 1.0), (None, 0.0)] {
        change.record.allocated_to = owner.map(request_id);
        harness.apply(&change);
        assert_eq!(harness.built.snapshot.usage_totals.used_by_tenant(&"t".into()).get("instances"), expected);
        assert_eq!(check_usage_totals(&harness.built.snapshot), None);
    }
}

// Regression: a request was abandoned while its node booted, and claimed again while that node was being deleted. The
// node still to be launched was not counted.
#[test]
fn nodes_being_deleted_do_not_count_as_pending_usage() {
    let mut harness = two_requests_for_two(&["7 labels=a deleting allocated=200-1 tenant=t"]);
    assert_eq!(claims(&harness.step(Event::Wake)), 1, "one node is deleted and one launched, which is the limit");
    let why = harness.pool.last_verdict(&request_id("200-2"), &harness.built.snapshot).unwrap();
    assert_eq!(why.reason, "tenant t is at its limit: needs instances 1, free 0");
}

// ZooKeeper may have executed the write although no snapshot shows it yet.
#[test]
fn a_lost_reply_counts_as_usage_until_it_would_be_visible() {
    let mut harness = three_requests_for_two();
    assert_eq!(claims(&harness.step(Event::Wake)), 2);
    harness.step(Event::Claimed(request_id("200-1"), Err(WriteError::Failed("connection loss".to_owned()))));
    assert_eq!(claims(&harness.step(Event::Wake)), 0, "neither that request nor the third is claimed");
    let due = harness.pool.due().expect("the pending usage expires");
    harness.built.advance_to(due);
    harness.built.snapshot.remove_request(&request_id("200-1"));
    assert_eq!(claims(&harness.step(Event::Clock)) + claims(&harness.step(Event::Wake)), 1);
}
