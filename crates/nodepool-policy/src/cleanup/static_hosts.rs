//! Static hosts: plan of the node records to register, update and retire. These nodes exist without a launch.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::slots::{FreeSlots, NodeRef};
use crate::inputs::Inputs;
use nodepool_driver::facts::ProviderFacts;
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::ids::{ExternalId, NodeId, ProviderName};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::static_host::{HostCheck, HostIdentity, StaticHost};
use nodepool_model::snapshot::Snapshot;
use serde_json::Value;

/// `launcher` in the record of a static node, whichever launcher registered it.
pub const LAUNCHER: &str = "static driver";

#[derive(Clone, Debug, PartialEq)]
pub enum StaticHostAction {
    /// A slot without a record, on a host that passed its check.
    Register(Box<Node>),
    /// An idle node whose record differs from the configuration or the last check.
    Update { node: NodeId, version: i32, record: Box<Node> },
    /// A surplus idle node, or one of an unknown or failed host.
    Retire { node: NodeId, version: i32 },
    /// An empty slot whose host must be checked before a node is registered.
    Inspect(HostIdentity),
}

/// Name, user and port of a host, borrowed: a plan for thousands of nodes copies none of them.
type Key<'a> = (&'a str, &'a str, u16);

/// Records by slot: `slots[host][slot]`; records without a slot in the table are surplus.
pub struct SlotTable<'a> {
    slots: HashMap<Key<'a>, Vec<Option<NodeRef<'a>>>>,
    surplus: Vec<NodeRef<'a>>,
}

/// All actions for one provider, produced lazily: among a hundred thousand slots, only few actions are started at a
/// time.
pub fn plan<'a>(
    provider: &'a ProviderConfig,
    facts: &'a ProviderFacts,
    table: SlotTable<'a>,
    free_slots: &'a FreeSlots,
    inputs: &'a Inputs<'a>,
) -> impl Iterator<Item = StaticHostAction> + 'a {
    let SlotTable { mut slots, surplus } = table;
    let slot_actions = facts.static_hosts.iter().flat_map(move |host| {
        let slots = slots.remove(&key_of_host(host)).unwrap_or_default();
        slots.into_iter().enumerate().filter_map(move |(slot, node)| match node {
            Some(entry) => update_action(provider, host, slot, entry, inputs.snapshot),
            None => fill_action(provider, host, slot, free_slots, inputs),
        })
    });
    let surplus = surplus.into_iter().filter_map(move |entry| retire_action(entry, inputs.snapshot));
    // One check serves all slots of a host.
    let mut inspected = BTreeSet::new();
    slot_actions.chain(surplus).filter(move |action| match action {
        StaticHostAction::Inspect(identity) => inspected.insert(identity.clone()),
        _ => true,
    })
}

impl<'a> SlotTable<'a> {
    pub fn slots_of(&self, host: &'a StaticHost) -> &[Option<NodeRef<'a>>] {
        self.slots.get(&key_of_host(host)).map_or(&[], Vec::as_slice)
    }

    /// Assigns each record its own slot, then the remaining records any free slot.
    fn assign_slots(&mut self, entries: Vec<NodeRef<'a>>) {
        let mut unslotted = Vec::new();
        for entry in entries {
            let record = &entry.1.record;
            let Some(slots) = key_of(record).and_then(|key| self.slots.get_mut(&key)) else {
                self.surplus.push(entry);
                continue;
            };
            let slot = record.slot.and_then(|slot| usize::try_from(slot).ok());
            match slot.map(|slot| slots.get_mut(slot)) {
                Some(Some(free @ None)) => *free = Some(entry),
                // The slot is taken or out of range, or a peer without slots wrote the record.
                _ => unslotted.push(entry),
            }
        }
        for entry in unslotted {
            let slots = key_of(&entry.1.record).and_then(|key| self.slots.get_mut(&key));
            match slots.and_then(|slots| slots.iter_mut().find(|slot| slot.is_none())) {
                Some(slot) => *slot = Some(entry),
                None => self.surplus.push(entry),
            }
        }
    }
}

/// Assigns nodes to slots. Nodes in use come first: an idle node in the slot of a node in use would be assigned to a
/// request, and overload the host.
pub fn slot_table<'a>(provider: &ProviderConfig, facts: &'a ProviderFacts, snapshot: &'a Snapshot) -> SlotTable<'a> {
    let slots = facts.static_hosts.iter().map(|host| (key_of_host(host), vec![None; host.slots as usize])).collect();
    let mut slot_table = SlotTable { slots, surplus: Vec::new() };
    // Nodes being deleted, or not ready yet, occupy no slot.
    let is_outside_slots =
        |node: &Node| matches!(node.state, NodeState::Deleting | NodeState::Deleted | NodeState::Building);
    let nodes = snapshot
        .nodes_of(&provider.name)
        .filter(|(_, node)| !is_outside_slots(&node.record) && !is_launched(&node.record));
    let (idle, in_use): (Vec<_>, Vec<_>) = nodes.partition(|(_, node)| node.record.is_idle());
    slot_table.assign_slots(in_use);
    slot_table.assign_slots(idle);
    slot_table
}

fn key_of_host(host: &StaticHost) -> Key<'_> {
    (&host.identity.name, &host.identity.username, host.identity.port)
}

fn key_of(node: &Node) -> Option<Key<'_>> {
    Some((node.hostname.as_deref()?, node.username.as_deref()?, u16::try_from(node.port()?).ok()?))
}

/// The host of a record; `None` if it names none.
pub fn identity_of(node: &Node) -> Option<HostIdentity> {
    let (name, username, port) = key_of(node)?;
    Some(HostIdentity { name: name.to_owned(), username: username.to_owned(), port })
}

/// Whether a node of a static provider is a server that the provider's previous driver launched. The static driver
/// cannot delete it, and its record is the only trace of it.
pub fn is_launched(node: &Node) -> bool {
    node.launcher.as_deref() != Some(LAUNCHER) && ExternalId::of(&node.external_id).is_some()
}

/// All launched nodes of static providers.
pub fn launched_nodes<'a>(inputs: &'a Inputs<'_>) -> impl Iterator<Item = (&'a ProviderName, &'a NodeId)> + 'a {
    let of_hosts = inputs.facts.iter().filter(|(_, facts)| facts.launch_config.is_none());
    of_hosts.flat_map(|(provider, _)| {
        let launched = inputs.snapshot.nodes_of(provider).filter(|(_, node)| is_launched(&node.record));
        launched.map(move |(id, _)| (provider, id))
    })
}

fn fill_action(
    provider: &ProviderConfig,
    host: &StaticHost,
    slot: usize,
    free_slots: &FreeSlots,
    inputs: &Inputs<'_>,
) -> Option<StaticHostAction> {
    let checked = match &host.check {
        HostCheck::NotNeeded { .. } => true,
        // A check in the future was made before the wall clock was set back.
        HostCheck::Passed { at, .. } => {
            free_slots.freed(&host.identity).is_none_or(|freed| *at >= freed && *at <= inputs.now)
        }
        HostCheck::Failed { .. } => return None, // The next refresh or sweep retries.
        HostCheck::Pending => return None,       // The first refresh is in progress.
    };
    let cooldown_until = free_slots.cooldown_until(&host.identity, slot);
    if cooldown_until.is_some_and(|until| until > inputs.monotonic_now) {
        return None;
    }
    if cooldown_until.is_some() || !checked {
        return Some(StaticHostAction::Inspect(host.identity.clone()));
    }
    let mut node = Node::new(NodeState::Ready, inputs.now);
    node.slot = Some(slot as i64);
    describe(&mut node, provider, host);
    Some(StaticHostAction::Register(Box::new(node)))
}

/// Updates the record of an idle node, or retires it if its host failed its check. The recorded slot is missing if a
/// peer without slots wrote the record. It is wrong if two records were registered for one slot at once.
fn update_action(
    provider: &ProviderConfig,
    host: &StaticHost,
    slot: usize,
    (id, node): NodeRef<'_>,
    snapshot: &Snapshot,
) -> Option<StaticHostAction> {
    if !node.record.is_idle() || snapshot.is_node_locked(id) {
        return None;
    }
    if let HostCheck::Failed { at, .. } = &host.check {
        // Another launcher that registered the node since then has reached the host.
        let is_older = node.record.created_time.is_none_or(|created| created <= *at);
        return (is_older && !host.may_serve()).then(|| retire_action((id, node), snapshot)).flatten();
    }
    let slot = Some(slot as i64);
    if !host.check.is_good() || (node.record.slot == slot && is_described(&node.record, provider, host)) {
        return None;
    }
    let mut record = Node::clone(&node.record);
    record.slot = slot;
    describe(&mut record, provider, host);
    Some(StaticHostAction::Update { node: id.clone(), version: node.version, record: Box::new(record) })
}

fn retire_action((id, node): NodeRef<'_>, snapshot: &Snapshot) -> Option<StaticHostAction> {
    (node.record.is_idle() && !snapshot.is_node_locked(id))
        .then(|| StaticHostAction::Retire { node: id.clone(), version: node.version })
}

/// Sets the fields that configuration and check define for a node of this host.
fn describe(node: &mut Node, provider: &ProviderConfig, host: &StaticHost) {
    let identity = &host.identity;
    node.provider = Some(provider.name.clone());
    node.pool = Some(host.pool.clone());
    node.launcher = Some(LAUNCHER.to_owned());
    node.labels = host.labels.clone();
    node.external_id = Value::from(identity.name.clone()).into();
    node.hostname = Some(identity.name.clone());
    node.interface_ip = Some(identity.name.clone());
    node.username = Some(identity.username.clone());
    node.connection_port = Value::from(identity.port).into();
    node.connection_type = Some(host.connection_type.clone());
    node.python_path = Some(host.python_path.clone());
    node.shell_type = host.shell_type.clone();
    node.host_keys = host.host_keys().unwrap_or_default().to_vec();
    match host.address() {
        Some(IpAddr::V4(address)) => node.public_ipv4 = Some(address.to_string()),
        Some(IpAddr::V6(address)) => node.public_ipv6 = Some(address.to_string()),
        None => {}
    }
    node.attributes = attributes(provider, host).cloned().unwrap_or(Value::Null).into();
}

/// Whether `describe` would change nothing; determined without a copy.
fn is_described(node: &Node, provider: &ProviderConfig, host: &StaticHost) -> bool {
    let identity = &host.identity;
    let is_at = match host.address() {
        Some(IpAddr::V4(address)) => node.public_ipv4.as_ref().is_some_and(|text| text.parse() == Ok(address)),
        Some(IpAddr::V6(address)) => node.public_ipv6.as_ref().is_some_and(|text| text.parse() == Ok(address)),
        None => true,
    };
    let is_named = [&node.hostname, &node.interface_ip].iter().all(|name| name.as_ref() == Some(&identity.name))
        && node.external_id.as_str() == Some(&*identity.name);
    is_at
        && is_named
        && node.provider.as_ref() == Some(&provider.name)
        && node.pool.as_ref() == Some(&host.pool)
        && node.launcher.as_deref() == Some(LAUNCHER)
        && node.labels == host.labels
        && node.username.as_ref() == Some(&identity.username)
        && node.connection_port.as_u64() == Some(identity.port.into())
        && node.connection_type.as_ref() == Some(&host.connection_type)
        && node.python_path.as_ref() == Some(&host.python_path)
        && node.shell_type == host.shell_type
        && node.host_keys == host.host_keys().unwrap_or_default()
        && *node.attributes == *attributes(provider, host).unwrap_or(&Value::Null)
}

fn attributes<'a>(provider: &'a ProviderConfig, host: &StaticHost) -> Option<&'a Value> {
    provider.pools.get(&host.pool)?.node_attributes.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::config::resolve::{Source, resolve};
    use nodepool_model::records::time::{Seconds, Timestamp};
    use python_yaml::parse;

    fn host() -> StaticHost {
        StaticHost {
            identity: HostIdentity { name: "h1".to_owned(), username: "zuul".to_owned(), port: 22 },
            pool: "main".into(),
            labels: vec!["a".into(), "b".into()],
            slots: 1,
            connection_type: "ssh".to_owned(),
            shell_type: None,
            python_path: "auto".to_owned(),
            timeout: Seconds(5.0),
            host_key_checking: true,
            configured_keys: Vec::new(),
            check: HostCheck::Passed {
                at: Timestamp(1.0),
                host_keys: vec!["ssh-ed25519 AAAA".to_owned()],
                address: "127.0.0.1".parse().ok(),
            },
        }
    }

    #[test]
    fn any_difference_from_a_described_node_is_detected() {
        let text = "labels: [{name: a}]\nproviders:\n  - name: p\n    driver: static\n    pools:\n      - name: main\n        \
            node-attributes: {rack: r1}\n        nodes: [{name: h1, labels: a}]\n";
        let root = parse::parse(text, &mut Vec::new()).unwrap();
        let config = resolve(Source { file: "test.yaml", root: &root }, None, &["static"]).config.unwrap();
        let provider = &config.providers[&ProviderName::from("p")];
        let mut right = Node::new(NodeState::Ready, Timestamp(1.0));
        describe(&mut right, provider, &host());
        assert!(is_described(&right, provider, &host()));
        let differences: [fn(&mut Node); 15] = [
            |node| node.provider = None,
            |node| node.pool = Some("other".into()),
            |node| node.launcher = None,
            |node| node.labels.truncate(1),
            |node| node.external_id = Value::Null.into(),
            |node| node.hostname = Some("h2".to_owned()),
            |node| node.interface_ip = Some("h2".to_owned()),
            |node| node.username = Some("root".to_owned()),
            |node| node.connection_port = Value::from("22").into(),
            |node| node.connection_type = None,
            |node| node.python_path = Some("/usr/bin/python3".to_owned()),
            |node| node.shell_type = Some("sh".to_owned()),
            |node| node.host_keys.clear(),
            |node| node.public_ipv4 = Some("127.0.0.2".to_owned()),
            |node| node.attributes = Value::Null.into(),
        ];
        for (index, differ) in differences.iter().enumerate() {
            let mut node = right.clone();
            differ(&mut node);
            assert!(!is_described(&node, provider, &host()), "difference {index}");
            describe(&mut node, provider, &host());
            assert_eq!(node, right);
        }
    }
}
