//! Inputs of a scheduling pass: the pool and its static hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodepool_driver::facts::ProviderFacts;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::{LabelName, LauncherId, NodeId, PoolId};
use nodepool_model::records::node::Node;
use nodepool_model::records::static_host::HostIdentity;

/// Source of one node of a request: an idle node, or a new one.
#[derive(Clone, Debug, PartialEq)]
pub enum Placement {
    ReuseIdle(NodeId),
    LaunchNew(LabelName),
}

impl Placement {
    pub fn is_launch(&self) -> bool {
        matches!(self, Placement::LaunchNew(_))
    }
}

/// The pool that runs the pass.
pub struct PoolContext<'a> {
    pub id: &'a PoolId,
    pub launcher: &'a LauncherId,
    pub provider: &'a ProviderConfig,
    pub pool: &'a PoolConfig,
    pub hosts: &'a StaticHostIndex,
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
        let identity = HostIdentity::of(node)?;
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
