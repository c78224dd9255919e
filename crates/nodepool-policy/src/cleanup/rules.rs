//! Clean-up rules: one function per rule, each from the whole picture to the repairs that it asks for.

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
    /// The node's use is over: its record goes, or its instance first where it has one.
    Retire { node: NodeId, version: i32 },
    /// As before, where there is an instance to be deleted first: the record as it shall be meanwhile.
    Delete { node: Box<NodeChange>, provider: ProviderName, external_id: ExternalId },
    /// A node allocated to a request that is gone, which is checked again before the write: a ready one becomes free, one that was not
    /// begun goes.
    Release { request: RequestId, node: Box<NodeChange> },
    /// A request that a launcher accepted and left.
    Reset { request: Box<RequestChange>, nodes: Vec<NodeChange> },
    /// A node znode without data.
    RemoveEmpty(NodeId),
    /// A lock directory of a request that is gone, if it did not change since `before_ms`.
    RemoveRequestLock { request: RequestId, before_ms: i64 },
}

/// The node that a repair writes, for the rule of one effect per node.
impl Repair {
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

/// D3: unlocked nodes whose use is over, as far as they are wanted. There may be thousands, of which few can begin now.
pub fn finished_nodes<'a>(
    provider: &ProviderName,
    is_wanted: impl Fn(&NodeId, &Node) -> bool + 'a,
    world: &'a Inputs<'_>,
) -> impl Iterator<Item = Repair> + 'a {
    let nodes = world.snapshot.finished_nodes(provider).filter(move |(id, node)| is_wanted(id, &node.record));
    let nodes = nodes.filter(|(_, node)| !may_be_resumed(&node.record, world.snapshot));
    nodes.filter_map(|(id, node)| removal(id, node, world))
}

/// The locks of somebody who died are seen to go one after the other. What boots for a request is not given up while one of that
/// request's locks is there: when the last has gone it may be gone on with. What boots since before the request was taken up is of an
/// earlier life of it: nobody goes on with that, and who holds the request now may wait for the room that it takes.
fn may_be_resumed(node: &Node, snapshot: &Snapshot) -> bool {
    let Some(request) = node.allocation().filter(|_| node.state == NodeState::Building) else { return false };
    let is_served_by_it = |stored: &Versioned<NodeRequest>| {
        stored.record.state == RequestState::Pending && stored.record.state_time <= node.state_time
    };
    let is_held =
        || snapshot.is_request_locked(request) || snapshot.live_nodes_of(request).any(|id| snapshot.is_node_locked(id));
    snapshot.request(request).is_some_and(is_served_by_it) && is_held()
}

/// How a node leaves: with its instance, where its provider launches them. What may have an instance that nobody can delete now stays,
/// as without its record nobody would do that later: nobody knows the provider, which could not be opened, or it had another driver.
fn removal(id: &NodeId, node: &Versioned<Node>, world: &Inputs<'_>) -> Option<Repair> {
    let facts = node.record.provider.as_ref().and_then(|provider| Some((provider, world.facts.get(provider)?)));
    let external_id = ExternalId::of(&node.record.external_id);
    match (facts, external_id) {
        // D4: whoever wrote that had seen the instance go, and was about to remove the record.
        _ if node.record.state == NodeState::Deleted => {
            Some(Repair::Retire { node: id.clone(), version: node.version })
        }
        (Some((provider, facts)), Some(external_id)) if facts.launch_config.is_some() => {
            // Tried again it goes since the first time: one that cannot go is not waited for as one that is about to.
            let change = node.change(id.clone(), |record| {
                if record.state != NodeState::Deleting {
                    record.set_state(NodeState::Deleting, Writer::Launcher, world.now);
                }
            });
            Some(Repair::Delete { node: Box::new(change), provider: provider.clone(), external_id })
        }
        (None, Some(_)) => None,
        (Some(_), Some(_)) if static_hosts::is_launched(&node.record) => None,
        _ => Some(Repair::Retire { node: id.clone(), version: node.version }),
    }
}

/// D2: ready nodes of requests that are gone become free; half-made ones (which the reference forgets) go. As far as they are
/// wanted.
pub fn orphaned_nodes<'a>(
    is_wanted: impl Fn(&NodeId, &Node) -> bool + 'a,
    world: &'a Inputs<'_>,
) -> impl Iterator<Item = Repair> + 'a {
    let is_served = |provider: &ProviderName| world.config.providers.contains_key(provider);
    let nodes = world.snapshot.orphaned_nodes().filter(move |(id, node)| is_wanted(id, &node.record));
    nodes.filter_map(move |(id, node)| {
        let request = node.record.allocation()?;
        node.record.provider.as_ref().filter(|provider| is_served(provider))?;
        match node.record.state {
            // The request may have been taken up a moment ago, and the picture lack it: its absence there is no proof.
            NodeState::Ready | NodeState::Init => {
                let node = Box::new(node.change(id.clone(), |record| deallocate_or_delete(record, world.now)));
                Some(Repair::Release { request: request.clone(), node })
            }
            _ => None,
        }
    })
}

/// C3: requests that are pending but locked by nobody go back to `requested`; who declined stays known. Nodes of theirs that somebody is
/// deleting may take long, and keep no request.
pub fn lost_requests(is_wanted: impl Fn(&RequestId) -> bool, world: &Inputs<'_>) -> Vec<Repair> {
    let repairs =
        world.snapshot.pending_unlocked_requests().filter(|(id, _)| is_wanted(id)).filter_map(|(id, request)| {
            let mut nodes = Vec::new();
            for id in world.snapshot.live_nodes_of(id) {
                // Somebody is at work on this node: the request waits for the next look.
                let node = unlocked(id, world.snapshot)?;
                // Held nodes are the holder's, and the others have other rules.
                if !matches!(node.record.state, NodeState::Ready | NodeState::Init) {
                    continue;
                }
                nodes.push(node.change(id.clone(), |record| deallocate_or_delete(record, world.now)));
            }
            let request = Box::new(request.change(id.clone(), |record| {
                record.set_state(RequestState::Requested, world.now);
                record.nodes.clear();
            }));
            Some(Repair::Reset { request, nodes })
        });
    repairs.collect()
}

/// C4: idle nodes older than their label allows. Also says when the next one will be.
pub fn old_ready_nodes(provider: &ProviderName, world: &Inputs<'_>) -> (Vec<Repair>, Option<Timestamp>) {
    let limited: Vec<(&LabelName, Seconds)> =
        world.config.labels.values().filter_map(|label| Some((&label.name, label.max_ready_age?))).collect();
    let Some(section) = world.config.providers.get(provider).filter(|_| !limited.is_empty()) else {
        return (Vec::new(), None);
    };
    let mut ages = Ages::new(world);
    for pool in section.pools.keys() {
        let pool = nodepool_model::records::ids::PoolId { provider: provider.clone(), pool: pool.clone() };
        for (label, limit) in &limited {
            for id in world.snapshot.idle_nodes(&pool, label) {
                ages.add(id, unlocked(id, world.snapshot), *limit);
            }
        }
    }
    (ages.expired, ages.next)
}

/// C5: nodes held longer than their own limit or the general one, whichever is smaller.
pub fn old_held_nodes(provider: &ProviderName, world: &Inputs<'_>) -> (Vec<Repair>, Option<Timestamp>) {
    let mut ages = Ages::new(world);
    for (id, node) in world.snapshot.nodes_on_hold(provider) {
        let own = node.record.hold_expiration.filter(|seconds| *seconds > 0).map(|seconds| Seconds(seconds as f64));
        let limit = match (own, world.config.max_hold_age) {
            (Some(own), Some(general)) => Some(if own < general { own } else { general }),
            (own, general) => own.or(general),
        };
        if let Some(limit) = limit {
            ages.add(id, unlocked(id, world.snapshot), limit);
        }
    }
    (ages.expired, ages.next)
}

/// C6: node znodes without data, locked or not.
pub fn empty_nodes(world: &Inputs<'_>) -> Vec<Repair> {
    world.snapshot.empty_nodes().map(|id| Repair::RemoveEmpty(id.clone())).collect()
}

/// C1: lock directories of requests that are gone, unless they are known to be young.
pub fn stale_request_locks(age: Seconds, world: &Inputs<'_>) -> Vec<Repair> {
    let before_ms = ((world.now.0 - age.0) * 1000.0) as i64;
    let gone = world.snapshot.request_locks().filter(|(id, _)| !world.snapshot.has_request(id));
    let old = gone.filter(|(_, view)| view.mtime_ms < before_ms);
    old.map(|(id, _)| Repair::RemoveRequestLock { request: id.clone(), before_ms }).collect()
}

fn unlocked<'a>(id: &NodeId, snapshot: &'a Snapshot) -> Option<&'a Versioned<Node>> {
    snapshot.node(id).filter(|_| !snapshot.is_node_locked(id))
}

/// Sorts nodes by whether their time is over, and finds the next one whose time will be.
struct Ages<'a> {
    world: &'a Inputs<'a>,
    expired: Vec<Repair>,
    next: Option<Timestamp>,
}

impl<'a> Ages<'a> {
    fn new(world: &'a Inputs<'a>) -> Self {
        Self { world, expired: Vec::new(), next: None }
    }

    fn add(&mut self, id: &NodeId, node: Option<&Versioned<Node>>, limit: Seconds) {
        let Some(node) = node else { return };
        let due = node.record.state_time + limit;
        if due <= self.world.now {
            self.expired.extend(removal(id, node, self.world));
        } else if self.next.is_none_or(|next| due < next) {
            self.next = Some(due);
        }
    }
}
