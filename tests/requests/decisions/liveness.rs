//! Conditions that must not block a pool or a request forever, on hand-made inputs.

use std::sync::Arc;

use crate::pool_harness::PoolHarness;
use nodepool_driver::facts::{ProviderFacts, Unavailable};
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::ids::{LauncherId, NodeId, RequestId};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{MAX_NODES, RequestState};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::{Versioned, WriteError};
use nodepool_policy::cleanup::rules::{self, Repair};
use nodepool_policy::pool::{Effect, Event, LivenessResult, Pool};
use testkit::fixtures::{FixtureSpec, LAUNCHER, NOW, build, node_id, pool_id, request_id};

fn is_released(effects: &[Effect]) -> bool {
    let state = |effect: &Effect| match effect {
        Effect::Finish { finish, .. } => finish.request.as_ref().map(|request| request.record.state),
        _ => None,
    };
    effects.iter().find_map(state) == Some(RequestState::Requested)
}

#[test]
fn a_draining_pool_releases_requests_waiting_for_capacity() {
    let mut harness = PoolHarness::about_to_extend();
    assert_eq!(harness.step(Event::Draining), [], "the reply to the claim is pending");
    let request = harness.request.clone();
    let effects = harness.step(Event::Claimed(request.clone(), Err(WriteError::Conflict)));
    assert!(is_released(&effects), "{effects:?}");
    harness.step(Event::Finished(request, Ok(())));
    assert!(harness.pool.is_idle());
}

#[test]
fn max_concurrency_zero_releases_waiting_requests() {
    let mut harness = PoolHarness::about_to_extend();
    harness.step(Event::Claimed(harness.request.clone(), Err(WriteError::Conflict)));
    let mut section = ProviderConfig::clone(&harness.built.config.providers["lab"]);
    section.max_concurrency = 0;
    harness.built.config.providers.insert("lab".into(), Arc::new(section));
    let effects = harness.step(Event::Wake);
    assert!(is_released(&effects), "{effects:?}");
}

// Regression: the pool waited for capacity under a lock that it no longer held, so no other pool could accept the
// request.
#[test]
fn a_waiting_request_with_a_broken_lock_is_abandoned() {
    let mut harness = PoolHarness::with_capacity(1.0, "200-1 a", &["8 labels=b allocated=200-9"]);
    assert!(matches!(&harness.step(Event::Wake)[..], [Effect::Claim(_)]));
    let request = harness.request.clone();
    harness.step(Event::Claimed(request.clone(), Ok(Vec::new())));
    assert_eq!(harness.step(Event::Wake), [], "the request waits for capacity");
    harness.built.snapshot.remove_request_lock(&request);
    let effects = harness.step(Event::Wake);
    assert!(matches!(&effects[..], [Effect::Finish { .. }]), "{effects:?}");
    harness.step(Event::Finished(request, Err(WriteError::Conflict)));
    assert!(harness.pool.is_idle());
}

// Regression: a fast clock had dated a deletion in the future, and a pool waited for the deletion until that time.
#[test]
fn a_deletion_dated_in_the_future_is_no_pending_capacity() {
    let mut harness =
        PoolHarness::with_capacity(2.0, "200-1 a", &["6 labels=b deleting age=-3600", "7 labels=b age=500"]);
    let effects = harness.step(Event::Wake);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Evict(_))), "{effects:?}");
}

#[test]
fn a_pool_its_cloud_rejects_delays_no_other_pool() {
    let mut harness = PoolHarness::new("a");
    let unavailable = Some(Unavailable::Temporary("timeout".to_owned()));
    let facts = ProviderFacts {
        unavailable,
        refreshed_at: ProviderFacts::initial().refreshed_at,
        ..ProviderFacts::clone(&harness.built.facts["lab"])
    };
    harness.built.facts.insert("lab".into(), Arc::new(facts));
    assert_eq!(harness.step(Event::Wake), []);
    assert!(harness.pool.is_paused());
}

// Regression: a cloud refused to delete one server, and the pool stopped evicting idle nodes.
#[test]
fn a_repeatedly_failing_deletion_is_no_pending_capacity() {
    let deleting = "6 labels=b deleting age=400";
    let mut harness = PoolHarness::with_capacity(2.0, "200-1 a", &[deleting, "7 labels=b age=500"]);
    let wake = |harness: &mut PoolHarness| {
        let effects = harness.step(Event::Wake);
        effects.iter().any(|effect| matches!(effect, Effect::Evict(change) if change.id == node_id("7")))
    };
    {
        let inputs = harness.built.inputs();
        let again: Vec<Repair> = rules::finished_nodes(&"lab".into(), |_, _| true, &inputs).collect();
        let [Repair::Delete { node, .. }] = &again[..] else { panic!("{again:?}") };
        assert_eq!(node.record.state_time, Timestamp(NOW.0 - 400.0), "the first attempt's time is kept");
    }
    assert!(wake(&mut harness));
    let recent = "6 labels=b deleting age=10";
    assert!(
        !wake(&mut PoolHarness::with_capacity(2.0, "200-1 a", &[recent, "7 labels=b age=500"])),
        "its capacity is about to be freed"
    );
}

// Regression: the final write of the request exceeded ZooKeeper's packet limit. The request was served repeatedly, and
// never fulfilled.
#[test]
fn a_request_exceeding_one_write_fails_at_once() {
    let submit = |nodes: usize| {
        let mut harness = PoolHarness::new(&vec!["a"; nodes].join(","));
        let effects = harness.step(Event::Wake);
        let why =
            harness.pool.last_verdict(&harness.request, &harness.built.snapshot).expect("the request was evaluated");
        (effects, why.reason)
    };
    let (effects, _) = submit(MAX_NODES);
    assert!(matches!(&effects[..], [Effect::Claim(claim)] if claim.create.len() == MAX_NODES));
    let (effects, reason) = submit(MAX_NODES + 1);
    let [Effect::Decline { request: change, .. }] = &effects[..] else { panic!("the request is declined: {reason}") };
    assert_eq!(change.record.state, RequestState::Failed);
    assert_eq!(reason, "it requests 10001 nodes; a request can have at most 10000: split it into several requests");
}

// Regression: the node was assigned with labels that the request did not contain, and the write was refused as a
// defect.
#[test]
fn a_node_relabelled_during_its_host_check_is_not_assigned() {
    let nodes = ["1 host=h1 slot=0", "2 host=h1 slot=1"];
    let mut built = build(&FixtureSpec {
        hosts: vec!["h1 labels=a check=passed slots=2".to_owned()],
        nodes: nodes.map(str::to_owned).into(),
        requests: vec!["200-1 a,a".to_owned()],
        ..FixtureSpec::default()
    });
    let mut pool = Pool::new(pool_id(), LauncherId::from(LAUNCHER));
    pool.update_shared_state(&built.shared_pools);
    let effects = pool.step(Event::Wake, &built.inputs());
    assert!(matches!(&effects[..], [Effect::Probe { .. }, Effect::Probe { .. }]), "{effects:?}");
    let probed = |node: &str| Event::Probed(request_id("200-1"), node_id(node), LivenessResult::Alive);
    assert_eq!(pool.step(probed("1"), &built.inputs()), []);
    let stored = built.snapshot.node(&node_id("1")).unwrap();
    let changed = stored.change(node_id("1"), |record| record.labels = vec!["b".into()]);
    let stored = Versioned { record: Arc::new(changed.record), version: 9, mzxid: stored.mzxid + 1000, mtime_ms: 0 };
    assert!(built.snapshot.put_node(node_id("1"), stored));
    assert_eq!(pool.step(probed("2"), &built.inputs()), []);
    assert!(pool.is_idle());
}

/// The cloud launches one node of the harness's request and refuses the other; returns the effects of the refusal.
fn serve_half(harness: &mut PoolHarness) -> Vec<Effect> {
    let [Effect::Save(ready)] = &harness.launched(0)[..] else { panic!("a ready node is saved") };
    harness.apply(&ready.clone());
    assert_eq!(harness.step(Event::Saved(harness.nodes[0].clone(), Ok(()))), []);
    let effects = harness.refuse(1);
    harness.built.snapshot.remove_node(&harness.nodes[1]);
    effects
}

// Regression: each of two requests waited for the capacity that the node of the other used.
#[test]
fn the_lowest_ranked_waiting_request_releases_its_nodes() {
    let mut harness = PoolHarness::new("a,a");
    harness.start_launches();
    let first = (harness.request.clone(), harness.nodes.clone());
    harness.add_request("200-2", &["a", "a"]);
    harness.start_launches();
    let second = (harness.request.clone(), harness.nodes.clone());
    (harness.request, harness.nodes) = first.clone();
    serve_half(&mut harness);
    assert_eq!(harness.step(Event::Wake), [], "the other request is being launched");
    (harness.request, harness.nodes) = second.clone();
    let effects = serve_half(&mut harness);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Release(_))), "{effects:?}");
    let effects = harness.step(Event::Wake);
    let [Effect::Finish { request, finish }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((request, &finish.nodes[0].0), (&second.0, &second.1[0]));
    let first = (first.0, first.1[0].clone());
    // No request has to release its nodes while a consumer uses a node of the pool, because that node will be returned.
    let mut in_use = Node::clone(&harness.built.snapshot.node(&first.1).unwrap().record);
    (in_use.state, in_use.allocated_to) = (NodeState::InUse, None);
    harness
        .built
        .snapshot
        .put_node(node_id("90"), Versioned { record: Arc::new(in_use), version: 0, mzxid: 60, mtime_ms: 0 });
    assert!(harness.step(Event::Finished(request_id("200-2"), Err(WriteError::Conflict))).is_empty());
}

// Regression: the other pool yielded the request to this one, which retried its cloud every five seconds.
#[test]
fn a_pool_its_cloud_just_rejected_delays_no_other_pool() {
    let mut harness = PoolHarness::with_other_pool();
    harness.start_launches();
    let effects = harness.refuse(0);
    assert!(is_released(&effects), "{effects:?}");
    harness.built.snapshot.remove_node(&harness.nodes[0]);
    harness.built.snapshot.remove_request_lock(&harness.request);
    harness.step(Event::Finished(harness.request.clone(), Ok(())));
    assert_eq!(harness.step(Event::Wake), [], "the probe is not due");
    assert!(harness.pool.is_paused());
}

// Found by simulation seed 74703: a node of the previous attempt counted as the request's own, and was assigned again
// once it was idle.
#[test]
fn a_node_of_a_previous_attempt_does_not_belong_to_the_request() {
    let mut harness =
        PoolHarness::with_capacity(2.0, "200-1 a,a", &["8 labels=a allocated=200-1", "9 labels=b in-use locked"]);
    assert!(matches!(&harness.step(Event::Wake)[..], [Effect::Claim(claim)] if claim.reuse.is_empty()));
    let request = harness.request.clone();
    harness.step(Event::Claimed(request, Ok(Vec::new())));
    assert_eq!(harness.step(Event::Wake), [], "the previous owner is about to release the node");
    let mut free = Node::clone(&harness.built.snapshot.node(&node_id("8")).unwrap().record);
    free.allocated_to = None;
    harness
        .built
        .snapshot
        .put_node(node_id("8"), Versioned { record: Arc::new(free), version: 1, mzxid: 70, mtime_ms: 0 });
    let facts = ProviderFacts { limits: Resources::unlimited(), ..ProviderFacts::clone(&harness.built.facts["lab"]) };
    harness.built.facts.insert("lab".into(), Arc::new(facts));
    let effects = harness.step(Event::Wake);
    let [Effect::Extend { reuse, create: build, .. }] = &effects[..] else {
        panic!("capacity is available: {effects:?}")
    };
    assert_eq!((reuse.len(), build.len()), (1, 1));
}

// Regression: younger requests took all live hosts while an older one waited for the probe of a dead host.
#[test]
fn a_request_whose_host_is_dead_takes_the_next_host_before_younger_ones() {
    let nodes = ["1 host=h1 slot=0", "2 host=h2 slot=0"];
    let mut built = build(&FixtureSpec {
        hosts: ["h1 labels=a check=passed", "h2 labels=a check=passed"].map(str::to_owned).into(),
        nodes: nodes.map(str::to_owned).into(),
        requests: ["200-1 a", "200-2 a"].map(str::to_owned).into(),
        ..FixtureSpec::default()
    });
    let mut pool = Pool::new(pool_id(), LauncherId::from(LAUNCHER));
    pool.update_shared_state(&built.shared_pools);
    let probed_by = |effects: &[Effect]| -> Vec<(RequestId, NodeId)> {
        let probes = effects.iter().filter_map(|effect| match effect {
            Effect::Probe { request, node, .. } => Some((request.clone(), node.clone())),
            _ => None,
        });
        probes.collect()
    };
    let first = pool.step(Event::Wake, &built.inputs());
    let [(request, dead)] = &probed_by(&first)[..] else { panic!("only the older request is served: {first:?}") };
    assert_eq!(*request, request_id("200-1"));
    let refused = Event::Probed(request.clone(), dead.clone(), LivenessResult::Dead("no route".to_owned()));
    assert!(matches!(&pool.step(refused, &built.inputs())[..], [Effect::Retire { .. }]));
    let effects = pool.step(Event::Wake, &built.inputs());
    let [(request, alive)] = &probed_by(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!(*request, request_id("200-1"));
    assert_ne!(alive, dead, "a host that was just dead comes last");
    built.snapshot.remove_node(dead);
    let effects = pool.step(Event::Probed(request.clone(), alive.clone(), LivenessResult::Alive), &built.inputs());
    assert!(matches!(&effects[..], [Effect::Fulfill(_)]), "{effects:?}");
}
