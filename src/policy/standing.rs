//! Nodes that exist without being launched (static hosts): which records to register, to bring up to date, to retire.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::cloud::{Facts, HostCheck, HostIdentity, StandingHost};
use crate::model::config::ProviderConfig;
use crate::model::ids::NodeId;
use crate::model::node::{Node, NodeState};
use crate::model::snapshot::{Snapshot, Stored};
use crate::model::time::Timestamp;
use serde_json::Value;

/// What the `launcher` of a static node's record says, whoever registered it.
pub const LAUNCHER: &str = "static driver";

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A slot without a record, of a host that passed its check.
    Register(Box<Node>),
    /// An idle node whose record does not say what the configuration and the last check say.
    Update { node: NodeId, version: i32, record: Box<Node> },
    /// An idle node too many, of an unknown host or of one that failed its check.
    Retire { node: NodeId, version: i32 },
    /// An empty slot whose host has to be checked before it is registered.
    Inspect(HostIdentity),
}

/// Records by slot: `slots[identity][slot]`; whatever has no place in the table is surplus.
struct Table<'a> {
    slots: BTreeMap<&'a HostIdentity, Vec<Option<&'a NodeId>>>,
    surplus: Vec<&'a NodeId>,
}

/// Everything there is to do for one provider. `freed` says when a slot of a host became free last: a check from
/// before that moment does not count for registering it again.
pub fn plan(
    provider: &ProviderConfig,
    facts: &Facts,
    snapshot: &Snapshot,
    freed: &BTreeMap<HostIdentity, Timestamp>,
    now: Timestamp,
) -> Vec<Step> {
    let table = table(provider, facts, snapshot);
    let mut steps = Vec::new();
    for host in &facts.standing {
        let slots = &table.slots[&host.identity];
        for (slot, node) in slots.iter().enumerate() {
            match node {
                Some(id) => steps.extend(keep(provider, host, slot, id, snapshot)),
                None => steps.extend(occupy(provider, host, slot, freed.get(&host.identity), now)),
            }
        }
    }
    for id in table.surplus {
        steps.extend(retire(id, snapshot));
    }
    // One check serves all slots of a host.
    let mut inspected = BTreeSet::new();
    steps.retain(|step| match step {
        Step::Inspect(identity) => inspected.insert(identity.clone()),
        _ => true,
    });
    steps
}

fn table<'a>(provider: &ProviderConfig, facts: &'a Facts, snapshot: &'a Snapshot) -> Table<'a> {
    let mut slots: BTreeMap<&HostIdentity, Vec<Option<&NodeId>>> =
        facts.standing.iter().map(|host| (&host.identity, vec![None; host.slots as usize])).collect();
    let (mut unslotted, mut surplus) = (Vec::new(), Vec::new());
    for (id, node) in snapshot.nodes_of(&provider.name) {
        let record = &node.record;
        // On its way out, or not there yet: neither occupies a slot.
        if matches!(record.state, NodeState::Deleting | NodeState::Deleted | NodeState::Building) {
            continue;
        }
        let known = identity_of(record).and_then(|identity| slots.get_mut(&identity));
        let Some(places) = known else {
            surplus.push(id);
            continue;
        };
        let place = record.slot.and_then(|slot| usize::try_from(slot).ok());
        match place.map(|place| places.get_mut(place)) {
            Some(Some(free @ None)) => *free = Some(id),
            // Twice the same slot, or beyond the end, or from a peer that knew no slots.
            _ => unslotted.push(id),
        }
    }
    for id in unslotted {
        let identity = snapshot.node(id).and_then(|node| identity_of(&node.record));
        let free =
            identity.as_ref().and_then(|identity| slots.get_mut(identity)?.iter_mut().find(|place| place.is_none()));
        match free {
            Some(place) => *place = Some(id),
            None => surplus.push(id),
        }
    }
    Table { slots, surplus }
}

/// The host a record stands for; `None` for one that names none.
pub fn identity_of(node: &Node) -> Option<HostIdentity> {
    Some(HostIdentity {
        name: node.hostname.clone()?,
        username: node.username.clone()?,
        port: u16::try_from(node.port()?).ok()?,
    })
}

fn occupy(
    provider: &ProviderConfig,
    host: &StandingHost,
    slot: usize,
    freed: Option<&Timestamp>,
    now: Timestamp,
) -> Option<Step> {
    let checked = match &host.check {
        HostCheck::NotNeeded { .. } => true,
        HostCheck::Passed { at, .. } => freed.is_none_or(|freed| at >= freed),
        HostCheck::Failed { .. } => return None, // The next survey or sweep tries again.
        HostCheck::Pending => return None,       // The first survey is under way.
    };
    if !checked {
        return Some(Step::Inspect(host.identity.clone()));
    }
    let mut node = Node::new(NodeState::Ready, now);
    node.slot = Some(slot as i64);
    describe(&mut node, provider, host);
    Some(Step::Register(Box::new(node)))
}

/// The record says the slot it fills: one from a peer that knew no slots, or the second of two that were registered at
/// once, is told its place.
fn keep(provider: &ProviderConfig, host: &StandingHost, slot: usize, id: &NodeId, snapshot: &Snapshot) -> Option<Step> {
    let node = snapshot.node(id)?;
    if !node.record.is_idle() || snapshot.is_node_locked(id) {
        return None;
    }
    if matches!(host.check, HostCheck::Failed { .. }) {
        return retire(id, snapshot);
    }
    if !host.check.is_good() {
        return None;
    }
    let mut record = Node::clone(&node.record);
    record.slot = Some(slot as i64);
    describe(&mut record, provider, host);
    (record != *node.record).then(|| Step::Update { node: id.clone(), version: node.version, record: Box::new(record) })
}

fn retire(id: &NodeId, snapshot: &Snapshot) -> Option<Step> {
    let node: &Stored<Node> = snapshot.node(id)?;
    (node.record.is_idle() && !snapshot.is_node_locked(id))
        .then(|| Step::Retire { node: id.clone(), version: node.version })
}

/// What configuration and check say about a node of this host.
fn describe(node: &mut Node, provider: &ProviderConfig, host: &StandingHost) {
    let identity = &host.identity;
    node.provider = Some(provider.name.clone());
    node.pool = Some(host.pool.clone());
    node.launcher = Some(LAUNCHER.to_owned());
    node.labels = host.labels.clone();
    node.external_id = Value::from(identity.name.clone());
    node.hostname = Some(identity.name.clone());
    node.interface_ip = Some(identity.name.clone());
    node.username = Some(identity.username.clone());
    node.connection_port = Value::from(identity.port);
    node.connection_type = Some(host.connection_type.clone());
    node.python_path = Some(host.python_path.clone());
    node.shell_type = host.shell_type.clone();
    node.host_keys = host.host_keys().unwrap_or_default().to_vec();
    match host.address() {
        Some(std::net::IpAddr::V4(address)) => node.public_ipv4 = Some(address.to_string()),
        Some(std::net::IpAddr::V6(address)) => node.public_ipv6 = Some(address.to_string()),
        None => {}
    }
    node.attributes =
        provider.pools.get(&host.pool).and_then(|pool| pool.node_attributes.clone()).unwrap_or(Value::Null);
}
