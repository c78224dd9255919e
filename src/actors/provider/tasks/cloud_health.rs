//! Tasks: the health of the cloud. Feeds results of calls and jobs to `ProviderHealth`, publishes it, and holds or
//! rejects calls accordingly.

use std::sync::Arc;

use tracing::{info, warn};

use super::{CallId, Driver, Owner, RunningTask, Stage, Task, TaskId, Tasks, clock};
use nodepool_driver::driver::{ApiCall, JobMachine};
use nodepool_driver::error::CloudError;
use nodepool_driver::health::{CloudHealth, Decision};
use nodepool_driver::job::{Job, Outcome};
use nodepool_driver::state_machine::Input;
use nodepool_model::records::ids::{ExternalId, LabelName, ProviderName};
use nodepool_model::records::time::Seconds;
use nodepool_policy::provider::health::{OutageChange, RefusedLaunch};

impl<D: Driver> Tasks<D> {
    pub(super) fn is_down(&self) -> bool {
        self.health.as_ref().is_some_and(|health| health.is_down())
    }

    /// Time at which `advance_health` must be called.
    pub fn health_due(&self) -> Option<Seconds> {
        let health = self.health.as_ref()?;
        health.due().into_iter().chain(health.probe_due()).min_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// Starts a probe that is due, and lets the time pass for refusals.
    pub fn advance_health(&mut self) {
        let now = self.now();
        let Some(health) = &mut self.health else { return };
        health.advance(now);
        if health.probe_due().is_some_and(|due| due <= now) {
            health.probe_started();
            self.start_job(Job::List, Owner::Probe);
        }
        self.publish_health();
    }

    /// Handles a failed call. While it is unknown whether the whole cloud is concerned, its job waits.
    pub(super) fn call_failed(&mut self, id: TaskId, mut task: Task, machine: JobMachine<D>, error: CloudError) {
        let now = self.now();
        let is_shared = matches!(task.owner, Owner::Internal | Owner::Probe | Owner::Watch);
        let error = match &mut self.health {
            Some(health) if error.suggests_outage() => {
                if !matches!(task.owner, Owner::Probe) {
                    health.call_failed(&error, now);
                }
                if health.is_suspected() && !is_shared {
                    self.tasks.insert(id, RunningTask { task, stage: Stage::Undecided(machine, error) });
                    return;
                }
                task.met_outage |= health.is_down();
                super::error_of(&task, error)
            }
            Some(_) => error,
            None => error.without_outage(),
        };
        self.advance(id, task, machine, Input::Reply(Err(error)));
    }

    /// Handles the end of a listing, which shows whether the cloud responds.
    pub(super) fn on_listing_ended(&mut self, error: Option<&CloudError>) {
        let (now, wall) = (self.now(), clock::now());
        let Some(health) = &mut self.health else { return };
        let before = self.facts.borrow().health.outage.clone();
        match health.listing_ended(error, now, wall) {
            OutageChange::None => {}
            OutageChange::Began => {
                let error = error.map(CloudError::to_string).unwrap_or_default();
                warn!(provider = %self.provider, error, "the cloud does not respond; launches and deletions wait for it");
                self.queue.set_held(true);
                self.tasks.values_mut().for_each(|running| running.task.met_outage = true);
                self.publish_health();
                self.reject_queued_creations();
            }
            OutageChange::Cleared => {}
            OutageChange::Ended => {
                let since = before.map_or(wall, |outage| outage.since);
                let took_s = ((wall - since).0 * 10.0).round() / 10.0;
                info!(provider = %self.provider, took_s, "the cloud responds again");
                self.queue.set_held(false);
                self.publish_health();
            }
        }
        if !self.health.as_ref().is_some_and(|health| health.is_suspected()) {
            self.resume_undecided();
        }
        self.publish_health();
    }

    /// It is known whether failed calls are part of an outage: their jobs continue with that result.
    fn resume_undecided(&mut self) {
        let undecided = |(id, running): (&TaskId, &RunningTask<JobMachine<D>>)| {
            matches!(running.stage, Stage::Undecided(..)).then_some(*id)
        };
        let ids: Vec<TaskId> = self.tasks.iter().filter_map(undecided).collect();
        for id in ids {
            if let Some(RunningTask { task, stage: Stage::Undecided(machine, error) }) = self.tasks.remove(&id) {
                let error = super::error_of(&task, error);
                self.advance(id, task, machine, Input::Reply(Err(error)));
            }
        }
    }

    /// The error of a launch without an instance whose next call must not be sent now: its creation, and during an
    /// outage also the search for an instance that may exist.
    pub(super) fn rejection(&self, task: &Task, machine: &JobMachine<D>, call: &D::Call) -> Option<CloudError> {
        let Job::Launch(order) = &task.job else { return None };
        if machine.external_id().is_some() {
            return None;
        }
        match self.health.as_ref()?.rejection(&order.label)? {
            CloudError::Outage { detail, .. } => {
                Some(CloudError::Outage { detail, may_have_worked: !call.is_mutating() })
            }
            refusal => call.is_mutating().then_some(refusal),
        }
    }

    /// Ends launches whose creation is queued, but must not be sent now. Their requests may be served elsewhere.
    fn reject_queued_creations(&mut self) {
        let rejected = |(id, running): (&TaskId, &RunningTask<JobMachine<D>>)| {
            let Stage::Calling(machine, call_id) = &running.stage else { return None };
            let call = self.calls.get(call_id).filter(|call| call.started.is_none())?;
            Some((*id, *call_id, self.rejection(&running.task, machine, &call.call)?))
        };
        let found: Vec<(TaskId, CallId, CloudError)> = self.tasks.iter().filter_map(rejected).collect();
        for (id, call_id, error) in found {
            self.queue.cancel(call_id);
            self.calls.remove(&call_id);
            if let Some(running) = self.tasks.remove(&id) {
                super::respond(running.task.owner, Err(error));
            }
        }
    }

    /// A step of a launch may show that the cloud took the creation.
    pub(super) fn on_creation(&mut self, was_known: bool, task: &Task, machine: &JobMachine<D>) {
        if let Job::Launch(order) = &task.job
            && !was_known
            && machine.external_id().is_some()
        {
            self.accepted(&order.label, Decision::Creation, task);
        }
    }

    /// The end of a job may show whether the cloud is full. The facts are published before the submitter is answered.
    pub(super) fn record_job(
        &mut self,
        task: &Task,
        result: Result<&Outcome, &CloudError>,
        instance: Option<&ExternalId>,
    ) {
        let (now, wall) = (self.now(), clock::now());
        match (&task.job, result) {
            (Job::Launch(order), Err(CloudError::Quota(reason))) => {
                let began = self.began(task);
                let facts = self.facts.borrow().clone();
                let Some(health) = &mut self.health else { return };
                let refused = RefusedLaunch { label: &order.label, reason, instance, began };
                health.refused(refused, &facts, now, wall);
                self.publish_health();
                self.reject_queued_creations();
            }
            (Job::Launch(order), Ok(_)) => self.accepted(&order.label, Decision::Ready, task),
            (Job::Delete(instance), Ok(_) | Err(CloudError::NotFound(_))) => {
                if let Some(health) = &mut self.health {
                    health.deleted(instance, now);
                    self.publish_health();
                }
            }
            _ => {}
        }
    }

    fn accepted(&mut self, label: &LabelName, decision: Decision, task: &Task) {
        let (now, began) = (self.now(), self.began(task));
        if let Some(health) = &mut self.health {
            health.accepted(label, decision, began, now);
            self.publish_health();
        }
    }

    /// The beginning of a job, as a time of the queue.
    fn began(&self, task: &Task) -> Seconds {
        Seconds(task.began.saturating_duration_since(self.started_at).as_secs_f64())
    }

    fn publish_health(&self) {
        let Some(health) = &self.health else { return };
        let current: CloudHealth = health.health();
        self.facts.send_if_modified(|facts| {
            let changes = facts.health != current;
            if changes {
                log_refusals(&self.provider, &facts.health, &current);
                Arc::make_mut(facts).health = current;
            }
            changes
        });
    }
}

/// Logs the beginning and the end of each refusal.
fn log_refusals(provider: &ProviderName, before: &CloudHealth, after: &CloudHealth) {
    match (&before.full, &after.full) {
        (None, Some(refusal)) => {
            info!(%provider, reason = refusal.reason, "the cloud is full; one launch at a time probes it");
        }
        (Some(_), None) => info!(%provider, "the cloud is no longer full"),
        _ => {}
    }
    for (label, refusal) in after.full_labels.iter().filter(|(label, _)| !before.full_labels.contains_key(*label)) {
        info!(%provider, %label, reason = refusal.reason, "the cloud is full for a label; one launch at a time probes it");
    }
    for label in before.full_labels.keys().filter(|label| !after.full_labels.contains_key(*label)) {
        info!(%provider, %label, "the cloud is no longer full for the label");
    }
}
