//! Provider harness: a running provider to which tests submit jobs, and whose job updates they receive.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, Context, Handler};
use nodepool::actors::provider::jobs::{Abandon, JobId, JobUpdate, ProviderHandle, Submit};
use nodepool::actors::provider::providers;
use nodepool::actors::provider::task_manager::{RefreshMode, TaskManagerDeps};
use nodepool::actors::runtime::dump;
use nodepool::actors::runtime::panics::PanicWatch;
use nodepool::actors::telemetry::samples::SampleSink;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, JobEvent, LaunchOrder, Outcome};
use nodepool_drivers::BUILT_IN_DRIVERS;
use nodepool_model::config::diagnostics::Source;
use nodepool_model::config::resolve::resolve;
use nodepool_model::config::{Config, ProviderConfig};
use nodepool_model::metrics::statsd_metrics::Sample;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;
use python_yaml::parse;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

pub struct ProviderHarness {
    pub handle: ProviderHandle,
    pub samples: mpsc::Receiver<Sample>,
    pub registry: dump::DumpRegistry,
    pub panics: PanicWatch,
    submitter: Addr<Submitter>,
    updates: mpsc::UnboundedReceiver<JobUpdate>,
}

/// Receives the updates of its jobs.
struct Submitter(mpsc::UnboundedSender<JobUpdate>);
impl Actor for Submitter {
    type Context = Context<Self>;
}
impl Handler<JobUpdate> for Submitter {
    type Result = ();
    fn handle(&mut self, update: JobUpdate, _: &mut Self::Context) {
        self.0.send(update).unwrap();
    }
}

impl ProviderHarness {
    pub fn new(start: impl FnOnce(TaskManagerDeps) -> ProviderHandle) -> Self {
        let (sink, samples) = SampleSink::channel();
        let (registry, panics) = (dump::DumpRegistry::default(), PanicWatch::new());
        let handle = start(TaskManagerDeps {
            registry: registry.clone(),
            panics: panics.clone(),
            samples: sink,
            api_concurrency: 10,
            image_check: Seconds(300.0),
            arbiter: actix::Arbiter::current(),
            refresh_mode: RefreshMode::Periodic,
            fence: None,
        });
        let (sender, updates) = mpsc::unbounded_channel();
        Self { handle, samples, registry, panics, submitter: Submitter(sender).start(), updates }
    }

    /// The first provider of a configuration file.
    pub fn of_config(yaml: &str) -> Self {
        let section = provider_section(yaml);
        Self::new(|deps| providers::start(&section, deps, None).expect("the provider starts"))
    }

    pub fn submit(&self, job_id: u64, job: Job) {
        self.handle.submit.do_send(Submit::new(JobId(job_id), job, self.submitter.clone().recipient()));
    }

    pub fn abandon(&self, job_id: u64) {
        self.handle.abandon.do_send(Abandon { job_id: JobId(job_id), reply: self.submitter.clone().recipient() });
    }

    pub async fn next(&mut self) -> (u64, JobEvent) {
        let update = timeout(Duration::from_secs(3600), self.updates.recv()).await.expect("an update arrives").unwrap();
        (update.job_id.0, update.event)
    }

    /// Waits for the end of the next job.
    pub async fn wait_for_end(&mut self) -> (u64, Result<Outcome, CloudError>) {
        loop {
            if let (job_id, JobEvent::Finished(result)) = self.next().await {
                return (job_id, result);
            }
        }
    }

    /// Runs one job to its end.
    pub async fn run(&mut self, job: Job) -> Result<Outcome, CloudError> {
        self.submit(0, job);
        self.wait_for_end().await.1
    }

    pub fn facts(&self) -> Arc<ProviderFacts> {
        self.handle.facts.borrow().clone()
    }

    /// Waits for the first refresh of the provider.
    pub async fn wait_for_refresh(&self) -> Arc<ProviderFacts> {
        self.wait_for_facts(|facts| facts.refreshed_at.0 > 0.0).await
    }

    /// Waits until the facts satisfy the condition.
    pub async fn wait_for_facts(&self, condition: impl Fn(&ProviderFacts) -> bool) -> Arc<ProviderFacts> {
        let mut facts = self.handle.facts.clone();
        let result = timeout(Duration::from_secs(60), facts.wait_for(|facts| condition(facts))).await;
        result.expect("the facts satisfy the condition in time").unwrap().clone()
    }
}

/// The first provider of a configuration file.
pub fn provider_section(yaml: &str) -> Arc<ProviderConfig> {
    config(yaml).providers.values().next().expect("the configuration has a provider").clone()
}

pub fn config(yaml: &str) -> Arc<Config> {
    let mut diagnostics = Vec::new();
    let root = parse::parse(yaml, &mut diagnostics).expect("the YAML parses");
    let resolved = resolve(Source { file: "nodepool.yaml", root: &root }, None, BUILT_IN_DRIVERS);
    let Some(config) = resolved.config else { panic!("the configuration loads: {:?}", resolved.diagnostics) };
    config
}

pub fn launch(hostname: &str) -> Job {
    let order = launch_order("", "", 1);
    let order = LaunchOrder { hostname: hostname.to_owned(), identity: hostname.to_owned(), ..order };
    Job::Launch(Arc::new(LaunchOrder { metadata: BTreeMap::new(), ..order }))
}

/// An order for a node of the label `small` in the pool `main`, with the marks of this provider.
pub fn launch_order(provider: &str, node: &str, attempt: u32) -> LaunchOrder {
    let metadata = [("nodepool_node_id", node), ("nodepool_pool_name", "main"), ("nodepool_provider_name", provider)];
    LaunchOrder {
        pool: "main".into(),
        label: "small".into(),
        hostname: format!("np{node}"),
        identity: format!("installation {provider} {node} 1"),
        attempt,
        zone: None,
        image: None,
        request: Arc::new(json!({"id": "100-0000000001", "tenant_name": "acme"})),
        metadata: metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        prior_instance: None,
        may_exist: false,
        may_appear: false,
    }
}

/// The instance of a launch.
pub fn launched(result: Result<Outcome, CloudError>) -> Result<Instance, CloudError> {
    match result? {
        Outcome::Launched(instance) => Ok(*instance),
        other => panic!("a launch has no outcome {other:?}"),
    }
}

pub fn delete(name: &str) -> Job {
    Job::Delete(ExternalId::text(name))
}

pub fn on_paused_time(test: impl Future<Output = ()>) {
    run(tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true), test);
}

pub fn on_real_time(test: impl Future<Output = ()>) {
    run(tokio::runtime::Builder::new_current_thread().enable_all(), test);
}

fn run(builder: &mut tokio::runtime::Builder, test: impl Future<Output = ()>) {
    let runtime = builder.build().expect("a runtime starts");
    actix::System::with_tokio_rt(|| runtime).block_on(test);
}
