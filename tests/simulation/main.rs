//! Simulation: launchers with their production actors, and consumers, on one ZooKeeper in memory and in virtual time. A
//! seed determines the run and its faults.
//!
//! A failure prints its seed; `SEED=n cargo test --test simulation` repeats the run of that seed alone.

use std::collections::BTreeMap;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_zk::memory::{Fault, MemoryZooKeeper};
use nodepool_zk::{Connection, paths};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use simulator::configuration::Participants;
use simulator::faults::{self, FaultFilter};
use simulator::history::RunHistory;
use simulator::minimize::minimize;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, until, yaml, zookeeper};
use testkit::programs;
use tokio::sync::watch;

/// Slots of both launchers' hosts together.
const SLOTS: usize = 9;
const EAST: &[&str] =
    &["name: fake-1, labels: [a], max-parallel-jobs: 3", "name: fake-2, labels: [a, b], max-parallel-jobs: 2"];
const WEST: &[&str] =
    &["name: fake-3, labels: [b], max-parallel-jobs: 2", "name: fake-4, labels: [a, c], max-parallel-jobs: 2"];

#[test]
fn under_any_fault_no_node_is_lost_or_assigned_twice() {
    for seed in seeds(12) {
        println!("SEED={seed}");
        on_paused_time(simulate(seed));
    }
}

async fn simulate(seed: u64) {
    let zookeeper = zookeeper();
    let mut rng = StdRng::seed_from_u64(seed);
    let (stop, stopped) = watch::channel(false);
    let sessions: Rc<std::cell::RefCell<BTreeMap<&str, i64>>> = Rc::default();
    for (name, nodes) in [("east", EAST), ("west", WEST)] {
        actix_rt::spawn(keep_running(name, yaml(name, nodes, ""), zookeeper.clone(), sessions.clone()));
    }
    let observer = Consumer::of(&zookeeper);
    until("all slots to be ready", async || observer.ready_nodes().await == SLOTS).await;

    let served: Rc<std::cell::Cell<usize>> = Rc::default();
    let consumers: Vec<_> = (0..4)
        .map(|_| {
            actix_rt::spawn(consume(
                zookeeper.clone(),
                StdRng::seed_from_u64(rng.r#gen()),
                stopped.clone(),
                served.clone(),
            ))
        })
        .collect();
    let end = tokio::time::Instant::now() + Duration::from_secs(40);
    while tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(rng.gen_range(10..120))).await;
        check_invariants(&observer, seed).await;
        if rng.gen_bool(0.08) {
            fail_something(&zookeeper, &sessions, &mut rng).await;
        }
    }
    stop.send_replace(true);
    for consumer in consumers {
        consumer.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    until(&format!("the end of all requests, seed {seed}"), async || observer.count("/nodepool/requests").await == 0)
        .await;
    until(&format!("all slots to be ready again, seed {seed}"), async || {
        observer.ready_nodes().await == SLOTS && observer.count("/nodepool/nodes").await == SLOTS
    })
    .await;
    check_invariants(&observer, seed).await;
    println!("{} requests served", served.get());
    assert!(served.get() > 20, "seed {seed}: too few requests served to prove anything");
}

/// Keeps a process running: opens a new session whenever one ends.
async fn keep_running(
    name: &'static str,
    yaml: String,
    zookeeper: MemoryZooKeeper,
    sessions: Rc<std::cell::RefCell<BTreeMap<&'static str, i64>>>,
) {
    let mut process = InProcessDaemon::new(&yaml);
    loop {
        let running = process.run(&zookeeper);
        sessions.borrow_mut().insert(name, process.session_id);
        running.await.expect("the actor tree ends without a panic");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn fail_something(
    zookeeper: &MemoryZooKeeper,
    sessions: &std::cell::RefCell<BTreeMap<&'static str, i64>>,
    rng: &mut StdRng,
) {
    let name = if rng.r#gen() { "east" } else { "west" };
    let Some(session) = sessions.borrow().get(name).copied() else { return };
    match rng.gen_range(0..4) {
        0 => zookeeper.expire(session),
        1 => {
            zookeeper.suspend(session);
            tokio::time::sleep(Duration::from_millis(rng.gen_range(1..3000))).await;
            zookeeper.resume(session);
        }
        2 => zookeeper.fail_next(session, rng.gen_range(1..6), Fault::BeforeApplying),
        _ => zookeeper.fail_next(session, rng.gen_range(1..6), Fault::AfterApplying),
    }
}

/// One consumer after another: some use their nodes, some cancel, some exit with their locks.
async fn consume(
    zookeeper: MemoryZooKeeper,
    mut rng: StdRng,
    stopped: watch::Receiver<bool>,
    served: Rc<std::cell::Cell<usize>>,
) {
    while !*stopped.borrow() {
        let connection = zookeeper.connect();
        let session = connection.session_id();
        let consumer = Consumer { zk: connection };
        let requested: Vec<&str> =
            (0..rng.gen_range(1..4)).map(|_| ["a", "a", "b", "c"][rng.gen_range(0..4)]).collect();
        let id = consumer.submit_labels(&requested).await;
        let timeout = Duration::from_millis(rng.gen_range(100..8000));
        if !ends_within(&consumer, &id, timeout).await {
            // The consumer cancels the request, which may be in any state by now.
            let _ = consumer.zk.delete(&paths::request(&id), -1).await;
            continue;
        }
        let request = consumer.request(&id).await.expect("only the requestor deletes its request");
        if request.state == RequestState::Failed {
            consumer.zk.delete(&paths::request(&id), -1).await.unwrap();
            continue;
        }
        assert_eq!(request.nodes.len(), requested.len());
        tokio::time::sleep(Duration::from_millis(rng.gen_range(0..50))).await;
        let nodes = consumer.accept(&id).await;
        served.set(served.get() + 1);
        tokio::time::sleep(Duration::from_millis(rng.gen_range(0..500))).await;
        match rng.gen_range(0..4) {
            0 => {
                for (node, _) in &nodes {
                    consumer.set_state(node, NodeState::InUse).await;
                }
                zookeeper.expire(session); // exits with its locks
            }
            1 => {
                for (_, lock) in nodes {
                    lock.release().await.unwrap(); // returns them unused
                }
            }
            _ => consumer.use_and_release(nodes).await,
        }
    }
}

async fn ends_within(consumer: &Consumer, id: &RequestId, timeout: Duration) -> bool {
    let deadline = tokio::time::Instant::now() + timeout;
    while tokio::time::Instant::now() < deadline {
        match consumer.request(id).await {
            Some(request) if matches!(request.state, RequestState::Fulfilled | RequestState::Failed) => return true,
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    false
}

/// Checks invariants that hold in every state, as another client.
async fn check_invariants(observer: &Consumer, seed: u64) {
    let mut owner: BTreeMap<NodeId, RequestId> = BTreeMap::new();
    let (names, _) = observer.zk.children("/nodepool/requests").await.unwrap();
    for id in names.into_iter().map(RequestId::from) {
        let Some(request) = observer.request(&id).await else { continue };
        if request.state != RequestState::Fulfilled {
            continue;
        }
        for node in &request.nodes {
            let record =
                observer.node(node).await.unwrap_or_else(|| panic!("seed {seed}: node {node} of {id} does not exist"));
            assert_eq!(record.allocated_to.as_ref(), Some(&id), "seed {seed}: node {node} of {id}");
            if let Some(other) = owner.insert(node.clone(), id.clone()) {
                panic!("seed {seed}: node {node} is in {id} and {other}");
            }
        }
    }
}

#[test]
fn a_run_with_faults_violates_no_invariant() {
    if let Ok(seed) = std::env::var("SEED") {
        return println!("{}", run_with_trace(seed.parse().expect("SEED is a number")));
    }
    print!("{}", in_process(1));
}

#[test]
fn faults_are_filtered_by_their_numbers() {
    for filter in [FaultFilter::only(&[]), FaultFilter::only(&[0, 2])] {
        let text = filter.to_argument().unwrap();
        assert_eq!(text.parse(), Ok(filter.clone()), "{text}");
    }
    let (all, some) = (faults::schedule(1), FaultFilter::only(&[0, 2]).apply(faults::schedule(1)));
    assert_eq!(some, [all[0].clone(), all[2].clone()]);
    assert_eq!(FaultFilter::default().apply(faults::schedule(1)), all);
}

#[test]
fn minimization_keeps_only_the_needed_faults() {
    let needed =
        |needed: &'static [usize]| minimize(23, |candidate| needed.iter().all(|number| candidate.contains(number)));
    for few in [&[][..], &[0], &[22], &[3, 17], &[1, 2, 11, 20]] {
        assert_eq!(needed(few), few);
    }
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    let all_participate =
        |seed: &u64| matches!(Participants::draw(*seed), Participants { builders: true, nodepool11: true, .. });
    let seed = (1..).find(all_participate).expect("some seed has all participants");
    assert_eq!(in_process(seed), in_process(seed));
}

/// Runs a seed and writes its trace to a file.
fn run_with_trace(seed: u64) -> String {
    let (history, filter) = (RunHistory::with_trace(), FaultFilter::default());
    let outcome = simulator::run(seed, &filter, history.clone());
    let file = programs::target_tmp().join(format!("run-{seed}.log"));
    std::fs::write(&file, history.trace().join("\n")).unwrap();
    let line = outcome.report(seed, &filter);
    assert!(outcome.has_passed(), "SEED={seed} cargo test --test simulation a_run; trace: {}: {line}", file.display());
    line
}

/// Runs a seed in its own process, because the random number generators are seeded once per process.
fn in_process(seed: u64) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_run_with_faults_violates_no_invariant", "--nocapture"]).env("SEED", seed.to_string());
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    out.lines().filter(|line| line.starts_with("seed ")).map(|line| format!("{line}\n")).collect()
}

/// The seed in the variable `SEED`, or the seeds from 1 to `number`.
fn seeds(number: u64) -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => (1..=number).collect(),
    }
}
