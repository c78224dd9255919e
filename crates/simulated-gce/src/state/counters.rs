//! Counters: calls by method, errors by reason, created and deleted instances, operations, launches per node.

use std::collections::BTreeMap;

use serde::Serialize;
use simulated_service::faults::FaultCounts;

#[derive(Default, Serialize)]
pub struct RunStats {
    /// All calls except those to `/sim`, including rejected and faulty ones.
    pub calls: u64,
    /// By method of the API, for example `instances.insert`.
    calls_by_action: BTreeMap<&'static str, u64>,
    pub errors_by_reason: BTreeMap<String, u64>,
    pub throttled: u64,
    pub unauthorized: u64,
    /// Number of hits of each fault, in the order of the knob.
    pub faults_struck: FaultCounts,
    pub operation_faults_struck: FaultCounts,
    /// Calls with the id of an earlier request that returned its operation.
    pub requests_repeated: u64,
    /// Instances that inserts have created. Inserts that failed are not counted.
    pub created: u64,
    /// Instances that no longer exist, by any cause.
    pub deleted: u64,
    pub preempted: u64,
    /// All operations.
    pub operations: u64,
    /// Operations that ended with an error, by code.
    pub operation_errors: BTreeMap<String, u64>,
    /// Instances of inserts by provider and node id.
    launches_by_node: BTreeMap<String, u64>,
    /// Instances inserted for a node while another instance of this node existed.
    pub double_launches: u64,
    pub instances_at_once_max: u64,
    #[serde(skip)]
    instances_at_once: u64,
    #[serde(skip)]
    present_by_node: BTreeMap<String, u64>,
}

impl RunStats {
    pub fn count_call(&mut self, action: &'static str) {
        self.calls += 1;
        *self.calls_by_action.entry(if action.is_empty() { "unknown" } else { action }).or_default() += 1;
    }

    /// Counts an instance, and its node if an insert created it.
    pub fn instance_created(&mut self, node: Option<&str>) {
        self.created += 1;
        self.instances_at_once += 1;
        self.instances_at_once_max = self.instances_at_once_max.max(self.instances_at_once);
        let Some(node) = node else { return };
        *self.launches_by_node.entry(node.to_owned()).or_default() += 1;
        let present = self.present_by_node.entry(node.to_owned()).or_default();
        *present += 1;
        if *present > 1 {
            self.double_launches += 1;
        }
    }

    pub fn instance_deleted(&mut self, node: Option<&str>) {
        self.deleted += 1;
        self.instances_at_once = self.instances_at_once.saturating_sub(1);
        if let Some(present) = node.and_then(|node| self.present_by_node.get_mut(node)) {
            *present = present.saturating_sub(1);
        }
    }
}
