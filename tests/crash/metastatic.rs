//! Launcher crashes with metastatic nodes: two launchers that share a metastatic provider are killed at any moment, and
//! no slot is given out twice, no backing node is without an owner, and all are released at the end.
//!
//! NODEPOOL_KILLS=100 makes a long run; NODEPOOL_SEED repeats the random draws of an earlier run.

use std::sync::Arc;
use std::time::Duration;

use nodepool_model::records::json;
use nodepool_model::records::node::Node;
use nodepool_zk::{Zk, paths};
use rand::{Rng, SeedableRng, rngs::StdRng};
use testkit::history_checker::HistoryChecker;
use testkit::programs;
use testkit::real::nodepool_process::NodepoolProcess;
use testkit::real::{self, zookeeper::Server};
use testkit::wait;
use testkit::workload::consistency_checker::{ConsistencyChecker, LauncherSetup};
use testkit::workload::harness::{self, WorkloadHarness, children, find_leftover, wait_until_correct};
use testkit::workload::{Workload, WorkloadSpec};
use tokio::time::sleep;

const KILLS: usize = 10;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Static hosts, one slot each.
const HOSTS: usize = 4;

/// Both launchers have the metastatic provider; the first one also serves the hosts.
fn configuration(addresses: &str, chroot: &str, has_hosts: bool) -> String {
    let (host, port) = addresses.rsplit_once(':').expect("an address ends with its port");
    let node = |number| format!("{{name: fake-{number}, labels: [big], host-key-checking: false}}");
    let nodes = (1..=HOSTS).map(node).collect::<Vec<_>>().join(", ");
    let hosts = format!("\n  - {{name: rack, driver: static, pools: [{{name: main, nodes: [{nodes}]}}]}}");
    let label = |name| format!("{{name: {name}, backing-label: big, max-parallel-jobs: 3, grace-time: 1}}");
    format!(
        "zookeeper-servers: [{{host: {host}, port: {port}, chroot: '{chroot}'}}]\nzookeeper-timeout: 1\nlabels: [{{name: \
         big}}, {{name: a, max-ready-age: 2}}, {{name: b, max-ready-age: 2}}]\nproviders:{}\n  - {{name: lab, driver: \
         metastatic, pools: [{{name: main, max-servers: 9, labels: [{}, {}]}}]}}\n",
        if has_hosts { &hosts } else { "" },
        label("a"),
        label("b"),
    )
}

fn launcher(configuration: &str) -> NodepoolProcess {
    let arguments = ["-d", "--no-webapp", "--cleanup-interval", "2", "--delete-interval", "1"];
    NodepoolProcess::start(programs::launcher(), configuration, &arguments)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn launcher_crashes_lose_no_slot_and_no_backing_node() {
    if real::skipped() {
        return;
    }
    let kills = std::env::var("NODEPOOL_KILLS").map_or(KILLS, |text| text.parse().expect("NODEPOOL_KILLS is a number"));
    let seed = harness::seed();
    let mut random = StdRng::seed_from_u64(seed);
    let server = Server::start(harness::options_without_fsync()).await;
    let chroot = server.chroot("metastatic").await;
    let (addresses, chroot) = chroot.split_once('/').expect("a chroot begins with a slash");
    let (addresses, chroot) = (addresses.to_owned(), format!("/{chroot}"));
    let configurations = [true, false].map(|has_hosts| configuration(&addresses, &chroot, has_hosts));
    let session = Duration::from_secs(1);
    let harness =
        WorkloadHarness { addresses, chroot: chroot.clone(), provider: "lab", hosts: &[], session, padding: 0 };
    let zk = harness.connect().await;
    let labels = ["a", "b"].map(|label| (label, 100));
    let checker = Arc::new(ConsistencyChecker::new(TIMEOUT, &labels, LauncherSetup::TwoPerProvider));
    let label_lists = [&["a"][..], &["b"], &["a", "a"], &["a", "b"]].map(<[_]>::to_vec).to_vec();
    let spec = WorkloadSpec { label_lists, unserved_label: None, consumers: 6, max_use: Duration::from_millis(80) };
    let workload = Workload::start(&zk, &checker, spec, seed).await;
    let mut launchers = configurations.each_ref().map(|text| launcher(text));
    for kill in 0..kills {
        let before = checker.summary().served;
        let what = format!("a request to be served before kill {kill}, seed {seed}");
        wait::until(&what, TIMEOUT, async || checker.summary().served > before).await;
        sleep(Duration::from_millis(random.gen_range(0..1200))).await;
        let which = random.gen_range(0..2);
        launchers[which].kill();
        harness::assert_no_violations(&checker, &launchers.each_ref());
        launchers[which] = launcher(&configurations[which]);
        checker.restart_clock();
    }
    workload.stop().await;
    harness::assert_no_violations(&checker, &launchers.each_ref());
    wait_until_correct(TIMEOUT, async || leftovers(&zk).await).await;
    for launcher in &mut launchers {
        assert!(launcher.stop(TIMEOUT).await.success());
    }
    let history = HistoryChecker::of_server(&server, &chroot, None).await;
    history.check().assert_no_violations(&format!("kill-metastatic-{seed}"));
    let served = checker.summary().served;
    assert!(served > 0);
    eprintln!("{kills} kills, served {served}");
}

/// First leftover after all nodes were released: a node that is no idle host, a locked one, or a request.
async fn leftovers(zk: &Zk) -> Option<String> {
    let names = children(zk, paths::NODES).await;
    for name in &names {
        let id = name.as_str().into();
        let Ok((data, _)) = zk.get(&paths::node(&id)).await else { return Some(format!("node {id} was deleted")) };
        let Ok(node) = json::from_bytes::<Node>(&data) else { return Some(format!("node {id} is unreadable")) };
        let contenders = children(zk, &paths::node_lock(&id)).await;
        if !node.is_idle() || !contenders.is_empty() || node.hostname.is_none() {
            return Some(format!("node {id} is not free: {contenders:?} {node:?}"));
        }
    }
    if names.len() != HOSTS {
        return Some(format!("{} hosts of {HOSTS} are registered", names.len()));
    }
    find_leftover(zk, 3).await
}
