//! Leaks: instances that bear our mark and belong to no node. They are deleted with proof only.
//!
//! The proof: a complete listing shows the instance, ZooKeeper, asked anew after that, has no node for it, and a second
//! complete listing shows it still. Numbers of nodes are never given twice, and a node's record is there before its instance
//! is asked for, so an instance without a node was forgotten. One whose number this ZooKeeper has never given is another's,
//! or was made before this one was restored from an older state: it is reported and left alone. So are more than the budget
//! allows: so many at once speak of a wrong ZooKeeper rather than of leaks.
//!
//! Nearly always there is nothing to find. Where the last listing showed no suspects, the next look is at the ids alone: each is
//! that of a node or of an instance that was seen to be somebody else's, or all are listed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;

use crate::inputs::Inputs;
use nodepool_driver::instance::{Instance, InstanceState, Inventory};
use nodepool_model::records::ids::{ExternalId, NodeId, ProviderName};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::{MonotonicTime, Seconds};
use nodepool_model::snapshot::Snapshot;

/// So many may always be deleted in one sweep.
const MIN_BUDGET: usize = 10;
/// And so many of a hundred instances of ours.
const BUDGET_PERCENT: usize = 10;

/// Between two listings though the ids alone show nothing: marks of instances can be changed.
const FULL_LISTING_INTERVAL: Seconds = Seconds(600.0);

/// Ports, and floating addresses, that may be deleted in one sweep.
const CLEAN_UNUSED_BUDGET: usize = 100;

#[derive(Clone, Debug)]
pub enum Event {
    /// The interval of the sweep is over.
    Sweep,
    /// The ids of all instances.
    ServerIdsListed(ProviderName, Vec<String>),
    /// A complete listing, or none.
    Listed(ProviderName, Option<std::sync::Arc<Inventory>>),
    /// What ZooKeeper, asked anew, says; nothing where it could not be asked.
    Proven(ProviderName, Option<Proof>),
    /// The sweep of what bears no mark has ended.
    UnusedCleaned(ProviderName),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proof {
    /// `None` is a node that is gone; of one that is left out nothing is known.
    pub nodes: BTreeMap<NodeId, Option<Box<Node>>>,
    /// All numbers that nodes were ever given are smaller.
    pub issued_ids_below: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// For the ids of all instances, or for all of them.
    ListServerIds(ProviderName),
    List(ProviderName),
    Prove(ProviderName, Vec<NodeId>),
    /// What instances that belong to no node take of the cloud's limits; other than what is known of it.
    SetLeakedUsage(ProviderName, Resources),
    /// Nobody waits for its end: the next listing tells.
    Delete {
        provider: ProviderName,
        candidate: LeakCandidate,
    },
    /// More than the budget allows.
    Exceeded {
        provider: ProviderName,
        candidates: Vec<LeakCandidate>,
        budget: usize,
    },
    /// Their numbers have not been given here.
    UnissuedId(ProviderName, Vec<LeakCandidate>),
    /// Ports and floating addresses, at most so many of each.
    CleanUnused {
        provider: ProviderName,
        ports: bool,
        budget: usize,
    },
}

/// An instance of ours that seems to belong to nobody.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeakCandidate {
    pub external_id: ExternalId,
    pub node: NodeId,
    pub reason: LeakReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakReason {
    NoNode,
    /// Its node has another instance.
    OtherInstance,
}

impl LeakReason {
    pub fn text(self) -> &'static str {
        match self {
            LeakReason::NoNode => "its node is gone",
            LeakReason::OtherInstance => "its node has another instance",
        }
    }
}

/// By their ids, with the number of listings in a row that lacked them.
type ForeignServers = HashMap<String, u32>;

/// What so many listings lacked is gone: one of them may be partial, or behind. Others' servers come and go as ours do.
const FORGET_AFTER_LISTINGS: u32 = 100;

#[derive(Debug, Default)]
pub struct LeakDetector {
    providers: BTreeMap<ProviderName, ProviderState>,
    /// Instances whose numbers had not been given when they were looked at. After a while there may be other nodes of these
    /// numbers, which proves nothing.
    foreign: BTreeMap<ProviderName, ForeignServers>,
    /// Proofs that were asked for: each is about the suspects of its own listing.
    pending_proofs: BTreeMap<ProviderName, u32>,
}

#[derive(Debug, Default)]
struct ProviderState {
    is_listing: bool,
    /// By the last listing, and whether ZooKeeper has confirmed it since.
    suspects: Vec<LeakCandidate>,
    proven: Vec<LeakCandidate>,
    /// Whatever the last listing showed that belongs to no node.
    unowned: BTreeSet<String>,
    /// Instances of others, by the last listing.
    others: HashSet<String>,
    listed_at: Option<MonotonicTime>,
    is_cleaning: bool,
    ports_cleaned_at: Option<MonotonicTime>,
}

impl LeakDetector {
    pub fn step(&mut self, event: Event, world: &Inputs<'_>) -> Vec<Effect> {
        match event {
            Event::Sweep => self.sweep(world),
            Event::ServerIdsListed(provider, ids) => self.server_ids_listed(provider, &ids, world),
            Event::Listed(provider, inventory) => self.listed(&provider, inventory.as_deref(), world),
            Event::Proven(provider, proof) => self.proven(provider, &proof.unwrap_or_default()),
            Event::UnusedCleaned(provider) => {
                if let Some(watch) = self.providers.get_mut(&provider) {
                    watch.is_cleaning = false;
                }
                Vec::new()
            }
        }
    }

    fn sweep(&mut self, world: &Inputs<'_>) -> Vec<Effect> {
        let launches =
            |provider: &ProviderName| world.facts.get(provider).and_then(|facts| facts.launch_config.clone());
        self.providers.retain(|provider, _| launches(provider).is_some());
        if !world.snapshot.connected {
            // What was seen before says nothing about what is when it comes back.
            self.providers
                .values_mut()
                .for_each(|watch| *watch = ProviderState { is_listing: watch.is_listing, ..watch.reset() });
            return Vec::new();
        }
        let mut effects = Vec::new();
        for provider in world.config.providers.keys() {
            let Some(launching) = launches(provider) else { continue };
            let watch = self.providers.entry(provider.clone()).or_default();
            if !watch.is_listing {
                watch.is_listing = true;
                let is_quiet = watch.was_clean() && !watch.listing_is_due(world.monotonic_now);
                let listing = if is_quiet { Effect::ListServerIds } else { Effect::List };
                effects.push(listing(provider.clone()));
            }
            let ports = launching
                .unused_resources
                .ports
                .is_some_and(|interval| watch.ports_are_due(interval, world.monotonic_now));
            if (ports || launching.unused_resources.floating_ips) && !watch.is_cleaning {
                watch.is_cleaning = true;
                if ports {
                    watch.ports_cleaned_at = Some(world.monotonic_now);
                }
                effects.push(Effect::CleanUnused { provider: provider.clone(), ports, budget: CLEAN_UNUSED_BUDGET });
            }
        }
        effects
    }

    fn server_ids_listed(&mut self, provider: ProviderName, ids: &[String], world: &Inputs<'_>) -> Vec<Effect> {
        let Some(watch) = self.providers.get_mut(&provider) else { return Vec::new() };
        let own = world.snapshot.nodes_of(&provider).filter_map(|(_, node)| node.record.external_id.as_str());
        let own: HashSet<&str> = own.collect();
        let is_known = |id: &String| own.contains(id.as_str()) || watch.others.contains(id);
        if world.snapshot.connected && !ids.iter().all(is_known) {
            return vec![Effect::List(provider)];
        }
        watch.is_listing = false;
        Vec::new()
    }

    fn listed(&mut self, provider: &ProviderName, inventory: Option<&Inventory>, world: &Inputs<'_>) -> Vec<Effect> {
        let Some(watch) = self.providers.get_mut(provider) else { return Vec::new() };
        watch.is_listing = false;
        let Some(inventory) = inventory.filter(|_| world.snapshot.connected) else {
            *watch = watch.reset();
            return Vec::new();
        };
        let found = leak_candidates(provider, inventory, |node| node_of(world.snapshot, node));
        let confirmed: Vec<LeakCandidate> =
            found.iter().filter(|suspect| watch.proven.contains(suspect)).cloned().collect();
        watch.proven.clear();
        watch.suspects = found;
        watch.listed_at = Some(world.monotonic_now);
        if let Some(foreign) = self.foreign.get_mut(provider).filter(|strangers| !strangers.is_empty()) {
            let shown: HashSet<String> =
                inventory.instances().iter().map(|instance| instance.external_id.to_string()).collect();
            foreign.retain(|id, missed| {
                *missed = if shown.contains(id) { 0 } else { *missed + 1 };
                *missed < FORGET_AFTER_LISTINGS
            });
        }
        let others = inventory.instances().iter().filter(|instance| !instance.belongs_to(provider));
        watch.others = others.map(|instance| instance.external_id.to_string()).collect();
        let mut effects = Vec::new();
        let leaked = watch.leaked_usage(provider, inventory, |node| node_of(world.snapshot, node));
        if world.facts.get(provider).is_some_and(|facts| facts.leaked != leaked) {
            effects.push(Effect::SetLeakedUsage(provider.clone(), leaked));
        }
        let budget = budget(inventory, provider);
        if confirmed.len() > budget {
            effects.push(Effect::Exceeded { provider: provider.clone(), candidates: confirmed, budget });
        } else {
            let deletions =
                confirmed.into_iter().map(|suspect| Effect::Delete { provider: provider.clone(), candidate: suspect });
            effects.extend(deletions);
        }
        if !watch.suspects.is_empty() {
            let nodes: BTreeSet<NodeId> = watch.suspects.iter().map(|suspect| suspect.node.clone()).collect();
            effects.push(Effect::Prove(provider.clone(), nodes.into_iter().collect()));
            *self.pending_proofs.entry(provider.clone()).or_default() += 1;
        }
        effects
    }

    fn proven(&mut self, provider: ProviderName, proof: &Proof) -> Vec<Effect> {
        let pending_proofs = self.pending_proofs.entry(provider.clone()).or_default();
        *pending_proofs = pending_proofs.saturating_sub(1);
        let is_newest = *pending_proofs == 0;
        let Some(watch) = self.providers.get_mut(&provider).filter(|_| is_newest) else { return Vec::new() };
        let foreign = self.foreign.entry(provider.clone()).or_default();
        watch.prove(proof, foreign);
        let is_foreign = |suspect: &&LeakCandidate| foreign.contains_key(&suspect.external_id.to_string());
        let unissued: Vec<LeakCandidate> = watch.suspects.iter().filter(is_foreign).cloned().collect();
        if unissued.is_empty() { Vec::new() } else { vec![Effect::UnissuedId(provider, unissued)] }
    }

    /// For dumps: what is suspected, by provider.
    pub fn candidates(&self) -> BTreeMap<&ProviderName, &Vec<LeakCandidate>> {
        self.providers.iter().map(|(provider, watch)| (provider, &watch.suspects)).collect()
    }
}

impl ProviderState {
    /// One that has seen no instances. Ports have their own time: somebody else's that is seen twice within it is deleted.
    fn reset(&self) -> Self {
        Self { ports_cleaned_at: self.ports_cleaned_at, is_cleaning: self.is_cleaning, ..Self::default() }
    }

    fn prove(&mut self, proof: &Proof, foreign: &mut ForeignServers) {
        self.proven.clear();
        for candidate in &self.suspects {
            // It could not be asked.
            let Some(node) = proof.nodes.get(&candidate.node) else { continue };
            let id = candidate.external_id.to_string();
            if number(&candidate.node).is_none_or(|number| number >= proof.issued_ids_below) {
                foreign.insert(id, 0);
            } else if !foreign.contains_key(&id)
                && leak_reason(&candidate.external_id, node.as_deref()) == Some(candidate.reason)
            {
                self.proven.push(candidate.clone());
            }
        }
    }

    /// What instances take that were nobody's at the last look as well, those that are going among them. One look is not
    /// enough: of a node that has just been deleted, a listing may still show the instance.
    fn leaked_usage<'a>(
        &mut self,
        provider: &ProviderName,
        inventory: &Inventory,
        node: impl Fn(&NodeId) -> Option<&'a Node>,
    ) -> Resources {
        let is_unowned = |instance: &&Instance| {
            let id = instance.node().filter(|_| instance.belongs_to(provider)).map(NodeId::from);
            id.is_some_and(|id| leak_reason(&instance.external_id, node(&id)).is_some())
        };
        let unowned: Vec<&Instance> = inventory.instances().iter().filter(is_unowned).collect();
        let still = unowned.iter().filter(|instance| self.unowned.contains(&instance.external_id.to_string()));
        let mut leaked = Resources::none();
        still.for_each(|instance| leaked.add(&instance.resources));
        self.unowned = unowned.into_iter().map(|instance| instance.external_id.to_string()).collect();
        leaked
    }

    /// Whether the last listing showed nothing to be looked at again.
    fn was_clean(&self) -> bool {
        self.suspects.is_empty() && self.proven.is_empty() && self.unowned.is_empty()
    }

    fn listing_is_due(&self, now: MonotonicTime) -> bool {
        self.listed_at.is_none_or(|last| (now - last).0 >= FULL_LISTING_INTERVAL.0)
    }

    fn ports_are_due(&self, interval: Seconds, now: MonotonicTime) -> bool {
        self.ports_cleaned_at.is_none_or(|last| (now - last).0 >= interval.0)
    }
}

fn node_of<'a>(snapshot: &'a Snapshot, id: &NodeId) -> Option<&'a Node> {
    snapshot.node(id).map(|stored| &*stored.record)
}

/// Instances of this provider that seem to belong to nobody, by what is known of nodes.
pub fn leak_candidates<'a>(
    provider: &ProviderName,
    inventory: &Inventory,
    node: impl Fn(&NodeId) -> Option<&'a Node>,
) -> Vec<LeakCandidate> {
    let candidate = |instance: &Instance| {
        // One that is stopping goes already.
        if !instance.belongs_to(provider) || instance.state == InstanceState::Stopping {
            return None;
        }
        let id = NodeId::from(instance.node()?.to_owned());
        let reason = leak_reason(&instance.external_id, node(&id))?;
        Some(LeakCandidate { external_id: instance.external_id.clone(), node: id, reason })
    };
    inventory.instances().iter().filter_map(candidate).collect()
}

/// Why an instance seems to belong to nobody, by the record of its node.
fn leak_reason(instance: &ExternalId, node: Option<&Node>) -> Option<LeakReason> {
    let Some(node) = node else { return Some(LeakReason::NoNode) };
    // Of a node that is being made, either instance may turn out to be the right one.
    if matches!(node.state, NodeState::Init | NodeState::Building) {
        return None;
    }
    let own = ExternalId::of(&node.external_id);
    own.is_some_and(|own| own != *instance).then_some(LeakReason::OtherInstance)
}

/// As ZooKeeper gives them: ten digits.
fn number(node: &NodeId) -> Option<u64> {
    let text = node.as_str();
    (text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

fn budget(inventory: &Inventory, provider: &ProviderName) -> usize {
    let ours = inventory.instances().iter().filter(|instance| instance.belongs_to(provider)).count();
    MIN_BUDGET.max(ours * BUDGET_PERCENT / 100)
}
