//! Planner of the backing nodes of one metastatic provider. Its shell performs the actions and reports their ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use super::requests::{BackingOrder, request};
use super::requests::{BackingRequest, BackingRequests};
use super::view::{BackingNode, BackingView, Failures};
use nodepool_driver::facts::{BackingLabel, LaunchConfig};
use nodepool_model::records::backing::{BackingRecord, Slot, is_backing_state, owner_id};
use nodepool_model::records::ids::{LabelName, NodeId, ProviderName, RequestId};
use nodepool_model::records::node::{Node, NodeState, Writer};
use nodepool_model::records::request::RequestState;
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::{LockedChange, NodeChange, Snapshot, WriteError};

/// A write that lost a race is repeated after this time, on a newer snapshot.
const RACE_PAUSE: Seconds = Seconds(0.05);
/// Any other write that failed is repeated after this time.
const FAILURE_PAUSE: Seconds = Seconds(1.0);
/// Some conditions hold only after their time, not at it.
const JUST_AFTER: Seconds = Seconds(0.001);

#[derive(Clone, Debug, PartialEq)]
pub enum BackingAction {
    /// Read the data of the contender that holds the lock of a node, and report them with `verified`.
    Verify { node: NodeId, holder: String },
    /// Put nodes into slots: each lock must still have its holder, and the backing node must not have changed.
    Take { backing: LockedChange, nodes: Vec<LockedChange> },
    /// Request a backing node.
    Request(BackingOrder),
    /// Take over a node that fulfils a request: lock it for good, write it, delete the request.
    Adopt { request: RequestId, node: NodeChange },
    /// Delete a request that failed or is not needed.
    Discard { request: RequestId, reason: &'static str },
    /// No slot will come for these nodes: their attempt fails.
    Fail { nodes: Vec<NodeId>, reason: String },
    /// A backing node gets no more nodes, for this reason.
    Retire { backing: LockedChange, reason: String },
    /// Give a backing node back to its provider: write it as used, delete the contender that holds its lock.
    Release { backing: LockedChange },
    /// Delete our contender for a node that its provider is to delete.
    Unlock { node: NodeId, holder: String },
}

/// Key of the object that an action writes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActionKey {
    Node(NodeId),
    Order(LabelName),
    Request(RequestId),
}

impl BackingAction {
    /// `None` for an action without an answer.
    pub fn key(&self) -> Option<ActionKey> {
        Some(match self {
            BackingAction::Verify { node, .. } | BackingAction::Unlock { node, .. } => ActionKey::Node(node.clone()),
            BackingAction::Take { backing, .. }
            | BackingAction::Retire { backing, .. }
            | BackingAction::Release { backing } => ActionKey::Node(backing.node.id.clone()),
            BackingAction::Request(order) => ActionKey::Order(order.label.clone()),
            BackingAction::Adopt { request, .. } | BackingAction::Discard { request, .. } => {
                ActionKey::Request(request.clone())
            }
            BackingAction::Fail { .. } => return None,
        })
    }
}

pub struct BackingPlanner {
    provider: ProviderName,
    owner: String,
    /// Tells the requests of this worker from those of others.
    worker: String,
    pub(super) terms: BTreeMap<LabelName, Arc<BackingLabel>>,
    launch_config: Option<Arc<LaunchConfig>>,
    pub(super) view: BackingView,
    pub(super) requests: BackingRequests,
    in_flight: BTreeMap<ActionKey, usize>,
    /// Nodes whose slot is being written, by backing node.
    taking: BTreeMap<NodeId, Vec<NodeId>>,
    /// Keys of failed actions, which are not repeated before these times.
    paused: BTreeMap<ActionKey, MonotonicTime>,
    /// When backing nodes must be examined although they do not change.
    due: BTreeSet<(MonotonicTime, NodeId)>,
    due_of: BTreeMap<NodeId, MonotonicTime>,
}

/// Inputs of a plan.
#[derive(Clone, Copy)]
pub struct BackingInputs<'a> {
    pub snapshot: &'a Snapshot,
    pub launch_config: &'a Arc<LaunchConfig>,
    /// Nodes that this launcher launches and that need a slot now.
    pub own: &'a BTreeSet<NodeId>,
    pub now: Timestamp,
    pub monotonic_now: MonotonicTime,
}

impl BackingPlanner {
    pub fn new(provider: ProviderName, worker: String) -> Self {
        let owner = owner_id(&provider);
        Self {
            view: BackingView::new(provider.clone(), owner.clone()),
            requests: BackingRequests::new(owner.clone()),
            provider,
            owner,
            worker,
            terms: BTreeMap::new(),
            launch_config: None,
            in_flight: BTreeMap::new(),
            taking: BTreeMap::new(),
            paused: BTreeMap::new(),
            due: BTreeSet::new(),
            due_of: BTreeMap::new(),
        }
    }

    pub fn owner(&self) -> &str {
        &self.owner
    }

    pub fn worker(&self) -> &str {
        &self.worker
    }

    pub fn provider(&self) -> &ProviderName {
        &self.provider
    }

    pub fn plan(&mut self, inputs: &BackingInputs<'_>) -> Vec<BackingAction> {
        if !inputs.snapshot.connected {
            return Vec::new();
        }
        self.set_terms(inputs.launch_config);
        self.paused.retain(|_, until| *until > inputs.monotonic_now);
        self.view.update(inputs.snapshot, inputs.monotonic_now);
        self.requests.update(inputs.snapshot);
        let mut actions = Vec::new();
        self.verify(&mut actions);
        self.examine_changed(inputs, &mut actions);
        self.end_requests(inputs, &mut actions);
        self.assign(inputs, &mut actions);
        actions
    }

    /// Ends the requests of this worker. The provider is no longer part of the configuration.
    pub fn discard_all(&mut self) -> Vec<BackingAction> {
        let own = self.requests.open.iter().filter(|(_, request)| request.worker == self.worker);
        let own: Vec<RequestId> = own.map(|(id, _)| id.clone()).collect();
        let mut actions = Vec::new();
        for request in own.into_iter().filter(|id| !self.is_busy(&ActionKey::Request(id.clone()))).collect::<Vec<_>>() {
            self.start(BackingAction::Discard { request, reason: "the provider was removed" }, &mut actions);
        }
        actions
    }

    /// Whether nothing is left to do for a removed provider.
    pub fn is_settled(&self) -> bool {
        self.in_flight.is_empty() && self.requests.open.values().all(|request| request.worker != self.worker)
    }

    fn set_terms(&mut self, launch_config: &Arc<LaunchConfig>) {
        if self.launch_config.as_ref().is_some_and(|known| Arc::ptr_eq(known, launch_config)) {
            return;
        }
        self.launch_config = Some(launch_config.clone());
        let labels = launch_config.labels.values().flatten();
        self.terms = labels.filter_map(|(name, label)| Some((name.clone(), label.backing.clone()?))).collect();
        self.view.changed.extend(self.view.nodes.keys().cloned());
    }

    fn is_busy(&self, key: &ActionKey) -> bool {
        self.in_flight.contains_key(key) || self.paused.contains_key(key)
    }

    fn start(&mut self, action: BackingAction, actions: &mut Vec<BackingAction>) {
        if let Some(key) = action.key() {
            *self.in_flight.entry(key).or_default() += 1;
        }
        actions.push(action);
    }

    /// The action ended.
    pub fn ended(&mut self, key: &ActionKey, result: &Result<(), WriteError>, now: MonotonicTime) {
        if let Some(count) = self.in_flight.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(key);
            }
        }
        if let ActionKey::Node(id) = key {
            for node in self.taking.remove(id).unwrap_or_default() {
                self.view.end_plan(&node, now);
            }
            self.view.changed.insert(id.clone());
        }
        let pause = match result {
            Ok(()) => return,
            Err(WriteError::Conflict | WriteError::Contended) => RACE_PAUSE,
            Err(_) => FAILURE_PAUSE,
        };
        self.paused.insert(key.clone(), now + pause);
    }

    /// Answers `BackingAction::Verify`, before `ended`.
    pub fn verified(&mut self, node: &NodeId, holder: String, data: &[u8], now: MonotonicTime) {
        let is_ours = data == self.owner.as_bytes();
        self.view.set_verified(node, holder, is_ours, now);
    }

    /// An attempt to launch a node on this backing node failed.
    pub fn attempt_failed(&mut self, backing_node: &NodeId) {
        self.view.attempt_failed(backing_node);
    }

    /// Obstacles of the waiting nodes, by label.
    pub fn obstacles(&self) -> BTreeMap<LabelName, String> {
        let mut requests: BTreeMap<&LabelName, Vec<&str>> = BTreeMap::new();
        for (id, request) in &self.requests.open {
            requests.entry(&request.label).or_default().push(id.as_str());
        }
        let labels: BTreeSet<&LabelName> = self.view.waiting().map(|(_, label)| label).collect();
        let obstacle = |label: &LabelName| {
            let backing = self.terms.get(label).map_or("unknown", |terms| terms.label.as_str());
            match requests.get(label) {
                Some(ids) => format!("waiting for backing nodes ({backing}), requested as {}", ids.join(", ")),
                None => format!("waiting for a slot of a backing node ({backing})"),
            }
        };
        labels.into_iter().map(|label| (label.clone(), obstacle(label))).collect()
    }

    /// Earliest time at which the planner must run although nothing changed.
    pub fn due(&self) -> Option<MonotonicTime> {
        let requests =
            self.requests.unneeded_since.iter().filter_map(|(id, since)| {
                Some(*since + self.grace_time(&self.requests.open.get(id)?.label) + JUST_AFTER)
            });
        let nodes = self.due.first().map(|(at, _)| *at);
        nodes.into_iter().chain(self.paused.values().copied()).chain(requests).min()
    }

    fn grace_time(&self, label: &LabelName) -> Seconds {
        self.terms.get(label).map_or(Seconds::ZERO, |terms| terms.grace_time)
    }

    fn verify(&mut self, actions: &mut Vec<BackingAction>) {
        for node in self.view.unverified.clone() {
            let Some(holder) = self.view.nodes.get(&node).and_then(|known| known.holder.clone()) else { continue };
            if !self.is_busy(&ActionKey::Node(node.clone())) {
                self.start(BackingAction::Verify { node, holder }, actions);
            }
        }
    }

    fn examine_changed(&mut self, inputs: &BackingInputs<'_>, actions: &mut Vec<BackingAction>) {
        let mut ids = std::mem::take(&mut self.view.changed);
        ids.extend(self.due.iter().take_while(|(at, _)| *at <= inputs.monotonic_now).map(|(_, id)| id.clone()));
        for id in ids {
            if let Some(at) = self.due_of.remove(&id) {
                self.due.remove(&(at, id.clone()));
            }
            let key = ActionKey::Node(id.clone());
            if let Some(until) = self.paused.get(&key) {
                self.set_due(&id, *until);
            } else if !self.in_flight.contains_key(&key) {
                match self.examine(&id, inputs) {
                    Examined::Act(action) => self.start(*action, actions),
                    Examined::At(time) => self.set_due(&id, time),
                    Examined::Nothing => {}
                }
            }
        }
    }

    fn set_due(&mut self, id: &NodeId, at: MonotonicTime) {
        self.due.insert((at, id.clone()));
        self.due_of.insert(id.clone(), at);
    }

    fn examine(&self, id: &NodeId, inputs: &BackingInputs<'_>) -> Examined {
        let Some((node, stored)) = self.view.nodes.get(id).zip(inputs.snapshot.node(id)) else {
            return Examined::Nothing;
        };
        let Some(holder) = node.holder.clone().filter(|_| self.view.is_ours(id)) else { return Examined::Nothing };
        if node.state.is_final() {
            return Examined::Act(Box::new(BackingAction::Unlock { node: id.clone(), holder }));
        }
        if !is_backing_state(node.state) {
            return Examined::Nothing;
        }
        let terms = self.terms.get(&node.record.label);
        let held = |edit: &dyn Fn(&mut Node)| LockedChange {
            node: stored.change(id.clone(), |record| edit(record)),
            holder: holder.clone(),
        };
        let age = inputs.now - node.record.launched;
        if let Some(reason) = self.reason_to_retire(id, node, terms, age) {
            let failed = BackingRecord { failed: true, ..node.record.clone() };
            let backing = held(&|record| record.user_data = failed.to_user_data());
            return Examined::Act(Box::new(BackingAction::Retire { backing, reason }));
        }
        let release = self.release_time(id, node, inputs);
        if release.is_some_and(|at| at <= inputs.monotonic_now) {
            let failed = BackingRecord { failed: true, ..node.record.clone() };
            let backing = held(&|record| {
                record.user_data = failed.to_user_data();
                record.set_state(NodeState::Used, Writer::Consumer, inputs.now);
            });
            return Examined::Act(Box::new(BackingAction::Release { backing }));
        }
        let too_old = terms.and_then(|terms| terms.max_age).filter(|_| !node.record.failed);
        let retire = too_old.map(|max_age| inputs.monotonic_now + Seconds(max_age.0 - age.0) + JUST_AFTER);
        match release.into_iter().chain(retire).min() {
            Some(at) => Examined::At(at),
            None => Examined::Nothing,
        }
    }

    fn reason_to_retire(
        &self,
        id: &NodeId,
        node: &BackingNode,
        terms: Option<&Arc<BackingLabel>>,
        age: Seconds,
    ) -> Option<String> {
        let terms = terms.filter(|_| !node.record.failed)?;
        if let Some(max_age) = terms.max_age.filter(|max_age| age > *max_age) {
            return Some(format!("it is older than {} s", max_age.0));
        }
        let Failures { attempts, early_returns } = self.view.failures.get(id).copied().unwrap_or_default();
        let (failures, allowed) = match terms.max_failures {
            Some(max) => (attempts + early_returns, max),
            None => (attempts, 1),
        };
        (failures >= allowed).then(|| match terms.max_failures {
            Some(_) => format!("{attempts} launches failed and {early_returns} nodes were returned early"),
            None => "a launch failed".to_owned(),
        })
    }

    /// When the backing node is to be released; `None` while it has nodes.
    fn release_time(&self, id: &NodeId, node: &BackingNode, inputs: &BackingInputs<'_>) -> Option<MonotonicTime> {
        let idle_since = self.view.idle_since.get(id).filter(|_| self.view.is_empty(id))?;
        let terms = self.terms.get(&node.record.label).filter(|_| !node.record.failed);
        let Some(terms) = terms else { return Some(*idle_since) };
        let after_grace = *idle_since + terms.grace_time + JUST_AFTER;
        let age = inputs.now - node.record.launched;
        let after_retention = inputs.monotonic_now + Seconds(terms.min_retention_time.0 - age.0) + JUST_AFTER;
        Some(after_grace.max(after_retention))
    }

    /// Requests of this worker that have been fulfilled, or have failed.
    fn end_requests(&mut self, inputs: &BackingInputs<'_>, actions: &mut Vec<BackingAction>) {
        let ended = |request: &BackingRequest| {
            request.worker == self.worker && matches!(request.state, RequestState::Fulfilled | RequestState::Failed)
        };
        let ended: Vec<RequestId> =
            self.requests.open.iter().filter(|(_, request)| ended(request)).map(|(id, _)| id.clone()).collect();
        for id in ended {
            if self.is_busy(&ActionKey::Request(id.clone())) {
                continue;
            }
            let request = &self.requests.open[&id];
            let action = match request.state {
                RequestState::Failed => BackingAction::Discard { request: id, reason: "it failed" },
                _ => match self.adoption(&id, request, inputs) {
                    Adoption::Ready(node) => BackingAction::Adopt { request: id, node: *node },
                    Adoption::Impossible => BackingAction::Discard { request: id, reason: "its node is gone" },
                    Adoption::NotYet => continue,
                },
            };
            if matches!(request.state, RequestState::Failed) {
                self.fail_uncovered(&request.label.clone(), inputs, actions);
            }
            self.start(action, actions);
        }
    }

    fn adoption(&self, id: &RequestId, request: &BackingRequest, inputs: &BackingInputs<'_>) -> Adoption {
        let Some(node) = request.nodes.first() else { return Adoption::Impossible };
        let Some(stored) = inputs.snapshot.node(node) else { return Adoption::Impossible };
        if stored.record.state != NodeState::Ready || stored.record.allocation() != Some(id) {
            return Adoption::Impossible;
        }
        if inputs.snapshot.is_node_locked(node) {
            return Adoption::NotYet;
        }
        let record = BackingRecord {
            owner: self.owner.clone(),
            label: request.label.clone(),
            slots: self.terms.get(&request.label).map_or(1, |terms| terms.slots),
            failed: false,
            launched: request.created.unwrap_or(inputs.now),
            extra: serde_json::Map::new(),
        };
        Adoption::Ready(Box::new(stored.change(node.clone(), |node| {
            node.user_data = record.to_user_data();
            node.set_state(NodeState::InUse, Writer::Consumer, inputs.now);
        })))
    }

    /// A request for this label failed: the attempts of those nodes fail for which nothing else is on its way.
    fn fail_uncovered(&mut self, label: &LabelName, inputs: &BackingInputs<'_>, actions: &mut Vec<BackingAction>) {
        let covered = self.supply(label) as usize;
        let waiting = self.view.waiting().filter(|(_, of)| *of == label).map(|(id, _)| id).skip(covered);
        let nodes: Vec<NodeId> = waiting.filter(|id| inputs.own.contains(*id)).cloned().collect();
        if !nodes.is_empty() {
            actions.push(BackingAction::Fail { nodes, reason: "the request for a backing node failed".to_owned() });
        }
    }

    /// Slots of a label that are free, or will be.
    fn supply(&self, label: &LabelName) -> u32 {
        let free: u32 = self.view.with_free_slots(label).map(|(free, _)| free).sum();
        let is_open = |request: &&BackingRequest| request.label == *label && request.state != RequestState::Failed;
        let pending = self.requests.open.values().filter(is_open).count() + self.orders(label);
        free + pending as u32 * self.terms.get(label).map_or(1, |terms| terms.slots)
    }

    fn orders(&self, label: &LabelName) -> usize {
        self.in_flight.get(&ActionKey::Order(label.clone())).copied().unwrap_or_default()
    }

    /// Puts waiting nodes into free slots, and requests backing nodes for the others.
    fn assign(&mut self, inputs: &BackingInputs<'_>, actions: &mut Vec<BackingAction>) {
        let failing: BTreeSet<NodeId> = actions.iter().flat_map(failing_nodes).cloned().collect();
        let mut by_label: BTreeMap<LabelName, Vec<NodeId>> = BTreeMap::new();
        for (id, label) in self.view.waiting().filter(|(id, _)| !failing.contains(*id)) {
            by_label.entry(label.clone()).or_default().push(id.clone());
        }
        for (label, nodes) in &by_label {
            let waiting = self.fill(nodes, label, inputs, actions);
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
            if !self.is_busy(&ActionKey::Node(backing.clone())) {
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
            let nodes: Vec<NodeId> = nodes.iter().filter(|id| inputs.own.contains(*id)).cloned().collect();
            if !nodes.is_empty() {
                let reason = format!("label {label} is no longer part of the configuration");
                actions.push(BackingAction::Fail { nodes, reason });
            }
            return;
        };
        let free: u32 = self.view.with_free_slots(label).map(|(free, _)| free).sum();
        let mut coming = self.supply(label) - free;
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
            let free = || self.view.with_free_slots(&request.label).map(|(free, _)| free).sum();
            let before = coming.entry(&request.label).or_insert_with(free);
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

enum Examined {
    Act(Box<BackingAction>),
    /// Nothing before this time, unless it changes.
    At(MonotonicTime),
    Nothing,
}

enum Adoption {
    Ready(Box<NodeChange>),
    NotYet,
    Impossible,
}
