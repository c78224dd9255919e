//! Planner of the backing nodes of one metastatic provider. Its shell performs the actions and reports their ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use super::requests::{BackingOrder, request};
use super::requests::{BackingRequest, BackingRequests};
use super::view::{BackingNode, BackingView, Failures};
use nodepool_driver::facts::{BackingLabel, LaunchConfig};
use nodepool_model::records::backing::{BackingRecord, is_backing_state, owner_id};
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
    pub(super) worker: String,
    pub(super) terms: BTreeMap<LabelName, Arc<BackingLabel>>,
    launch_config: Option<Arc<LaunchConfig>>,
    pub(super) view: BackingView,
    pub(super) requests: BackingRequests,
    pub(super) in_flight: BTreeMap<ActionKey, usize>,
    /// Nodes whose slot is being written, by backing node.
    pub(super) taking: BTreeMap<NodeId, Vec<NodeId>>,
    /// Keys of failed actions, which are not repeated before these times.
    pub(super) paused: BTreeMap<ActionKey, MonotonicTime>,
    /// When backing nodes must be examined although they do not change.
    due: BTreeSet<(MonotonicTime, NodeId)>,
    due_of: BTreeMap<NodeId, MonotonicTime>,
    /// Set while the snapshot may lack a taken slot, although it has the backing node as it was written with that slot.
    /// Then no slot is given out, and no backing node released.
    pub(super) may_lack_slots: bool,
    /// Set while something waits for a node that has changed since the snapshot. A read that finds no difference
    /// publishes no snapshot.
    awaits_reads: bool,
    /// Whether the holders of the locks of all backing nodes are known.
    pub(super) knows_all_owners: bool,
}

/// Inputs of a plan.
#[derive(Clone, Copy)]
pub struct BackingInputs<'a> {
    pub snapshot: &'a Snapshot,
    /// Nodes that have changed since the snapshot.
    pub unread: &'a BTreeSet<NodeId>,
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
            may_lack_slots: false,
            awaits_reads: false,
            knows_all_owners: false,
        }
    }

    pub fn owner(&self) -> &str {
        &self.owner
    }

    pub fn worker(&self) -> &str {
        &self.worker
    }

    pub fn plan(&mut self, inputs: &BackingInputs<'_>) -> Vec<BackingAction> {
        if !inputs.snapshot.connected {
            return Vec::new();
        }
        self.set_terms(inputs.launch_config);
        self.paused.retain(|_, until| *until > inputs.monotonic_now);
        self.view.update(inputs.snapshot, inputs.monotonic_now);
        self.requests.update(inputs.snapshot);
        self.may_lack_slots = inputs.unread.iter().any(|id| self.may_have_slot(id, inputs.snapshot));
        self.awaits_reads = self.may_lack_slots;
        let mut actions = Vec::new();
        self.verify(&mut actions);
        self.examine_changed(inputs, &mut actions);
        // Until the holders of all locks are known, slots seem to be lacking that exist.
        let is_paused = |id: &NodeId| self.paused.contains_key(&ActionKey::Node(id.clone()));
        self.knows_all_owners = self.view.unverified.iter().all(is_paused);
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

    /// Whether a node that has changed may have got a slot.
    fn may_have_slot(&self, id: &NodeId, snapshot: &Snapshot) -> bool {
        snapshot.node(id).is_none_or(|stored| stored.record.provider.as_ref() == Some(&self.provider))
    }

    pub(super) fn is_busy(&self, key: &ActionKey) -> bool {
        self.in_flight.contains_key(key) || self.paused.contains_key(key)
    }

    pub(super) fn start(&mut self, action: BackingAction, actions: &mut Vec<BackingAction>) {
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
    pub fn due(&self, now: MonotonicTime) -> Option<MonotonicTime> {
        let requests =
            self.requests.unneeded_since.iter().filter_map(|(id, since)| {
                Some(*since + self.grace_time(&self.requests.open.get(id)?.label) + JUST_AFTER)
            });
        let nodes = self.due.first().map(|(at, _)| *at);
        let again = self.awaits_reads.then_some(now + RACE_PAUSE);
        nodes.into_iter().chain(again).chain(self.paused.values().copied()).chain(requests).min()
    }

    pub(super) fn grace_time(&self, label: &LabelName) -> Seconds {
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
            let backing = held(&|record| record.user_data = node.record.retired().to_user_data());
            return Examined::Act(Box::new(BackingAction::Retire { backing, reason }));
        }
        let release = self.release_time(id, node, inputs);
        if release.is_some_and(|at| at <= inputs.monotonic_now) {
            if self.may_lack_slots {
                return Examined::At(inputs.monotonic_now + RACE_PAUSE);
            }
            let backing = held(&|record| {
                record.user_data = node.record.retired().to_user_data();
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
            if self.is_busy(&ActionKey::Request(id.clone())) || !self.knows_all_owners {
                continue;
            }
            let request = &self.requests.open[&id];
            let action = match request.state {
                RequestState::Failed => BackingAction::Discard { request: id, reason: "it failed" },
                _ => match self.adoption(&id, request, inputs) {
                    Adoption::Ready(node) => BackingAction::Adopt { request: id, node: *node },
                    Adoption::Impossible => BackingAction::Discard { request: id, reason: "its node is gone" },
                    Adoption::NotYet => continue,
                    Adoption::Unread => {
                        self.awaits_reads = true;
                        continue;
                    }
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
        // The transaction that fulfils a request also writes its node, which may become visible later.
        if inputs.unread.contains(node) {
            return Adoption::Unread;
        }
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
}

enum Examined {
    Act(Box<BackingAction>),
    /// Nothing before this time, unless it changes.
    At(MonotonicTime),
    Nothing,
}

enum Adoption {
    Ready(Box<NodeChange>),
    /// The snapshot will show when.
    NotYet,
    Unread,
    Impossible,
}
