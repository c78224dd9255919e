//! Inputs of a scheduling pass: the pool, its static hosts, and the capacity that is already reserved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::tenant_usage::TenantUsage;
use nodepool_driver::facts::ProviderFacts;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::{LabelName, LauncherId, NodeId, PoolId};
use nodepool_model::records::node::Node;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::static_host::HostIdentity;

/// How one node of a request is provided.
#[derive(Clone, Debug, PartialEq)]
pub enum Placement {
    ReuseIdle(NodeId),
    LaunchNew(LabelName),
}

/// The pool that runs the pass.
pub struct PoolContext<'a> {
    pub id: &'a PoolId,
    pub launcher: &'a LauncherId,
    pub provider: &'a ProviderConfig,
    pub pool: &'a PoolConfig,
    pub hosts: &'a StaticHostIndex,
}

/// Reserved capacity: nodes of fulfilments in flight, and the reservations of requests of higher rank.
#[derive(Clone, Debug, Default)]
pub struct Reservations {
    nodes: BTreeMap<NodeId, Vec<LabelName>>,
    assigned: BTreeMap<LabelName, usize>,
    reserved: BTreeMap<LabelName, usize>,
    pub tenants: TenantUsage,
    /// Resources reserved by waiting requests of higher rank, of the limits of provider and pool.
    pub reserved_resources: Resources,
    /// Resources of nodes that are being created and are not in the snapshot yet.
    pub pending_launches: Resources,
    /// The node of each label that was assigned last, so that the hosts are used in turn.
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

    /// A pass computes the reservations again.
    pub fn begin_pass(&mut self, pending_launches: Resources) {
        self.reserved.clear();
        self.tenants.clear();
        self.reserved_resources = Resources::none();
        self.pending_launches = pending_launches;
    }

    /// Reserves an amount of the limits against requests of lower rank.
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

/// The static hosts of one pool, indexed for decisions; built again when the provider facts change.
#[derive(Clone, Debug)]
pub struct StaticHostIndex {
    pub facts: Arc<ProviderFacts>,
    /// Slots per label: configured, and on hosts that may serve.
    slots: BTreeMap<LabelName, (usize, usize)>,
    /// Whether a host needs a successful probe before each fulfilment.
    probed: BTreeMap<HostIdentity, bool>,
    /// Hosts that failed their check.
    dead: BTreeSet<HostIdentity>,
}

impl StaticHostIndex {
    pub fn new(facts: Arc<ProviderFacts>, id: &PoolId) -> Self {
        let (mut slots, mut probed) = (BTreeMap::<_, (usize, usize)>::new(), BTreeMap::new());
        let mut dead = BTreeSet::new();
        for host in facts.static_hosts.iter().filter(|host| host.pool == id.pool) {
            probed.insert(host.identity.clone(), host.host_key_checking);
            if !host.may_serve() {
                dead.insert(host.identity.clone());
            }
            for label in &host.labels {
                let entry = slots.entry(label.clone()).or_default();
                entry.0 += host.slots as usize;
                entry.1 += if host.may_serve() { host.slots as usize } else { 0 };
            }
        }
        Self { facts, slots, probed, dead }
    }

    pub fn is_built_from(&self, facts: &Arc<ProviderFacts>) -> bool {
        Arc::ptr_eq(&self.facts, facts)
    }

    /// The static host of a node, if the pool still has it.
    pub fn identity(&self, node: &Node) -> Option<HostIdentity> {
        let identity = HostIdentity {
            name: node.hostname.clone()?,
            username: node.username.clone()?,
            port: u16::try_from(node.port()?).ok()?,
        };
        self.probed.contains_key(&identity).then_some(identity)
    }

    pub fn is_probed(&self, identity: &HostIdentity) -> bool {
        self.probed.get(identity).copied().unwrap_or(true)
    }

    /// Whether the host is already known to be dead, so that a probe is pointless.
    pub fn is_dead(&self, identity: &HostIdentity) -> bool {
        self.dead.contains(identity)
    }

    pub fn configured(&self, label: &LabelName) -> usize {
        self.slots.get(label).map_or(0, |slots| slots.0)
    }

    pub fn usable(&self, label: &LabelName) -> usize {
        self.slots.get(label).map_or(0, |slots| slots.1)
    }

    pub fn launches(&self) -> bool {
        self.facts.launch_config.is_some()
    }
}
