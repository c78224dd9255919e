//! View of a provider's jobs for state dumps.

use std::collections::BTreeMap;

use serde::Serialize;

use nodepool_driver::facts::ProviderFacts;
use nodepool_model::records::static_host::HostCheck;
use nodepool_policy::provider::task_queue::QueueLengths;

/// Maximum number of jobs and of hosts in a dump. If a provider has more, the first ones are sufficient.
pub(super) const MAX_SHOWN: usize = 50;

/// A provider's jobs, calls and hosts in a dump.
#[derive(Serialize)]
pub struct TasksView {
    pub(super) in_flight: Vec<CallView>,
    pub(super) queued: QueueLengths,
    pub(super) tasks: usize,
    pub(super) jobs: Vec<JobView>,
    /// `null` before the first refresh.
    pub(super) facts_age_s: Option<f64>,
    pub(super) refresh_error: Option<String>,
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
