//! Cleanup of unused resources that carry no metadata of Nodepool: floating IPs and ports.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::records::time::Seconds;

/// Kinds of unused resources that are deleted although they carry no metadata of Nodepool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct UnusedResourcePolicy {
    pub floating_ips: bool,
    /// Deletes ports that are unused in two checks this far apart.
    pub ports: Option<Seconds>,
}

/// Whether a cleanup deletes unused resources or only reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CleanMode {
    /// Deletes all unused resources of a kind if they are at most this many, else none of them.
    Delete { budget: usize },
    /// Reports all resources that would be deleted, in any number.
    DryRun,
}

/// Result of a cleanup, by the plural name of the resource in metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CleanReport {
    pub deleted: BTreeMap<&'static str, usize>,
    /// Numbers above the budget; none of these were deleted.
    pub exceeded: BTreeMap<&'static str, usize>,
    /// Ids of all unused resources, in a dry run.
    pub unused: BTreeMap<&'static str, Vec<String>>,
    /// Kinds that could not be listed or deleted completely, with the first error.
    pub failed: BTreeMap<&'static str, String>,
}
