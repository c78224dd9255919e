//! Panics: one ends its actor tree and session, and the process continues with a new session. Five within ten minutes
//! end the process. The launcher runs in the test's process, on an embedded ZooKeeper and in real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nodepool::actors::process::config_files;
use nodepool::actors::process::files::ConfigFileSource;
use nodepool::actors::process::process::{ProcessError, Role, run_sessions};
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::driver::{Driver, JobMachine};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::job::Job;
use nodepool_driver::state_machine::RateLimits;
use nodepool_drivers::static_nodes::{self, Call, StaticNodes};
use nodepool_drivers::{BUILT_IN_DRIVERS, OpenDriver};
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::request::RequestState;
use nodepool_model::records::static_host::HostCheck;
use nodepool_zk::client::connect;
use python_yaml::diagnostics::Diagnostic;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_real_time, until, yaml};
use tokio::task::JoinHandle;
use zookeeper_server::EmbeddedServer;

/// Static driver with a bug: `begin` panics as many times as `remaining_panics` says.
struct PanickingDriver {
    driver: StaticNodes,
    remaining_panics: Arc<AtomicUsize>,
}

impl Driver for PanickingDriver {
    type Call = Call;
    type Reply = HostCheck;

    fn facts(&self) -> ProviderFacts {
        self.driver.facts()
    }

    fn rate_limits(&self) -> RateLimits {
        self.driver.rate_limits()
    }

    fn subjobs(&self, job: &Job) -> Vec<Job> {
        self.driver.subjobs(job)
    }

    fn begin(&self, job: &Job) -> JobMachine<Self> {
        let is_due = self
            .remaining_panics
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |remaining| remaining.checked_sub(1))
            .is_ok();
        assert!(!is_due, "a driver with a bug");
        self.driver.begin(job)
    }

    async fn call(&self, call: Call, call_guard: &CallGuard) -> Result<HostCheck, CloudError> {
        self.driver.call(call, call_guard).await
    }
}

struct PanickingDrivers(Arc<AtomicUsize>);

impl ExtraDrivers for PanickingDrivers {
    fn names(&self) -> Vec<&'static str> {
        vec!["static"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        Ok(start.with(PanickingDriver { driver: static_nodes::open(section)?, remaining_panics: self.0.clone() }))
    }
}

/// Starts an embedded ZooKeeper and, on it, a launcher whose driver panics `panics` times.
async fn launcher(
    panics: usize,
) -> (EmbeddedServer, InProcessDaemon, JoinHandle<Result<(), ProcessError>>, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    let text = yaml("p", &["name: fake-1, labels: a", "name: fake-2, labels: a"], "");
    let text = text
        .replace("host: localhost\n    port: 2181", &format!("host: 127.0.0.1\n    port: {}", server.address().port()));
    let mut process = InProcessDaemon::new(&text);
    let bug = PanickingDrivers(Arc::new(AtomicUsize::new(panics)));
    Arc::get_mut(&mut process.shared).expect("the context is not shared yet").drivers = Some(Box::new(bug));
    let (shared, file) = (process.shared.clone(), process.file.clone());
    let running = actix_rt::spawn(async move {
        let loaded = config_files::load(&ConfigFileSource::OnDisk, &file, None, BUILT_IN_DRIVERS)
            .await
            .expect("a test's configuration loads");
        run_sessions(&shared, loaded, &Role::Launcher).await
    });
    (server, process, running, directory)
}

#[test]
fn after_a_panic_actors_restart_on_a_new_session() {
    on_real_time(async {
        let (server, process, running, _directory) = launcher(1).await;
        let zk = connect(testkit::embedded_zk::client(server.address().port())).await.unwrap();
        let consumer = Consumer { zk: zk.clone() };
        until("the slots to be registered", async || consumer.ready_nodes().await == 2).await;
        assert_eq!(process.shared.panics.count(), 1);
        // The pool of the first tree is unregistered with its session.
        assert_eq!(consumer.count("/nodepool/components/pool").await, 1);
        let id = consumer.submit_labels(&["a", "a"]).await;
        let request = consumer.wait_for_end(&id).await;
        assert_eq!((request.state, request.nodes.len()), (RequestState::Fulfilled, 2));
        process.stop();
        assert!(running.await.unwrap().is_ok());
        zk.close().await;
        server.stop().await;
    });
}

#[test]
fn five_panics_in_ten_minutes_end_the_process() {
    on_real_time(async {
        let (server, process, running, _directory) = launcher(usize::MAX).await;
        let end = running.await.unwrap().expect_err("the process ends");
        assert_eq!(end.to_string(), "gave up after 5 panics in ten minutes; see the log");
        let zk = connect(testkit::embedded_zk::client(server.address().port())).await.unwrap();
        assert_eq!(Consumer { zk: zk.clone() }.count("/nodepool/components/pool").await, 0);
        drop(process);
        zk.close().await;
        server.stop().await;
    });
}
