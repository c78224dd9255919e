//! Plans: the files of `tests/plans/`, with inputs and the expected decisions of the pool and the clean-up planner.
//!
//! `UPDATE=1 cargo test --test requests decisions plans` rewrites the expectations, to be reviewed as a diff.

use std::fmt::Write as _;

use nodepool_model::records::ids::{LauncherId, PoolId, RequestId};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::WriteError;
use nodepool_policy::cleanup::planner::{self, CleanupPlanner};
use nodepool_policy::cleanup::rules::Repair;
use nodepool_policy::pool::{self, Pool};
use testkit::fixtures::{Fixture, FixtureSpec, LAUNCHER, build, pool_id};
use testkit::programs;

/// All decisions about the inputs, as text.
fn plan(built: &Fixture) -> String {
    let mut text = String::new();
    let inputs = built.inputs();
    let mut pool = Pool::new(pool_id(), LauncherId::from(LAUNCHER));
    pool.update_shared_state(&built.shared_pools);
    let effects = pool.step(pool::Event::Wake, &inputs);
    for (id, _) in built.snapshot.requests() {
        match pool.last_verdict(id, &built.snapshot) {
            Some(why) => writeln!(text, "{id}: {:?}: {}", why.verdict, why.reason).unwrap(),
            None => writeln!(text, "{id}: not evaluated").unwrap(),
        }
    }
    for effect in effects {
        writeln!(text, "pool {}", describe_effect(&effect)).unwrap();
    }
    let mut planner = CleanupPlanner::new(Seconds(28_800.0));
    for effect in planner.step(planner::Event::Sweep, &inputs) {
        writeln!(text, "cleanup {}", describe_cleanup_effect(&effect)).unwrap();
    }
    if let Some(due) = planner.due() {
        writeln!(text, "cleanup reconciles again in {} s", (due - built.monotonic_now()).0).unwrap();
    }
    text
}

fn describe_effect(effect: &pool::Effect) -> String {
    match effect {
        pool::Effect::Fulfill(plan) => {
            assert_eq!(plan.request.record.nodes, plan.nodes.iter().map(|node| node.id.clone()).collect::<Vec<_>>());
            format!("assigns {:?} to {}", plan.request.record.nodes, plan.request.id)
        }
        pool::Effect::Decline { request, .. } => format!("declines {}: {:?}", request.id, request.record.state),
        pool::Effect::Probe { request, node, host } => format!("probes {host} for node {node} of {request}"),
        pool::Effect::Retire { node, .. } => format!("retires {node}"),
        other => format!("{other:?}"),
    }
}

fn describe_cleanup_effect(effect: &planner::Effect) -> String {
    match effect {
        planner::Effect::Repair(Repair::Retire { node, .. }) => format!("retires {node}"),
        planner::Effect::Repair(Repair::Release { request, node }) => format!("releases {} from {request}", node.id),
        planner::Effect::Repair(Repair::Reset { request, nodes }) => {
            let nodes: Vec<String> = nodes.iter().map(|node| format!("{} {}", node.id, node.record.state)).collect();
            format!("resets {} and {nodes:?}", request.id)
        }
        planner::Effect::Repair(other) => format!("repairs {other:?}"),
        planner::Effect::Register { node, .. } => {
            format!("registers {} slot {}", node.hostname.as_deref().unwrap(), node.slot.unwrap())
        }
        planner::Effect::Update { node, record, .. } => {
            format!("updates {node}: slot {} labels {:?}", record.slot.unwrap(), record.labels)
        }
        planner::Effect::Inspect { host, .. } => format!("inspects {host}"),
        planner::Effect::Refresh(provider) => format!("refreshes {provider}"),
        planner::Effect::Undeletable { provider, nodes } => format!("reports undeletable {nodes:?} of {provider}"),
    }
}

#[test]
fn every_plan_matches_its_file() {
    let folder = programs::repository().join("tests/plans");
    let update = std::env::var_os("UPDATE").is_some();
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 20, "the plans are missing");
    let mut wrong = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let spec: FixtureSpec =
            serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let found = plan(&build(&spec));
        if found == spec.expect {
            continue;
        }
        if update {
            let head = text.split("expect: |").next().unwrap().trim_end();
            let body: String = found.lines().map(|line| format!("  {line}\n")).collect();
            std::fs::write(&file, format!("{head}\nexpect: |\n{body}")).unwrap();
        }
        writeln!(wrong, "{}\n  expected:\n{}\n  found:\n{found}", file.display(), spec.expect).unwrap();
    }
    assert!(wrong.is_empty() || update, "{wrong}");
}

// Only one pool of a process writes about a request at a time: ZooKeeper would reject the writes of the others.
#[test]
fn a_request_leased_by_another_pool_is_skipped_until_it_fails() {
    let spec = "{hosts: [h1 labels=a check=not-needed], nodes: [1 host=h1 slot=0], requests: ['200-1 a'], expect: ''}";
    let mut built = build(&serde_yaml::from_str(spec).unwrap());
    let (id, other) = (RequestId::from("200-0000000001"), PoolId::new("lab", "another"));
    let mut pool = Pool::new(pool_id(), LauncherId::from(LAUNCHER));
    built.shared_pools.begin_lease(&other, &id);
    pool.update_shared_state(&built.shared_pools);
    pool.update_leases(&built.shared_pools);
    assert_eq!(pool.step(pool::Event::Wake, &built.inputs()), []);
    let why = pool.last_verdict(&id, &built.snapshot).unwrap();
    assert_eq!(why.reason, "another pool of this launcher is handling it");

    built.shared_pools.begin_lease(&pool_id(), &id);
    built.shared_pools.end_lease(&other, &id);
    assert_eq!(built.shared_pools.leases().get(&id), Some(&pool_id()), "a pool ends only its own lease");
    pool.update_leases(&built.shared_pools);
    let effects = pool.step(pool::Event::Wake, &built.inputs());
    assert!(matches!(effects[..], [pool::Effect::Fulfill(_)]), "{effects:?}");
}

// Regression: the verdict was "ZooKeeper does not answer".
#[test]
fn a_draining_pool_reports_that_it_is_shut_down_or_replaced() {
    let spec = "{hosts: [h1 labels=a], nodes: [1 host=h1 slot=0], requests: ['200-1 a'], expect: ''}";
    let built = build(&serde_yaml::from_str(spec).unwrap());
    let mut pool = Pool::new(pool_id(), LauncherId::from(LAUNCHER));
    pool.update_shared_state(&built.shared_pools);
    pool.step(pool::Event::Draining, &built.inputs());
    assert_eq!(pool.step(pool::Event::Wake, &built.inputs()), []);
    let verdict = pool.last_verdict(&RequestId::from("200-0000000001"), &built.snapshot).unwrap();
    assert_eq!(verdict.reason, "the pool is being shut down or replaced");
}

// When several pools decline at the same time, the first write may end the request. The other writes are rejected.
#[test]
fn a_superseded_decline_keeps_its_reason() {
    let spec = "{hosts: [h1 labels=a], nodes: [1 host=h1 slot=0], requests: ['200-1 zebra'], expect: ''}";
    let built = build(&serde_yaml::from_str(spec).unwrap());
    let (inputs, id) = (built.inputs(), RequestId::from("200-0000000001"));
    let answered = |error: WriteError| {
        let mut pool = Pool::new(pool_id(), LauncherId::from(LAUNCHER));
        pool.update_shared_state(&built.shared_pools);
        let effects = pool.step(pool::Event::Wake, &inputs);
        assert!(matches!(effects[..], [pool::Effect::Decline { .. }]), "{effects:?}");
        pool.step(pool::Event::Declined(id.clone(), Err(error)), &inputs);
        pool.last_verdict(&id, &built.snapshot).unwrap().reason
    };
    for error in [WriteError::Conflict, WriteError::Contended] {
        assert_eq!(answered(error), "node type(s) [zebra] not available");
    }
    let failed = answered(WriteError::SessionOver);
    assert!(failed.starts_with("writing to ZooKeeper failed: "), "{failed}");
}
