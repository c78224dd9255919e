//! Fault injection into real processes: launchers, builders, ZooKeeper servers, a cloud and Zuul's classes. The history
//! of each run is checked against the invariants that the simulator checks.
//!
//! NODEPOOL_FAULTS=500 makes a long run; NODEPOOL_SEED repeats the random draws of an earlier run.

use std::sync::Arc;
use std::time::Duration;

use nodepool::actors::runtime::clock;
use nodepool_model::records::json;
use nodepool_model::records::request::NodeRequest;
use nodepool_zk::{Zk, paths};
use rand::{Rng, SeedableRng, rngs::StdRng};
use testkit::fault_injector::cluster::{ClusterSpec, TestCluster};
use testkit::fault_injector::consumer::{ZuulConsumer, ZuulError, ZuulStats};
use testkit::fault_injector::{Fault, KINDS, RunStats};
use testkit::history_checker::zk_txn_log::Change;
use testkit::history_checker::{CloudCall, HistoryChecker, ServerLifetime};
use testkit::real::{self, python::Interpreter, zookeeper::Server};
use testkit::wait;
use testkit::workload::consistency_checker::{ConsistencyChecker, LauncherSetup};
use testkit::workload::harness::{self, children, wait_until_correct};
use testkit::workload::{Workload, WorkloadSpec, retry_unknown};
use tokio::time::{Instant, sleep};
use zookeeper_client::{Acls, CreateMode};

const TIMEOUT: Duration = Duration::from_secs(90);
/// Guaranteed maximum wait of a request after the session timeout, without a fault.
const GRACE_PERIOD: Duration = Duration::from_secs(5);
/// Time for which a launcher searches for a server of a dead launcher before it creates another one.
const SERVER_LOOKUP_TIME: Duration = Duration::from_secs(4);
/// Number of faults after which the test waits until each waiting request has ended.
const FAULTS_BETWEEN_PAUSES: usize = 5;
/// Time that ZooKeeper servers wait for each other; short, so that a frozen leader is replaced.
const SYNC_TIMEOUT: Duration = Duration::from_secs(2);
const ZUUL_SESSION_TIMEOUT_MS: i64 = 10_000;
/// Number of faults after which the test waits until the system is quiescent, and checks the history.
const FAULTS_PER_ROUND: usize = 40;

fn workload_spec() -> WorkloadSpec {
    let shapes = [&["a"][..], &["a"], &["a", "a"], &["b"], &["a", "b"], &["c"], &["s"], &["s", "s"]].map(<[_]>::to_vec);
    WorkloadSpec {
        label_lists: shapes.to_vec(),
        unserved_label: None,
        consumers: 5,
        max_use: Duration::from_millis(80),
    }
}

/// Number of faults: one of each kind, or NODEPOOL_FAULTS. Those beyond one of each kind are random.
fn number_of_faults() -> usize {
    std::env::var("NODEPOOL_FAULTS").map_or(KINDS.len(), |text| text.parse().expect("NODEPOOL_FAULTS is a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_faults_no_node_is_lost_or_assigned_twice() {
    if real::skipped() {
        return;
    }
    let seed = harness::seed();
    let (mut left, mut stats) = (number_of_faults(), RunStats::default());
    for round in 0.. {
        let share = left.min(FAULTS_PER_ROUND);
        stats.add(&run_round(share, seed.wrapping_add(round)).await);
        left -= share;
        if left == 0 {
            break;
        }
    }
    eprintln!("effective faults:\n{stats}");
    let missing: Vec<_> = KINDS.iter().take(number_of_faults()).filter(|kind| !stats.has(kind)).collect();
    assert!(missing.is_empty(), "kinds of faults without an effect: {missing:?}");
}

/// Intervals of faults, in milliseconds since the Unix epoch.
#[derive(Default)]
struct FaultTimes {
    all: Vec<(i64, i64)>,
    of_zookeeper: Vec<(i64, i64)>,
}

/// One round, from a new cluster to a quiescent one.
async fn run_round(number: usize, seed: u64) -> RunStats {
    let (rng, name) = (&mut StdRng::seed_from_u64(seed), format!("fault-runs-{seed}"));
    let mut cluster =
        TestCluster::start(&ClusterSpec { builders: 2, sync_timeout: SYNC_TIMEOUT, ..ClusterSpec::quick(&name) }).await;
    let limit = cluster.session + GRACE_PERIOD + SERVER_LOOKUP_TIME;
    // Before the image is uploaded, no launcher serves its label, and requests for the label fail.
    wait_until_correct(TIMEOUT, async || cluster.find_image_leftover().await).await;
    let checker = Arc::new(ConsistencyChecker::new(TIMEOUT, &[], LauncherSetup::TwoPerProvider));
    let workload = Workload::start(&cluster.zk, &checker, workload_spec(), seed).await;
    let interpreter = Interpreter::ZUUL[rng.gen_range(0..2)];
    let zuul = ZuulConsumer::start(interpreter, &cluster.ensemble.address(), &[&["a"], &["b", "c"], &["s"]]);
    let (mut stats, mut times) = (RunStats::default(), FaultTimes::default());
    for fault in 1..=number {
        inject_fault(&mut cluster, &zuul, KINDS.get(fault - 1).copied(), rng, &mut stats, &mut times).await;
        if fault.is_multiple_of(FAULTS_BETWEEN_PAUSES) || fault == number {
            harness::wait_until_all_end(&cluster.zk, limit + times.remaining_effect()).await;
        } else if rng.gen_bool(0.6) {
            let before = checker.summary().served;
            let what = format!("more requests to be served after fault {fault}, seed {seed}");
            wait::until(&what, TIMEOUT, async || checker.summary().served > before).await;
        }
        sleep(Duration::from_millis(rng.gen_range(0..400))).await;
        assert_no_violations(&checker, &cluster, seed);
    }
    workload.stop().await;
    let by_zuul = zuul.stop().await;
    delete_abandoned_requests(&cluster.zk).await;
    wait_until_quiescent(&cluster, seed).await;
    assert_no_violations(&checker, &cluster, seed);
    times.assert_explain(&by_zuul, seed);
    let mut history_checker = HistoryChecker::of_ensemble(&cluster.ensemble, Some(&cluster.cloud)).await;
    history_checker.expected_images = vec![(testkit::fault_injector::cluster::IMAGE.into(), "lab".into())];
    history_checker.sessions = cluster.sessions();
    let report = history_checker.check();
    report.assert_no_violations(&name);
    let longest = report.longest_fault_free_wait(&times.all, limit, &name);
    let (served, by_zuul) = (checker.summary().served, by_zuul.served);
    eprintln!(
        "seed {seed}: served {served} and {by_zuul} to Zuul, {} transactions, {} nodes, {} servers, {} images, longest wait {longest:?}",
        history_checker.transactions.len(),
        report.nodes,
        history_checker.servers.len(),
        history_checker.images.len(),
    );
    assert!(
        report.nodes > 0 && !history_checker.servers.is_empty() && !history_checker.images.is_empty(),
        "the history has nodes, servers and images"
    );
    for process in &mut cluster.processes {
        assert!(process.process.stop(TIMEOUT).await.success());
    }
    stats
}

/// Injects faults of this kind, or random ones, until one has an effect.
async fn inject_fault(
    cluster: &mut TestCluster,
    zuul: &ZuulConsumer,
    kind: Option<&str>,
    rng: &mut StdRng,
    stats: &mut RunStats,
    times: &mut FaultTimes,
) {
    loop {
        let fault = match kind {
            Some(kind) => Fault::of_kind(kind, cluster, rng),
            None => Fault::draw(cluster, rng),
        };
        eprintln!("{} {fault:?}", now_ms());
        if rng.gen_bool(0.4) {
            cluster.request_build().await;
        }
        let began = now_ms();
        let effect = fault.inject(cluster, zuul).await;
        let over = now_ms();
        times.all.push((began, over + fault.aftermath().as_millis() as i64));
        if fault.affects_zookeeper() {
            times.of_zookeeper.push((began, over));
        }
        match effect {
            Some(name) => {
                stats.count(name);
                return;
            }
            // A link that is blocked for a moment may carry no message, and a cloud with a fault may receive no call.
            None => eprintln!("{} it had no effect", now_ms()),
        }
    }
}

impl FaultTimes {
    /// Time for which the faults so far may still delay requests.
    fn remaining_effect(&self) -> Duration {
        let over = self.all.iter().map(|(_, over)| *over).max().unwrap_or(0);
        Duration::from_millis((over - now_ms()).try_into().unwrap_or(0))
    }

    /// Asserts that each error of Zuul's classes follows from a fault of ZooKeeper, during the fault or within the
    /// session timeout of the classes.
    fn assert_explain(&self, zuul: &ZuulStats, seed: u64) {
        let is_explained = |error: &&ZuulError| {
            self.of_zookeeper
                .iter()
                .any(|(began, over)| *began <= error.at_ms && error.began_ms <= over + ZUUL_SESSION_TIMEOUT_MS)
        };
        let unexplained: Vec<_> = zuul.errors.iter().filter(|error| !is_explained(error)).collect();
        assert!(
            unexplained.is_empty(),
            "seed {seed}: Zuul's classes failed without a fault of ZooKeeper: {unexplained:?}"
        );
    }
}

fn assert_no_violations(checker: &Arc<ConsistencyChecker>, cluster: &TestCluster, seed: u64) {
    let violations = checker.violations();
    if !violations.is_empty() {
        let reported: Vec<String> =
            violations.iter().map(|text| format!("{text}\n{}", cluster.log_lines_about(text))).collect();
        panic!("seed {seed}: {} invariants were violated:\n{}", violations.len(), reported.join("\n"));
    }
}

async fn wait_until_quiescent(cluster: &TestCluster, seed: u64) {
    let began = Instant::now();
    while let Some(leftover) = cluster.find_leftover().await {
        if began.elapsed() > TIMEOUT {
            let report = HistoryChecker::of_ensemble(&cluster.ensemble, Some(&cluster.cloud)).await.check();
            panic!(
                "seed {seed}: {leftover} {TIMEOUT:?} after the faults; trace: {}",
                report.write_trace(&cluster.name).display()
            );
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Deletes the requests of killed consumers, which no other client deletes.
async fn delete_abandoned_requests(zk: &Zk) {
    for name in children(zk, paths::REQUESTS).await {
        let path = paths::request(&name.into());
        let Ok((data, _)) = retry_unknown(|| zk.get(&path)).await else { continue };
        if json::from_bytes::<NodeRequest>(&data).is_ok_and(|record| record.requestor.as_deref() != Some("tester")) {
            let _ = retry_unknown(|| zk.delete(&path, -1)).await;
        }
    }
}

fn now_ms() -> i64 {
    (clock::now().0 * 1000.0) as i64
}

/// ZooKeeper's logs also contain rejected transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_checker_ignores_rejected_transactions() {
    if real::skipped() {
        return;
    }
    let mut server = Server::start(harness::options()).await;
    let client = zookeeper_client::Client::connect(&server.address()).await.unwrap();
    let (persistent, ephemeral) = (CreateMode::Persistent, CreateMode::Ephemeral);
    let [persistent, ephemeral] = [persistent, ephemeral].map(|mode| mode.with_acls(Acls::anyone_all()));
    client.create("/one", b"1", &persistent).await.unwrap();
    client.set_data("/one", b"2", None).await.unwrap();
    let mut rejected = client.new_multi_writer();
    rejected.add_create("/two", b"", &persistent).unwrap();
    rejected.add_set_data("/one", b"3", Some(77)).unwrap();
    rejected.commit().await.unwrap_err();
    let mut committed = client.new_multi_writer();
    committed.add_create("/three", b"", &persistent).unwrap();
    committed.add_delete("/one", None).unwrap();
    committed.commit().await.unwrap();
    let session = client.session_id().0;
    client.create("/mine", b"", &ephemeral).await.unwrap();
    server.kill();
    server.start_again().await;
    drop(client);
    let text = |text: &str| text.to_owned();
    let expected = [
        Change::Created(text("/one"), b"1".to_vec()),
        Change::Updated(text("/one"), b"2".to_vec()),
        Change::Created(text("/three"), Vec::new()),
        Change::Deleted(text("/one")),
        Change::Created(text("/mine"), Vec::new()),
        Change::Deleted(text("/mine")),
        Change::SessionEnded,
    ];
    wait::until("the end of the session in the log", TIMEOUT, async || {
        let history_checker = HistoryChecker::of_server(&server, "", None).await;
        let of_session = history_checker.transactions.iter().filter(|transaction| transaction.session == session);
        of_session.flat_map(|transaction| transaction.changes.clone()).eq(expected.iter().cloned())
    })
    .await;
    let mut history_checker = HistoryChecker::of_server(&server, "", None).await;
    let of_session: Vec<_> = history_checker.transactions.iter().filter(|known| known.session == session).collect();
    let (began, ended) = (of_session[0].at_ms, of_session[of_session.len() - 1].at_ms);
    history_checker.sessions = [("ours".to_owned(), [session].into())].into();
    let call =
        |by: &str, at_ms: i64| CloudCall { by: by.to_owned(), at: at_ms * 1000, call: format!("call at {at_ms}") };
    let late = ended + 600;
    let (early, in_time) = (call("ours", began - 1), call("ours", ended + 400));
    history_checker.cloud_calls = vec![early, call("ours", began), in_time, call("ours", late), call("other", late)];
    let violations = history_checker.check().violations;
    let of_call =
        |at_ms: i64| violations.iter().filter(move |text| text.contains(&format!("call at {at_ms} "))).count();
    let found = [began - 1, began, ended + 400, late].map(of_call);
    assert_eq!((found, violations.len()), ([1, 0, 0, 1], 2), "{violations:?}");
}

/// Proves that the checker detects violations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_checker_detects_double_assignment_and_leaks() {
    if real::skipped() {
        return;
    }
    let server = Server::start(harness::options()).await;
    let client = zookeeper_client::Client::connect(&server.address()).await.unwrap();
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for container in ["/nodepool", "/nodepool/nodes", "/nodepool/requests"] {
        client.create(container, b"", &persistent).await.unwrap();
    }
    let node = br#"{"state": "ready", "provider": "lab", "type": ["a"], "allocated_to": "200-1", "external_id": "s"}"#;
    client.create("/nodepool/nodes/1", node, &persistent).await.unwrap();
    let request = br#"{"state": "fulfilled", "node_types": ["a"], "nodes": ["1"], "declined_by": []}"#;
    client.create("/nodepool/requests/200-1", request, &persistent).await.unwrap();
    client.create("/nodepool/requests/200-2", request, &persistent).await.unwrap();
    let mut history_checker = HistoryChecker::of_server(&server, "", None).await;
    let created = (clock::now().0 * 1e6) as i64;
    let lifetime = |id: &str, created: i64| ServerLifetime {
        key: ("lab".into(), id.to_owned()),
        node: "1".into(),
        created,
        shown_active: None,
        delete_requested: None,
        deleted: None,
    };
    history_checker.servers = vec![lifetime("s", created), lifetime("t", created + 1)];
    let violations = history_checker.check().violations.join("\n");
    for part in
        ["node 1, which is not allocated to it", "node 1 is in 200-2 and in 200-1", "t of lab is created for node 1"]
    {
        assert!(violations.contains(part), "{part}: {violations}");
    }
    client.delete("/nodepool/nodes/1", None).await.unwrap();
    let mut later = HistoryChecker::of_server(&server, "", None).await;
    later.servers = vec![lifetime("s", created)];
    let report = later.check();
    assert!(
        report.violations.iter().any(|text| text.contains("its server s of lab still exists")),
        "{:?}",
        report.violations
    );
    assert!(report.leftovers.iter().any(|text| text.contains("server s of lab is leaked")), "{:?}", report.leftovers);
}
