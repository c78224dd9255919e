//! Counters: calls by verb and resource, created and deleted objects, creations per node.

use std::collections::BTreeMap;

use serde::Serialize;
use simulated_service::faults::FaultCounts;

use crate::cluster::resources::Kind;
use crate::cluster::store::Object;

#[derive(Default, Serialize)]
pub struct RunStats {
    /// All calls to the API, including rejected and faulty ones.
    pub calls: u64,
    calls_by_kind: BTreeMap<String, u64>,
    pub throttled: u64,
    pub unauthorized: u64,
    /// Number of hits of each fault, in the order of the knob.
    pub faults_struck: FaultCounts,
    created: BTreeMap<&'static str, u64>,
    deleted: BTreeMap<&'static str, u64>,
    /// Maximum numbers of concurrent objects that have a node id.
    pub namespaces_at_once_max: u64,
    pub pods_at_once_max: u64,
    #[serde(skip)]
    at_once: BTreeMap<Kind, u64>,
    /// Created namespaces and pods by kind, provider and node id.
    creates_by_node: BTreeMap<String, u64>,
    /// Objects created for a node while another object of that kind and node existed.
    pub double_creates: u64,
    pub quota_refusals: u64,
    pub tokens_issued: u64,
    pub watches_open: u64,
    pub watches_started: u64,
    pub watches_gone: u64,
    #[serde(skip)]
    present_by_node: BTreeMap<String, u64>,
}

impl RunStats {
    pub fn count_call(&mut self, kind: String) {
        self.calls += 1;
        *self.calls_by_kind.entry(kind).or_default() += 1;
    }

    pub fn object_created(&mut self, object: &Object) {
        *self.created.entry(object.kind.resource().plural).or_default() += 1;
        let Some(node) = node_key(object) else { return };
        let at_once = self.at_once.entry(object.kind).or_default();
        *at_once += 1;
        match object.kind {
            Kind::Namespace => self.namespaces_at_once_max = self.namespaces_at_once_max.max(*at_once),
            _ => self.pods_at_once_max = self.pods_at_once_max.max(*at_once),
        }
        *self.creates_by_node.entry(node.clone()).or_default() += 1;
        let present = self.present_by_node.entry(node).or_default();
        *present += 1;
        if *present > 1 {
            self.double_creates += 1;
        }
    }

    /// Counts a deletion of an object as it was created: labels may have changed since.
    pub fn object_deleted(&mut self, object: &Object) {
        *self.deleted.entry(object.kind.resource().plural).or_default() += 1;
        let Some(node) = node_key(object) else { return };
        if let Some(at_once) = self.at_once.get_mut(&object.kind) {
            *at_once = at_once.saturating_sub(1);
        }
        if let Some(present) = self.present_by_node.get_mut(&node) {
            *present = present.saturating_sub(1);
        }
    }
}

/// Kind, provider and node id of a namespace or pod that has them as labels.
fn node_key(object: &Object) -> Option<String> {
    let is_counted = matches!(object.kind, Kind::Namespace | Kind::Pod);
    let node = object.label("nodepool_node_id").filter(|_| is_counted)?;
    let provider = object.label("nodepool_provider_name").unwrap_or_default();
    Some(format!("{} {provider} {node}", object.kind.resource().plural))
}
