//! Counters: calls by action, errors by code, created and deleted resources, creations per node.

use std::collections::BTreeMap;

use serde::Serialize;
use simulated_service::faults::FaultCounts;

use crate::cloud::resources::Tags;

#[derive(Default, Serialize)]
pub struct RunStats {
    /// All calls except those to `/sim`, including rejected and faulty ones.
    pub calls: u64,
    /// By action, for example `vm.create`.
    calls_by_action: BTreeMap<String, u64>,
    pub errors_by_code: BTreeMap<String, u64>,
    /// Failed operations by the code of their error.
    pub failures_by_code: BTreeMap<String, u64>,
    pub throttled: u64,
    pub unauthorized: u64,
    /// Number of hits of each fault, in the order of the knob.
    pub faults_struck: FaultCounts,
    pub pages_written: u64,
    created: BTreeMap<&'static str, u64>,
    deleted: BTreeMap<&'static str, u64>,
    /// Created virtual machines by provider and node id.
    creations_by_node: BTreeMap<String, u64>,
    /// Virtual machines created for a node while another one of this node existed.
    pub double_creations: u64,
    pub vms_at_once_max: u64,
    #[serde(skip)]
    vms_at_once: u64,
    #[serde(skip)]
    present_by_node: BTreeMap<String, u64>,
}

impl RunStats {
    pub fn count_call(&mut self, action: &str) {
        self.calls += 1;
        match self.calls_by_action.get_mut(action) {
            Some(count) => *count += 1,
            None => drop(self.calls_by_action.insert(action.to_owned(), 1)),
        }
    }

    pub fn created(&mut self, kind: &'static str) {
        *self.created.entry(kind).or_default() += 1;
    }

    pub fn deleted(&mut self, kind: &'static str) {
        *self.deleted.entry(kind).or_default() += 1;
    }

    pub fn vm_created(&mut self, tags: &Tags) {
        self.vms_at_once += 1;
        self.vms_at_once_max = self.vms_at_once_max.max(self.vms_at_once);
        let Some(node) = node_key(tags) else { return };
        *self.creations_by_node.entry(node.clone()).or_default() += 1;
        let present = self.present_by_node.entry(node).or_default();
        *present += 1;
        if *present > 1 {
            self.double_creations += 1;
        }
    }

    pub fn vm_ended(&mut self, tags: &Tags) {
        self.vms_at_once = self.vms_at_once.saturating_sub(1);
        if let Some(present) = node_key(tags).and_then(|node| self.present_by_node.get_mut(&node)) {
            *present = present.saturating_sub(1);
        }
    }
}

fn node_key(tags: &Tags) -> Option<String> {
    let text = |tag: &str| tags.get(tag).and_then(|value| value.as_str());
    let node = text("nodepool_node_id")?;
    Some(format!("{} {node}", text("nodepool_provider_name").unwrap_or_default()))
}
