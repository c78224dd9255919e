//! Invariants of metastatic nodes: no two in one slot, and each slot on a backing node that exists and has an owner.

use std::collections::{BTreeMap, BTreeSet};

use nodepool_model::records::backing::{BackingRecord, Slot, is_backing_state};
use nodepool_model::records::ids::NodeId;
use nodepool_model::records::node::Node;

/// The slots of all observed nodes.
#[derive(Debug, Default)]
pub struct SlotChecker {
    slots: BTreeMap<NodeId, Slot>,
    /// Backing nodes in use that were not locked when they were observed last. A transaction also changes the lock, and
    /// no other node: with the next one, they must be locked or not in use.
    unowned: BTreeSet<NodeId>,
}

impl SlotChecker {
    /// Violations of a record as it is now. `node` returns the other records, `is_locked` whether a node is locked.
    pub fn observe<'a>(
        &mut self,
        id: &NodeId,
        record: Option<&Node>,
        node: impl Fn(&NodeId) -> Option<&'a Node>,
        is_locked: impl Fn(&NodeId) -> bool,
    ) -> Vec<String> {
        let mut found = Vec::new();
        let now = record.and_then(Slot::of);
        let before = match &now {
            Some(slot) => self.slots.insert(id.clone(), slot.clone()),
            None => self.slots.remove(id),
        };
        if let Some(slot) = now.filter(|slot| before.as_ref() != Some(slot)) {
            found.extend(self.taken(id, &slot, node(&slot.backing_node)));
        }
        found.extend(self.unowned(Some(id)));
        let backing = record.filter(|record| BackingRecord::of_any_owner(record).is_some());
        let is_in_use = |record: &Node| is_backing_state(record.state);
        let Some(record) = backing else {
            self.unowned.remove(id);
            return found;
        };
        if !is_in_use(record) && node(id).is_some_and(is_in_use) {
            found.extend(
                self.occupants(id).map(|occupant| format!("backing node {id} is released with node {occupant}")),
            );
        }
        self.set_locked(id, Some(record), is_locked(id));
        found
    }

    /// The lock of a node got its first contender, or lost its last one.
    pub fn set_locked(&mut self, id: &NodeId, record: Option<&Node>, is_locked: bool) {
        let is_used = |record: &Node| is_backing_state(record.state) && BackingRecord::of_any_owner(record).is_some();
        match record.is_some_and(is_used) && !is_locked {
            true => self.unowned.insert(id.clone()),
            false => self.unowned.remove(id),
        };
    }

    /// Backing nodes without an owner, after a change of another node.
    pub fn unowned(&self, changed: Option<&NodeId>) -> impl Iterator<Item = String> + use<'_> {
        let changed = changed.cloned();
        let unowned = self.unowned.iter().filter(move |id| Some(*id) != changed.as_ref());
        unowned.map(|id| format!("backing node {id} has no owner: it is not locked"))
    }

    fn taken(&self, id: &NodeId, slot: &Slot, backing: Option<&Node>) -> Vec<String> {
        let others = self.slots.iter().filter(|(other, of_other)| *other != id && *of_other == slot);
        let (number, backing_node) = (slot.number, &slot.backing_node);
        let mut found: Vec<String> = others
            .map(|(other, _)| format!("node {id} is in slot {number} of {backing_node}, as node {other}"))
            .collect();
        let record = backing.filter(|node| is_backing_state(node.state)).and_then(BackingRecord::of_any_owner);
        match record {
            None => found.push(format!("node {id} gets a slot of {backing_node}, which is no backing node")),
            Some(record) if record.slots <= number => {
                found.push(format!("node {id} is in slot {number} of {backing_node}, which has {}", record.slots));
            }
            Some(_) => {}
        }
        found
    }

    /// Nodes in the slots of this one.
    pub fn occupants(&self, id: &NodeId) -> impl Iterator<Item = &NodeId> {
        self.slots.iter().filter(move |(_, slot)| slot.backing_node == *id).map(|(occupant, _)| occupant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::records::node::NodeState;
    use nodepool_model::records::time::Timestamp;
    use serde_json::json;

    fn backing(state: NodeState) -> Node {
        let mut node = Node::new(state, Timestamp(1.0));
        let record = json!({"owner": "NodePool:metastatic:meta", "label": "small", "slots": 2});
        node.user_data = record.to_string().as_str().into();
        node
    }

    fn in_slot(number: u32) -> Node {
        let mut node = Node::new(NodeState::Building, Timestamp(1.0));
        Slot { backing_node: "b".into(), number }.put(&"x".into(), &mut node);
        node
    }

    #[test]
    fn slots_are_taken_once_and_only_on_backing_nodes() {
        let (mut checker, in_use) = (SlotChecker::default(), backing(NodeState::InUse));
        let known = |id: &NodeId| (id.as_str() == "b").then_some(&in_use);
        let mut take = |id: &str, number| checker.observe(&id.into(), Some(&in_slot(number)), known, |_| true);
        assert_eq!(take("1", 0), Vec::<String>::new());
        assert_eq!(take("2", 0), ["node 2 is in slot 0 of b, as node 1"]);
        assert_eq!(take("3", 2), ["node 3 is in slot 2 of b, which has 2"]);
        let used = backing(NodeState::Used);
        let found = checker.observe(&"4".into(), Some(&in_slot(1)), |_| Some(&used), |_| true);
        assert_eq!(found, ["node 4 gets a slot of b, which is no backing node"]);
    }

    #[test]
    fn backing_nodes_have_an_owner_and_are_released_empty() {
        let (mut checker, in_use) = (SlotChecker::default(), backing(NodeState::InUse));
        let (id, other) = (NodeId::from("b"), NodeId::from("o"));
        let unowned = ["backing node b has no owner: it is not locked"];
        assert_eq!(checker.observe(&id, Some(&in_use), |_| None, |_| false), Vec::<String>::new());
        assert_eq!(checker.observe(&other, None, |_| None, |_| false), unowned);
        checker.set_locked(&id, Some(&in_use), true);
        assert_eq!(checker.observe(&other, None, |_| None, |_| true), Vec::<String>::new());
        checker.set_locked(&id, Some(&in_use), false);
        assert_eq!(checker.unowned(None).collect::<Vec<_>>(), unowned);
        checker.set_locked(&id, Some(&in_use), true);
        checker.observe(&"1".into(), Some(&in_slot(0)), |_| Some(&in_use), |_| true);
        let found = checker.observe(&id, Some(&backing(NodeState::Used)), |_| Some(&in_use), |_| true);
        assert_eq!(found, ["backing node b is released with node 1"]);
    }
}
