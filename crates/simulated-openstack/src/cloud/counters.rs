//! Counters: calls by kind, created and deleted servers, creations per node.

use std::collections::BTreeMap;

use serde::Serialize;
use simulated_service::faults::FaultCounts;

use crate::call::{Call, Service};

#[derive(Default, Serialize)]
pub struct RunStats {
    /// All calls to services, including rejected and faulty ones.
    pub calls: u64,
    calls_by_kind: BTreeMap<Service, BTreeMap<String, u64>>,
    pub throttled: u64,
    /// Number of hits of each fault, in the order of the knob.
    pub faults_struck: FaultCounts,
    pub servers_created: u64,
    pub servers_left: u64,
    pub servers_at_once_max: u64,
    pub creates_by_node: BTreeMap<String, u64>,
    /// Servers created for a node while another server of that node existed.
    pub double_creates: u64,
    pub deletes_accepted: u64,
    pub quota_refusals: u64,
    pub images_uploaded: u64,
    pub bytes_uploaded: u64,
    pub tokens_issued: u64,
    #[serde(skip)]
    present_by_node: BTreeMap<String, u64>,
}

impl RunStats {
    pub fn count_call(&mut self, service: Service, call: &Call) {
        self.calls += 1;
        *self.calls_by_kind.entry(service).or_default().entry(call.kind()).or_default() += 1;
    }

    /// Counts a creation. `concurrent` is the number of existing servers, including this one.
    pub fn server_created(&mut self, node: Option<&str>, concurrent: u64) {
        self.servers_created += 1;
        self.servers_at_once_max = self.servers_at_once_max.max(concurrent);
        let Some(node) = node else { return };
        *self.creates_by_node.entry(node.to_owned()).or_default() += 1;
        let present = self.present_by_node.entry(node.to_owned()).or_default();
        *present += 1;
        if *present > 1 {
            self.double_creates += 1;
        }
    }

    pub fn server_deleted(&mut self, node: Option<&str>) {
        self.servers_left += 1;
        let Some(node) = node else { return };
        let present = self.present_by_node.get_mut(node).expect("a deleted server was counted at its creation");
        *present -= 1;
        if *present == 0 {
            self.present_by_node.remove(node);
        }
    }
}
