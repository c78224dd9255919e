//! Properties that hold for all inputs, checked on random inputs.
//!
//! PROPTEST_CASES=100000 makes it a long run.

use std::collections::{BTreeMap, BTreeSet};

use nodepool_model::records::ids::{LabelName, LauncherId, NodeId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{Rank, RequestState};
use nodepool_model::records::static_host::HostCheck;
use nodepool_model::records::time::{MonotonicTime, Seconds};
use nodepool_model::report::status::VerdictKind;
use nodepool_model::snapshot::Versioned;
use nodepool_model::snapshot::usage_totals::UsageTotals;
use nodepool_policy::cleanup::planner::{self, CleanupPlanner};
use nodepool_policy::cleanup::rules::Repair;
use nodepool_policy::pool::{Effect, Event, Pool};
use nodepool_policy::request::handler::ImmediateFulfillment;
use proptest::prelude::*;
use testkit::fixtures::{Fixture, FixtureSpec, LAUNCHER, NOW, build, pool_id, request_id};

const LABELS: [&str; 4] = ["a", "b", "c", "d"];

fn labels(max: usize) -> impl Strategy<Value = String> {
    prop::collection::btree_set(prop::sample::select(&LABELS[..3]), 1..=max)
        .prop_map(|labels| labels.into_iter().collect::<Vec<_>>().join(","))
}

fn hosts() -> impl Strategy<Value = Vec<String>> {
    let check = prop::sample::select(vec!["not-needed", "not-needed", "passed", "failed"]);
    prop::collection::vec((labels(2), 1u32..4, check), 1..6).prop_map(|hosts| {
        let lines = hosts.into_iter().enumerate();
        lines
            .map(|(index, (labels, slots, check))| format!("h{index} labels={labels} slots={slots} check={check}"))
            .collect()
    })
}

fn nodes() -> impl Strategy<Value = Vec<String>> {
    let state =
        prop::sample::select(vec!["ready", "ready", "ready", "ready", "in-use", "used", "hold", "init", "deleting"]);
    let allocated = prop::option::weighted(0.2, 0usize..6);
    let node = (0usize..6, 0u32..4, state, any::<u8>(), allocated, 0u32..100);
    prop::collection::vec(node, 0..16).prop_map(|nodes| {
        let lines = nodes.into_iter().enumerate();
        lines
            .map(|(index, (host, slot, state, locked, allocated, age))| {
                let locked = if locked < 50 { "locked" } else { "" };
                let allocated = allocated.map(|request| format!("allocated=200-{request}")).unwrap_or_default();
                format!("{index} host=h{host} slot={slot} age={age} {state} {locked} {allocated}")
            })
            .collect()
    })
}

fn requests() -> impl Strategy<Value = Vec<String>> {
    let wanted = prop::collection::vec(prop::sample::select(&LABELS[..]), 1..5);
    let state = prop::sample::select(vec!["", "", "", "", "pending", "fulfilled", "locked", "tenant=t", "provider=p"]);
    prop::collection::vec((wanted, 0i32..3, state), 0..8).prop_map(|requests| {
        let lines = requests.into_iter().enumerate();
        lines
            .map(|(index, (wanted, relative, state))| {
                format!("200-{index} {} relative={relative} {state}", wanted.join(","))
            })
            .collect()
    })
}

const OTHERS: [&str; 2] = ["first provider=p labels=a,d priority=50", "second labels=b,c paused priority=10"];

prop_compose! {
    fn specs()(hosts in hosts(), nodes in nodes(), requests in requests(), others in 0usize..=2) -> FixtureSpec {
        FixtureSpec {
            hosts,
            nodes,
            requests,
            others: OTHERS[..others].iter().map(|line| line.to_string()).collect(),
            tenants: vec!["t instances=2".to_owned()],
            labels: vec!["a max-ready-age=50".to_owned()],
            max_hold_age: Some(60.0),
            ..FixtureSpec::default()
        }
    }
}

fn scheduling_pass(built: &Fixture) -> (Pool, Vec<Effect>) {
    let mut pool = Pool::new(pool_id(), LauncherId::from(LAUNCHER));
    let effects = pool.step(Event::Wake, &built.inputs());
    (pool, effects)
}

/// Nodes by request, including nodes whose host is still being probed.
fn assigned(pool: &Pool) -> BTreeMap<RequestId, Vec<NodeId>> {
    let handlers = pool.view(NOW, MonotonicTime::at(NOW.0)).requests.into_iter();
    handlers.filter(|handler| !handler.nodes.is_empty()).map(|handler| (handler.id, handler.nodes)).collect()
}

/// The labels of the idle nodes that a waiting request lacks, from its reason.
fn lacking_labels(reason: &str) -> Vec<LabelName> {
    let Some((_, labels)) = reason.split_once(" idle node(s) of label") else { return Vec::new() };
    let named = match labels.split_once(']') {
        Some((many, _)) => many.trim_start_matches("s ["),
        None => labels.trim_start().split([',', ' ']).next().expect("the reason names a label"),
    };
    named.split(',').map(LabelName::from).collect()
}

fn apply(built: &mut Fixture, plan: &ImmediateFulfillment, mzxid: i64) {
    let request = Versioned { record: plan.request.record.clone().into(), version: 1, mzxid, mtime_ms: 0 };
    built.snapshot.put_request(plan.request.id.clone(), request);
    for node in &plan.nodes {
        built.snapshot.put_node(
            node.id.clone(),
            Versioned { record: node.record.clone().into(), version: 1, mzxid, mtime_ms: 0 },
        );
    }
}

proptest! {
    /// A node is assigned at most once, only while idle, and only with the requested label.
    #[test]
    fn a_node_is_in_at_most_one_request_and_fits_it(spec in specs()) {
        let built = build(&spec);
        let (pool, effects) = scheduling_pass(&built);
        let mut seen = BTreeSet::new();
        for node in assigned(&pool).into_values().flatten() {
            prop_assert!(seen.insert(node.clone()), "{node} was assigned twice");
            let record = &built.snapshot.node(&node).unwrap().record;
            prop_assert!(record.is_idle() && !built.snapshot.is_node_locked(&node));
        }
        for effect in effects {
            let Effect::Fulfill(plan) = effect else { continue };
            prop_assert_eq!(plan.request.record.nodes.len(), plan.request.record.node_types.len());
            for (label, node) in plan.request.record.node_types.iter().zip(&plan.nodes) {
                prop_assert!(node.record.labels.contains(label));
                prop_assert_eq!(node.record.allocated_to.as_ref(), Some(&plan.request.id));
            }
        }
    }

    #[test]
    fn equal_inputs_give_equal_plans(spec in specs()) {
        prop_assert_eq!(scheduling_pass(&build(&spec)).1, scheduling_pass(&build(&spec)).1);
    }

    #[test]
    fn an_executed_plan_leaves_nothing_to_plan_for_its_requests(spec in specs()) {
        let mut built = build(&spec);
        let (mut pool, effects) = scheduling_pass(&built);
        let mut served = BTreeSet::new();
        for (index, effect) in effects.iter().enumerate() {
            if let Effect::Fulfill(plan) = effect {
                apply(&mut built, plan, 1000 + index as i64);
                pool.step(Event::Fulfilled(plan.request.id.clone(), Ok(())), &built.inputs());
                served.insert(plan.request.id.clone());
            }
        }
        for effect in pool.step(Event::Wake, &built.inputs()) {
            if let Effect::Fulfill(plan) = effect {
                prop_assert!(!served.contains(&plan.request.id), "{} was served twice", plan.request.id);
            }
        }
    }

    /// Large requests do not starve: while one waits for a label, no request of lower rank gets that label.
    #[test]
    fn nodes_a_request_lacks_go_to_no_lower_rank(spec in specs()) {
        let built = build(&spec);
        let (pool, _) = scheduling_pass(&built);
        let assignments = assigned(&pool);
        for (rank, _) in built.snapshot.waiting_requests() {
            let Some(why) = pool.last_verdict(&rank.id, &built.snapshot) else { continue };
            let short = lacking_labels(&why.reason);
            for (behind, nodes) in &assignments {
                let other = Rank::of(behind, &built.snapshot.request(behind).unwrap().record);
                if other <= *rank {
                    continue;
                }
                for node in nodes {
                    let labels = &built.snapshot.node(node).unwrap().record.labels;
                    let unfair = labels.iter().find(|label| short.contains(label));
                    prop_assert!(unfair.is_none(), "{behind} got {node}, although {} lacks it: {}", rank.id, why.reason);
                }
            }
        }
    }

    /// A request for one node waits only if every fitting idle node of a reachable host is reserved.
    #[test]
    fn no_request_that_fits_waits(spec in specs()) {
        let built = build(&spec);
        let (pool, _) = scheduling_pass(&built);
        let assigned_nodes: BTreeSet<NodeId> = assigned(&pool).into_values().flatten().collect();
        let first_waiting = built.snapshot.waiting_requests().find(|(rank, request)| {
            let waits = pool.last_verdict(&rank.id, &built.snapshot).is_some_and(|why| why.reason.starts_with("needs "));
            waits && request.record.node_types.len() == 1
        });
        let Some((rank, request)) = first_waiting else { return Ok(()) };
        let reserved_for_others = built.snapshot.waiting_requests().take_while(|(other, _)| *other != rank).any(|(other, _)| {
            let verdict = pool.last_verdict(&other.id, &built.snapshot);
            // While hosts of a request are probed, one more node is kept for each, in case a host is dead.
            verdict.is_some_and(|why| why.verdict == VerdictKind::Defer || why.reason.starts_with("checking that"))
        });
        let label = &request.record.node_types[0];
        let hosts = built.facts["lab"].static_hosts.iter();
        let dead: Vec<&str> =
            hosts.filter(|host| matches!(host.check, HostCheck::Failed { .. })).map(|host| &*host.identity.name).collect();
        let is_alive = |node: &NodeId| {
            let host = built.snapshot.node(node).and_then(|node| node.record.hostname.as_deref());
            host.is_some_and(|host| !dead.contains(&host))
        };
        let mut idle = built.snapshot.idle_nodes(&pool_id(), label);
        let free = idle.find(|node| !assigned_nodes.contains(*node) && is_alive(node));
        prop_assert!(reserved_for_others || free.is_none(), "{} waits although {free:?} is idle", rank.id);
    }

    #[test]
    fn every_open_request_has_a_verdict_with_a_reason(spec in specs()) {
        let built = build(&spec);
        let (pool, _) = scheduling_pass(&built);
        for (id, request) in built.snapshot.requests() {
            if matches!(request.record.state, RequestState::Requested | RequestState::Pending) {
                let why = pool.last_verdict(id, &built.snapshot);
                prop_assert!(why.is_some_and(|why| !why.reason.is_empty()), "{id} has no verdict");
            }
        }
    }

    #[test]
    fn usage_totals_equal_a_recount(spec in specs(), removed in prop::collection::vec(0usize..16, 0..8)) {
        let mut built = build(&spec);
        for index in removed {
            built.snapshot.remove_node(&testkit::fixtures::node_id(&index.to_string()));
        }
        let mut recount = UsageTotals::default();
        for (_, node) in built.snapshot.nodes() {
            recount.add(&node.record);
        }
        prop_assert_eq!(&built.snapshot.usage_totals, &recount);
    }

    #[test]
    fn a_sweep_never_touches_locked_or_unexpired_held_nodes(spec in specs()) {
        let built = build(&spec);
        let mut planner = CleanupPlanner::new(Seconds(28_800.0));
        for effect in planner.step(planner::Event::Sweep, &built.inputs()) {
            let touched: Vec<NodeId> = match effect {
                planner::Effect::Repair(Repair::Retire { node, .. }) => vec![node],
                planner::Effect::Repair(Repair::Release { node, .. }) => vec![node.id],
                planner::Effect::Repair(Repair::Reset { nodes, .. }) => nodes.into_iter().map(|node| node.id).collect(),
                planner::Effect::Update { node, .. } => vec![node],
                _ => vec![],
            };
            for node in touched {
                prop_assert!(!built.snapshot.is_node_locked(&node), "{node} is locked");
                let record = &built.snapshot.node(&node).unwrap().record;
                let young = (built.now - record.state_time).0 < 60.0;
                prop_assert!(record.state != NodeState::Hold || !young, "{node} is held");
            }
        }
    }

    #[test]
    fn records_round_trip(
        extra in prop::collection::btree_map("[a-z_]{1,8}x", any::<i64>(), 0..5),
        text in ".*",
        number in any::<i32>(),
    ) {
        let mut document = serde_json::json!({"state": "in-use", "comment": text, "slot": number, "external_id": {"k": [1, null]}});
        for (key, value) in extra {
            document[key] = value.into();
        }
        let node: Node = serde_json::from_value(document.clone()).unwrap();
        let written: serde_json::Value = json::from_bytes(&json::to_bytes(&node)).unwrap();
        for (key, value) in document.as_object().unwrap() {
            prop_assert_eq!(&written[key], value, "{}", key);
        }
        let again: Node = json::from_bytes(&json::to_bytes(&node)).unwrap();
        prop_assert_eq!(again, node);
    }
}

#[test]
fn a_waiting_request_keeps_every_label_it_ever_lacked() {
    // The request lacks b first, then a as well. When b is available again, a must stay reserved.
    let inputs = |nodes: &[&str]| FixtureSpec {
        hosts: vec!["h1 labels=a check=not-needed".to_owned(), "h2 labels=b check=not-needed".to_owned()],
        nodes: nodes.iter().map(|line| line.to_string()).collect(),
        requests: vec!["200-1 a,b".to_owned(), "200-2 a".to_owned(), "200-3 b".to_owned()],
        ..FixtureSpec::default()
    };
    let mut pool = Pool::new(pool_id(), LauncherId::from(LAUNCHER));
    let first = build(&inputs(&["1 host=h1 slot=0 in-use locked", "2 host=h2 slot=0 in-use locked"]));
    assert!(pool.step(Event::Wake, &first.inputs()).is_empty());
    let only_a = build(&inputs(&["1 host=h1 slot=0", "2 host=h2 slot=0 in-use locked"]));
    assert!(pool.step(Event::Wake, &only_a.inputs()).is_empty(), "a is reserved for 200-1");
    let only_b = build(&inputs(&["1 host=h1 slot=0 in-use locked", "2 host=h2 slot=0"]));
    assert!(pool.step(Event::Wake, &only_b.inputs()).is_empty(), "b is reserved for 200-1 as well");
    let both = build(&inputs(&["1 host=h1 slot=0", "2 host=h2 slot=0"]));
    pool.step(Event::Wake, &both.inputs());
    assert_eq!(assigned(&pool).keys().cloned().collect::<Vec<_>>(), [request_id("200-1")]);
    assert!(matches!(both.snapshot.request(&request_id("200-1")).unwrap().record.state, RequestState::Requested));
}

#[test]
fn max_concurrency_counts_the_requests_of_the_other_pools() {
    let spec = FixtureSpec {
        pool: "max-concurrency=2".to_owned(),
        hosts: vec!["h1 labels=a slots=3 check=not-needed".to_owned()],
        nodes: (0..3).map(|slot| format!("{slot} host=h1 slot={slot}")).collect(),
        requests: (0..3).map(|number| format!("200-{number} a")).collect(),
        ..FixtureSpec::default()
    };
    let built = build(&spec);
    for (other_pools_busy, expected) in [(0, 2), (1, 1), (2, 0), (7, 0)] {
        let mut pool = Pool::new(pool_id(), LauncherId::from(LAUNCHER));
        pool.set_other_pools_busy(other_pools_busy);
        pool.step(Event::Wake, &built.inputs());
        assert_eq!(assigned(&pool).len(), expected, "{other_pools_busy} busy in other pools");
    }
}
