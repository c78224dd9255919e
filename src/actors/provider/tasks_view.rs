//! What a dump shows of a provider's jobs.

use std::collections::BTreeMap;

use serde::Serialize;

use nodepool_driver::facts::ProviderFacts;
use nodepool_model::records::static_host::HostCheck;
use nodepool_policy::provider::task_queue::QueueLengths;

/// Jobs and hosts shown in a dump; a provider with more of them is described well enough by the first.
pub(super) const MAX_SHOWN: usize = 50;

/// What a dump shows of them.
#[derive(Serialize)]
pub struct TasksView {
    pub(super) in_flight: Vec<CallView>,
    pub(super) queued: QueueLengths,
    pub(super) tasks: usize,
    pub(super) jobs: Vec<JobView>,
    /// `null` before the first survey.
    pub(super) facts_age_s: Option<f64>,
    pub(super) survey_error: Option<String>,
    pub(super) listing_error: Option<String>,
    pub(super) hosts: usize,
    pub(super) hosts_failed: BTreeMap<String, String>,
}

#[derive(Serialize)]
pub(super) struct CallView {
    pub(super) call: &'static str,
    pub(super) for_s: f64,
}

#[derive(Serialize)]
pub(super) struct JobView {
    pub(super) job: &'static str,
    pub(super) step: &'static str,
    pub(super) for_s: f64,
}

pub(super) fn failed_hosts(facts: &ProviderFacts) -> BTreeMap<String, String> {
    let failed = facts.static_hosts.iter().filter_map(|host| match &host.check {
        HostCheck::Failed { reason, .. } => Some((host.identity.to_string(), reason.clone())),
        HostCheck::Pending | HostCheck::NotNeeded { .. } | HostCheck::Passed { .. } => None,
    });
    failed.take(MAX_SHOWN).collect()
}
