//! Capacity that a scheduling pass may not use: assigned nodes, and the capacity that requests of higher rank have
//! reserved.

use std::collections::{BTreeMap, BTreeSet};

use super::tenant_usage::TenantUsage;
use nodepool_model::records::ids::{LabelName, NodeId};
use nodepool_model::records::node::Node;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::static_host::HostIdentity;

/// Reserved capacity: nodes of fulfilments in flight, and the reservations of requests of higher rank.
#[derive(Clone, Debug, Default)]
pub struct Reservations {
    nodes: BTreeMap<NodeId, Vec<LabelName>>,
    assigned: BTreeMap<LabelName, usize>,
    reserved: BTreeMap<LabelName, usize>,
    pub tenants: TenantUsage,
    /// Part of the limits of provider and pool that waiting requests of higher rank have reserved.
    pub reserved_resources: Resources,
    /// Resources of nodes that are being created and are not in the snapshot yet.
    pub pending_launches: Resources,
    /// Static hosts that are being probed, or failed a probe recently: their nodes are assigned last.
    pub doubtful_hosts: BTreeSet<HostIdentity>,
    /// The last assigned node of each label, so that the hosts are used in turn.
    pub last_assigned: BTreeMap<LabelName, NodeId>,
}

impl Reservations {
    pub fn assign(&mut self, id: &NodeId, node: &Node) {
        if self.nodes.insert(id.clone(), node.labels.clone()).is_none() {
            for label in &node.labels {
                *self.assigned.entry(label.clone()).or_insert(0) += 1;
                self.last_assigned.insert(label.clone(), id.clone());
            }
        }
    }

    pub fn release(&mut self, id: &NodeId) {
        for label in self.nodes.remove(id).unwrap_or_default() {
            if let Some(count) = self.assigned.get_mut(&label) {
                *count -= 1;
            }
        }
    }

    pub fn is_assigned(&self, id: &NodeId) -> bool {
        self.nodes.contains_key(id)
    }

    /// Starts a pass, which computes the reservations again.
    pub fn begin_pass(&mut self, pending_launches: Resources) {
        self.reserved.clear();
        self.tenants.clear();
        self.reserved_resources = Resources::none();
        self.pending_launches = pending_launches;
    }

    /// Reserves an amount of a resource within the limits against requests of lower rank.
    pub fn reserve_resource(&mut self, resource: &str, amount: f64) {
        self.reserved_resources.add(&Resources::none().with(resource, amount));
    }

    /// Adds the need of an accepted request's new nodes.
    pub fn add_pending_launch(&mut self, need: &Resources) {
        self.pending_launches.add(need);
    }

    /// Reserves idle nodes of a label against requests of lower rank.
    pub fn reserve(&mut self, label: &LabelName, count: usize) {
        *self.reserved.entry(label.clone()).or_insert(0) += count;
    }

    pub fn reserved(&self, label: &LabelName) -> usize {
        self.reserved.get(label).copied().unwrap_or(0)
    }

    pub fn assigned(&self, label: &LabelName) -> usize {
        self.assigned.get(label).copied().unwrap_or(0)
    }
}
