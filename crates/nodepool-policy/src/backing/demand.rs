//! Demand for slots: which waiting node gets which slot, and which backing nodes are requested.

use std::collections::{BTreeMap, BTreeSet};

use super::planner::{ActionKey, BackingAction, BackingInputs, BackingPlanner};
use super::requests::{BackingOrder, BackingRequest};
use nodepool_model::records::backing::Slot;
use nodepool_model::records::ids::{LabelName, NodeId};
use nodepool_model::records::node::Node;
use nodepool_model::records::request::RequestState;
use nodepool_model::snapshot::{LockedChange, Snapshot};

impl BackingPlanner {
    /// A request for this label failed: the attempts of those nodes fail for which nothing else is on its way.
    pub(super) fn fail_uncovered(
        &mut self,
        label: &LabelName,
        inputs: &BackingInputs<'_>,
        actions: &mut Vec<BackingAction>,
    ) {
        let covered = (self.view.free_slots_of(label) + self.coming_slots(label)) as usize;
        let waiting = self.view.waiting().filter(|(_, of)| *of == label).map(|(id, _)| id).skip(covered);
        fail_own(waiting, "the request for a backing node failed".to_owned(), inputs, actions);
    }

    /// Slots of the backing nodes that are requested for a label.
    fn coming_slots(&self, label: &LabelName) -> u32 {
        let is_open = |request: &&BackingRequest| request.label == *label && request.state != RequestState::Failed;
        let pending = self.requests.open.values().filter(is_open).count() + self.orders(label);
        pending as u32 * self.terms.get(label).map_or(1, |terms| terms.slots)
    }

    fn orders(&self, label: &LabelName) -> usize {
        self.in_flight.get(&ActionKey::Order(label.clone())).copied().unwrap_or_default()
    }

    /// Puts waiting nodes into free slots, and requests backing nodes for the others.
    pub(super) fn assign(&mut self, inputs: &BackingInputs<'_>, actions: &mut Vec<BackingAction>) {
        let failing: BTreeSet<NodeId> = actions.iter().flat_map(failing_nodes).cloned().collect();
        let mut by_label: BTreeMap<LabelName, Vec<NodeId>> = BTreeMap::new();
        for (id, label) in self.view.waiting().filter(|(id, _)| !failing.contains(*id)) {
            by_label.entry(label.clone()).or_default().push(id.clone());
        }
        for (label, nodes) in &by_label {
            let waiting = self.fill(nodes, label, inputs, actions);
            if !self.knows_all_owners {
                continue;
            }
            self.order(&nodes[nodes.len() - waiting..], label, inputs, actions);
        }
        self.discard_unneeded(&by_label, inputs, actions);
    }

    /// Returns for how many of the last nodes there is no slot.
    fn fill(
        &mut self,
        nodes: &[NodeId],
        label: &LabelName,
        inputs: &BackingInputs<'_>,
        actions: &mut Vec<BackingAction>,
    ) -> usize {
        let mut remaining = nodes.iter();
        let mut taken: Vec<(NodeId, Vec<(NodeId, u32)>)> = Vec::new();
        for (free, backing) in self.view.with_free_slots(label) {
            let occupants: Vec<&NodeId> = remaining.by_ref().take(free as usize).collect();
            if occupants.is_empty() {
                break;
            }
            // While a write of the backing node is in flight, its slots wait for the next plan.
            if !self.may_lack_slots && !self.is_busy(&ActionKey::Node(backing.clone())) {
                let own = occupants.into_iter().filter(|id| inputs.own.contains(*id)).cloned();
                let own: Vec<(NodeId, u32)> = own.zip(self.view.free_slots(backing)).collect();
                taken.push((backing.clone(), own));
            }
        }
        let uncovered = remaining.count();
        for (backing, nodes) in taken.into_iter().filter(|(_, nodes)| !nodes.is_empty()) {
            self.take(&backing, nodes, inputs, actions);
        }
        uncovered
    }

    fn take(
        &mut self,
        backing: &NodeId,
        nodes: Vec<(NodeId, u32)>,
        inputs: &BackingInputs<'_>,
        actions: &mut Vec<BackingAction>,
    ) {
        let Some(held) = locked_change(backing, inputs.snapshot, |_| {}) else { return };
        let mut changes = Vec::new();
        for (id, number) in nodes {
            let slot = Slot { backing_node: backing.clone(), number };
            let Some(change) = locked_change(&id, inputs.snapshot, |node| slot.put(&id, node)) else { continue };
            changes.push(change);
            self.view.plan_slot(&id, slot, inputs.monotonic_now);
            self.taking.entry(backing.clone()).or_default().push(id);
        }
        self.start(BackingAction::Take { backing: held, nodes: changes }, actions);
    }

    /// Requests backing nodes for the nodes that will get no slot otherwise. Of two launchers, that of the first such
    /// node requests it.
    fn order(
        &mut self,
        nodes: &[NodeId],
        label: &LabelName,
        inputs: &BackingInputs<'_>,
        actions: &mut Vec<BackingAction>,
    ) {
        let Some(terms) = self.terms.get(label).filter(|terms| terms.slots > 0).cloned() else {
            let reason = format!("label {label} is no longer part of the configuration");
            return fail_own(nodes.iter(), reason, inputs, actions);
        };
        let mut coming = self.coming_slots(label);
        for node in nodes {
            if coming == 0 {
                coming = terms.slots;
                if inputs.own.contains(node) && !self.paused.contains_key(&ActionKey::Order(label.clone())) {
                    let order = BackingOrder { label: label.clone(), backing_label: terms.label.clone() };
                    self.start(BackingAction::Request(order), actions);
                }
            }
            coming -= 1;
        }
    }

    /// Ends requests that no node has waited for during the grace time.
    fn discard_unneeded(
        &mut self,
        waiting: &BTreeMap<LabelName, Vec<NodeId>>,
        inputs: &BackingInputs<'_>,
        actions: &mut Vec<BackingAction>,
    ) {
        let mut coming: BTreeMap<&LabelName, u32> = BTreeMap::new();
        let mut unneeded = Vec::new();
        for (id, request) in &self.requests.open {
            let is_pending = matches!(request.state, RequestState::Requested | RequestState::Pending);
            if !is_pending || request.worker != self.worker {
                continue;
            }
            let before = coming.entry(&request.label).or_insert_with(|| self.view.free_slots_of(&request.label));
            let needed = waiting.get(&request.label).map_or(0, Vec::len) as u32;
            if *before >= needed {
                unneeded.push(id.clone());
            } else {
                *before += self.terms.get(&request.label).map_or(1, |terms| terms.slots);
            }
        }
        self.requests.unneeded_since.retain(|id, _| unneeded.contains(id));
        for id in unneeded {
            let since = *self.requests.unneeded_since.entry(id.clone()).or_insert(inputs.monotonic_now);
            let grace = self.grace_time(&self.requests.open[&id].label);
            let is_over = inputs.monotonic_now - since > grace;
            if is_over && !self.is_busy(&ActionKey::Request(id.clone())) {
                self.start(BackingAction::Discard { request: id, reason: "no node waits for it" }, actions);
            }
        }
    }
}

/// Fails the attempts of those nodes that this launcher launches.
fn fail_own<'a>(
    nodes: impl Iterator<Item = &'a NodeId>,
    reason: String,
    inputs: &BackingInputs<'_>,
    actions: &mut Vec<BackingAction>,
) {
    let nodes: Vec<NodeId> = nodes.filter(|id| inputs.own.contains(*id)).cloned().collect();
    if !nodes.is_empty() {
        actions.push(BackingAction::Fail { nodes, reason });
    }
}

fn failing_nodes(action: &BackingAction) -> &[NodeId] {
    match action {
        BackingAction::Fail { nodes, .. } => nodes,
        _ => &[],
    }
}

fn locked_change(id: &NodeId, snapshot: &Snapshot, edit: impl FnOnce(&mut Node)) -> Option<LockedChange> {
    let holder = snapshot.node_lock(id).holder()?.clone();
    Some(LockedChange { node: snapshot.node(id)?.change(id.clone(), edit), holder })
}
