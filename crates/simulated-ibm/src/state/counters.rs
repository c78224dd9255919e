//! Counters: calls by operation, errors by code, created and deleted resources, launches per node.

use std::collections::BTreeMap;

use serde::Serialize;
use simulated_service::faults::FaultCounts;

#[derive(Default, Serialize)]
pub struct RunStats {
    /// All calls except those to `/sim`, including rejected and faulty ones.
    pub calls: u64,
    /// By operation, for example `create_instance`.
    calls_by_action: BTreeMap<&'static str, u64>,
    pub errors_by_code: BTreeMap<String, u64>,
    pub throttled: u64,
    pub unauthorized: u64,
    /// Number of hits of each fault, in the order of the knob.
    pub faults_struck: FaultCounts,
    pub launch_faults_struck: FaultCounts,
    pub image_faults_struck: FaultCounts,
    /// Resources that calls or `/sim` created, by kind.
    created: BTreeMap<&'static str, u64>,
    /// Resources that no longer exist, by kind.
    deleted: BTreeMap<&'static str, u64>,
    /// Instances that did not start, by reason.
    pub launch_failures: BTreeMap<String, u64>,
    /// Volumes, floating IPs and instances that a knob left behind.
    pub left_behind: u64,
    /// Instances by provider and node id.
    launches_by_node: BTreeMap<String, u64>,
    /// Instances created for a node while another instance of this node existed.
    pub double_launches: u64,
    pub instances_at_once_max: u64,
    #[serde(skip)]
    present_by_node: BTreeMap<String, u64>,
    #[serde(skip)]
    pub floating_ip_creations: u64,
    /// Deletions of instances and of floating IPs, for the knobs that leave something behind.
    #[serde(skip)]
    pub instance_deletions: u64,
    #[serde(skip)]
    pub floating_ip_deletions: u64,
}

impl RunStats {
    pub fn count_call(&mut self, action: &'static str) {
        self.calls += 1;
        *self.calls_by_action.entry(if action.is_empty() { "unknown" } else { action }).or_default() += 1;
    }

    pub fn count_created(&mut self, kind: &'static str) {
        *self.created.entry(kind).or_default() += 1;
    }

    pub fn count_deleted(&mut self, kind: &'static str) {
        *self.deleted.entry(kind).or_default() += 1;
    }

    /// Counts the instance of a node; `present` is the number of all instances with it.
    pub fn instance_created(&mut self, node: Option<&str>, present: u64) {
        self.instances_at_once_max = self.instances_at_once_max.max(present);
        let Some(node) = node else { return };
        *self.launches_by_node.entry(node.to_owned()).or_default() += 1;
        let of_node = self.present_by_node.entry(node.to_owned()).or_default();
        *of_node += 1;
        if *of_node > 1 {
            self.double_launches += 1;
        }
    }

    pub fn instance_deleted(&mut self, node: Option<&str>) {
        if let Some(present) = node.and_then(|node| self.present_by_node.get_mut(node)) {
            *present = present.saturating_sub(1);
        }
    }
}
