//! Awaitable provider jobs: submit one, receive its events, cancel it when the handle is dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix::Recipient;
use tokio::sync::mpsc;

use super::jobs::{Abandon, JobId, JobUpdate, ProviderHandle, Submit};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::{Job, JobEvent, Outcome};
use nodepool_model::records::ids::ExternalId;

/// Open jobs that an actor has submitted on behalf of its tasks.
#[derive(Clone, Default)]
pub struct PendingJobs {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    open: BTreeMap<JobId, mpsc::UnboundedSender<JobEvent>>,
    next: u64,
}

/// Client of one provider, for an actor that receives the updates of the jobs.
#[derive(Clone)]
pub struct ProviderClient {
    pub pending_jobs: PendingJobs,
    pub provider: ProviderHandle,
    pub reply: Recipient<JobUpdate>,
}

/// A running job; dropping the handle before its end cancels the job.
pub struct JobHandle {
    client: ProviderClient,
    job_id: JobId,
    events: mpsc::UnboundedReceiver<JobEvent>,
    has_ended: bool,
}

impl PendingJobs {
    /// Must be called with every update that the actor receives.
    pub fn on_update(&self, message: JobUpdate) {
        let mut state = self.lock();
        let has_ended = matches!(message.event, JobEvent::Finished(_));
        if let Some(sender) = state.open.get(&message.job_id) {
            // The handle may just have been dropped.
            let _ = sender.send(message.event);
        }
        if has_ended {
            state.open.remove(&message.job_id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProviderClient {
    pub fn submit(&self, job: Job) -> JobHandle {
        let (sender, events) = mpsc::unbounded_channel();
        let job_id = {
            let mut state = self.pending_jobs.lock();
            state.next += 1;
            let job_id = JobId(state.next);
            state.open.insert(job_id, sender);
            job_id
        };
        self.provider.submit.do_send(Submit::new(job_id, job, self.reply.clone()));
        JobHandle { client: self.clone(), job_id, events, has_ended: false }
    }

    /// Runs a job to its end.
    pub async fn run(&self, job: Job) -> Result<Outcome, CloudError> {
        let mut handle = self.submit(job);
        loop {
            if let JobEvent::Finished(result) = handle.next().await {
                return result;
            }
        }
    }
}

impl ProviderClient {
    /// A missing image counts as deleted.
    pub async fn delete_image(&self, id: &ExternalId, within: Duration) -> Result<(), String> {
        match tokio::time::timeout(within, self.run(Job::DeleteImage(id.clone()))).await {
            Ok(Ok(_) | Err(CloudError::NotFound(_))) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} s", within.as_secs())),
        }
    }
}

impl JobHandle {
    /// The next event. There is none after `Finished`.
    pub async fn next(&mut self) -> JobEvent {
        let stopped = || JobEvent::Finished(Err(CloudError::abandoned("the provider has stopped")));
        let event = self.events.recv().await.unwrap_or_else(stopped);
        self.has_ended |= matches!(event, JobEvent::Finished(_));
        event
    }
}

impl Drop for JobHandle {
    fn drop(&mut self) {
        if !self.has_ended {
            self.client.pending_jobs.lock().open.remove(&self.job_id);
            let abandon = Abandon { job_id: self.job_id, reply: self.client.reply.clone() };
            self.client.provider.abandon.do_send(abandon);
        }
    }
}
