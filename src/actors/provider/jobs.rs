//! Messages between submitters of jobs and a provider. Every submit is answered, even if the provider has panicked.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix::{Message, Recipient};
use tokio::sync::watch;

use tracing::debug;

use crate::actors::runtime::log_context::LogContext;
use crate::actors::runtime::messages::Shutdown;
use nodepool_driver::driver::NeedsReopen;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::job::{Job, JobEvent, Notification, Outcome};
use nodepool_drivers::common::keyscan::Scanner;
use nodepool_model::records::ids::{ExternalId, ProviderName};
use nodepool_model::records::resources::Resources;

/// Handle of a running provider: recipients for its jobs, and its facts. Hides the driver's type.
#[derive(Clone, Debug)]
pub struct ProviderHandle {
    pub provider: ProviderName,
    pub submit: Recipient<Submit>,
    pub abandon: Recipient<Abandon>,
    /// For a provider that is replaced or removed. It then refreshes only for launches that wait for a refresh. The
    /// TaskManager stops when nothing is in flight and no handle is left, because requests that started with it
    /// complete with it.
    pub drain: Recipient<Drain>,
    /// Stops at once; every job still open is answered with a failure.
    pub stop: Recipient<Shutdown>,
    /// Receives the usage of leaked instances.
    pub set_leaked_usage: Recipient<SetLeakedUsage>,
    /// `None` if the driver wants no notifications.
    pub notify: Option<Recipient<Notify>>,
    pub facts: watch::Receiver<Arc<ProviderFacts>>,
    /// `None` if the driver reads nothing but its section.
    pub needs_reopen: Option<NeedsReopen>,
    /// Scans the host keys of its nodes, a bounded number at a time.
    pub scanner: Arc<Scanner>,
}

impl ProviderHandle {
    /// Whether the provider's cloud does not respond.
    pub fn is_down(&self) -> bool {
        self.facts.borrow().health.outage.is_some()
    }
}

/// The current facts of each of these providers.
pub fn facts_of(providers: &BTreeMap<ProviderName, ProviderHandle>) -> BTreeMap<ProviderName, Arc<ProviderFacts>> {
    providers.iter().map(|(name, provider)| (name.clone(), provider.facts.borrow().clone())).collect()
}

/// Updates `current` to the newest facts; returns the previous ones if they differ.
pub fn update_facts(
    current: &mut BTreeMap<ProviderName, Arc<ProviderFacts>>,
    providers: &BTreeMap<ProviderName, ProviderHandle>,
) -> Option<BTreeMap<ProviderName, Arc<ProviderFacts>>> {
    let are_newest = current.len() == providers.len()
        && current
            .iter()
            .zip(providers)
            .all(|((known, facts), (name, provider))| known == name && Arc::ptr_eq(facts, &provider.facts.borrow()));
    (!are_newest).then(|| std::mem::replace(current, facts_of(providers)))
}

/// A notification for a driver.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Notify(pub Notification);

/// Usage of leaked instances, which counts against a provider's limits.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SetLeakedUsage(pub Resources);

/// The submitter's id of a job; unique among its open jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

#[derive(Message)]
#[rtype(result = "()")]
pub struct Submit {
    pub job: Job,
    pub responder: JobResponder,
}

impl Submit {
    pub fn new(job_id: JobId, job: Job, reply: Recipient<JobUpdate>) -> Self {
        Self {
            job,
            responder: JobResponder {
                job_id,
                reply: Some(reply),
                known_instance: None,
                obstacle: None,
                log_context: LogContext::default(),
            },
        }
    }

    /// Sets the log context for the log lines of the job and of its calls.
    pub fn with_log_context(mut self, log_context: LogContext) -> Self {
        self.responder.log_context = log_context;
        self
    }
}

/// Cancels a job. A call in flight is awaited, so that its result is known. The job then ends with a failure.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct Abandon {
    pub job_id: JobId,
    /// The same recipient as in the `Submit`.
    pub reply: Recipient<JobUpdate>,
}

#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Drain;

/// An event of a job, sent to its submitter.
#[derive(Clone, Debug, Message, PartialEq)]
#[rtype(result = "()")]
pub struct JobUpdate {
    pub job_id: JobId,
    pub event: JobEvent,
}

/// Answers one submit exactly once. If it is dropped unanswered, by a stopped provider or a closed mailbox, it sends a
/// failure, so that no submitter waits forever.
pub struct JobResponder {
    job_id: JobId,
    /// `None` once the job has ended.
    reply: Option<Recipient<JobUpdate>>,
    /// The id that was reported last.
    known_instance: Option<ExternalId>,
    /// The obstacle that was reported last.
    obstacle: Option<String>,
    log_context: LogContext,
}

impl JobResponder {
    /// Reports the id, and each change of it.
    pub fn instance_known(&mut self, id: Option<&ExternalId>) {
        if self.known_instance.as_ref() != id {
            self.known_instance = id.cloned();
            self.send(id.cloned().map_or(JobEvent::NoInstance, JobEvent::InstanceKnown));
        }
    }

    /// Reports each change of what holds the job up.
    pub fn waiting(&mut self, obstacle: Option<String>) {
        if self.obstacle != obstacle {
            self.obstacle.clone_from(&obstacle);
            self.send(JobEvent::Waiting(obstacle));
        }
    }

    pub fn finish(mut self, result: Result<Outcome, CloudError>) {
        self.send(JobEvent::Finished(result));
        self.reply = None;
    }

    pub fn log_context(&self) -> &LogContext {
        &self.log_context
    }

    /// Logs a step of the job's state machine.
    pub fn log_step(&self, provider: &ProviderName, from: &str, to: &str) {
        if from != to {
            let (event_id, node_request_id, node_id) =
                (self.log_context.event_id(), self.log_context.request_id(), self.log_context.node_id());
            debug!(target: "nodepool.StateMachineProvider", %provider, event_id, node_request_id, node_id, from, to, "advanced");
        }
    }

    /// Whether `abandon` refers to this job.
    pub fn belongs_to(&self, abandon: &Abandon) -> bool {
        self.job_id == abandon.job_id && self.reply.as_ref() == Some(&abandon.reply)
    }

    fn send(&self, event: JobEvent) {
        // Bounded by the protocol instead of the mailbox: few events per job, because only changes are sent.
        if let Some(reply) = &self.reply {
            reply.do_send(JobUpdate { job_id: self.job_id, event });
        }
    }
}

impl Drop for JobResponder {
    fn drop(&mut self) {
        self.send(JobEvent::Finished(Err(CloudError::abandoned("the provider has stopped"))));
    }
}
