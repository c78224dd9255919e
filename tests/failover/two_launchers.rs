//! Two launchers with the same provider, as by mistake during a replacement: both serve requests, and no node is
//! assigned twice.

use std::sync::Arc;
use std::time::Duration;

use testkit::real::{self, zookeeper::Server};
use testkit::wait;
use testkit::workload::consistency_checker::{ConsistencyChecker, LauncherSetup};
use testkit::workload::harness::{self, Host, WorkloadHarness};
use testkit::workload::state_poller::StatePoller;
use testkit::workload::{Workload, WorkloadSpec};

const TIMEOUT: Duration = Duration::from_secs(60);
const HOSTS: &[Host] =
    &[Host { name: "fake-a1", label: "a", slots: 4 }, Host { name: "fake-b1", label: "b", slots: 2 }];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_launchers_of_one_provider_assign_no_node_twice() {
    if real::skipped() {
        return;
    }
    let server = Server::start(harness::options_without_fsync()).await;
    let harness = WorkloadHarness {
        addresses: server.address(),
        chroot: String::new(),
        provider: "lab",
        hosts: HOSTS,
        session: Duration::from_secs(1),
        padding: 0,
    };
    let zk = harness.connect().await;
    let checker =
        Arc::new(ConsistencyChecker::new(Duration::from_secs(6), &harness.slots(), LauncherSetup::TwoPerProvider));
    let label_lists = vec![vec!["a"], vec!["b"], vec!["a", "a"], vec!["b", "a", "a"]];
    let workload_spec =
        WorkloadSpec { label_lists, unserved_label: Some("z"), consumers: 6, max_use: Duration::from_millis(50) };
    let mut launchers = [harness.launcher(), harness.launcher()];
    let workload = Workload::start(&zk, &checker, workload_spec, harness::seed()).await;
    let _poller = StatePoller::start(&harness.connect().await, &checker);
    for round in 1..=4 {
        let target = 60 * round;
        wait::until(&format!("{target} requests to be served"), TIMEOUT, async || checker.summary().served >= target)
            .await;
        harness::assert_no_violations(&checker, &[&launchers[0], &launchers[1]]);
        // The other launcher continues beside a new one.
        let dead = &mut launchers[round % 2];
        dead.kill();
        *dead = harness.launcher();
    }
    workload.stop().await;
    let [one, other] = &launchers;
    harness::assert_no_violations(&checker, &[one, other]);
    harness.wait_until_settled(&zk, 2, TIMEOUT).await;
    for launcher in &mut launchers {
        assert!(launcher.stop(TIMEOUT).await.success());
    }
    assert!(checker.summary().served >= 240);
}
