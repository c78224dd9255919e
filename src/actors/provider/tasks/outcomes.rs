//! Tasks: outcomes of jobs that change the provider facts.

use std::sync::Arc;

use tracing::warn;

use super::{Driver, RunningTask, Stage, TaskId, Tasks, clock};
use nodepool_driver::driver::JobMachine;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::facts::{ProviderFacts, Unavailable};
use nodepool_driver::instance::Inventory;
use nodepool_driver::job::{Job, Outcome};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::static_host::{HostCheck, HostIdentity};

impl<D: Driver> Tasks<D> {
    /// Applies the outcome of a job to the facts; returns the outcome with its time.
    pub(super) fn apply_outcome(
        &mut self,
        job: &Job,
        result: Result<Outcome, CloudError>,
    ) -> Result<Outcome, CloudError> {
        let now = clock::now();
        match result {
            Ok(Outcome::Refreshed(facts, inventory)) => {
                let (zones, ending) = (inventory.zones(&self.provider), inventory.ending(&self.provider));
                // A refresh does not cover leaked instances and the health.
                let (leaked, health) = (self.facts.borrow().leaked.clone(), self.facts.borrow().health.clone());
                let facts =
                    ProviderFacts { refreshed_at: now, zones, ending, leaked, health, ..Arc::unwrap_or_clone(facts) };
                let facts = Arc::new(facts);
                self.facts.send_replace(facts.clone());
                self.record_failed_queries(&facts.failed_queries);
                Ok(Outcome::Refreshed(facts, inventory))
            }
            Ok(Outcome::Listed(inventory)) => {
                self.record_ending(&inventory);
                Ok(Outcome::Listed(inventory))
            }
            Ok(Outcome::Inspected(host, check)) => {
                let check = check.with_check_time(now);
                self.record_check(&host, check.clone());
                Ok(Outcome::Inspected(host, check))
            }
            Err(error) => match job {
                Job::Inspect(host) | Job::Probe(host) if !matches!(error, CloudError::NotFound(_)) => {
                    warn!(provider = %self.provider, %host, %error, "host check failed");
                    let check = HostCheck::Failed { at: now, reason: error.to_string() };
                    self.record_check(host, check.clone());
                    Ok(Outcome::Inspected(host.clone(), check))
                }
                Job::Refresh => {
                    self.record_unavailable(&error);
                    Err(error)
                }
                Job::Launch(_) => {
                    self.refresh_schedule.mark_stale(self.now());
                    Err(error)
                }
                Job::Delete(_)
                | Job::List
                | Job::ListServerIds
                | Job::Upload(_)
                | Job::DeleteImage(_)
                | Job::ListImages
                | Job::ListUnused(_)
                | Job::DeleteUnused(_)
                | Job::Console(_)
                | Job::Inspect(_)
                | Job::Probe(_) => Err(error),
            },
            Ok(
                outcome @ (Outcome::Launched(_)
                | Outcome::Deleted
                | Outcome::Alive(_)
                | Outcome::ServerIds(_)
                | Outcome::Console(_)
                | Outcome::Uploaded(_)
                | Outcome::Images(_)
                | Outcome::Unused(_)),
            ) => Ok(outcome),
        }
    }

    /// Records the instances that a listing shows ending.
    fn record_ending(&self, inventory: &Inventory) {
        let ending = inventory.ending(&self.provider);
        self.facts.send_if_modified(|facts| {
            let changes = facts.ending != ending;
            if changes {
                Arc::make_mut(facts).ending = ending;
            }
            changes
        });
    }

    pub(super) fn record_failed_queries(&mut self, queries: &[&str]) {
        let error = (!queries.is_empty()).then(|| format!("no answer to: {}", queries.join(", ")));
        if let Some(error) = error.as_ref().filter(|error| self.refresh_error.as_ref() != Some(error)) {
            warn!(provider = %self.provider, %error, "refresh incomplete");
        }
        self.refresh_error = error;
    }

    /// `Denied` makes a provider permanently unavailable. Other errors make it temporarily unavailable, and only before
    /// its first refresh.
    pub(super) fn record_unavailable(&mut self, error: &CloudError) {
        let text = error.to_string();
        if self.refresh_error.as_ref() != Some(&text) {
            warn!(provider = %self.provider, %error, "refresh failed");
        }
        let unavailable = match error {
            CloudError::Denied(reason) => Some(Unavailable::Permanent(reason.clone())),
            _ => (!self.has_refreshed()).then(|| Unavailable::Temporary(text.clone())),
        };
        self.refresh_error = Some(text);
        self.facts.send_if_modified(|facts| {
            let changes = unavailable.is_some() && facts.unavailable != unavailable;
            if changes {
                Arc::make_mut(facts).unavailable = unavailable;
            }
            changes
        });
    }

    /// Records the usage of leaked instances, which counts against the limits.
    pub fn set_leaked_usage(&self, leaked: Resources) {
        self.facts.send_modify(|facts| Arc::make_mut(facts).leaked = leaked);
    }

    pub fn drain(&mut self) {
        self.is_drained = true;
    }

    /// Ends the jobs that wait for a listing. The credentials of a drained provider do not change any more, so they
    /// would wait for ever; the provider that replaces it deletes what they leave.
    pub(super) fn end_observers(&mut self) {
        let is_observing = |running: &RunningTask<JobMachine<D>>| matches!(running.stage, Stage::Observing(..));
        let observing: Vec<TaskId> =
            self.tasks.iter().filter(|(_, running)| is_observing(running)).map(|(id, _)| *id).collect();
        for id in observing {
            if let Some(RunningTask { task, stage: Stage::Observing(machine, _) }) = self.tasks.remove(&id) {
                let detail = "the provider was replaced, and its credentials are refused".to_owned();
                let error = CloudError::Failed { kind: FailureKind::Nodepool, detail };
                self.finish(id, task, Err(error), machine.external_id());
            }
        }
    }

    pub(super) fn record_check(&self, host: &HostIdentity, check: HostCheck) {
        self.facts.send_modify(|facts| Arc::make_mut(facts).record_check(host, check));
    }
}
