//! Clean-up rules: one function per rule, from a snapshot to the repairs that it requires.

use super::static_hosts;
use crate::inputs::Inputs;
use crate::request::node_updates::deallocate_or_delete;
use nodepool_model::records::ids::{ExternalId, LabelName, NodeId, ProviderName, RequestId};
use nodepool_model::records::node::{Node, NodeState, Writer};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::{Seconds, Timestamp};
use nodepool_model::snapshot::{NodeChange, RequestChange, Snapshot, Versioned};

#[derive(Clone, Debug, PartialEq)]
pub enum Repair {
    /// The node is finished and no instance has to be deleted: deletes its record.
    Retire { node: NodeId, version: i32 },
    /// The node is finished: deletes its instance, then its record. `node` is the change of the record until then.
    Delete { node: Box<NodeChange>, provider: ProviderName, external_id: ExternalId },
    /// A node whose request does not exist; this is checked again before the write. A ready node is deallocated; a node
    /// whose launch never started is deleted.
    Release { request: RequestId, node: Box<NodeChange> },
    /// A request that a launcher accepted and abandoned.
    Reset { request: Box<RequestChange>, nodes: Vec<NodeChange> },
    /// A node znode without data.
    RemoveEmpty(NodeId),
    /// The lock directory of a deleted request, if it did not change since `before_ms`.
    RemoveRequestLock { request: RequestId, before_ms: i64 },
}

impl Repair {
    /// Key of the object that the repair writes; at most one effect per key is in flight.
    pub fn key(&self) -> String {
        match self {
            Repair::Retire { node, .. } => format!("node {node}"),
            Repair::Delete { node, .. } => format!("node {}", node.id),
            Repair::Release { node, .. } => format!("node {}", node.id),
            Repair::Reset { request, .. } => format!("request {}", request.id),
            Repair::RemoveEmpty(node) => format!("node {node}"),
            Repair::RemoveRequestLock { request, .. } => format!("lock {request}"),
        }
    }
}

/// Repairs for unlocked finished nodes that satisfy `is_wanted`, produced lazily: thousands may exist, of which few can
/// start now.
pub fn finished_nodes<'a>(
    provider: &ProviderName,
    is_wanted: impl Fn(&NodeId, &Node) -> bool + 'a,
    inputs: &'a Inputs<'_>,
) -> impl Iterator<Item = Repair> + 'a {
    let nodes = inputs.snapshot.finished_nodes(provider).filter(move |(id, node)| is_wanted(id, &node.record));
    let nodes = nodes.filter(|(_, node)| !may_be_resumed(&node.record, inputs.snapshot));
    nodes.filter_map(|(id, node)| removal(id, node, inputs))
}

/// Whether a pool may still resume the node's request. The locks of a dead launcher disappear one after the other. A
/// booting node is kept while one of its request's locks exists: after the last one the request may be resumed. A node
/// that was booting before the request was accepted belongs to a previous attempt. No pool resumes that node, and the
/// current holder of the request may wait for the node's capacity.
fn may_be_resumed(node: &Node, snapshot: &Snapshot) -> bool {
    let Some(request) = node.allocation().filter(|_| node.state == NodeState::Building) else { return false };
    let is_served_by_it = |stored: &Versioned<NodeRequest>| {
        stored.record.state == RequestState::Pending && stored.record.state_time <= node.state_time
    };
    let is_held =
        || snapshot.is_request_locked(request) || snapshot.live_nodes_of(request).any(|id| snapshot.is_node_locked(id));
    snapshot.request(request).is_some_and(is_served_by_it) && is_held()
}

/// Repair that deletes a node, with its instance if its provider launches nodes. A node is kept if its instance cannot
/// be deleted now, because the provider is unknown, failed to start, or had another driver. Without the node's record
/// the instance would never be deleted.
fn removal(id: &NodeId, node: &Versioned<Node>, inputs: &Inputs<'_>) -> Option<Repair> {
    let facts = node.record.provider.as_ref().and_then(|provider| Some((provider, inputs.facts.get(provider)?)));
    let external_id = ExternalId::of(&node.record.external_id);
    match (facts, external_id) {
        // The writer of this state had seen the instance deleted and was about to delete the record.
        _ if node.record.state == NodeState::Deleted => {
            Some(Repair::Retire { node: id.clone(), version: node.version })
        }
        (Some((provider, facts)), Some(external_id)) if facts.launch_config.is_some() => {
            // A retry keeps the first `state_time`, so that a node that cannot be deleted does not count as about to
            // release capacity.
            let change = node.change(id.clone(), |record| {
                if record.state != NodeState::Deleting {
                    record.set_state(NodeState::Deleting, Writer::Launcher, inputs.now);
                }
            });
            Some(Repair::Delete { node: Box::new(change), provider: provider.clone(), external_id })
        }
        (None, Some(_)) => None,
        (Some(_), Some(_)) if static_hosts::is_launched(&node.record) => None,
        _ => Some(Repair::Retire { node: id.clone(), version: node.version }),
    }
}

/// Deallocates ready nodes of deleted requests and deletes nodes whose launch never started (Nodepool 11 leaves them),
/// if they satisfy `is_wanted`.
pub fn orphaned_nodes<'a>(
    is_wanted: impl Fn(&NodeId, &Node) -> bool + 'a,
    inputs: &'a Inputs<'_>,
) -> impl Iterator<Item = Repair> + 'a {
    let is_served = |provider: &ProviderName| inputs.config.providers.contains_key(provider);
    let nodes = inputs.snapshot.orphaned_nodes().filter(move |(id, node)| is_wanted(id, &node.record));
    nodes.filter_map(move |(id, node)| {
        let request = node.record.allocation()?;
        node.record.provider.as_ref().filter(|provider| is_served(provider))?;
        match node.record.state {
            // The request may exist although the snapshot lacks it, so its absence here is no proof.
            NodeState::Ready | NodeState::Init => {
                let node = Box::new(node.change(id.clone(), |record| deallocate_or_delete(record, inputs.now)));
                Some(Repair::Release { request: request.clone(), node })
            }
            _ => None,
        }
    })
}

/// Returns pending requests without a lock to `requested`; `declined_by` is kept. Nodes that are being deleted do not
/// delay the request, because a deletion may take long.
pub fn lost_requests(is_wanted: impl Fn(&RequestId) -> bool, inputs: &Inputs<'_>) -> Vec<Repair> {
    let repairs =
        inputs.snapshot.pending_unlocked_requests().filter(|(id, _)| is_wanted(id)).filter_map(|(id, request)| {
            let mut nodes = Vec::new();
            for id in inputs.snapshot.live_nodes_of(id) {
                // The node is locked: the request waits for the next pass.
                let node = unlocked(id, inputs.snapshot)?;
                // Held nodes belong to their holder, and nodes in other states have other rules.
                if !matches!(node.record.state, NodeState::Ready | NodeState::Init) {
                    continue;
                }
                nodes.push(node.change(id.clone(), |record| deallocate_or_delete(record, inputs.now)));
            }
            let request = Box::new(request.change(id.clone(), |record| {
                record.set_state(RequestState::Requested, inputs.now);
                record.nodes.clear();
            }));
            Some(Repair::Reset { request, nodes })
        });
    repairs.collect()
}

/// Idle nodes older than `max-ready-age` of their label, and when the next one will be.
pub fn old_ready_nodes(provider: &ProviderName, inputs: &Inputs<'_>) -> (Vec<Repair>, Option<Timestamp>) {
    let limited: Vec<(&LabelName, Seconds)> =
        inputs.config.labels.values().filter_map(|label| Some((&label.name, label.max_ready_age?))).collect();
    let Some(section) = inputs.config.providers.get(provider).filter(|_| !limited.is_empty()) else {
        return (Vec::new(), None);
    };
    let mut ages = Ages::new(inputs);
    for pool in section.pools.keys() {
        let pool = nodepool_model::records::ids::PoolId { provider: provider.clone(), pool: pool.clone() };
        for (label, limit) in &limited {
            for id in inputs.snapshot.idle_nodes(&pool, label) {
                ages.add(id, unlocked(id, inputs.snapshot), *limit);
            }
        }
    }
    (ages.expired, ages.next)
}

/// Idle nodes whose instance is ending, such as a spot instance that was reclaimed.
pub fn ending_nodes(provider: &ProviderName, inputs: &Inputs<'_>) -> Vec<Repair> {
    let Some(facts) = inputs.facts.get(provider) else { return Vec::new() };
    let nodes = facts.ending.keys().filter_map(|id| Some((id, unlocked(id, inputs.snapshot)?)));
    let is_idle = |id: &NodeId, node: &Node| node.is_idle() && facts.is_ending(id, node);
    nodes.filter(|(id, node)| is_idle(id, &node.record)).filter_map(|(id, node)| removal(id, node, inputs)).collect()
}

/// Nodes held longer than their own limit or the general one, whichever is smaller.
pub fn old_held_nodes(provider: &ProviderName, inputs: &Inputs<'_>) -> (Vec<Repair>, Option<Timestamp>) {
    let mut ages = Ages::new(inputs);
    for (id, node) in inputs.snapshot.nodes_on_hold(provider) {
        let own = node.record.hold_expiration.filter(|seconds| *seconds > 0).map(|seconds| Seconds(seconds as f64));
        let limit = match (own, inputs.config.max_hold_age) {
            (Some(own), Some(general)) => Some(if own < general { own } else { general }),
            (own, general) => own.or(general),
        };
        if let Some(limit) = limit {
            ages.add(id, unlocked(id, inputs.snapshot), limit);
        }
    }
    (ages.expired, ages.next)
}

/// Node znodes without data, locked or not.
pub fn empty_nodes(inputs: &Inputs<'_>) -> Vec<Repair> {
    inputs.snapshot.empty_nodes().map(|id| Repair::RemoveEmpty(id.clone())).collect()
}

/// Lock directories of deleted requests, unless they are known to be young.
pub fn stale_request_locks(age: Seconds, inputs: &Inputs<'_>) -> Vec<Repair> {
    let before_ms = ((inputs.now.0 - age.0) * 1000.0) as i64;
    let orphaned = inputs.snapshot.request_locks().filter(|(id, _)| !inputs.snapshot.has_request(id));
    let old = orphaned.filter(|(_, view)| view.mtime_ms < before_ms);
    old.map(|(id, _)| Repair::RemoveRequestLock { request: id.clone(), before_ms }).collect()
}

fn unlocked<'a>(id: &NodeId, snapshot: &'a Snapshot) -> Option<&'a Versioned<Node>> {
    snapshot.node(id).filter(|_| !snapshot.is_node_locked(id))
}

/// Collects nodes past their age limit, and the time when the next one reaches it.
struct Ages<'a> {
    inputs: &'a Inputs<'a>,
    expired: Vec<Repair>,
    next: Option<Timestamp>,
}

impl<'a> Ages<'a> {
    fn new(inputs: &'a Inputs<'a>) -> Self {
        Self { inputs, expired: Vec::new(), next: None }
    }

    fn add(&mut self, id: &NodeId, node: Option<&Versioned<Node>>, limit: Seconds) {
        let Some(node) = node else { return };
        let due = node.record.state_time + limit;
        if due <= self.inputs.now {
            self.expired.extend(removal(id, node, self.inputs));
        } else if self.next.is_none_or(|next| due < next) {
            self.next = Some(due);
        }
    }
}
