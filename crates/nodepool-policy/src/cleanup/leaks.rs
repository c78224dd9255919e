//! Leak detection: finds instances with our metadata that belong to no node. They are deleted only with proof.
//!
//! The proof has three steps. A complete listing shows the instance, a later read of ZooKeeper finds no node for it,
//! and a second complete listing still shows it. Node ids are never reused, and a node's record is created before its
//! instance is requested, so an instance without a node was forgotten. An instance whose node id this ZooKeeper never
//! issued belongs to another ZooKeeper, or was created before this one was restored from an older state. It is reported
//! and not deleted. The same holds for more instances than the budget allows: such a number indicates a wrong ZooKeeper
//! rather than leaks.
//!
//! Nearly always, no candidate exists. If the last listing showed none, the next run lists only the ids. A complete
//! listing follows if any id belongs neither to a node nor to an instance that was seen to be foreign.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;

use super::unused_resources::{Findings, Owners, UnusedTracker, UploadProof};
use crate::inputs::Inputs;
use nodepool_driver::cloud_resource::{CloudResource, ResourceKind, UnusedResources, UploadMark};
use nodepool_driver::instance::{Instance, InstanceState, Inventory};
use nodepool_model::records::ids::{ExternalId, NodeId, ProviderName};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::{MonotonicTime, Seconds};
use nodepool_model::snapshot::Snapshot;

/// Deletions that one sweep may always perform.
const MIN_BUDGET: usize = 10;
/// Further deletions, in percent of our instances.
const BUDGET_PERCENT: usize = 10;

/// Interval of complete listings, even if the ids show nothing new: metadata of instances can change.
const FULL_LISTING_INTERVAL: Seconds = Seconds(600.0);

#[derive(Clone, Debug)]
pub enum Event {
    /// The interval of the sweep has passed.
    Sweep,
    /// The ids of all instances.
    ServerIdsListed(ProviderName, Vec<String>),
    /// A complete listing, or `None` if it failed.
    Listed(ProviderName, Option<std::sync::Arc<Inventory>>),
    /// The proof read from ZooKeeper; `None` if the read failed.
    Proven(ProviderName, Option<Proof>),
    /// The resources besides instances, or `None` if the listing failed.
    UnusedListed(ProviderName, Option<UnusedResources>),
    /// The proof about their nodes; `None` if the read failed.
    UnusedProven(ProviderName, Option<Proof>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proof {
    /// Records by node id; `None` if the node does not exist. A missing key means that nothing is known about the node.
    pub nodes: BTreeMap<NodeId, Option<Box<Node>>>,
    /// Upper bound of the issued node ids: all that were ever issued are smaller.
    pub issued_ids_below: u64,
    /// The uploads to the provider, if they were to be read.
    pub uploads: Option<UploadProof>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// List the ids of all instances.
    ListServerIds(ProviderName),
    List(ProviderName),
    Prove(ProviderName, Vec<NodeId>),
    /// Resources that leaked instances use; sent if they differ from the provider facts.
    SetLeakedUsage(ProviderName, Resources),
    /// Delete a leaked instance. No event follows: the next listing shows the result.
    Delete {
        provider: ProviderName,
        candidate: LeakCandidate,
    },
    /// More candidates than the budget allows.
    Exceeded {
        provider: ProviderName,
        candidates: Vec<LeakCandidate>,
        budget: usize,
    },
    /// This ZooKeeper never issued their node ids.
    UnissuedId(ProviderName, Vec<LeakCandidate>),
    /// List resources of these kinds.
    ListUnused(ProviderName, Vec<&'static str>),
    /// Read these nodes, and the uploads to the provider if the flag is set.
    ProveUnused(ProviderName, Vec<NodeId>, bool),
    /// Delete an unused resource. No event follows: the next listing shows the result.
    DeleteUnused(ProviderName, CloudResource),
    /// More unused resources of a kind than the budget allows.
    TooManyUnused {
        provider: ProviderName,
        kind: &'static str,
        number: usize,
        budget: usize,
    },
}

/// An instance with our metadata that seems to belong to no node.
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
            LeakReason::NoNode => "its node record does not exist",
            LeakReason::OtherInstance => "its node has another instance",
        }
    }
}

/// Number of consecutive listings that lacked each foreign instance, by instance id.
type ForeignServers = HashMap<String, u32>;

/// An instance that this many listings lacked is forgotten: a single listing may be partial or stale.
const FORGET_AFTER_LISTINGS: u32 = 100;

#[derive(Debug, Default)]
pub struct LeakDetector {
    providers: BTreeMap<ProviderName, ProviderState>,
    /// Instances whose node ids had not been issued when they were checked. Later these ids may be issued to other
    /// nodes, which proves nothing about the instances.
    foreign: BTreeMap<ProviderName, ForeignServers>,
    /// Number of proofs in flight: each is about the candidates of its own listing.
    pending_proofs: BTreeMap<ProviderName, u32>,
}

#[derive(Debug, Default)]
struct ProviderState {
    is_listing: bool,
    /// Candidates of the last listing, and those that ZooKeeper has confirmed since.
    candidates: Vec<LeakCandidate>,
    proven: Vec<LeakCandidate>,
    /// Ids of the last listing that belong to no node.
    unowned: BTreeSet<String>,
    /// Foreign instances of the last listing.
    others: HashSet<String>,
    listed_at: Option<MonotonicTime>,
    unused: UnusedTracker,
}

impl LeakDetector {
    pub fn step(&mut self, event: Event, inputs: &Inputs<'_>) -> Vec<Effect> {
        match event {
            Event::Sweep => self.sweep(inputs),
            Event::ServerIdsListed(provider, ids) => self.server_ids_listed(provider, &ids, inputs),
            Event::Listed(provider, inventory) => self.listed(&provider, inventory.as_deref(), inputs),
            Event::Proven(provider, proof) => self.proven(provider, &proof.unwrap_or_default()),
            Event::UnusedListed(provider, listing) => self.unused_listed(provider, listing.as_ref(), inputs),
            Event::UnusedProven(provider, proof) => {
                let (Some(state), Some(proof)) = (self.providers.get_mut(&provider), proof) else { return Vec::new() };
                let is_issued = |node: &NodeId| number(node).is_some_and(|id| id < proof.issued_ids_below);
                let candidate = |resource: CloudResource| {
                    let node = NodeId::from(resource.node()?);
                    Some(LeakCandidate { external_id: resource.id, node, reason: LeakReason::NoNode })
                };
                let unissued: Vec<LeakCandidate> =
                    state.unused.proven(&proof, is_issued).into_iter().filter_map(candidate).collect();
                if unissued.is_empty() { Vec::new() } else { vec![Effect::UnissuedId(provider, unissued)] }
            }
        }
    }

    fn sweep(&mut self, inputs: &Inputs<'_>) -> Vec<Effect> {
        let launches =
            |provider: &ProviderName| inputs.facts.get(provider).and_then(|facts| facts.launch_config.clone());
        self.providers.retain(|provider, _| launches(provider).is_some());
        if !inputs.snapshot.connected {
            // Earlier listings prove nothing about the state after a reconnect.
            for (provider, state) in &mut self.providers {
                *state = ProviderState { is_listing: state.is_listing, ..state.reset() };
                state.unused.forget_proofs(&resource_kinds(provider, inputs));
            }
            return Vec::new();
        }
        let mut effects = Vec::new();
        for provider in inputs.config.providers.keys() {
            let Some(launch_config) = launches(provider) else { continue };
            let state = self.providers.entry(provider.clone()).or_default();
            if !state.is_listing {
                state.is_listing = true;
                let is_quiet = state.was_clean() && !state.listing_is_due(inputs.monotonic_now);
                let listing = if is_quiet { Effect::ListServerIds } else { Effect::List };
                effects.push(listing(provider.clone()));
            }
            let kinds = state.unused.due(&launch_config.resource_kinds, inputs.monotonic_now);
            if !kinds.is_empty() {
                effects.push(Effect::ListUnused(provider.clone(), kinds));
            }
        }
        effects
    }

    fn server_ids_listed(&mut self, provider: ProviderName, ids: &[String], inputs: &Inputs<'_>) -> Vec<Effect> {
        let Some(state) = self.providers.get_mut(&provider) else { return Vec::new() };
        let own = inputs.snapshot.nodes_of(&provider).filter_map(|(_, node)| node.record.external_id.as_str());
        let own: HashSet<&str> = own.collect();
        let is_known = |id: &String| own.contains(id.as_str()) || state.others.contains(id);
        if inputs.snapshot.connected && !ids.iter().all(is_known) {
            return vec![Effect::List(provider)];
        }
        state.is_listing = false;
        Vec::new()
    }

    fn listed(&mut self, provider: &ProviderName, inventory: Option<&Inventory>, inputs: &Inputs<'_>) -> Vec<Effect> {
        let Some(state) = self.providers.get_mut(provider) else { return Vec::new() };
        state.is_listing = false;
        let Some(inventory) = inventory.filter(|_| inputs.snapshot.connected) else {
            *state = state.reset();
            return Vec::new();
        };
        let found = leak_candidates(provider, inventory, |node| node_of(inputs.snapshot, node));
        let confirmed: Vec<LeakCandidate> =
            found.iter().filter(|candidate| state.proven.contains(candidate)).cloned().collect();
        state.proven.clear();
        state.candidates = found;
        state.listed_at = Some(inputs.monotonic_now);
        if let Some(foreign) = self.foreign.get_mut(provider).filter(|foreign| !foreign.is_empty()) {
            let shown: HashSet<String> =
                inventory.instances().iter().map(|instance| instance.external_id.to_string()).collect();
            foreign.retain(|id, missed| {
                *missed = if shown.contains(id) { 0 } else { *missed + 1 };
                *missed < FORGET_AFTER_LISTINGS
            });
        }
        let others = inventory.instances().iter().filter(|instance| !instance.belongs_to(provider));
        state.others = others.map(|instance| instance.external_id.to_string()).collect();
        let mut effects = Vec::new();
        let leaked = state.leaked_usage(provider, inventory, |node| node_of(inputs.snapshot, node));
        if inputs.facts.get(provider).is_some_and(|facts| facts.leaked != leaked) {
            effects.push(Effect::SetLeakedUsage(provider.clone(), leaked));
        }
        let budget = budget(inventory, provider);
        if confirmed.len() > budget {
            effects.push(Effect::Exceeded { provider: provider.clone(), candidates: confirmed, budget });
        } else {
            let deletions =
                confirmed.into_iter().map(|candidate| Effect::Delete { provider: provider.clone(), candidate });
            effects.extend(deletions);
        }
        if !state.candidates.is_empty() {
            let nodes: BTreeSet<NodeId> = state.candidates.iter().map(|candidate| candidate.node.clone()).collect();
            effects.push(Effect::Prove(provider.clone(), nodes.into_iter().collect()));
            *self.pending_proofs.entry(provider.clone()).or_default() += 1;
        }
        effects
    }

    fn proven(&mut self, provider: ProviderName, proof: &Proof) -> Vec<Effect> {
        let pending_proofs = self.pending_proofs.entry(provider.clone()).or_default();
        *pending_proofs = pending_proofs.saturating_sub(1);
        let is_newest = *pending_proofs == 0;
        let Some(state) = self.providers.get_mut(&provider).filter(|_| is_newest) else { return Vec::new() };
        let foreign = self.foreign.entry(provider.clone()).or_default();
        state.prove(proof, foreign);
        let is_foreign = |candidate: &&LeakCandidate| foreign.contains_key(&candidate.external_id.to_string());
        let unissued: Vec<LeakCandidate> = state.candidates.iter().filter(is_foreign).cloned().collect();
        if unissued.is_empty() { Vec::new() } else { vec![Effect::UnissuedId(provider, unissued)] }
    }

    fn unused_listed(
        &mut self,
        provider: ProviderName,
        listing: Option<&UnusedResources>,
        inputs: &Inputs<'_>,
    ) -> Vec<Effect> {
        let Some(state) = self.providers.get_mut(&provider) else { return Vec::new() };
        let snapshot = inputs.snapshot;
        let owners = Owners {
            provider: &provider,
            exists: &|node| snapshot.node(node).is_some(),
            upload_exists: &|mark| upload_marks(snapshot, &provider).any(|known| known == *mark),
            leaked_instances: state.candidates.iter().map(|candidate| candidate.node.clone()).collect(),
            proven_instances: state.proven.len(),
            budget: budget_for(snapshot.nodes_of(&provider).count()),
        };
        let kinds = resource_kinds(&provider, inputs);
        let Findings { deletions, exceeded, to_prove, proves_uploads } =
            state.unused.listed(&kinds, listing.filter(|_| snapshot.connected), &owners);
        let mut effects = Vec::new();
        if !to_prove.is_empty() || proves_uploads {
            effects.push(Effect::ProveUnused(provider.clone(), to_prove, proves_uploads));
        }
        effects.extend(deletions.into_iter().map(|resource| Effect::DeleteUnused(provider.clone(), resource)));
        effects.extend(exceeded.into_iter().map(|(kind, number, budget)| Effect::TooManyUnused {
            provider: provider.clone(),
            kind,
            number,
            budget,
        }));
        effects
    }

    /// The candidates by provider, for dumps.
    pub fn candidates(&self) -> BTreeMap<&ProviderName, &Vec<LeakCandidate>> {
        self.providers.iter().map(|(provider, state)| (provider, &state.candidates)).collect()
    }
}

impl ProviderState {
    /// State without listings of instances.
    fn reset(&mut self) -> Self {
        Self { unused: std::mem::take(&mut self.unused), ..Self::default() }
    }

    fn prove(&mut self, proof: &Proof, foreign: &mut ForeignServers) {
        self.proven.clear();
        for candidate in &self.candidates {
            // The read of this node failed.
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

    /// Resources of instances without a node in this listing and in the one before, including instances that are
    /// stopping. One listing is not enough: it may still show the instance of a node that has just been deleted.
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

    /// Whether the last listing showed nothing to check again.
    fn was_clean(&self) -> bool {
        self.candidates.is_empty() && self.proven.is_empty() && self.unowned.is_empty()
    }

    fn listing_is_due(&self, now: MonotonicTime) -> bool {
        self.listed_at.is_none_or(|last| (now - last).0 >= FULL_LISTING_INTERVAL.0)
    }
}

fn node_of<'a>(snapshot: &'a Snapshot, id: &NodeId) -> Option<&'a Node> {
    snapshot.node(id).map(|stored| &*stored.record)
}

/// Instances of this provider that seem to belong to no node, according to `node`.
pub fn leak_candidates<'a>(
    provider: &ProviderName,
    inventory: &Inventory,
    node: impl Fn(&NodeId) -> Option<&'a Node>,
) -> Vec<LeakCandidate> {
    let candidate = |instance: &Instance| {
        // A stopping instance is already being deleted.
        if !instance.belongs_to(provider) || instance.state == InstanceState::Stopping {
            return None;
        }
        let id = NodeId::from(instance.node()?.to_owned());
        let reason = leak_reason(&instance.external_id, node(&id))?;
        Some(LeakCandidate { external_id: instance.external_id.clone(), node: id, reason })
    };
    inventory.instances().iter().filter_map(candidate).collect()
}

/// Reason why an instance seems to belong to no node, according to the node's record.
fn leak_reason(instance: &ExternalId, node: Option<&Node>) -> Option<LeakReason> {
    let Some(node) = node else { return Some(LeakReason::NoNode) };
    // While a node is being launched, either instance may turn out to be the right one.
    if matches!(node.state, NodeState::Init | NodeState::Building) {
        return None;
    }
    let own = ExternalId::of(&node.external_id);
    own.is_some_and(|own| !own.is_same(instance)).then_some(LeakReason::OtherInstance)
}

/// The marks of all uploads to a provider.
pub fn upload_marks<'a>(snapshot: &'a Snapshot, provider: &'a ProviderName) -> impl Iterator<Item = UploadMark> + 'a {
    let uploads = snapshot.images.uploads().filter(move |(key, _)| key.provider == *provider);
    uploads.map(|(key, _)| UploadMark { build: key.build.to_string(), upload: key.upload.to_string() })
}

/// The number of a node id as ZooKeeper issues it: ten digits.
fn number(node: &NodeId) -> Option<u64> {
    let text = node.as_str();
    (text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

fn budget(inventory: &Inventory, provider: &ProviderName) -> usize {
    budget_for(inventory.instances().iter().filter(|instance| instance.belongs_to(provider)).count())
}

fn budget_for(ours: usize) -> usize {
    MIN_BUDGET.max(ours * BUDGET_PERCENT / 100)
}

fn resource_kinds(provider: &ProviderName, inputs: &Inputs<'_>) -> Vec<ResourceKind> {
    let launch_config = inputs.facts.get(provider).and_then(|facts| facts.launch_config.as_ref());
    launch_config.map(|config| config.resource_kinds.clone()).unwrap_or_default()
}
