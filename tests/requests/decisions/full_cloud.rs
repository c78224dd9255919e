//! Decisions of a pool while its cloud is full or does not respond, on hand-made inputs.

use std::sync::Arc;

use crate::pool_harness::PoolHarness;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::health::{CloudHealth, Outage};
use nodepool_driver::job::{Job, JobEvent};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::Versioned;
use nodepool_policy::pool::{Effect, Event};
use nodepool_policy::request::fulfillment::Finish;
use testkit::fixtures::{FixtureSpec, NOW, node_id, request_id};

fn finish_of(effects: &[Effect]) -> &Finish {
    let found = effects.iter().find_map(|effect| match effect {
        Effect::Finish { finish, .. } => Some(finish),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("the request is finished: {effects:?}"))
}

fn request_state(finish: &Finish) -> RequestState {
    finish.request.as_ref().unwrap().record.state
}

/// The launch jobs among these effects.
fn launches(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Submit { job: Job::Launch(_), .. })).count()
}

fn reason(harness: &PoolHarness, request: &str) -> String {
    harness.pool.last_verdict(&request_id(request), &harness.built.snapshot).expect("a verdict").reason
}

/// The first launch was refused, and the probe of its request is being launched.
fn probing(requests: &[&str]) -> PoolHarness {
    let mut harness = PoolHarness::new("a");
    harness.start_launches();
    let effects = harness.refuse(0);
    let finish = finish_of(&effects);
    assert_eq!(request_state(finish), RequestState::Requested);
    assert_eq!(finish.nodes[0].1.as_ref().unwrap().record.state, NodeState::Aborted);
    let node = harness.nodes[0].clone();
    harness.built.snapshot.remove_node(&node);
    harness.built.snapshot.remove_request_lock(&harness.request);
    harness.step(Event::Finished(harness.request.clone(), Ok(())));
    for request in requests {
        harness.add_request(request, &["a"]);
    }
    (harness.request, harness.nodes) = (request_id("200-1"), Vec::new());
    assert_eq!(harness.step(Event::Wake), [], "no probe is due");
    assert_eq!(reason(&harness, "200-1"), "quota: the cloud refuses new nodes: cores");
    harness.set_window(Some(1));
    harness.start_launches();
    harness
}

#[test]
fn a_probe_uses_one_record_until_the_cloud_accepts_it() {
    let mut harness = probing(&["200-2"]);
    for _ in 0..3 {
        assert_eq!(harness.refuse(0), [], "the node stays `building`");
        assert_eq!(harness.step(Event::Wake), []);
        assert!(harness.pool.is_paused());
        harness.set_window(Some(1));
        assert_eq!(launches(&harness.step(Event::Wake)), 1);
    }
    let effects = harness.launched(0);
    assert_eq!(request_state(finish_of(&effects)), RequestState::Fulfilled);
}

#[test]
fn requests_follow_in_order_of_rank_as_far_as_the_window_allows() {
    let mut harness = probing(&["200-4", "200-2", "200-3"]);
    assert_eq!(harness.step(Event::Wake), [], "one launch probes alone");
    harness.set_window(Some(3));
    let effects = harness.step(Event::Wake);
    let claimed = effects.iter().map(|effect| match effect {
        Effect::Claim(claim) => claim.request.id.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(claimed.collect::<Vec<_>>(), [request_id("200-2"), request_id("200-3")]);
}

#[test]
fn a_suspended_probe_is_given_up_for_a_request_of_higher_rank() {
    let mut harness = probing(&[]);
    harness.refuse(0);
    harness.add_request("100-1", &["a"]);
    let effects = harness.step(Event::Wake);
    let finish = finish_of(&effects);
    assert_eq!(request_state(finish), RequestState::Requested);
    assert_eq!(finish.nodes[0].1.as_ref().unwrap().record.state, NodeState::Aborted);
    assert_eq!(finish.request.as_ref().unwrap().id, request_id("200-1"));
}

// Found by simulation seed 977: a server was deleted while the probe's own server was, so the window opened at once.
#[test]
fn a_suspended_probe_takes_its_turn_by_rank() {
    let mut harness = probing(&[]);
    harness.refuse(0);
    harness.add_request("100-1", &["a"]);
    harness.set_window(Some(1));
    let effects = harness.step(Event::Wake);
    assert_eq!(launches(&effects), 0, "{effects:?}");
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Claim(claim) if claim.request.id == harness.request)));
}

#[test]
fn a_suspended_probe_is_given_up_if_another_pool_could_serve_it() {
    let mut harness = probing(&[]);
    harness.refuse(0);
    let others = vec!["elsewhere labels=a".to_owned()];
    let with_other = PoolHarness::from_spec(&FixtureSpec { others, ..FixtureSpec::default() });
    harness.built.snapshot.pools = with_other.built.snapshot.pools.clone();
    assert_eq!(request_state(finish_of(&harness.step(Event::Wake))), RequestState::Requested);
}

#[test]
fn a_request_that_idle_nodes_can_serve_is_served() {
    let mut harness = PoolHarness::with_capacity(9.0, "200-1 a", &["8 labels=a"]);
    harness.set_window(Some(0));
    assert!(matches!(&harness.step(Event::Wake)[..], [Effect::Fulfill(_)]));
}

// Found by simulation seed 235: the request took the probe before an unclaimed one of higher rank.
#[test]
fn a_waiting_request_without_nodes_joins_the_line_of_a_full_cloud() {
    let mut harness = PoolHarness::with_capacity(1.0, "200-1 a", &["8 labels=b allocated=200-9"]);
    assert!(harness.step(Event::Wake).iter().any(|effect| matches!(effect, Effect::Claim(_))));
    assert_eq!(harness.step(Event::Claimed(harness.request.clone(), Ok(Vec::new()))), []);
    let facts = ProviderFacts::clone(&harness.built.facts["lab"]);
    let facts = ProviderFacts { limits: Resources::unlimited(), ..facts };
    harness.built.facts.insert("lab".into(), Arc::new(facts));
    harness.set_window(Some(0));
    harness.built.snapshot.revision += 1;
    let effects = harness.step(Event::Wake);
    assert_eq!(request_state(finish_of(&effects)), RequestState::Requested);
}

#[test]
fn the_first_waiting_request_launches_each_node_as_capacity_allows() {
    let mut harness = PoolHarness::with_capacity(2.0, "200-1 a,a", &["8 labels=b allocated=200-9"]);
    let claimed = harness.step(Event::Wake);
    assert!(claimed.iter().any(|effect| matches!(effect, Effect::Claim(claim) if claim.create.is_empty())));
    harness.step(Event::Claimed(harness.request.clone(), Ok(Vec::new())));
    let begin = |harness: &mut PoolHarness, id: &str| {
        let effects = harness.step(Event::Wake);
        let [Effect::Extend { create, .. }] = &effects[..] else { panic!("capacity is available: {effects:?}") };
        assert_eq!(create.len(), 1);
        let record = Versioned { record: Arc::new(create[0].clone()), version: 0, mzxid: 1, mtime_ms: 0 };
        harness.built.snapshot.put_node(node_id(id), record);
        harness.nodes.push(node_id(id));
        let effects = harness.step(Event::Claimed(harness.request.clone(), Ok(vec![node_id(id)])));
        let [Effect::Begin { nodes, .. }] = &effects[..] else { panic!("the node becomes `building`: {effects:?}") };
        harness.apply(&nodes[0].clone());
        let effects = harness.step(Event::Begun(harness.request.clone(), Ok(())));
        assert_eq!(launches(&effects), 1, "{effects:?}");
    };
    begin(&mut harness, "11");
    assert_eq!(harness.step(Event::Wake), [], "there is no capacity for the second node");
    assert!(reason(&harness, "200-1").starts_with("quota:"), "{}", reason(&harness, "200-1"));
    let facts = ProviderFacts::clone(&harness.built.facts["lab"]);
    let facts = ProviderFacts { limits: Resources::unlimited().with("instances", 3.0), ..facts };
    harness.built.facts.insert("lab".into(), Arc::new(facts));
    harness.built.snapshot.revision += 1;
    begin(&mut harness, "12");
    for node in 0..2 {
        let [Effect::Save(ready)] = &harness.launched(node)[..] else { panic!("a ready node is saved") };
        harness.apply(&ready.clone());
    }
    harness.step(Event::Saved(harness.nodes[0].clone(), Ok(())));
    let effects = harness.step(Event::Saved(harness.nodes[1].clone(), Ok(())));
    assert_eq!(request_state(finish_of(&effects)), RequestState::Fulfilled);
}

#[test]
fn a_draining_pool_lets_the_launches_of_a_waiting_request_end() {
    let mut harness = PoolHarness::with_capacity(9.0, "200-1 a,a", &[]);
    harness.set_window(Some(1));
    harness.start_launches();
    assert_eq!(harness.step(Event::Draining), []);
    let effects = harness.launched(0);
    let [Effect::Save(ready)] = &effects[..] else { panic!("a ready node is saved: {effects:?}") };
    harness.apply(&ready.clone());
    let effects = harness.step(Event::Saved(harness.nodes[0].clone(), Ok(())));
    let finish = finish_of(&effects);
    assert_eq!(request_state(finish), RequestState::Requested);
    let [(_, Some(freed))] = &finish.nodes[..] else { panic!("{:?}", finish.nodes) };
    assert_eq!((freed.record.state, &freed.record.allocated_to), (NodeState::Ready, &None));
}

// Found by simulation seed 75: the node was released while its lock was in use by a write, and stayed `building`.
#[test]
fn an_aborted_node_is_released_after_its_write() {
    let mut harness = PoolHarness::new("a,a");
    harness.start_launches();
    let node = harness.nodes[1].clone();
    let known = JobEvent::InstanceKnown(ExternalId::text("server-1"));
    assert!(matches!(&harness.step(Event::JobUpdate(node.clone(), known))[..], [Effect::Save(_)]));
    let is_released = |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::Release(_)));
    assert!(!is_released(&harness.refuse(1)));
    assert!(is_released(&harness.step(Event::Saved(node, Ok(())))));
}

fn outage() -> CloudHealth {
    let outage = Outage { since: NOW, error: "503 Service Unavailable".to_owned() };
    CloudHealth { outage: Some(outage), ..CloudHealth::default() }
}

fn outage_error() -> CloudError {
    CloudError::Outage { detail: "503 Service Unavailable".to_owned(), may_have_worked: true }
}

#[test]
fn a_launch_that_meets_an_outage_goes_on_after_it() {
    let mut harness = PoolHarness::new("a");
    harness.start_launches();
    harness.set_health(outage());
    assert_eq!(harness.step(Event::Wake), []);
    let failed = JobEvent::Finished(Err(outage_error()));
    assert_eq!(harness.step(Event::JobUpdate(harness.nodes[0].clone(), failed)), []);
    harness.built.now = NOW + Seconds(100_000.0);
    assert_eq!(harness.step(Event::Clock), [], "timeouts stand still");
    harness.set_health(CloudHealth::default());
    let effects = harness.step(Event::Wake);
    let [Effect::Submit { job: Job::Launch(order), .. }] = &effects[..] else { panic!("{effects:?}") };
    assert!(order.may_appear && order.may_exist, "the lost creation may have worked");
    assert!(harness.pool.due().is_some());
    assert_eq!(request_state(finish_of(&harness.launched(0))), RequestState::Fulfilled);
}

// Regression: the replaced provider had no catalog yet, and the launch failed.
#[test]
fn a_launch_waits_for_the_refresh_of_a_replaced_provider() {
    let mut harness = PoolHarness::new("a");
    harness.start_launches();
    harness.set_health(outage());
    let failed = JobEvent::Finished(Err(outage_error()));
    harness.step(Event::JobUpdate(harness.nodes[0].clone(), failed));
    harness.step(Event::Wake);
    harness.set_health(CloudHealth::default());
    let refreshed = harness.built.facts["lab"].clone();
    let facts = ProviderFacts { refreshed_at: Default::default(), ..ProviderFacts::clone(&refreshed) };
    harness.built.facts.insert("lab".into(), Arc::new(facts));
    assert_eq!(harness.step(Event::Wake), []);
    harness.built.facts.insert("lab".into(), refreshed);
    assert_eq!(launches(&harness.step(Event::Wake)), 1);
}

#[test]
fn the_duration_of_an_outage_does_not_count_towards_timeouts() {
    let mut harness = PoolHarness::new("a");
    harness.start_launches();
    let due = harness.pool.due().expect("the launch has a timeout");
    harness.set_health(outage());
    harness.step(Event::Wake);
    harness.built.now = NOW + Seconds(500.0);
    harness.set_health(CloudHealth::default());
    assert_eq!(harness.step(Event::Clock), []);
    assert_eq!(harness.pool.due().expect("the launch has a timeout") - due, Seconds(500.0));
}

#[test]
fn nothing_is_launched_during_an_outage() {
    let mut harness = PoolHarness::new("a");
    harness.set_health(outage());
    assert_eq!(harness.step(Event::Wake), []);
    assert_eq!(reason(&harness, "200-1"), "the cloud does not respond: 503 Service Unavailable");
    assert!(harness.pool.is_paused());
    harness.set_health(CloudHealth::default());
    assert!(matches!(&harness.step(Event::Wake)[..], [Effect::Claim(_)]));
}

#[test]
fn requests_that_wait_for_an_absent_cloud_are_left_to_other_pools() {
    let mut harness = PoolHarness::with_other_pool();
    harness.start_launches();
    harness.set_health(outage());
    let failed = JobEvent::Finished(Err(outage_error()));
    harness.step(Event::JobUpdate(harness.nodes[0].clone(), failed));
    assert_eq!(request_state(finish_of(&harness.step(Event::Wake))), RequestState::Requested);
}
