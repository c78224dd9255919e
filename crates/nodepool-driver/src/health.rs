//! Health of a provider's cloud: whether it responds, and whether it takes launches. Part of the provider facts.

use std::collections::BTreeMap;

use serde::Serialize;

use nodepool_model::records::ids::LabelName;
use nodepool_model::records::time::Timestamp;

/// Health of a cloud, according to its last responses.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CloudHealth {
    /// No launch begins, and running launches, deletions and other calls wait.
    pub outage: Option<Outage>,
    /// The cloud refuses launches, whatever their label.
    pub full: Option<Refusal>,
    /// The cloud refuses what only these labels need.
    pub full_labels: BTreeMap<LabelName, Refusal>,
}

/// The cloud does not respond.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outage {
    pub since: Timestamp,
    pub error: String,
}

/// The cloud refuses launches because a quota is exceeded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refusal {
    pub since: Timestamp,
    /// The cloud's own words.
    pub reason: String,
    /// Maximum number of undecided launches at a time: 0 until the next probe is due, then 1, and more after each
    /// success.
    pub window: usize,
    pub decided_by: Decision,
    /// Number of launches accepted since the refusal. A change wakes the pools.
    pub accepted: u64,
}

/// The event that decides whether the cloud has capacity for a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The response to its creation.
    Creation,
    /// Its end: the cloud creates instances, and refuses them later.
    Ready,
}

impl CloudHealth {
    /// Outage and refusals in words, each with its beginning.
    pub fn conditions(&self) -> Vec<(Timestamp, String)> {
        let outage =
            self.outage.iter().map(|outage| (outage.since, format!("the cloud does not respond: {}", outage.error)));
        let full = self.full.iter().map(|full| (full.since, format!("the cloud refuses new nodes: {}", full.reason)));
        let of_labels = self.full_labels.iter().map(|(label, full)| {
            (full.since, format!("the cloud refuses new nodes of label {label}: {}", full.reason))
        });
        outage.chain(full).chain(of_labels).collect()
    }

    /// Refusals that apply to a label.
    pub fn refusals(&self, label: &LabelName) -> impl Iterator<Item = (Option<&LabelName>, &Refusal)> {
        let of_label = self.full_labels.get_key_value(label).map(|(label, refusal)| (Some(label), refusal));
        self.full.iter().map(|refusal| (None, refusal)).chain(of_label)
    }
}
