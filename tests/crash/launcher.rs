//! Launcher crashes with static hosts: a launcher that is killed at any moment leaves only requests, nodes and locks
//! that the next one handles.
//!
//! NODEPOOL_KILLS=200 makes a long run; NODEPOOL_SEED repeats the random draws of an earlier run.

use std::sync::Arc;
use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};
use testkit::history_checker::HistoryChecker;
use testkit::real::{self, zookeeper::Server};
use testkit::wait;
use testkit::workload::consistency_checker::{ConsistencyChecker, LauncherSetup, RunSummary};
use testkit::workload::harness::{self, Host, WorkloadHarness};
use testkit::workload::state_poller::StatePoller;
use testkit::workload::{Workload, WorkloadSpec};
use tokio::time::{Instant, sleep};

/// Default of NODEPOOL_KILLS.
const KILLS: usize = 30;
/// Guaranteed maximum wait of a request after the session timeout, at which the locks of a dead launcher are deleted.
const GRACE_PERIOD: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(60);

const HOSTS: &[Host] = &[
    Host { name: "fake-a1", label: "a", slots: 4 },
    Host { name: "fake-a2", label: "a", slots: 3 },
    Host { name: "fake-a3", label: "a", slots: 1 },
    Host { name: "fake-b1", label: "b", slots: 2 },
];

fn workload_spec() -> WorkloadSpec {
    let shapes = [&["a"][..], &["a"], &["a", "a"], &["b"], &["a", "b"], &["b", "a", "a"], &["a", "a", "a"]];
    let label_lists = shapes.map(<[_]>::to_vec).to_vec();
    WorkloadSpec { label_lists, unserved_label: Some("z"), consumers: 6, max_use: Duration::from_millis(80) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_crash_at_any_moment_leaves_nothing_undone() {
    if real::skipped() {
        return;
    }
    let kills = std::env::var("NODEPOOL_KILLS").map_or(KILLS, |text| text.parse().expect("NODEPOOL_KILLS is a number"));
    let seed = harness::seed();
    // Several launchers run at a time, each with its own ZooKeeper. In a long run one of them has the default session
    // timeout.
    let lanes = if kills > KILLS { 4 } else { 2 };
    let servers = futures::future::join_all((0..lanes).map(|_| Server::start(harness::options_without_fsync()))).await;
    let (mut runs, mut chroots) = (Vec::new(), Vec::new());
    for (lane, server) in servers.iter().enumerate() {
        let session = if kills > KILLS && lane == 0 { 10 } else { 1 };
        // In the second lane three nodes exceed one transaction, so a launcher can be killed between two transactions.
        let padding = if lane == 1 { 240_000 } else { 0 };
        let chroot = server.chroot("kill").await;
        let (addresses, chroot) = chroot.split_once('/').expect("a chroot begins with a slash");
        chroots.push(format!("/{chroot}"));
        let harness = WorkloadHarness {
            addresses: addresses.to_owned(),
            chroot: format!("/{chroot}"),
            provider: "lab",
            hosts: HOSTS,
            session: Duration::from_secs(session),
            padding,
        };
        let share = kills / lanes + usize::from(lane < kills % lanes);
        runs.push(crash_repeatedly(harness, share, seed.wrapping_add(1000 * lane as u64)));
    }
    for RunSummary { served, cancelled, longest_head_wait } in futures::future::join_all(runs).await {
        eprintln!(
            "of {kills} kills in {lanes} lanes: served {served}, cancelled {cancelled}, longest wait with capacity {longest_head_wait:?}"
        );
    }
    for (lane, (server, chroot)) in servers.iter().zip(&chroots).enumerate() {
        HistoryChecker::of_server(server, chroot, None)
            .await
            .check()
            .assert_no_violations(&format!("kill-{seed}-{lane}"));
    }
}

async fn crash_repeatedly(harness: WorkloadHarness, kills: usize, seed: u64) -> RunSummary {
    let mut random = StdRng::seed_from_u64(seed);
    let zk = harness.connect().await;
    let checker = Arc::new(ConsistencyChecker::new(
        harness.session + GRACE_PERIOD,
        &harness.slots(),
        LauncherSetup::OnePerProvider,
    ));
    let workload = Workload::start(&zk, &checker, workload_spec(), seed).await;
    let _poller = StatePoller::start(&harness.connect().await, &checker);
    let mut launcher = harness.launcher();
    let (mut startup, mut early) = (Duration::from_millis(500), 0);
    for kill in 0..kills {
        // Half of the kills hit the start, half the work. At most two in a row hit the start, so that requests are
        // served.
        if early < 2 && random.gen_bool(0.5) {
            early += 1;
            sleep(startup.mul_f64(random.gen_range(0.0..1.5))).await;
        } else {
            early = 0;
            let (began, before, first) = (Instant::now(), checker.summary().served, checker.head_of_queue());
            let what = format!("launcher {kill} to serve a request, seed {seed}");
            wait::until(&what, TIMEOUT, async || checker.summary().served > before).await;
            startup = began.elapsed();
            // This launcher must serve the oldest request: if the next launcher served it, a stuck request would be
            // missed.
            let what = format!("{first:?} to be served by launcher {kill}, seed {seed}");
            wait::until(&what, TIMEOUT, async || {
                harness::assert_no_violations(&checker, &[&launcher]);
                first.as_ref().is_none_or(|id| !checker.is_open(id))
            })
            .await;
            sleep(Duration::from_millis(random.gen_range(0..300))).await;
        }
        launcher.kill();
        harness::assert_no_violations(&checker, &[&launcher]);
        if random.gen_ratio(1, 8) {
            // The pause may be long enough for the dead launcher's session to expire before the next launcher starts.
            sleep(Duration::from_millis(random.gen_range(0..1500))).await;
        }
        launcher = harness.launcher();
        checker.restart_clock();
    }
    workload.stop().await;
    harness::assert_no_violations(&checker, &[&launcher]);
    harness.wait_until_settled(&zk, 1, harness.session + GRACE_PERIOD).await;
    harness::assert_no_violations(&checker, &[&launcher]);
    assert!(launcher.stop(TIMEOUT).await.success());
    checker.summary()
}
