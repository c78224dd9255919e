//! A launcher in the test's process with the driver of a cloud and a ZooKeeper in memory, and the samples that it
//! sends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodepool::actors::process::context::LauncherOptions;
use nodepool::actors::process::identity::Identity;
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool::actors::runtime::dump;
use nodepool::actors::runtime::messages::ExplainRequest;
use nodepool::actors::telemetry::samples::SampleSink;
use nodepool_model::config::ProviderConfig;
use nodepool_model::metrics::statsd_metrics::{Sample, SampleKind};
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_zk::memory::MemoryZooKeeper;
use python_yaml::diagnostics::Diagnostic;
use serde_json::json;
use tokio::sync::mpsc;

use crate::in_process_launcher::{Consumer, InProcessDaemon, zookeeper};
use crate::wait;

pub const TIMEOUT: Duration = Duration::from_secs(60);

type OpenFn = dyn Fn(&ProviderConfig, StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> + Send + Sync;

/// A driver in the test's process that is opened with a test's endpoint and credentials.
#[derive(Clone)]
pub struct InProcessDriver {
    name: &'static str,
    open: Arc<OpenFn>,
}

impl InProcessDriver {
    pub fn new(
        name: &'static str,
        open: impl Fn(&ProviderConfig, StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> + Send + Sync + 'static,
    ) -> Self {
        Self { name, open: Arc::new(open) }
    }
}

impl ExtraDrivers for InProcessDriver {
    fn names(&self) -> Vec<&'static str> {
        vec![self.name]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        (self.open)(section, start)
    }
}

pub struct CloudLauncher {
    config: String,
    driver: InProcessDriver,
    zookeeper: MemoryZooKeeper,
    pub consumer: Consumer,
    pub process: InProcessDaemon,
    samples: mpsc::Receiver<Sample>,
    /// Sums of the counters that were received.
    counters: BTreeMap<String, f64>,
}

/// A launcher that looks for leaks every half a second.
fn process(identity: Identity, config: &str, driver: &InProcessDriver) -> (InProcessDaemon, mpsc::Receiver<Sample>) {
    let quick = |options: &mut LauncherOptions| {
        options.cleanup_interval.0 = 0.5;
        options.delete_interval.0 = 0.2;
    };
    let mut process = InProcessDaemon::with_identity(identity, config, quick, Some(Box::new(driver.clone())));
    let (sink, samples) = SampleSink::channel();
    Arc::get_mut(&mut process.shared).expect("the process is not started yet").samples = sink;
    (process, samples)
}

impl CloudLauncher {
    /// A launcher that does not run yet, for tests that first create what it finds.
    pub fn prepare(config: String, driver: InProcessDriver) -> Self {
        let zookeeper = zookeeper();
        let (process, samples) = process(Identity::from_host(), &config, &driver);
        let consumer = Consumer::of(&zookeeper);
        Self { config, driver, zookeeper, consumer, process, samples, counters: BTreeMap::new() }
    }

    pub async fn start(config: String, driver: InProcessDriver) -> Self {
        let mut launcher = Self::prepare(config, driver);
        launcher.run().await;
        launcher
    }

    pub async fn run(&mut self) {
        self.process.run(&self.zookeeper);
        self.wait_for_pools(1).await;
    }

    /// The interval of searches for leaks, before the launcher runs.
    pub fn cleanup_interval(&mut self, seconds: f64) {
        let shared = Arc::get_mut(&mut self.process.shared).expect("the process is not started yet");
        shared.options.cleanup_interval.0 = seconds;
    }

    pub async fn wait_for_pools(&self, number: usize) {
        wait::until("the pools to be registered", TIMEOUT, async || {
            self.consumer.count("/nodepool/components/pool").await == number
        })
        .await;
    }

    /// Ends the launcher as a crash does, and starts another one.
    pub fn restart(&mut self) {
        self.process.stop();
        (self.process, self.samples) = process(Identity::from_host(), &self.config, &self.driver);
        self.process.run(&self.zookeeper);
    }

    /// Starts a second launcher with its own configuration.
    pub async fn add_launcher(&self, identity: Identity, config: &str) -> InProcessDaemon {
        let (mut other, _) = process(identity, config, &self.driver);
        other.run(&self.zookeeper);
        self.wait_for_pools(2).await;
        other
    }

    /// The node of a new request for a label.
    pub async fn served(&self, label: &str) -> NodeId {
        let request = self.consumer.submit_labels(&[label]).await;
        self.consumer.fulfilled_nodes(&request).await.remove(0)
    }

    /// Accepts a fulfilled request, and uses and releases its nodes.
    pub async fn release(&self, request: &RequestId) {
        let nodes = self.consumer.accept(request).await;
        self.consumer.use_and_release(nodes).await;
    }

    pub async fn wait_until_gone(&self, node: &NodeId) {
        wait::until(&format!("the end of node {node}"), TIMEOUT, async || {
            self.consumer.node_state(node).await.is_none()
        })
        .await;
    }

    pub async fn wait_for_reason(&self, request: &RequestId, words: &str) {
        wait::until(&format!("the reason {words}"), TIMEOUT, async || {
            let ask = ExplainRequest(request.clone());
            let replies = self.process.shared.explain_registry.request_all(ask, Duration::from_secs(5)).await;
            let mut verdicts = replies.into_iter().filter_map(|(_, reply)| reply.ok().flatten());
            verdicts.any(|verdict| verdict.reason.contains(words))
        })
        .await;
    }

    /// Advances the clock of this process while no job runs: the timers of that time end at once, and those of calls
    /// would be timeouts.
    pub async fn advance_clock(&self, by: Duration) {
        wait::until("the providers to be idle", TIMEOUT, async || {
            let actors = dump::collect(&self.process.shared.registry).await;
            actors.iter().filter(|view| view["actor"] == "TaskManager").all(|view| view["jobs"] == json!([]))
        })
        .await;
        tokio::time::pause();
        tokio::time::advance(by).await;
        tokio::time::resume();
    }

    /// The sum of a counter since the start of the launcher.
    pub fn counter(&mut self, name: &str) -> f64 {
        let counters = &mut self.counters;
        while let Ok(sample) = self.samples.try_recv() {
            if sample.kind == SampleKind::Counter {
                *counters.entry(sample.name).or_default() += sample.value;
            }
        }
        counters.get(name).copied().unwrap_or(0.0)
    }
}
