//! Clean-up planner of a CleanupWorker: decides which repairs are due, and tracks those in flight.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::Serialize;

use super::rules::{self, Repair};
use super::slots::{self, SlotRef, Slots};
use super::static_hosts::{self, StaticHostAction};
use crate::inputs::Inputs;
use crate::request::resumable;
use nodepool_driver::facts::ProviderFacts;
use nodepool_model::records::ids::{NodeId, ProviderName, RequestId};
use nodepool_model::records::node::Node;
use nodepool_model::records::static_host::{HostCheck, HostIdentity};
use nodepool_model::records::time::{MonotonicTime, Seconds};
use nodepool_model::snapshot::WriteError;

#[derive(Clone, Debug)]
pub enum Event {
    /// Reconcile everything that changes with events: finished nodes, orphans, lost requests, static hosts.
    Wake,
    /// The interval of the slow rules has passed: stale locks, empty nodes, failed hosts.
    Sweep,
    Repaired(String, Result<(), WriteError>),
    Registered(String, Result<NodeId, WriteError>),
    Inspected(ProviderName, HostIdentity),
    Refreshed(ProviderName),
}

/// Every effect except a host check is answered by `Repaired` or `Registered` with the same key.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Repair(Repair),
    Register {
        key: String,
        node: Box<Node>,
    },
    Update {
        node: NodeId,
        version: i32,
        record: Box<Node>,
    },
    Inspect {
        provider: ProviderName,
        host: HostIdentity,
    },
    /// Check all hosts of a provider, once after its start.
    Refresh(ProviderName),
    /// Servers that a previous driver of a static provider launched: reported to the operator, because no driver
    /// deletes them.
    Undeletable {
        provider: ProviderName,
        nodes: Vec<NodeId>,
    },
}

/// Maximum number of writes in flight; the rest waits for the next pass.
const MAX_WRITES_IN_FLIGHT: usize = 256;

/// Maximum number of instance deletions in flight. Clouds take seconds for each, and the provider's queue bounds its
/// calls anyway.
const MAX_DELETIONS_IN_FLIGHT: usize = 10_000;

/// Maximum number of failed hosts that are checked at a time. Each check takes its whole timeout, and a host that has
/// recovered or was just used must not wait behind hundreds of them.
const MAX_RETRIED_HOSTS: usize = 50;

/// Default back-off of an instance that could not be deleted.
const DELETION_BACKOFF: Seconds = Seconds(5.0);
/// Each further failure doubles the back-off up to this.
const MAX_DELETION_BACKOFF: Seconds = Seconds(600.0);

#[derive(Debug)]
pub struct CleanupPlanner {
    lock_age: Seconds,
    /// Effects in flight, with the revision of the snapshot that led to each.
    in_flight: BTreeMap<String, u64>,
    /// Host checks in flight, and when each started.
    inspecting: BTreeMap<(ProviderName, HostIdentity), MonotonicTime>,
    /// Failed hosts to be checked again, and those whose checks are in flight.
    failing: VecDeque<(ProviderName, HostIdentity)>,
    retried: BTreeSet<(ProviderName, HostIdentity)>,
    refreshing: BTreeSet<ProviderName>,
    slots: BTreeMap<ProviderName, Slots>,
    /// Slots that the writes in flight fill or free.
    slot_writes: BTreeMap<String, SlotRef>,
    /// Time for which slots are left to the launchers that freed them.
    slot_cooldown: Seconds,
    /// Provider facts and number of nodes at the last plan for static hosts: while both are unchanged, no slot needs an
    /// action.
    last_plans: BTreeMap<ProviderName, (Arc<ProviderFacts>, usize)>,
    /// Time at which the next reconcile run is due without an event.
    due: Option<MonotonicTime>,
    /// Keys in flight that are instance deletions.
    deleting: BTreeSet<String>,
    /// Keys whose deletion failed recently, and the end of their back-off.
    backoff_until: BTreeMap<String, MonotonicTime>,
    /// The next back-off of keys whose last deletion failed. It doubles with each failure.
    next_backoff: BTreeMap<String, Seconds>,
    deletion_backoff: Seconds,
    /// Undeletable nodes as of the last report.
    undeletable: BTreeMap<ProviderName, BTreeSet<NodeId>>,
    /// Requests that a pool can resume, each with the start and the length of its grace period.
    resumable: BTreeMap<RequestId, (MonotonicTime, Seconds)>,
    counts: BTreeMap<&'static str, u64>,
    failed: BTreeMap<String, String>,
}

impl CleanupPlanner {
    pub fn new(lock_age: Seconds) -> Self {
        Self {
            lock_age,
            in_flight: BTreeMap::new(),
            inspecting: BTreeMap::new(),
            failing: VecDeque::new(),
            retried: BTreeSet::new(),
            refreshing: BTreeSet::new(),
            slots: BTreeMap::new(),
            slot_writes: BTreeMap::new(),
            slot_cooldown: slots::cooldown_for(""),
            last_plans: BTreeMap::new(),
            due: None,
            deleting: BTreeSet::new(),
            backoff_until: BTreeMap::new(),
            next_backoff: BTreeMap::new(),
            deletion_backoff: DELETION_BACKOFF,
            undeletable: BTreeMap::new(),
            resumable: BTreeMap::new(),
            counts: BTreeMap::new(),
            failed: BTreeMap::new(),
        }
    }

    /// Sets the back-off of an instance that could not be deleted.
    pub fn with_deletion_backoff(self, deletion_backoff: Seconds) -> Self {
        Self { deletion_backoff, ..self }
    }

    /// Sets the launcher's name, which determines the cooldown of slots.
    pub fn with_name(self, launcher: &str) -> Self {
        Self { slot_cooldown: slots::cooldown_for(launcher), ..self }
    }

    pub fn step(&mut self, event: Event, inputs: &Inputs<'_>) -> Vec<Effect> {
        match event {
            Event::Wake => self.reconcile(inputs),
            Event::Sweep => self.sweep(inputs),
            Event::Repaired(key, answer) => {
                self.note_slot_write(&key, &answer, Slots::freed);
                self.answered(key, answer.err(), inputs);
                Vec::new()
            }
            Event::Registered(key, answer) => {
                self.note_slot_write(&key, &answer, Slots::registered);
                self.answered(key, answer.err(), inputs);
                Vec::new()
            }
            Event::Refreshed(provider) => {
                self.refreshing.remove(&provider);
                self.last_plans.remove(&provider);
                Vec::new()
            }
            Event::Inspected(provider, host) => {
                self.inspected(provider, host, inputs);
                let mut effects = Vec::new();
                self.retry_failed(inputs, &mut effects);
                effects
            }
        }
    }

    /// Time at which to reconcile again even without a change.
    pub fn due(&self) -> Option<MonotonicTime> {
        self.due
    }

    fn reconcile(&mut self, inputs: &Inputs<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.backoff_until.retain(|_, until| *until > inputs.monotonic_now);
        self.due = self.backoff_until.values().copied().min();
        if !inputs.snapshot.connected {
            return effects;
        }
        self.update_resumable(inputs);
        let may_be_resumed = |request: &RequestId| {
            self.resumable.get(request).is_some_and(|(since, grace)| inputs.monotonic_now < *since + *grace)
        };
        // A key in flight needs no second effect, and a key in back-off cannot start now.
        let is_wanted = |id: &NodeId, node: &Node| {
            let key = format!("node {id}");
            let is_free = !self.in_flight.contains_key(&key) && !self.backoff_until.contains_key(&key);
            is_free && !node.allocation().is_some_and(may_be_resumed)
        };
        let mut repairs = rules::lost_requests(|request| !may_be_resumed(request), inputs);
        repairs.extend(rules::orphaned_nodes(is_wanted, inputs).take(MAX_WRITES_IN_FLIGHT));
        let mut due = self.due;
        for provider in inputs.config.providers.keys() {
            repairs.extend(rules::finished_nodes(provider, is_wanted, inputs).take(MAX_WRITES_IN_FLIGHT));
            repairs.extend(rules::ending_nodes(provider, inputs));
            for (old, next) in [rules::old_ready_nodes(provider, inputs), rules::old_held_nodes(provider, inputs)] {
                repairs.extend(old);
                due = [due, next.map(|next| inputs.monotonic_time_of(next))].into_iter().flatten().min();
            }
        }
        self.due = due;
        self.start(repairs, inputs, &mut effects);
        self.plan_static_hosts(inputs, &mut effects);
        effects
    }

    /// Requests that pools can resume are left to them for a grace period, with their nodes.
    fn update_resumable(&mut self, inputs: &Inputs<'_>) {
        let resumable = inputs.snapshot.pending_unlocked_requests();
        let resumable =
            resumable.filter_map(|(id, request)| Some((id.clone(), resumable::grace_period(id, request, inputs)?)));
        let before = std::mem::take(&mut self.resumable);
        let since = |id: &RequestId| before.get(id).map_or(inputs.monotonic_now, |(since, _)| *since);
        self.resumable = resumable.map(|(id, grace)| (id.clone(), (since(&id), grace))).collect();
        let ends = self
            .resumable
            .values()
            .map(|(since, grace)| *since + *grace)
            .filter(|end| *end > inputs.monotonic_now)
            .min();
        self.due = [self.due, ends].into_iter().flatten().min();
    }

    fn sweep(&mut self, inputs: &Inputs<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        if !inputs.snapshot.connected {
            return effects;
        }
        self.last_plans.clear();
        // Another process may have deleted the node.
        self.next_backoff.retain(|key, _| {
            key.strip_prefix("node ").is_some_and(|id| inputs.snapshot.node(&NodeId::from(id)).is_some())
        });
        let mut repairs = rules::stale_request_locks(self.lock_age, inputs);
        repairs.extend(rules::empty_nodes(inputs));
        self.start(repairs, inputs, &mut effects);
        self.note_failed(inputs);
        self.retry_failed(inputs, &mut effects);
        self.report_undeletable(inputs, &mut effects);
        effects.extend(self.reconcile(inputs));
        effects
    }

    /// Reports each undeletable node once.
    fn report_undeletable(&mut self, inputs: &Inputs<'_>, effects: &mut Vec<Effect>) {
        let before = std::mem::take(&mut self.undeletable);
        for (provider, node) in static_hosts::launched_nodes(inputs) {
            self.undeletable.entry(provider.clone()).or_default().insert(node.clone());
        }
        for (provider, nodes) in &self.undeletable {
            let is_new = |id: &&NodeId| !before.get(provider).is_some_and(|known| known.contains(*id));
            let nodes: Vec<_> = nodes.iter().filter(is_new).cloned().collect();
            if !nodes.is_empty() {
                effects.push(Effect::Undeletable { provider: provider.clone(), nodes });
            }
        }
    }

    /// Queues all failed hosts for another check, as soon as no host of an earlier sweep is queued any more.
    fn note_failed(&mut self, inputs: &Inputs<'_>) {
        if !self.failing.is_empty() {
            return;
        }
        for (provider, facts) in inputs.facts {
            let failed = facts.static_hosts.iter().filter(|host| matches!(host.check, HostCheck::Failed { .. }));
            let failed = failed.map(|host| (provider.clone(), host.identity.clone()));
            self.failing.extend(failed.filter(|key| !self.inspecting.contains_key(key)));
        }
    }

    fn retry_failed(&mut self, inputs: &Inputs<'_>, effects: &mut Vec<Effect>) {
        while self.retried.len() < MAX_RETRIED_HOSTS {
            let Some((provider, host)) = self.failing.pop_front() else { return };
            let known = inputs.facts.get(&provider).and_then(|facts| facts.static_host(&host));
            if known.is_some_and(|host| matches!(host.check, HostCheck::Failed { .. })) {
                self.retried.insert((provider.clone(), host.clone()));
                self.inspect(&provider, host, inputs, effects);
            }
        }
    }

    fn start(&mut self, repairs: Vec<Repair>, inputs: &Inputs<'_>, effects: &mut Vec<Effect>) {
        for repair in repairs {
            let is_full = match repair {
                Repair::Delete { .. } => self.deleting.len() >= MAX_DELETIONS_IN_FLIGHT,
                _ => self.is_write_limit_reached(),
            };
            if is_full || !self.begin(repair.key(), inputs) {
                continue;
            }
            if let Repair::Retire { node, .. } = &repair {
                self.note_removal(node, inputs);
            }
            if let Repair::Delete { .. } = &repair {
                self.deleting.insert(repair.key());
            }
            effects.push(Effect::Repair(repair));
        }
    }

    fn is_write_limit_reached(&self) -> bool {
        self.writes() >= MAX_WRITES_IN_FLIGHT
    }

    fn writes(&self) -> usize {
        self.in_flight.len() - self.deleting.len()
    }

    /// Records that the slot of this node is about to be freed.
    fn note_removal(&mut self, id: &NodeId, inputs: &Inputs<'_>) {
        let Some(node) = inputs.snapshot.node(id).map(|stored| &stored.record) else { return };
        let (Some(provider), Some(host)) = (&node.provider, static_hosts::identity_of(node)) else { return };
        let slots = self.slots.entry(provider.clone()).or_default();
        slots.free(host.clone(), inputs.now);
        if let Some(slot) = slots.slot_of(id, node) {
            self.slot_writes.insert(format!("node {id}"), SlotRef { provider: provider.clone(), host, slot });
        }
    }

    /// Applies a successful write to the slot that it concerns.
    fn note_slot_write<T>(&mut self, key: &str, answer: &Result<T, WriteError>, change: fn(&mut Slots, &SlotRef)) {
        let Some(slot) = self.slot_writes.remove(key).filter(|_| answer.is_ok()) else { return };
        if let Some(slots) = self.slots.get_mut(&slot.provider) {
            change(slots, &slot);
        }
    }

    fn inspected(&mut self, provider: ProviderName, host: HostIdentity, inputs: &Inputs<'_>) {
        self.last_plans.remove(&provider);
        let key = (provider, host);
        self.retried.remove(&key);
        let Some(started_at) = self.inspecting.remove(&key) else { return };
        // A pass may have seen the changed facts before the check counted as finished.
        if self.slots.get_mut(&key.0).is_some_and(|slots| slots.inspected(&key.1, started_at)) {
            self.due = Some(inputs.monotonic_now);
        }
    }

    fn plan_static_hosts(&mut self, inputs: &Inputs<'_>, effects: &mut Vec<Effect>) {
        self.slots.retain(|name, _| inputs.config.providers.contains_key(name));
        self.plan_all_providers(inputs, effects);
        let ends = self.slots.values().filter_map(|slots| slots.next_cooldown_end(inputs.monotonic_now)).min();
        self.due = [self.due, ends].into_iter().flatten().min();
    }

    fn plan_all_providers(&mut self, inputs: &Inputs<'_>, effects: &mut Vec<Effect>) {
        for (name, provider) in &inputs.config.providers {
            let Some(facts) = inputs.facts.get(name).filter(|facts| facts.launch_config.is_none()) else { continue };
            // Each host is registered as soon as it passes, so that one that hangs does not delay the others.
            if !facts.is_refreshed() && self.refreshing.insert(name.clone()) {
                effects.push(Effect::Refresh(name.clone()));
            }
            if self.slots.get_mut(name).is_some_and(|slots| slots.has_cooldown_ended(inputs.monotonic_now)) {
                self.last_plans.remove(name);
            }
            let plan_inputs = (facts.clone(), inputs.snapshot.node_count_of(name));
            let same =
                |last: &(Arc<ProviderFacts>, usize)| Arc::ptr_eq(&last.0, &plan_inputs.0) && last.1 == plan_inputs.1;
            if self.last_plans.get(name).is_some_and(same) {
                continue;
            }
            // A plan reads every slot, so it is made only if a good part of the allowed writes can start.
            if self.writes() > MAX_WRITES_IN_FLIGHT / 2 {
                return;
            }
            let table = static_hosts::slot_table(provider, facts, inputs.snapshot);
            let slots = self.slots.entry(name.clone()).or_default();
            let slots_by_host = facts.static_hosts.iter().map(|host| (&host.identity, table.slots_of(host)));
            slots.observe(slots_by_host, self.slot_cooldown, inputs);
            let free_slots = slots.free_slots().clone();
            for action in static_hosts::plan(provider, facts, table, &free_slots, inputs) {
                if self.is_write_limit_reached() {
                    return;
                }
                self.start_action(name, action, inputs, effects);
            }
            self.last_plans.insert(name.clone(), plan_inputs);
        }
    }

    fn start_action(
        &mut self,
        provider: &ProviderName,
        action: StaticHostAction,
        inputs: &Inputs<'_>,
        effects: &mut Vec<Effect>,
    ) {
        match action {
            StaticHostAction::Register(node) => {
                let host = static_hosts::identity_of(&node).expect("a registered node names its host");
                let slot = node.slot.and_then(|slot| usize::try_from(slot).ok()).unwrap_or(0);
                let key = format!("slot {slot} of {host} in {provider}");
                if self.begin(key.clone(), inputs) {
                    self.slot_writes.insert(key.clone(), SlotRef { provider: provider.clone(), host, slot });
                    effects.push(Effect::Register { key, node });
                }
            }
            StaticHostAction::Update { node, version, record } => {
                if self.begin(format!("node {node}"), inputs) {
                    effects.push(Effect::Update { node, version, record });
                }
            }
            StaticHostAction::Retire { node, version } => {
                self.start(vec![Repair::Retire { node, version }], inputs, effects)
            }
            StaticHostAction::Inspect(host) => self.inspect(provider, host, inputs, effects),
        }
    }

    fn inspect(&mut self, provider: &ProviderName, host: HostIdentity, inputs: &Inputs<'_>, effects: &mut Vec<Effect>) {
        if let Entry::Vacant(entry) = self.inspecting.entry((provider.clone(), host.clone())) {
            entry.insert(inputs.monotonic_now);
            effects.push(Effect::Inspect { provider: provider.clone(), host });
        }
    }

    /// Starts an effect. False if the same key is in flight, or in back-off.
    fn begin(&mut self, key: String, inputs: &Inputs<'_>) -> bool {
        if self.backoff_until.contains_key(&key) {
            return false;
        }
        match self.in_flight.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(inputs.snapshot.revision);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    fn answered(&mut self, key: String, error: Option<WriteError>, inputs: &Inputs<'_>) {
        let (revision, was_deletion) = (self.in_flight.remove(&key), self.deleting.remove(&key));
        assert!(revision.is_some(), "answer for {key} without an effect in flight");
        self.last_plans.clear();
        let Some(error) = error else {
            *self.counts.entry("done").or_insert(0) += 1;
            self.failed.remove(&key);
            self.next_backoff.remove(&key);
            return;
        };
        *self.counts.entry("refused").or_insert(0) += 1;
        if was_deletion && matches!(error, WriteError::Failed(_)) {
            // Releasing the lock would trigger an immediate retry.
            let backoff = self.next_backoff.entry(key.clone()).or_insert(self.deletion_backoff);
            let until = inputs.monotonic_now + *backoff;
            *backoff = Seconds((backoff.0 * 2.0).min(MAX_DELETION_BACKOFF.0.max(self.deletion_backoff.0)));
            self.backoff_until.insert(key.clone(), until);
            self.due = [self.due, Some(until)].into_iter().flatten().min();
        }
        if self.failed.len() < MAX_WRITES_IN_FLIGHT {
            self.failed.insert(key, error.to_string());
        }
        // A snapshot that arrived meanwhile was reconciled with this effect in flight, and may be the last one for a
        // long time.
        let is_outdated = revision != Some(inputs.snapshot.revision);
        if is_outdated && matches!(error, WriteError::Conflict | WriteError::Contended) {
            // One pass covers all writes that were rejected together.
            self.due = Some(inputs.monotonic_now);
        }
    }
}

/// State of the planner for dumps.
#[derive(Clone, Debug, Serialize)]
pub struct CleanupView {
    pub actor: &'static str,
    pub in_flight: Vec<String>,
    pub inspecting: Vec<String>,
    pub counts: BTreeMap<&'static str, u64>,
    pub failed: BTreeMap<String, String>,
    /// Servers that cannot be deleted, because another driver launched them.
    pub undeletable: Vec<String>,
    /// Seconds until it reconciles again even without a change.
    pub due_in_s: Option<f64>,
}

impl CleanupPlanner {
    pub fn view(&self, now: MonotonicTime) -> CleanupView {
        CleanupView {
            actor: "CleanupWorker",
            in_flight: self.in_flight.keys().cloned().collect(),
            inspecting: self.inspecting.keys().map(|(provider, host)| format!("{host} of {provider}")).collect(),
            counts: self.counts.clone(),
            failed: self.failed.clone(),
            undeletable: self.undeletable.values().flatten().map(|id| format!("node {id}")).collect(),
            due_in_s: self.due.map(|due| (due - now).0),
        }
    }
}
