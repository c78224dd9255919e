//! Launcher crashes with a cloud: a launcher that is killed at any moment leaves no server without a node and no node
//! without a server, and creates no server twice.
//!
//! NODEPOOL_KILLS=200 makes a long run; NODEPOOL_SEED repeats the random draws of an earlier run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::PoolId;
use nodepool_zk::{Zk, paths};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use testkit::clouds::simulated_openstack::SimulatedOpenStack;
use testkit::history_checker::HistoryChecker;
use testkit::real::nodepool_process::NodepoolProcess;
use testkit::real::{self, zookeeper::Server};
use testkit::workload::consistency_checker::{ConsistencyChecker, LauncherSetup};
use testkit::workload::harness::{self, children, find_leftover, wait_until_correct};
use testkit::workload::{Workload, WorkloadSpec};
use testkit::{programs, wait};
use tokio::time::sleep;

const KILLS: usize = 20;
/// Number of kills after which the test waits until each waiting request has ended.
const KILLS_BETWEEN_PAUSES: usize = 5;
/// Guaranteed maximum wait of a request after the session timeout, at which the locks of a dead launcher are deleted.
const GRACE_PERIOD: Duration = Duration::from_secs(5);
/// Time for which a launcher searches for a server of a dead launcher before it creates another one.
const SERVER_LOOKUP_TIME: Duration = Duration::from_secs(4);
/// Server limit of each of the two pools, which is sometimes less than the demand.
const MAX_SERVERS: usize = 5;
/// Number of previous launchers whose logs are printed on a violation.
const LOGGED_RUNS: usize = 100;
const TIMEOUT: Duration = Duration::from_secs(90);

fn workload_spec() -> WorkloadSpec {
    let label_lists = [&["a"][..], &["a"], &["a", "a"], &["b"], &["a", "b"], &["c"]].map(<[_]>::to_vec).to_vec();
    WorkloadSpec { label_lists, unserved_label: Some("z"), consumers: 5, max_use: Duration::from_millis(80) }
}

/// Nodes of cancelled requests become ready for other requests, and are deleted if they stay unused. Failed servers are
/// replaced until one boots.
fn configuration(addresses: &str, chroot: &str) -> String {
    let (host, port) = addresses.rsplit_once(':').expect("an address ends with its port");
    format!(
        "zookeeper-servers: [{{host: {host}, port: {port}, chroot: '/{chroot}'}}]
zookeeper-timeout: 1
labels: [{{name: a, max-ready-age: 2}}, {{name: b, max-ready-age: 2}}, {{name: c, max-ready-age: 2}}]
providers:
  - name: lab
    driver: openstack
    cloud: simulated
    launch-retries: 20
    clean-floating-ips: true
    cloud-images: [{{name: image, image-name: raw-1M, username: zuul}}]
    pools:
      - name: main
        max-servers: {MAX_SERVERS}
        auto-floating-ip: false
        host-key-checking: false
        networks: [private]
        labels:
          - {{name: a, cloud-image: image, flavor-name: tiny}}
          - {{name: b, cloud-image: image, flavor-name: small}}
      - name: public
        max-servers: {MAX_SERVERS}
        host-key-checking: false
        networks: [private]
        labels:
          - {{name: c, cloud-image: image, flavor-name: tiny}}
"
    )
}

/// Starts a launcher whose periodic rules run often, so that leaks are found within the test.
fn launcher(cloud: &SimulatedOpenStack, configuration: &str) -> NodepoolProcess {
    let clouds = cloud.clouds_yaml();
    let environment = [("OS_CLIENT_CONFIG_FILE", clouds.as_path())];
    let arguments = ["-d", "--no-webapp", "--cleanup-interval", "2", "--delete-interval", "1"];
    NodepoolProcess::start_in(&environment, programs::launcher(), configuration, &arguments)
}

// Every created server is in a record or carries the id of its node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_crash_leaks_no_server_and_creates_none_twice() {
    if real::skipped() {
        return;
    }
    let kills = std::env::var("NODEPOOL_KILLS").map_or(KILLS, |text| text.parse().expect("NODEPOOL_KILLS is a number"));
    let seed = harness::seed();
    let mut random = StdRng::seed_from_u64(seed);
    let server = Server::start(harness::options_without_fsync()).await;
    let chroot = server.chroot("kill-clouds").await;
    let (addresses, chroot) = chroot.split_once('/').expect("a chroot begins with a slash");
    let flags = ["--boot-time-s", "0.4", "--delete-time-s", "0.2", "--latency-ms", "compute=5-60"];
    let cloud = SimulatedOpenStack::start(&flags).await;
    let configuration = configuration(addresses, chroot);
    let harness = harness::WorkloadHarness {
        addresses: addresses.to_owned(),
        chroot: format!("/{chroot}"),
        provider: "lab",
        hosts: &[],
        session: Duration::from_secs(1),
        padding: 0,
    };
    let zk = harness.connect().await;
    let checker = Arc::new(ConsistencyChecker::new(
        TIMEOUT,
        &["a", "b", "c"].map(|label| (label, 100)),
        LauncherSetup::OnePerProvider,
    ));
    let workload = Workload::start(&zk, &checker, workload_spec(), seed).await;
    let start = || launcher(&cloud, &configuration);
    let mut process = start();
    let mut previous = VecDeque::new();
    let limit = harness.session + GRACE_PERIOD + SERVER_LOOKUP_TIME;
    // Intervals of faults, and the start of the current cloud fault, in milliseconds since the Unix epoch.
    let (mut faults, mut fault_since) = (Vec::new(), None);
    for kill in 0..kills {
        if kill % KILLS_BETWEEN_PAUSES == KILLS_BETWEEN_PAUSES - 1 {
            cloud.knobs(no_faults()).await;
            faults.extend(fault_since.take().map(|since| (since, now_ms())));
            harness::wait_until_all_end(&zk, limit).await;
        } else if kill % 3 == 0 {
            let before = checker.summary().served;
            let what = format!("launcher {kill} to serve a request, seed {seed}");
            wait::until(&what, TIMEOUT, async || checker.summary().served > before).await;
        }
        sleep(Duration::from_millis(random.gen_range(100..2500))).await;
        // Some replies to create calls are lost as well, and some servers fail.
        let call_faults = match random.gen_range(0..8) {
            0 | 1 => json!(["lost-answer method=POST path=/servers$ times=2"]),
            2 => json!(["lost-answer method=POST path=/floatingips$ times=2"]),
            _ => json!([]),
        };
        let boot_fails_every = if random.gen_ratio(1, 3) { 3 } else { 0 };
        let knobs = json!({ "faults": call_faults, "boot_fails_every": boot_fails_every });
        let began = now_ms();
        cloud.knobs(knobs.clone()).await;
        process.kill();
        previous.push_back(std::mem::replace(&mut process, start()));
        faults.push((fault_since.unwrap_or(began), now_ms()));
        fault_since = (knobs != no_faults()).then_some(began);
        harness::assert_no_violations(&checker, &previous.iter().collect::<Vec<_>>());
        previous.drain(..previous.len().saturating_sub(LOGGED_RUNS));
        checker.restart_clock();
    }
    cloud.knobs(no_faults()).await;
    faults.extend(fault_since.map(|since| (since, now_ms())));
    workload.stop().await;
    harness::assert_no_violations(&checker, &[&process]);
    wait_until_correct(TIMEOUT, async || leftovers(&zk, &cloud).await).await;
    let state = cloud.state().await;
    assert_eq!(state["double_creates"], json!(0), "seed {seed}: {state}\n{}", process.log());
    harness::assert_no_violations(&checker, &[&process]);
    assert!(process.stop(TIMEOUT).await.success());
    let mut history_checker = HistoryChecker::of_server(&server, &harness.chroot, Some(&cloud)).await;
    history_checker.limits = ["main", "public"].map(|pool| (PoolId::new("lab", pool), MAX_SERVERS)).into();
    let (report, name) = (history_checker.check(), format!("kill-clouds-{seed}"));
    report.assert_no_violations(&name);
    let longest = report.longest_fault_free_wait(&faults, limit, &name);
    let creations = state["creates_by_node"].as_object().map_or(0, |all| all.len());
    let (served, at_once) = (checker.summary().served, &state["servers_at_once_max"]);
    eprintln!(
        "{kills} kills, served {served}, creations {creations}, at once {at_once}, longest fault-free wait {longest:?}"
    );
}

/// Knobs of a cloud without faults.
fn no_faults() -> Value {
    json!({"faults": [], "boot_fails_every": 0})
}

fn now_ms() -> i64 {
    (clock::now().0 * 1000.0) as i64
}

/// First leftover after all nodes were released: a node, request, server or floating IP.
async fn leftovers(zk: &Zk, cloud: &SimulatedOpenStack) -> Option<String> {
    let nodes = children(zk, paths::NODES).await;
    if !nodes.is_empty() {
        return Some(format!("nodes were not deleted: {nodes:?}"));
    }
    let state = cloud.state().await;
    if state["servers"] != json!(0) {
        return Some(format!("servers were not deleted: {}", state["servers_by_state"]));
    }
    if state["floating_ips"] != json!(0) {
        return Some(format!("floating IPs were not deleted: {}", state["floating_ips"]));
    }
    find_leftover(zk, 2).await
}
