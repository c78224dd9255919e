//! A launcher in the test's process on the simulated EC2 and a ZooKeeper in memory, with the samples that it sends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodepool::actors::process::context::LauncherOptions;
use nodepool::actors::process::identity::Identity;
use nodepool::actors::runtime::messages::ExplainRequest;
use nodepool::actors::telemetry::samples::SampleSink;
use nodepool_model::metrics::statsd_metrics::{Sample, SampleKind};
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_zk::memory::MemoryZooKeeper;
use serde_json::Value;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, zookeeper};
use testkit::real::simulated_ec2::{InProcessAws, REGION, SECRET_KEY, SimulatedEc2};
use testkit::wait;
use tokio::sync::mpsc;

use crate::ec2::Ec2;

pub const TIMEOUT: Duration = Duration::from_secs(60);
/// The client of `Ec2` uses this key, and does not sign.
const ACCESS_KEY: &str = "testing";
const FLAGS: [&str; 8] =
    ["--boot-s", "0.1", "--terminate-s", "0.1", "--access-key", ACCESS_KEY, "--check-signatures", "false"];

pub struct LauncherHarness {
    config: String,
    pub cloud: SimulatedEc2,
    pub ec2: Ec2,
    zookeeper: MemoryZooKeeper,
    pub consumer: Consumer,
    pub process: InProcessDaemon,
    samples: mpsc::Receiver<Sample>,
    /// Sums of the counters that were received.
    counters: BTreeMap<String, f64>,
}

/// A launcher that looks for leaks every half a second.
fn process(identity: Identity, config: &str, cloud: &SimulatedEc2) -> (InProcessDaemon, mpsc::Receiver<Sample>) {
    let quick = |options: &mut LauncherOptions| {
        options.cleanup_interval.0 = 0.5;
        options.delete_interval.0 = 0.2;
    };
    let driver = InProcessAws::new(cloud.base(), ACCESS_KEY, SECRET_KEY);
    let mut process = InProcessDaemon::with_identity(identity, config, quick, Some(Box::new(driver)));
    let (sink, samples) = SampleSink::channel();
    Arc::get_mut(&mut process.shared).expect("the process is not started yet").samples = sink;
    (process, samples)
}

impl LauncherHarness {
    /// Starts an AWS with these flags besides the usual ones, and a launcher.
    pub async fn start(config: String, flags: &[&str]) -> Self {
        let mut harness = Self::prepare(config, flags).await;
        harness.run().await;
        harness
    }

    /// `start` without running the launcher, for tests that first create what the launcher finds.
    pub async fn prepare(config: String, flags: &[&str]) -> Self {
        let cloud = SimulatedEc2::start(&[&FLAGS, flags].concat()).await;
        let zookeeper = zookeeper();
        let (process, samples) = process(Identity::from_host(), &config, &cloud);
        let (consumer, ec2) = (Consumer::of(&zookeeper), Ec2::new(cloud.base()));
        Self { config, cloud, ec2, zookeeper, consumer, process, samples, counters: BTreeMap::new() }
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
        (self.process, self.samples) = process(Identity::from_host(), &self.config, &self.cloud);
        self.process.run(&self.zookeeper);
    }

    /// Starts a second launcher with its own configuration.
    pub async fn add_launcher(&self, identity: Identity, config: &str) -> InProcessDaemon {
        let (mut other, _) = process(identity, config, &self.cloud);
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

    pub async fn instance(&self, node: &NodeId) -> String {
        let record = self.consumer.raw_node(node).await;
        record["external_id"]["instance"].as_str().expect("external_id names the instance").to_owned()
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

    /// Objects of the region and this kind, by state.
    pub async fn by_state(&self, kind: &str) -> Value {
        self.cloud.state().await["regions"][REGION][kind].clone()
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
