//! Counters: calls by action, errors by code, created and deleted objects, launches per node.

use std::collections::BTreeMap;

use serde::Serialize;
use simulated_service::faults::FaultCounts;

use crate::region::tags::Tags;

#[derive(Default, Serialize)]
pub struct RunStats {
    /// All calls except those to `/sim`, including rejected and faulty ones.
    pub calls: u64,
    /// By service and action, for example `ec2 RunInstances`.
    calls_by_action: BTreeMap<String, u64>,
    pub errors_by_code: BTreeMap<String, u64>,
    pub throttled: u64,
    pub unauthorized: u64,
    /// Number of hits of each fault, in the order of the knob.
    pub faults_struck: FaultCounts,
    /// Calls with a known token that returned the result of an earlier call.
    pub tokens_repeated: u64,
    created: BTreeMap<&'static str, u64>,
    deleted: BTreeMap<&'static str, u64>,
    /// Launched instances by provider and node id.
    launches_by_node: BTreeMap<String, u64>,
    /// Instances launched for a node while another instance of this node was pending or running.
    pub double_launches: u64,
    pub instances_at_once_max: u64,
    #[serde(skip)]
    instances_at_once: u64,
    #[serde(skip)]
    present_by_node: BTreeMap<String, u64>,
}

impl RunStats {
    pub fn count_call(&mut self, service: &str, action: &str) {
        self.calls += 1;
        *self.calls_by_action.entry(format!("{service} {action}")).or_default() += 1;
    }

    pub fn created(&mut self, kind: &'static str) {
        *self.created.entry(kind).or_default() += 1;
    }

    pub fn deleted(&mut self, kind: &'static str) {
        *self.deleted.entry(kind).or_default() += 1;
    }

    pub fn instance_launched(&mut self, tags: &Tags) {
        self.instances_at_once += 1;
        self.instances_at_once_max = self.instances_at_once_max.max(self.instances_at_once);
        let Some(node) = node_key(tags) else { return };
        *self.launches_by_node.entry(node.clone()).or_default() += 1;
        let present = self.present_by_node.entry(node).or_default();
        *present += 1;
        if *present > 1 {
            self.double_launches += 1;
        }
    }

    /// Counts the end of an instance with these tags at its launch: they may have changed since.
    pub fn instance_ended(&mut self, tags: &Tags) {
        self.instances_at_once = self.instances_at_once.saturating_sub(1);
        if let Some(present) = node_key(tags).and_then(|node| self.present_by_node.get_mut(&node)) {
            *present = present.saturating_sub(1);
        }
    }
}

fn node_key(tags: &Tags) -> Option<String> {
    let node = tags.get("nodepool_node_id")?;
    let provider = tags.get("nodepool_provider_name").map(String::as_str).unwrap_or_default();
    Some(format!("{provider} {node}"))
}
