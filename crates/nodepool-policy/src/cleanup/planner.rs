//! Upkeep: the mind of a CleanupWorker. Decides which repairs are due, and remembers those under way.

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
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::WriteError;

#[derive(Clone, Debug)]
pub enum Event {
    /// Look at what changes by events: spent nodes, orphans, lost requests, standing hosts.
    Wake,
    /// The interval of the slow rules is over: stale locks, empty nodes, hosts that failed.
    Sweep,
    Repaired(String, Result<(), WriteError>),
    Registered(String, Result<NodeId, WriteError>),
    Inspected(ProviderName, HostIdentity),
    Refreshed(ProviderName),
}

/// Each but the checks of hosts comes back as `Repaired` or `Registered` with its key.
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
    /// All hosts of a provider, once after it started.
    Refresh(ProviderName),
    /// Servers of another driver that a provider of hosts had before: somebody has to know of them.
    Undeletable {
        provider: ProviderName,
        nodes: Vec<NodeId>,
    },
}

/// Writes under way at once; the rest waits for the next look.
const MAX_WRITES_IN_FLIGHT: usize = 256;

/// Deletions of instances under way at once. Clouds take seconds for each, and the provider's queue bounds its calls anyway.
const MAX_DELETIONS_IN_FLIGHT: usize = 10_000;

/// Hosts that failed are checked so many at a time: each takes its whole timeout, and one that is back, or was used, must not
/// wait behind hundreds of them for its own check.
const MAX_RETRIED_HOSTS: usize = 50;

/// An instance that could not be deleted is left alone for so long, where nobody says otherwise.
const DELETION_BACKOFF: Seconds = Seconds(5.0);

#[derive(Debug)]
pub struct CleanupPlanner {
    lock_age: Seconds,
    /// What is under way, and the picture it was decided on.
    in_flight: BTreeMap<String, u64>,
    /// Checks of hosts under way, and when each began.
    inspecting: BTreeMap<(ProviderName, HostIdentity), MonotonicTime>,
    /// Hosts that failed and are to be checked again, and those of them whose checks are under way.
    failing: VecDeque<(ProviderName, HostIdentity)>,
    retried: BTreeSet<(ProviderName, HostIdentity)>,
    refreshing: BTreeSet<ProviderName>,
    slots: BTreeMap<ProviderName, Slots>,
    /// Which slots the writes under way fill or empty.
    slot_writes: BTreeMap<String, SlotRef>,
    /// How long slots are left to others who emptied them.
    slot_cooldown: Seconds,
    /// Facts and number of nodes at the last plan for standing hosts: while both stay, no slot needs anything.
    last_plans: BTreeMap<ProviderName, (Arc<ProviderFacts>, usize)>,
    /// When the next node reaches its age.
    due: Option<MonotonicTime>,
    /// Deletions of instances among them.
    deleting: BTreeSet<String>,
    /// Those that failed a moment ago, and when they may be tried again.
    backoff_until: BTreeMap<String, MonotonicTime>,
    deletion_backoff: Seconds,
    /// Nodes that cannot go, as they were seen last.
    undeletable: BTreeMap<ProviderName, BTreeSet<NodeId>>,
    /// Requests that a pool can go on with, and since when they have been seen so, with how long that is waited for.
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
            deletion_backoff: DELETION_BACKOFF,
            undeletable: BTreeMap::new(),
            resumable: BTreeMap::new(),
            counts: BTreeMap::new(),
            failed: BTreeMap::new(),
        }
    }

    /// How long an instance that could not be deleted is left alone.
    pub fn with_deletion_backoff(self, deletion_backoff: Seconds) -> Self {
        Self { deletion_backoff, ..self }
    }

    /// Who we are, for slots that others wait for as well.
    pub fn with_name(self, launcher: &str) -> Self {
        Self { slot_cooldown: slots::cooldown_for(launcher), ..self }
    }

    pub fn step(&mut self, event: Event, world: &Inputs<'_>) -> Vec<Effect> {
        match event {
            Event::Wake => self.reconcile(world),
            Event::Sweep => self.sweep(world),
            Event::Repaired(key, answer) => {
                self.note_slot_write(&key, &answer, Slots::freed);
                self.answered(key, answer.err(), world);
                Vec::new()
            }
            Event::Registered(key, answer) => {
                self.note_slot_write(&key, &answer, Slots::registered);
                self.answered(key, answer.err(), world);
                Vec::new()
            }
            Event::Refreshed(provider) => {
                self.refreshing.remove(&provider);
                self.last_plans.remove(&provider);
                Vec::new()
            }
            Event::Inspected(provider, host) => {
                self.inspected(provider, host, world);
                let mut effects = Vec::new();
                self.retry_failed(world, &mut effects);
                effects
            }
        }
    }

    /// When to look again though nothing changes.
    pub fn due(&self) -> Option<MonotonicTime> {
        self.due
    }

    fn reconcile(&mut self, world: &Inputs<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.backoff_until.retain(|_, until| *until > world.monotonic_now);
        self.due = self.backoff_until.values().copied().min();
        if !world.snapshot.connected {
            return effects;
        }
        self.update_resumable(world);
        let may_be_resumed = |request: &RequestId| {
            self.resumable.get(request).is_some_and(|(since, grace)| world.monotonic_now < *since + *grace)
        };
        // More cannot begin now, and what is under way needs no second time.
        let is_wanted = |id: &NodeId, node: &Node| {
            let key = format!("node {id}");
            let is_free = !self.in_flight.contains_key(&key) && !self.backoff_until.contains_key(&key);
            is_free && !node.allocation().is_some_and(may_be_resumed)
        };
        let mut repairs = rules::lost_requests(|request| !may_be_resumed(request), world);
        repairs.extend(rules::orphaned_nodes(is_wanted, world).take(MAX_WRITES_IN_FLIGHT));
        let mut due = self.due;
        for provider in world.config.providers.keys() {
            repairs.extend(rules::finished_nodes(provider, is_wanted, world).take(MAX_WRITES_IN_FLIGHT));
            for (old, next) in [rules::old_ready_nodes(provider, world), rules::old_held_nodes(provider, world)] {
                repairs.extend(old);
                due = [due, next.map(|next| world.monotonic_time_of(next))].into_iter().flatten().min();
            }
        }
        self.due = due;
        self.start(repairs, world, &mut effects);
        self.plan_static_hosts(world, &mut effects);
        effects
    }

    /// Requests that pools can go on with, and their nodes, are theirs for a while.
    fn update_resumable(&mut self, world: &Inputs<'_>) {
        let resumable = world.snapshot.pending_unlocked_requests();
        let resumable =
            resumable.filter_map(|(id, request)| Some((id.clone(), resumable::grace_period(id, request, world)?)));
        let before = std::mem::take(&mut self.resumable);
        let since = |id: &RequestId| before.get(id).map_or(world.monotonic_now, |(since, _)| *since);
        self.resumable = resumable.map(|(id, grace)| (id.clone(), (since(&id), grace))).collect();
        let ends = self
            .resumable
            .values()
            .map(|(since, grace)| *since + *grace)
            .filter(|end| *end > world.monotonic_now)
            .min();
        self.due = [self.due, ends].into_iter().flatten().min();
    }

    fn sweep(&mut self, world: &Inputs<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        if !world.snapshot.connected {
            return effects;
        }
        self.last_plans.clear();
        let mut repairs = rules::stale_request_locks(self.lock_age, world);
        repairs.extend(rules::empty_nodes(world));
        self.start(repairs, world, &mut effects);
        self.note_failed(world);
        self.retry_failed(world, &mut effects);
        self.report_undeletable(world, &mut effects);
        effects.extend(self.reconcile(world));
        effects
    }

    /// Says once for each that it is there.
    fn report_undeletable(&mut self, world: &Inputs<'_>, effects: &mut Vec<Effect>) {
        let before = std::mem::take(&mut self.undeletable);
        for (provider, node) in static_hosts::launched_nodes(world) {
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

    /// A host that failed its check is tried again with every sweep, or as soon as all others have had their turn.
    fn note_failed(&mut self, world: &Inputs<'_>) {
        if !self.failing.is_empty() {
            return;
        }
        for (provider, facts) in world.facts {
            let failed = facts.static_hosts.iter().filter(|host| matches!(host.check, HostCheck::Failed { .. }));
            let failed = failed.map(|host| (provider.clone(), host.identity.clone()));
            self.failing.extend(failed.filter(|key| !self.inspecting.contains_key(key)));
        }
    }

    fn retry_failed(&mut self, world: &Inputs<'_>, effects: &mut Vec<Effect>) {
        while self.retried.len() < MAX_RETRIED_HOSTS {
            let Some((provider, host)) = self.failing.pop_front() else { return };
            let known = world.facts.get(&provider).and_then(|facts| facts.static_host(&host));
            if known.is_some_and(|host| matches!(host.check, HostCheck::Failed { .. })) {
                self.retried.insert((provider.clone(), host.clone()));
                self.inspect(&provider, host, world, effects);
            }
        }
    }

    fn start(&mut self, repairs: Vec<Repair>, world: &Inputs<'_>, effects: &mut Vec<Effect>) {
        for repair in repairs {
            let is_full = match repair {
                Repair::Delete { .. } => self.deleting.len() >= MAX_DELETIONS_IN_FLIGHT,
                _ => self.is_write_limit_reached(),
            };
            if is_full || !self.begin(repair.key(), world) {
                continue;
            }
            if let Repair::Retire { node, .. } = &repair {
                self.note_removal(node, world);
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

    /// The slot of this node is about to be empty.
    fn note_removal(&mut self, id: &NodeId, world: &Inputs<'_>) {
        let Some(node) = world.snapshot.node(id).map(|stored| &stored.record) else { return };
        let (Some(provider), Some(host)) = (&node.provider, static_hosts::identity_of(node)) else { return };
        let slots = self.slots.entry(provider.clone()).or_default();
        slots.free(host.clone(), world.now);
        if let Some(slot) = slots.slot_of(id, node) {
            self.slot_writes.insert(format!("node {id}"), SlotRef { provider: provider.clone(), host, slot });
        }
    }

    /// What a write of ours that was done means for a slot.
    fn note_slot_write<T>(&mut self, key: &str, answer: &Result<T, WriteError>, change: fn(&mut Slots, &SlotRef)) {
        let Some(slot) = self.slot_writes.remove(key).filter(|_| answer.is_ok()) else { return };
        if let Some(slots) = self.slots.get_mut(&slot.provider) {
            change(slots, &slot);
        }
    }

    fn inspected(&mut self, provider: ProviderName, host: HostIdentity, world: &Inputs<'_>) {
        self.last_plans.remove(&provider);
        let key = (provider, host);
        self.retried.remove(&key);
        let Some(begun) = self.inspecting.remove(&key) else { return };
        // The facts that the check changed may have been looked at before it was known to be over.
        if self.slots.get_mut(&key.0).is_some_and(|slots| slots.inspected(&key.1, begun)) {
            self.due = Some(world.monotonic_now);
        }
    }

    fn plan_static_hosts(&mut self, world: &Inputs<'_>, effects: &mut Vec<Effect>) {
        self.slots.retain(|name, _| world.config.providers.contains_key(name));
        self.plan_all_providers(world, effects);
        let ends = self.slots.values().filter_map(|slots| slots.next_cooldown_end(world.monotonic_now)).min();
        self.due = [self.due, ends].into_iter().flatten().min();
    }

    fn plan_all_providers(&mut self, world: &Inputs<'_>, effects: &mut Vec<Effect>) {
        for (name, provider) in &world.config.providers {
            let Some(facts) = world.facts.get(name).filter(|facts| facts.launch_config.is_none()) else { continue };
            // Hosts are registered as soon as each has passed, so one that hangs does not hold up the others.
            if facts.refreshed_at == Timestamp::default() && self.refreshing.insert(name.clone()) {
                effects.push(Effect::Refresh(name.clone()));
            }
            if self.slots.get_mut(name).is_some_and(|slots| slots.has_cooldown_ended(world.monotonic_now)) {
                self.last_plans.remove(name);
            }
            let plan_inputs = (facts.clone(), world.snapshot.node_count_of(name));
            let same =
                |last: &(Arc<ProviderFacts>, usize)| Arc::ptr_eq(&last.0, &plan_inputs.0) && last.1 == plan_inputs.1;
            if self.last_plans.get(name).is_some_and(same) {
                continue;
            }
            // A plan looks at every slot: it is made when a good part of what may be under way can be begun.
            if self.writes() > MAX_WRITES_IN_FLIGHT / 2 {
                return;
            }
            let table = static_hosts::slot_table(provider, facts, world.snapshot);
            let slots = self.slots.entry(name.clone()).or_default();
            let slots_by_host = facts.static_hosts.iter().map(|host| (&host.identity, table.slots_of(host)));
            slots.observe(slots_by_host, self.slot_cooldown, world);
            let free_slots = slots.free_slots().clone();
            for action in static_hosts::plan(provider, facts, table, &free_slots, world) {
                if self.is_write_limit_reached() {
                    return;
                }
                self.start_action(name, action, world, effects);
            }
            self.last_plans.insert(name.clone(), plan_inputs);
        }
    }

    fn start_action(
        &mut self,
        provider: &ProviderName,
        action: StaticHostAction,
        world: &Inputs<'_>,
        effects: &mut Vec<Effect>,
    ) {
        match action {
            StaticHostAction::Register(node) => {
                let host = static_hosts::identity_of(&node).expect("a node that is registered names its host");
                let slot = node.slot.and_then(|slot| usize::try_from(slot).ok()).unwrap_or(0);
                let key = format!("slot {slot} of {host} in {provider}");
                if self.begin(key.clone(), world) {
                    self.slot_writes.insert(key.clone(), SlotRef { provider: provider.clone(), host, slot });
                    effects.push(Effect::Register { key, node });
                }
            }
            StaticHostAction::Update { node, version, record } => {
                if self.begin(format!("node {node}"), world) {
                    effects.push(Effect::Update { node, version, record });
                }
            }
            StaticHostAction::Retire { node, version } => {
                self.start(vec![Repair::Retire { node, version }], world, effects)
            }
            StaticHostAction::Inspect(host) => self.inspect(provider, host, world, effects),
        }
    }

    fn inspect(&mut self, provider: &ProviderName, host: HostIdentity, world: &Inputs<'_>, effects: &mut Vec<Effect>) {
        if let Entry::Vacant(entry) = self.inspecting.entry((provider.clone(), host.clone())) {
            entry.insert(world.monotonic_now);
            effects.push(Effect::Inspect { provider: provider.clone(), host });
        }
    }

    /// False where the same is under way already, or failed a moment ago.
    fn begin(&mut self, key: String, world: &Inputs<'_>) -> bool {
        if self.backoff_until.contains_key(&key) {
            return false;
        }
        match self.in_flight.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(world.snapshot.revision);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    fn answered(&mut self, key: String, error: Option<WriteError>, world: &Inputs<'_>) {
        let (revision, was_deletion) = (self.in_flight.remove(&key), self.deleting.remove(&key));
        assert!(revision.is_some(), "an answer for {key}, which nobody asked for");
        self.last_plans.clear();
        let Some(error) = error else {
            *self.counts.entry("done").or_insert(0) += 1;
            self.failed.remove(&key);
            return;
        };
        *self.counts.entry("refused").or_insert(0) += 1;
        if was_deletion && matches!(error, WriteError::Failed(_)) {
            // The lock that is given back would wake us at once.
            let until = world.monotonic_now + self.deletion_backoff;
            self.backoff_until.insert(key.clone(), until);
            self.due = [self.due, Some(until)].into_iter().flatten().min();
        }
        if self.failed.len() < MAX_WRITES_IN_FLIGHT {
            self.failed.insert(key, error.to_string());
        }
        // A picture that came while this was under way was looked at without it, and may be the last for a long time.
        let is_outdated = revision != Some(world.snapshot.revision);
        if is_outdated && matches!(error, WriteError::Conflict | WriteError::Contended) {
            // One look serves all that are refused together.
            self.due = Some(world.monotonic_now);
        }
    }
}

/// What a dump shows.
#[derive(Clone, Debug, Serialize)]
pub struct CleanupView {
    pub actor: &'static str,
    pub in_flight: Vec<String>,
    pub inspecting: Vec<String>,
    pub counts: BTreeMap<&'static str, u64>,
    pub failed: BTreeMap<String, String>,
    /// Servers that nobody can delete, as another driver made them.
    pub undeletable: Vec<String>,
    /// When it looks again though nothing changes.
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
