//! ZooKeeper failover: a launcher under load uses three ZooKeeper servers, some of which are killed, and its session
//! expires. No request is lost, and no node is assigned twice.

use std::sync::Arc;
use std::time::Duration;

use nodepool::actors::process::context::SessionEnd;
use nodepool_zk::{Connection, SessionState, Zk};
use testkit::real::{
    self,
    nodepool_process::NodepoolProcess,
    zookeeper::{Ensemble, Options},
};
use testkit::wait;
use testkit::workload::consistency_checker::{ConsistencyChecker, LauncherSetup};
use testkit::workload::harness::{self, Host, WorkloadHarness};
use testkit::workload::state_poller::StatePoller;
use testkit::workload::{Workload, WorkloadSpec, retry_unknown};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TIMEOUT: Duration = Duration::from_secs(90);
const HOSTS: &[Host] =
    &[Host { name: "fake-a1", label: "a", slots: 5 }, Host { name: "fake-b1", label: "b", slots: 3 }];

fn workload_spec() -> WorkloadSpec {
    let shapes = vec![vec!["a"], vec!["b"], vec!["a", "a"], vec!["b", "a", "a"]];
    WorkloadSpec { label_lists: shapes, unserved_label: None, consumers: 5, max_use: Duration::from_millis(80) }
}

/// Launcher, workload and checker of one test.
struct FailoverHarness {
    harness: WorkloadHarness,
    zk: Zk,
    checker: Arc<ConsistencyChecker>,
    workload: Workload,
    _poller: StatePoller,
    launcher: NodepoolProcess,
}

fn harness_on(ensemble: &Ensemble, session: Duration) -> WorkloadHarness {
    WorkloadHarness {
        addresses: ensemble.address(),
        chroot: String::new(),
        provider: "lab",
        hosts: HOSTS,
        session,
        padding: 0,
    }
}

impl FailoverHarness {
    async fn start(ensemble: &Ensemble, session: Duration) -> FailoverHarness {
        let harness = harness_on(ensemble, session);
        let zk = harness.connect().await;
        // During elections no request is served. So the poller only checks double assignment, and the timeout of the
        // consumers detects lost requests.
        let checker = Arc::new(ConsistencyChecker::new(TIMEOUT, &harness.slots(), LauncherSetup::OnePerProvider));
        let workload = Workload::start(&zk, &checker, workload_spec(), harness::seed()).await;
        let poller = StatePoller::start(&harness.connect().await, &checker);
        let launcher = harness.launcher();
        let work = FailoverHarness { harness, zk, checker, workload, _poller: poller, launcher };
        work.wait_until_serving().await;
        work
    }

    /// Waits until more requests are served.
    async fn wait_until_serving(&self) {
        let before = self.checker.summary().served;
        let what = format!("more than {before} requests to be served: {:?}", self.checker.violations());
        wait::until(&what, TIMEOUT, async || self.checker.summary().served > before + 10).await;
        harness::assert_no_violations(&self.checker, &[&self.launcher]);
    }

    async fn finish(mut self) {
        self.workload.stop().await;
        self.harness.wait_until_settled(&self.zk, 1, TIMEOUT).await;
        harness::assert_no_violations(&self.checker, &[&self.launcher]);
        assert!(self.launcher.ended().is_none(), "the launcher does not exit");
        self.launcher.stop(TIMEOUT).await;
    }

    /// The launcher's session: the owner of its registration.
    async fn session(&self) -> i64 {
        let kind = "/nodepool/components/pool";
        wait::until_some("the launcher's registration", TIMEOUT, async || {
            let (names, _) = retry_unknown(|| self.zk.children(kind)).await.ok()?;
            let path = format!("{kind}/{}", names.first()?);
            Some(retry_unknown(|| self.zk.exists(&path)).await.ok()??.ephemeral_owner)
        })
        .await
    }
}

/// The server that a session is connected to.
async fn server_of_session(ensemble: &Ensemble, session: i64) -> usize {
    wait::until_some("the session to be connected", TIMEOUT, async || {
        for (index, server) in ensemble.servers.iter().enumerate() {
            let Ok(mut stream) = tokio::net::TcpStream::connect(server.plain_address()).await else { continue };
            let mut reply = String::new();
            let is_read = stream.write_all(b"cons").await.is_ok() && stream.read_to_string(&mut reply).await.is_ok();
            if is_read && reply.contains(&format!("sid=0x{session:x}")) {
                return Some(index);
            }
        }
        None
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_server_crashes_lose_neither_nodes_nor_requests() {
    if real::skipped() {
        return;
    }
    let options = Options { tick: Duration::from_secs(1), ..harness::options() };
    let mut ensemble = Ensemble::start(3, options).await;
    // The session timeout is longer than an election.
    let work = FailoverHarness::start(&ensemble, Duration::from_secs(20)).await;
    let session = work.session().await;

    let leader = ensemble.leader().await;
    ensemble.kill(leader);
    work.wait_until_serving().await;
    ensemble.start_again(leader).await;
    work.wait_until_serving().await;

    let home = server_of_session(&ensemble, work.session().await).await;
    ensemble.kill(home);
    work.wait_until_serving().await;
    ensemble.start_again(home).await;
    work.wait_until_serving().await;
    assert_eq!(work.session().await, session, "the session survives");
    work.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_whose_session_expires_under_load_gets_a_new_one() {
    if real::skipped() {
        return;
    }
    let ensemble = Ensemble::start(3, harness::options()).await;
    let work = FailoverHarness::start(&ensemble, Duration::from_secs(1)).await;
    for _ in 0..3 {
        let session = work.session().await;
        // A launcher that is suspended for longer than its session resumes with lost locks and a stale snapshot.
        work.launcher.signal(nix::sys::signal::Signal::SIGSTOP);
        wait::until("the session to expire", TIMEOUT, async || {
            let registered = retry_unknown(|| work.zk.children("/nodepool/components/pool")).await;
            registered.is_ok_and(|(names, _)| names.is_empty())
        })
        .await;
        work.launcher.signal(nix::sys::signal::Signal::SIGCONT);
        work.wait_until_serving().await;
        assert_ne!(work.session().await, session);
    }
    work.finish().await;
}

#[test]
fn a_session_closed_by_others_is_replaced() {
    if real::skipped() {
        return;
    }
    // The launcher runs in this process, because only the owner of a session has the credentials to close it.
    actix_rt::System::new().block_on(async {
        let ensemble = Ensemble::start(3, harness::options()).await;
        let harness = harness_on(&ensemble, Duration::from_secs(4));
        let zk = harness.connect().await;
        let checker = Arc::new(ConsistencyChecker::new(TIMEOUT, &harness.slots(), LauncherSetup::OnePerProvider));
        let workload = Workload::start(&zk, &checker, workload_spec(), harness::seed()).await;
        let _poller = StatePoller::start(&harness.connect().await, &checker);
        let mut process = testkit::in_process_launcher::InProcessDaemon::new(&harness.configuration());
        for round in 1..=5 {
            let session = harness.session(harness.session).await;
            let running = process.run_on(session.clone());
            wait::until("more requests to be served", TIMEOUT, async || checker.summary().served > 10 * round).await;
            // The test repeats the attempt, because the launcher's client reconnects to its session when it can.
            let state = session.session();
            wait::until("the second client to close the session", TIMEOUT, async || {
                let second_session =
                    zookeeper_client::Client::connector().with_session(session.credentials()).with_fail_eagerly();
                drop(second_session.connect(&ensemble.servers[0].address()).await);
                *state.borrow() == SessionState::Expired
            })
            .await;
            assert_eq!(running.await.unwrap(), SessionEnd::Expired);
            harness::assert_no_violations(&checker, &[]);
        }
        let session = harness.session(harness.session).await;
        let running = process.run_on(session.clone());
        workload.stop().await;
        harness.wait_until_settled(&zk, 1, TIMEOUT).await;
        harness::assert_no_violations(&checker, &[]);
        process.stop();
        assert_eq!(running.await.unwrap(), SessionEnd::Stopped);
        session.close().await;
    });
}
