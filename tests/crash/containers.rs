//! Launcher crashes with a cluster: a launcher that is killed at any moment leaves no namespace, project or pod without
//! a node, and creates none twice.
//!
//! NODEPOOL_KILLS=50 makes a long run; NODEPOOL_SEED repeats the random draws of an earlier run.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nodepool_zk::{Zk, paths};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use testkit::clouds::simulated_kubernetes::SimulatedKubernetes;
use testkit::programs;
use testkit::real::nodepool_process::NodepoolProcess;
use testkit::real::{self, zookeeper::Server};
use testkit::workload::consistency_checker::{ConsistencyChecker, LauncherSetup};
use testkit::workload::harness::{self, WorkloadHarness, children, find_leftover, wait_until_correct};
use testkit::workload::{Workload, WorkloadSpec};
use tokio::time::sleep;

const KILLS: usize = 10;
const TIMEOUT: Duration = Duration::from_secs(90);

/// Provider sections for a cluster, whose labels are `a` and `b`.
const KUBERNETES: &str = "
  - name: lab
    driver: kubernetes
    context: nodepool
    launch-retries: 20
    pools:
      - name: main
        max-servers: 5
        labels: [{name: a, type: namespace}, {name: b, type: pod, image: busybox}]
";
const OPENSHIFT: &str = "
  - name: lab
    driver: openshift
    context: nodepool
    launch-retries: 20
    max-projects: 5
    pools:
      - name: main
        labels: [{name: a, type: pod, image: busybox}]
  - name: pods
    driver: openshiftpods
    context: nodepool
    launch-retries: 20
    max-pods: 5
    pools:
      - name: shared
        labels: [{name: b, image: busybox}]
";

/// Starts a launcher whose periodic rules run often, so that leaks are found within the test.
fn launcher(kubeconfig: &Path, configuration: &str) -> NodepoolProcess {
    let arguments = ["-d", "--no-webapp", "--cleanup-interval", "2", "--delete-interval", "1"];
    NodepoolProcess::start_in(&[("KUBECONFIG", kubeconfig)], programs::launcher(), configuration, &arguments)
}

/// Kills launchers of these providers while requests are served, on a cluster that loses some responses.
async fn crash_repeatedly(server: &Server, name: &str, flags: &[&str], providers: &str, pools: usize) {
    let kills = std::env::var("NODEPOOL_KILLS").map_or(KILLS, |text| text.parse().expect("NODEPOOL_KILLS is a number"));
    let seed = harness::seed();
    let mut random = StdRng::seed_from_u64(seed);
    let chroot = server.chroot(name).await;
    let (addresses, chroot) = chroot.split_once('/').expect("a chroot begins with a slash");
    let (host, port) = addresses.rsplit_once(':').expect("an address ends with its port");
    let common = ["--tls", "--pod-start-s", "0.4", "--latency-ms", "5-60", "--namespace-delete-s", "0.2"];
    let cluster = SimulatedKubernetes::start(&[&common, flags].concat()).await;
    let configuration = format!(
        "zookeeper-servers: [{{host: {host}, port: {port}, chroot: '/{chroot}'}}]\nzookeeper-timeout: 1\nlabels: [{{name: \
         a, max-ready-age: 2}}, {{name: b, max-ready-age: 2}}]\nproviders:{providers}"
    );
    let (session, chroot) = (Duration::from_secs(1), format!("/{chroot}"));
    let harness =
        WorkloadHarness { addresses: addresses.to_owned(), chroot, provider: "lab", hosts: &[], session, padding: 0 };
    let zk = harness.connect().await;
    let labels = ["a", "b"].map(|label| (label, 100));
    let checker = Arc::new(ConsistencyChecker::new(TIMEOUT, &labels, LauncherSetup::OnePerProvider));
    // No provider of the second cluster has both labels.
    let both: &[&[&str]] = if pools == 1 { &[&["a"], &["b"], &["a", "b"]] } else { &[&["a"], &["b"], &["b", "b"]] };
    let label_lists = both.iter().map(|labels| labels.to_vec()).collect();
    let spec = WorkloadSpec { label_lists, unserved_label: None, consumers: 5, max_use: Duration::from_millis(80) };
    let workload = Workload::start(&zk, &checker, spec, seed).await;
    let kubeconfig = cluster.kubeconfig();
    let mut process = launcher(&kubeconfig, &configuration);
    for _ in 0..kills {
        sleep(Duration::from_millis(random.gen_range(100..3500))).await;
        let resource = ["namespaces", "projectrequests", "secrets", "pods", "serviceaccounts"][random.gen_range(0..5)];
        let fault = format!("lost-answer verb=create resource={resource} times=2");
        cluster.knobs(json!({ "faults": [fault] })).await;
        process.kill();
        let killed = std::mem::replace(&mut process, launcher(&kubeconfig, &configuration));
        harness::assert_no_violations(&checker, &[&killed]);
        checker.restart_clock();
    }
    cluster.knobs(json!({"faults": []})).await;
    workload.stop().await;
    harness::assert_no_violations(&checker, &[&process]);
    wait_until_correct(TIMEOUT, async || leftovers(&zk, &cluster, pools).await).await;
    let counters = &cluster.state().await["counters"];
    assert_eq!(counters["double_creates"], json!(0), "seed {seed}: {counters}\n{}", process.log());
    assert!(process.stop(TIMEOUT).await.success());
    let (served, created) = (checker.summary().served, &counters["created"]);
    assert!(served > 0);
    eprintln!("{name}: {kills} kills, served {served}, created {created}");
}

/// First leftover after all nodes were released: a node, request, namespace or pod.
async fn leftovers(zk: &Zk, cluster: &SimulatedKubernetes, pools: usize) -> Option<String> {
    let nodes = children(zk, paths::NODES).await;
    if !nodes.is_empty() {
        return Some(format!("nodes were not deleted: {nodes:?}"));
    }
    let objects = cluster.state().await["objects"].clone();
    if objects != json!({}) {
        return Some(format!("objects were not deleted: {objects}"));
    }
    find_leftover(zk, pools).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_crash_leaves_nothing_in_a_cluster() {
    if real::skipped() {
        return;
    }
    let server = Server::start(harness::options_without_fsync()).await;
    crash_repeatedly(&server, "kill-kubernetes", &[], KUBERNETES, 1).await;
    crash_repeatedly(&server, "kill-openshift", &["--openshift", "--project", "shared"], OPENSHIFT, 2).await;
}
