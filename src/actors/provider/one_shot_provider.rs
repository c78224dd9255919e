//! Provider for one command: runs a driver in a thread of its own, accepts jobs and returns their outcomes.

use std::sync::Arc;

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, System, WrapFuture};
use tokio::sync::{oneshot, watch};

use super::jobs::{JobUpdate, ProviderHandle};
use super::provider_client::{PendingJobs, ProviderClient};
use super::providers;
use super::task_manager::{RefreshMode, TaskManagerDeps};
use crate::actors::runtime::panics::PanicWatch;
use crate::actors::runtime::{dump, profile};
use crate::actors::telemetry::samples::SampleSink;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::job::{Job, Outcome};
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::time::Seconds;
pub use nodepool_policy::cleanup::leaks::{LeakCandidate, leak_candidates};
pub use nodepool_policy::cleanup::unused_resources::{orphaned_uploads, orphans};
use python_yaml::diagnostics::Diagnostic;

/// Maximum number of concurrent calls.
const API_CONCURRENCY: usize = 10;

/// A running provider; dropping it ends its thread.
pub struct OneShotProvider {
    submitter: Addr<JobSubmitter>,
    system: System,
    facts: watch::Receiver<Arc<ProviderFacts>>,
}

impl OneShotProvider {
    /// Opens the driver of a section.
    pub async fn open(section: Arc<ProviderConfig>) -> Result<Self, Vec<Diagnostic>> {
        let (ready, opened) = oneshot::channel();
        std::thread::spawn(move || {
            let runner = System::new();
            runner.block_on(async {
                let deps = TaskManagerDeps {
                    registry: dump::DumpRegistry::default(),
                    panics: PanicWatch::new(),
                    samples: SampleSink::discard(),
                    api_concurrency: API_CONCURRENCY,
                    image_check: Seconds(f64::INFINITY),
                    arbiter: actix::Arbiter::current(),
                    refresh_mode: RefreshMode::Periodic,
                    fence: None,
                };
                let started = providers::start(&section, deps, None).map(|provider| {
                    let facts = provider.facts.clone();
                    let submitter = JobSubmitter { provider, pending_jobs: PendingJobs::default() }.start();
                    Self { submitter, system: System::current(), facts }
                });
                let has_failed = started.is_err();
                // Without a provider or a caller, nothing is left to run.
                if ready.send(started).is_err() || has_failed {
                    System::current().stop();
                }
            });
            // The exit code of a command's actor system carries no information.
            let _ = runner.run();
        });
        opened.await.unwrap_or_else(|_| Err(Vec::new()))
    }

    /// Runs a job to its end.
    pub async fn run(&self, job: Job) -> Result<Outcome, CloudError> {
        let (reply, ended) = oneshot::channel();
        self.submitter.do_send(SubmitJob { job, reply });
        ended.await.unwrap_or_else(|_| Err(CloudError::abandoned("the provider has stopped")))
    }

    /// The facts of the first refresh.
    pub async fn refresh(&self) -> Result<Arc<ProviderFacts>, CloudError> {
        match self.run(Job::Refresh).await? {
            Outcome::Refreshed(facts, _) => Ok(facts),
            _ => Ok(self.facts.borrow().clone()),
        }
    }
}

impl Drop for OneShotProvider {
    fn drop(&mut self) {
        self.system.stop();
    }
}

/// Submits jobs and returns each outcome to its caller.
struct JobSubmitter {
    provider: ProviderHandle,
    pending_jobs: PendingJobs,
}

#[derive(Message)]
#[rtype(result = "()")]
struct SubmitJob {
    job: Job,
    reply: oneshot::Sender<Result<Outcome, CloudError>>,
}

impl Actor for JobSubmitter {
    type Context = Context<Self>;
}

impl Handler<SubmitJob> for JobSubmitter {
    type Result = ();

    fn handle(&mut self, message: SubmitJob, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("SubmitJob");
        let reply = ctx.address().recipient();
        let client = ProviderClient { pending_jobs: self.pending_jobs.clone(), provider: self.provider.clone(), reply };
        let running = async move {
            // The caller may have stopped waiting.
            let _ = message.reply.send(client.run(message.job).await);
        };
        ctx.spawn(running.into_actor(self));
    }
}

impl Handler<JobUpdate> for JobSubmitter {
    type Result = ();

    fn handle(&mut self, message: JobUpdate, _: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("JobUpdate");
        self.pending_jobs.on_update(message);
    }
}
