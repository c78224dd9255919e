//! Launch: what happens while the cloud takes no launches, because it is full or does not respond.

use std::sync::Arc;

use serde::Serialize;

use super::{Launch, LaunchEffect, LaunchOutcome, Stage};
use nodepool_driver::error::FailureKind;
use nodepool_driver::job::Job;
use nodepool_model::records::time::MonotonicTime;

/// Consequence of a refusal by a full cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnRefusal {
    /// The node is aborted.
    Abort,
    /// The launch is a probe: its node waits for the next one.
    Suspend,
}

/// Reason why a launch is suspended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Suspension {
    Outage(String),
    Refused(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ScanStage {
    Running,
    /// An outage began during the scan, so its failure shows nothing about the node.
    Doubtful,
    /// The scan failed during an outage; another one follows.
    Due,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AfterUnwinding {
    NextAttempt,
    Suspend(String),
}

impl Launch {
    /// The cloud is full. An instance that it created nevertheless is deleted first.
    pub(super) fn refused(&mut self, text: String, now: MonotonicTime) -> Vec<LaunchEffect> {
        match (self.on_refusal, self.external_id.clone()) {
            (OnRefusal::Abort, _) => self.aborted(text, now),
            (OnRefusal::Suspend, None) => {
                self.stage = Stage::Suspended(Suspension::Refused(text));
                Vec::new()
            }
            (OnRefusal::Suspend, Some(id)) => {
                self.stage = Stage::Unwinding { since: now, retry_at: None, next: AfterUnwinding::Suspend(text) };
                vec![LaunchEffect::Submit(Job::Delete(id))]
            }
        }
    }

    pub(super) fn aborted(&mut self, text: String, now: MonotonicTime) -> Vec<LaunchEffect> {
        self.stage = Stage::Finished;
        vec![self.report(FailureKind::Quota.statsd_suffix(), now), LaunchEffect::Finished(LaunchOutcome::Aborted(text))]
    }

    /// The next job continues with the instance, or searches for one that may exist.
    pub(super) fn suspend_for_outage(
        &mut self,
        detail: String,
        may_have_worked: bool,
        now: MonotonicTime,
    ) -> Vec<LaunchEffect> {
        self.outage_since.get_or_insert(now);
        let order = Arc::make_mut(&mut self.order);
        if self.external_id.is_some() {
            order.prior_instance = self.external_id.clone();
        } else {
            order.may_exist |= may_have_worked;
            order.may_appear |= may_have_worked;
        }
        self.stage = Stage::Suspended(Suspension::Outage(detail));
        Vec::new()
    }

    pub(super) fn outage_began(&mut self, now: MonotonicTime) -> Vec<LaunchEffect> {
        self.outage_since.get_or_insert(now);
        if let Stage::Scanning(_, stage) = &mut self.stage {
            *stage = ScanStage::Doubtful;
        }
        Vec::new()
    }

    /// The clocks of timeouts go on, and so does a suspended launch.
    pub(super) fn outage_ended(&mut self, now: MonotonicTime) -> Vec<LaunchEffect> {
        if let Some(began) = self.outage_since.take() {
            let met = |since: MonotonicTime| since + (now - began.max(since));
            self.attempt_started_at = met(self.attempt_started_at);
            if let Stage::Unwinding { since, .. } = &mut self.stage {
                *since = met(*since);
            }
        }
        match &self.stage {
            Stage::Suspended(Suspension::Outage(_)) => self.submit(),
            Stage::Scanning(instance, ScanStage::Due) => self.scan_again(instance.clone()),
            _ => Vec::new(),
        }
    }

    pub(super) fn probe(&mut self, now: MonotonicTime) -> Vec<LaunchEffect> {
        if !matches!(self.stage, Stage::Suspended(Suspension::Refused(_))) {
            return Vec::new();
        }
        self.attempt_started_at = now;
        self.submit()
    }

    pub(super) fn give_up(&mut self, now: MonotonicTime) -> Vec<LaunchEffect> {
        match &self.stage {
            Stage::Suspended(Suspension::Refused(text)) => self.aborted(text.clone(), now),
            Stage::Suspended(Suspension::Outage(text)) => {
                let outcome = LaunchOutcome::Aborted(text.clone());
                self.stage = Stage::Finished;
                vec![LaunchEffect::Finished(outcome)]
            }
            _ => Vec::new(),
        }
    }
}
