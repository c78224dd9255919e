//! View of the backing nodes of one provider and of the nodes in their slots, kept up to date with the snapshot by its
//! differences, so that a decision does not read all nodes.

use std::collections::{BTreeMap, BTreeSet};

use nodepool_model::records::backing::{BackingRecord, Slot, is_backing_state};
use nodepool_model::records::ids::{LabelName, NodeId, ProviderName};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::time::{MonotonicTime, Seconds};
use nodepool_model::snapshot::Snapshot;

/// A node that was in use for less time counts as a failure of its backing node.
const EARLY_RETURN: Seconds = Seconds(60.0);

/// A node whose record says that this provider owns it.
#[derive(Clone, Debug, PartialEq)]
pub struct BackingNode {
    pub record: BackingRecord,
    pub state: NodeState,
    /// The contender that holds its lock.
    pub holder: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    pub attempts: u32,
    pub early_returns: u32,
}

#[derive(Debug)]
pub struct BackingView {
    provider: ProviderName,
    owner: String,
    /// The snapshot that the view shows.
    seen: Option<Snapshot>,
    pub(crate) nodes: BTreeMap<NodeId, BackingNode>,
    /// Slots of the provider's nodes, as recorded.
    slots: BTreeMap<NodeId, Slot>,
    /// Slots that are being written.
    planned: BTreeMap<NodeId, Slot>,
    /// Nodes in the slots of each backing node. A Nodepool 11 launcher may have put two into one slot.
    occupants: BTreeMap<NodeId, BTreeMap<u32, BTreeSet<NodeId>>>,
    /// Nodes that are being launched and have no slot, with their label.
    waiting: BTreeMap<NodeId, LabelName>,
    /// Backing nodes with free slots, by the number of these.
    free: BTreeMap<LabelName, BTreeSet<(u32, NodeId)>>,
    /// Positions in `free`.
    indexed: BTreeMap<NodeId, (LabelName, u32)>,
    /// Holders whose data were read, and whether they are ours.
    verified: BTreeMap<NodeId, (String, bool)>,
    pub(crate) unverified: BTreeSet<NodeId>,
    pub(crate) idle_since: BTreeMap<NodeId, MonotonicTime>,
    pub(crate) failures: BTreeMap<NodeId, Failures>,
    /// Backing nodes that changed since they were examined.
    pub(crate) changed: BTreeSet<NodeId>,
}

impl BackingView {
    pub fn new(provider: ProviderName, owner: String) -> Self {
        Self {
            provider,
            owner,
            seen: None,
            nodes: BTreeMap::new(),
            slots: BTreeMap::new(),
            planned: BTreeMap::new(),
            occupants: BTreeMap::new(),
            waiting: BTreeMap::new(),
            free: BTreeMap::new(),
            indexed: BTreeMap::new(),
            verified: BTreeMap::new(),
            unverified: BTreeSet::new(),
            idle_since: BTreeMap::new(),
            failures: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }

    pub fn update(&mut self, snapshot: &Snapshot, now: MonotonicTime) {
        let before = self.seen.replace(snapshot.clone());
        let changed: BTreeSet<NodeId> = match &before {
            Some(before) => snapshot.nodes_changed_since(before),
            None => snapshot.nodes().map(|(id, _)| id.clone()).collect(),
        };
        for id in changed {
            let previous = before.as_ref().and_then(|before| before.node(&id)).map(|stored| &*stored.record);
            self.update_node(&id, previous, snapshot, now);
        }
    }

    fn update_node(&mut self, id: &NodeId, previous: Option<&Node>, snapshot: &Snapshot, now: MonotonicTime) {
        let node = snapshot.node(id).map(|stored| &*stored.record);
        let own = node.filter(|node| node.provider.as_ref() == Some(&self.provider));
        self.note_early_return(id, previous, own);
        let slot = own.and_then(Slot::of);
        self.place(id, slot.clone(), now);
        // A node without a lock is about to be deleted or adopted.
        let is_waiting = |node: &&Node| node.state == NodeState::Building && snapshot.is_node_locked(id);
        match own.filter(is_waiting).and_then(|node| node.labels.first()).filter(|_| slot.is_none()) {
            Some(label) => drop(self.waiting.insert(id.clone(), label.clone())),
            None => drop(self.waiting.remove(id)),
        }
        let backing = node.and_then(|node| {
            let record = BackingRecord::of(node, &self.owner)?;
            Some(BackingNode { record, state: node.state, holder: snapshot.node_lock(id).holder().cloned() })
        });
        match backing {
            Some(backing) => drop(self.nodes.insert(id.clone(), backing)),
            None if self.nodes.remove(id).is_some() => {
                self.verified.remove(id);
                self.failures.remove(id);
            }
            None => return,
        }
        self.reindex(id, now);
    }

    fn note_early_return(&mut self, id: &NodeId, previous: Option<&Node>, now: Option<&Node>) {
        let (Some(before), Some(after), Some(slot)) = (previous, now, self.slots.get(id)) else { return };
        let is_return = (before.state, after.state) == (NodeState::InUse, NodeState::Used);
        if is_return && after.state_time - before.state_time < EARLY_RETURN {
            self.failures.entry(slot.backing_node.clone()).or_default().early_returns += 1;
            self.changed.insert(slot.backing_node.clone());
        }
    }

    fn place(&mut self, id: &NodeId, slot: Option<Slot>, now: MonotonicTime) {
        let before = self.slot_of(id).cloned();
        match slot {
            Some(slot) => drop(self.slots.insert(id.clone(), slot)),
            None => drop(self.slots.remove(id)),
        }
        self.move_occupant(id, before, now);
    }

    /// Counts a slot as taken while it is written.
    pub fn plan_slot(&mut self, id: &NodeId, slot: Slot, now: MonotonicTime) {
        let before = self.slot_of(id).cloned();
        self.planned.insert(id.clone(), slot);
        self.move_occupant(id, before, now);
    }

    /// The write ended. If it succeeded, the snapshot shows the slot.
    pub fn end_plan(&mut self, id: &NodeId, now: MonotonicTime) {
        let before = self.slot_of(id).cloned();
        self.planned.remove(id);
        self.move_occupant(id, before, now);
    }

    fn move_occupant(&mut self, id: &NodeId, before: Option<Slot>, now: MonotonicTime) {
        let after = self.slot_of(id).cloned();
        if before == after {
            return;
        }
        if let Some(slot) = before {
            if let Some(of_node) = self.occupants.get_mut(&slot.backing_node) {
                if let Some(occupants) = of_node.get_mut(&slot.number) {
                    occupants.remove(id);
                }
                of_node.retain(|_, occupants| !occupants.is_empty());
                if of_node.is_empty() {
                    self.occupants.remove(&slot.backing_node);
                }
            }
            self.reindex(&slot.backing_node, now);
        }
        if let Some(slot) = after {
            let of_node = self.occupants.entry(slot.backing_node.clone()).or_default();
            of_node.entry(slot.number).or_default().insert(id.clone());
            self.reindex(&slot.backing_node, now);
        }
    }

    /// The slot of a node, also one that is being written.
    pub fn slot_of(&self, id: &NodeId) -> Option<&Slot> {
        self.slots.get(id).or_else(|| self.planned.get(id))
    }

    /// Updates what follows from a backing node and its occupants.
    fn reindex(&mut self, id: &NodeId, now: MonotonicTime) {
        if let Some((label, free)) = self.indexed.remove(id)
            && let Some(of_label) = self.free.get_mut(&label)
        {
            of_label.remove(&(free, id.clone()));
        }
        self.changed.insert(id.clone());
        self.unverified.remove(id);
        let Some(node) = self.nodes.get(id) else {
            self.idle_since.remove(id);
            return;
        };
        if self.is_unverified(id, node) {
            self.unverified.insert(id.clone());
        }
        if self.occupants.contains_key(id) {
            self.idle_since.remove(id);
        } else {
            self.idle_since.entry(id.clone()).or_insert(now);
        }
        let free = self.free_count(id, node);
        if is_backing_state(node.state) && !node.record.failed && self.is_ours(id) && free > 0 {
            let label = node.record.label.clone();
            self.free.entry(label.clone()).or_default().insert((free, id.clone()));
            self.indexed.insert(id.clone(), (label, free));
        }
    }

    fn is_unverified(&self, id: &NodeId, node: &BackingNode) -> bool {
        node.holder.as_ref().is_some_and(|holder| self.verified.get(id).is_none_or(|(known, _)| known != holder))
    }

    fn free_count(&self, id: &NodeId, node: &BackingNode) -> u32 {
        let used = self.occupants.get(id).map_or(0, |of_node| of_node.range(..node.record.slots).count());
        node.record.slots.saturating_sub(used as u32)
    }

    /// Whether the provider holds the lock of the node. Anybody may write `user_data`.
    pub fn is_ours(&self, id: &NodeId) -> bool {
        let holder = self.nodes.get(id).and_then(|node| node.holder.as_ref());
        holder.is_some_and(|holder| self.verified.get(id).is_some_and(|(known, ours)| *ours && known == holder))
    }

    /// The data of the contender that holds the lock were read.
    pub fn set_verified(&mut self, id: &NodeId, holder: String, is_ours: bool, now: MonotonicTime) {
        self.verified.insert(id.clone(), (holder, is_ours));
        self.reindex(id, now);
    }

    /// An attempt to launch a node on this backing node failed.
    pub fn attempt_failed(&mut self, id: &NodeId) {
        self.failures.entry(id.clone()).or_default().attempts += 1;
        self.changed.insert(id.clone());
    }

    pub fn is_empty(&self, id: &NodeId) -> bool {
        !self.occupants.contains_key(id)
    }

    /// Nodes in the slots of a backing node.
    pub fn occupants(&self, id: &NodeId) -> impl Iterator<Item = (u32, &NodeId)> {
        let of_node = self.occupants.get(id).into_iter().flatten();
        of_node.flat_map(|(slot, nodes)| nodes.iter().map(|node| (*slot, node)))
    }

    /// The lowest free slots of a backing node.
    pub fn free_slots(&self, id: &NodeId) -> impl Iterator<Item = u32> {
        let (slots, occupants) = (self.nodes.get(id).map_or(0, |node| node.record.slots), self.occupants.get(id));
        (0..slots).filter(move |slot| occupants.is_none_or(|of_node| !of_node.contains_key(slot)))
    }

    /// Number of free slots of a label.
    pub fn free_slots_of(&self, label: &LabelName) -> u32 {
        self.with_free_slots(label).map(|(free, _)| free).sum()
    }

    /// Backing nodes of a label that have free slots, with their number; the fullest first, so that others can be
    /// released.
    pub fn with_free_slots(&self, label: &LabelName) -> impl Iterator<Item = (u32, &NodeId)> {
        self.free.get(label).into_iter().flatten().map(|(free, id)| (*free, id))
    }

    /// Nodes without a slot, the oldest first. Those whose slot is being written are not among them.
    pub fn waiting(&self) -> impl Iterator<Item = (&NodeId, &LabelName)> {
        self.waiting.iter().filter(|(id, _)| !self.planned.contains_key(*id))
    }
}
