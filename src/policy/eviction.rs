//! The part of a pool's mind that makes room: where there is none for a request, the oldest node that nobody uses goes (R38).

use std::collections::BTreeSet;

use super::bidder::Bidder;
use super::pool::{Effect, Pool};
use crate::model::ids::{LabelName, NodeId};
use crate::model::node::{Node, NodeState, Writer};
use crate::model::request::NodeRequest;
use crate::model::snapshot::Stored;
use crate::model::time::Span;
use crate::model::world::World;

/// A node of the pool that began to go so lately is waited for: its room comes. Nodepool 11 means to wait as long, and does not.
const PATIENCE: Span = Span(300.0);

impl Pool {
    /// For a request that this pool could serve if there were room.
    pub(super) fn make_room(
        &mut self,
        request: &NodeRequest,
        bidder: &Bidder<'_>,
        world: &World<'_>,
    ) -> Option<Effect> {
        let revision = Some(world.snapshot.revision);
        if self.evicting.is_some() || self.not_evicted_at == revision || !bidder.hosts.launches() {
            return None;
        }
        let (id, node) = self.oldest_idle(request, bidder, world)?;
        let mut nodes = world.snapshot.nodes_of(&bidder.id.provider);
        if nodes.any(|(_, other)| is_leaving(&other.record, bidder, world)) {
            return None;
        }
        self.evicting = revision;
        let change =
            node.change(id.clone(), |record| record.set_state(NodeState::Deleting, Writer::Launcher, world.now));
        Some(Effect::Evict(Box::new(change)))
    }

    /// Of the nodes that neither this request nor one of higher rank needs: of each label as many stay as they can take.
    fn oldest_idle<'a>(
        &self,
        request: &NodeRequest,
        bidder: &Bidder<'_>,
        world: &World<'a>,
    ) -> Option<(&'a NodeId, &'a Stored<Node>)> {
        let free_of =
            |label: &LabelName| world.snapshot.idle_nodes(bidder.id, label).filter(|id: &&NodeId| !self.claims.has(id));
        let wanted = |label: &LabelName| match request.reuse {
            true => request.node_types.iter().filter(|wish| *wish == label).count(),
            false => 0,
        };
        // Counted once for each label, not for each node.
        let is_scarce = |label: &&LabelName| free_of(label).count() <= self.claims.kept(label) + wanted(label);
        let scarce: BTreeSet<&LabelName> = bidder.pool.labels.iter().filter(is_scarce).collect();
        let spare = bidder.pool.labels.iter().filter(|label| !scarce.contains(label)).flat_map(free_of);
        let nodes = spare.filter_map(|id| Some((id, world.snapshot.node(id)?)));
        let spare = nodes.filter(|(_, node)| !node.record.labels.iter().any(|label| scarce.contains(label)));
        spare.min_by_key(|(id, node)| (node.record.state_time, (*id).clone()))
    }
}

fn is_leaving(node: &Node, bidder: &Bidder<'_>, world: &World<'_>) -> bool {
    use NodeState::{Aborted, Deleted, Deleting, Failed, Used};
    let is_ours = node.pool.as_ref() == Some(&bidder.id.pool);
    // Nor of the future, by a clock that was ahead.
    let is_lately = (world.now - node.state_time).0.abs() < PATIENCE.0;
    is_ours && is_lately && matches!(node.state, Used | Failed | Aborted | Deleting | Deleted)
}
