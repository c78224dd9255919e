//! How a job reaches a provider and how its submitter hears of it: every submit is answered, come what may.

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

/// A running provider, as the others see it: where to submit jobs, and what is known. Hides the driver's type.
#[derive(Clone, Debug)]
pub struct ProviderHandle {
    pub provider: ProviderName,
    pub submit: Recipient<Submit>,
    pub abandon: Recipient<Abandon>,
    /// It is replaced or removed: no survey any more but for launches that wait for one, and the TaskManager stops when nothing is in
    /// flight and nobody has this handle, for requests that were begun with it end with it.
    pub drain: Recipient<Drain>,
    /// Stops at once; every job still open is answered with a failure.
    pub stop: Recipient<Shutdown>,
    /// Hears what leaked instances take.
    pub set_leaked_usage: Recipient<SetLeakedUsage>,
    /// Only where the driver listens.
    pub notify: Option<Recipient<Notify>>,
    pub facts: watch::Receiver<Arc<ProviderFacts>>,
    /// Only where the driver reads more than its section.
    pub needs_reopen: Option<NeedsReopen>,
    /// For the host keys of its nodes, a bounded number at a time.
    pub scanner: Arc<Scanner>,
}

/// What is known about each of these providers now.
pub fn facts_of(providers: &BTreeMap<ProviderName, ProviderHandle>) -> BTreeMap<ProviderName, Arc<ProviderFacts>> {
    providers.iter().map(|(name, provider)| (name.clone(), provider.facts.borrow().clone())).collect()
}

/// Brings what is known up to date; returns what was known before, where that was something else.
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

/// News for a driver.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Notify(pub Notification);

/// What leaked instances take of a provider's limits.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SetLeakedUsage(pub Resources);

/// The submitter's own number for a job; unique among the jobs it has open.
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
                is_instance_known: false,
                log_context: LogContext::default(),
            },
        }
    }

    /// For the log lines of the job and of its calls.
    pub fn with_log_context(mut self, log_context: LogContext) -> Self {
        self.responder.log_context = log_context;
        self
    }
}

/// The submitter wants a job no more. A call in flight is awaited, so that what it creates is known; the job then ends
/// with a failure.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct Abandon {
    pub job_id: JobId,
    /// The same as in the submit.
    pub reply: Recipient<JobUpdate>,
}

#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Drain;

/// What a submitter hears.
#[derive(Clone, Debug, Message, PartialEq)]
#[rtype(result = "()")]
pub struct JobUpdate {
    pub job_id: JobId,
    pub event: JobEvent,
}

/// The duty to answer one submit. Dropped unanswered, by a provider that stopped or a mailbox that was closed, it says
/// so: nobody waits for ever.
pub struct JobResponder {
    job_id: JobId,
    /// `None` once the job has ended.
    reply: Option<Recipient<JobUpdate>>,
    is_instance_known: bool,
    log_context: LogContext,
}

impl JobResponder {
    /// Tells the id once; later calls change nothing.
    pub fn instance_known(&mut self, id: &ExternalId) {
        if !self.is_instance_known {
            self.is_instance_known = true;
            self.send(JobEvent::InstanceKnown(id.clone()));
        }
    }

    pub fn finish(mut self, result: Result<Outcome, CloudError>) {
        self.send(JobEvent::Finished(result));
        self.reply = None;
    }

    pub fn log_context(&self) -> &LogContext {
        &self.log_context
    }

    /// A step of the job's machine, for those who watch it.
    pub fn log_step(&self, provider: &ProviderName, from: &str, to: &str) {
        if from != to {
            let (event_id, node_request_id, node_id) =
                (self.log_context.event_id(), self.log_context.request_id(), self.log_context.node_id());
            debug!(target: "nodepool.StateMachineProvider", %provider, event_id, node_request_id, node_id, from, to, "advanced");
        }
    }

    /// Is this the job that an `Abandon` means?
    pub fn belongs_to(&self, abandon: &Abandon) -> bool {
        self.job_id == abandon.job_id && self.reply.as_ref() == Some(&abandon.reply)
    }

    fn send(&self, news: JobEvent) {
        // Not bounded by the mailbox but by the protocol: at most two news for a job.
        if let Some(reply) = &self.reply {
            reply.do_send(JobUpdate { job_id: self.job_id, event: news });
        }
    }
}

impl Drop for JobResponder {
    fn drop(&mut self) {
        self.send(JobEvent::Finished(Err(CloudError::abandoned("the provider has stopped"))));
    }
}
