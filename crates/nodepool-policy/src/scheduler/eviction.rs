//! The part of a pool's mind that makes room: where there is none for a request, the oldest node that nobody uses goes (R38).

use std::collections::BTreeSet;

use super::capacity::reusable;
use super::pool_context::PoolContext;
use crate::inputs::Inputs;
use crate::pool::{Effect, Pool};
use nodepool_model::records::ids::{LabelName, NodeId, RequestId};
use nodepool_model::records::node::{Node, NodeState, Writer};
use nodepool_model::records::request::NodeRequest;
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::Versioned;

/// A node of the pool that began to go so lately is waited for: its room comes. Nodepool 11 means to wait as long, and does not.
const DELETION_WAIT_TIMEOUT: Seconds = Seconds(300.0);

impl Pool {
    /// For a request that this pool could serve if there were room.
    pub(crate) fn evict_for(
        &mut self,
        request: &NodeRequest,
        zone: Option<&str>,
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
    ) -> Option<Effect> {
        let revision = Some(world.snapshot.revision);
        if self.evicting.is_some() || self.not_evicted_at == revision || !ctx.hosts.launches() {
            return None;
        }
        let (id, node) = self.oldest_idle(request, zone, ctx, world)?;
        if is_any_being_deleted(ctx, world) {
            return None;
        }
        self.evicting = revision;
        let change =
            node.change(id.clone(), |record| record.set_state(NodeState::Deleting, Writer::Launcher, world.now));
        Some(Effect::Evict(Box::new(change)))
    }

    /// Of the nodes that neither this request nor one of higher rank needs: what it can take stays, and of each label as many as those
    /// can. What has a label that the pool has no more is needed by nobody.
    fn oldest_idle<'a>(
        &self,
        request: &NodeRequest,
        zone: Option<&str>,
        ctx: &PoolContext<'_>,
        world: &Inputs<'a>,
    ) -> Option<(&'a NodeId, &'a Versioned<Node>)> {
        let needed = reusable(request, ctx, &self.reservations, zone, world);
        let free_of = |label: &LabelName| {
            world.snapshot.idle_nodes(ctx.id, label).filter(|id: &&NodeId| !self.reservations.is_assigned(id))
        };
        let needed = |label: &LabelName| self.reservations.reserved(label) + needed.get(label).copied().unwrap_or(0);
        // Counted once for each label, not for each node.
        let is_scarce = |label: &&LabelName| free_of(label).count() <= needed(label);
        let scarce: BTreeSet<&LabelName> = world.snapshot.idle_labels(ctx.id).filter(is_scarce).collect();
        let spare = world.snapshot.idle_labels(ctx.id).filter(|label| !scarce.contains(label)).flat_map(free_of);
        let nodes = spare.filter_map(|id| Some((id, world.snapshot.node(id)?)));
        let spare = nodes.filter(|(_, node)| !node.record.labels.iter().any(|label| scarce.contains(label)));
        spare.min_by_key(|(id, node)| (node.record.state_time, (*id).clone()))
    }
}

/// Whether room comes without anybody making it.
pub(crate) fn is_any_being_deleted(ctx: &PoolContext<'_>, world: &Inputs<'_>) -> bool {
    world.snapshot.nodes_of(&ctx.id.provider).any(|(_, node)| is_being_deleted(&node.record, ctx, world))
}

/// Whether somebody has a node of the pool who will give it back. A held one may stay for ever.
pub(crate) fn is_any_occupied(
    ctx: &PoolContext<'_>,
    is_own_fulfillment: impl Fn(&RequestId) -> bool,
    world: &Inputs<'_>,
) -> bool {
    let is_occupied = |node: &Node| match node.state {
        NodeState::InUse => true,
        NodeState::Ready => node.allocation().is_some_and(|request| !is_own_fulfillment(request)),
        _ => false,
    };
    let mut nodes = world.snapshot.nodes_of(&ctx.id.provider);
    nodes.any(|(_, node)| node.record.belongs_to(ctx.id) && is_occupied(&node.record))
}

fn is_being_deleted(node: &Node, ctx: &PoolContext<'_>, world: &Inputs<'_>) -> bool {
    use NodeState::{Aborted, Deleted, Deleting, Failed, Used};
    let is_ours = node.pool.as_ref() == Some(&ctx.id.pool);
    // Nor of the future, by a clock that was ahead.
    let is_recent = (world.now - node.state_time).0.abs() < DELETION_WAIT_TIMEOUT.0;
    is_ours && is_recent && matches!(node.state, Used | Failed | Aborted | Deleting | Deleted)
}
