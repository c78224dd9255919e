//! Pool: eviction. If capacity is insufficient for a request, the oldest idle node that no request needs is deleted.

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

/// If the deletion of a node of the pool started within this time, the pool waits for it instead of evicting another
/// node, because it will release capacity. Nodepool 11 intends the same wait, but does not perform it.
const DELETION_WAIT_TIMEOUT: Seconds = Seconds(300.0);

impl Pool {
    /// Evicts a node for a request that this pool could serve if it had capacity.
    pub(crate) fn evict_for(
        &mut self,
        request: &NodeRequest,
        zone: Option<&str>,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) -> Option<Effect> {
        let revision = Some(inputs.snapshot.revision);
        if self.evicting.is_some() || self.not_evicted_at == revision || !ctx.hosts.launches() {
            return None;
        }
        let (id, node) = self.oldest_idle(request, zone, ctx, inputs)?;
        if is_any_being_deleted(ctx, inputs) {
            return None;
        }
        self.evicting = revision;
        let change =
            node.change(id.clone(), |record| record.set_state(NodeState::Deleting, Writer::Launcher, inputs.now));
        Some(Effect::Evict(Box::new(change)))
    }

    /// The oldest idle node that neither this request nor a request of higher rank needs. For each label, the pool
    /// keeps the nodes that this request can reuse, and as many as requests of higher rank reserve. No request needs a
    /// node with a label that the pool no longer has.
    fn oldest_idle<'a>(
        &self,
        request: &NodeRequest,
        zone: Option<&str>,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'a>,
    ) -> Option<(&'a NodeId, &'a Versioned<Node>)> {
        let needed = reusable(request, ctx, &self.reservations, zone, inputs);
        let free_of = |label: &LabelName| {
            inputs.snapshot.idle_nodes(ctx.id, label).filter(|id: &&NodeId| !self.reservations.is_assigned(id))
        };
        let needed = |label: &LabelName| self.reservations.reserved(label) + needed.get(label).copied().unwrap_or(0);
        // Counted once per label, not once per node.
        let is_scarce = |label: &&LabelName| free_of(label).count() <= needed(label);
        let scarce: BTreeSet<&LabelName> = inputs.snapshot.idle_labels(ctx.id).filter(is_scarce).collect();
        let spare = inputs.snapshot.idle_labels(ctx.id).filter(|label| !scarce.contains(label)).flat_map(free_of);
        let nodes = spare.filter_map(|id| Some((id, inputs.snapshot.node(id)?)));
        let spare = nodes.filter(|(_, node)| !node.record.labels.iter().any(|label| scarce.contains(label)));
        spare.min_by_key(|(id, node)| (node.record.state_time, (*id).clone()))
    }
}

/// Whether capacity will be released without an eviction.
pub(crate) fn is_any_being_deleted(ctx: &PoolContext<'_>, inputs: &Inputs<'_>) -> bool {
    inputs.snapshot.nodes_of(&ctx.id.provider).any(|(_, node)| is_being_deleted(&node.record, ctx, inputs))
}

/// Whether a node of the pool is in use and will be released. A held node may stay forever, so it does not count.
pub(crate) fn is_any_occupied(
    ctx: &PoolContext<'_>,
    is_own_fulfillment: impl Fn(&RequestId) -> bool,
    inputs: &Inputs<'_>,
) -> bool {
    let is_occupied = |node: &Node| match node.state {
        NodeState::InUse => true,
        NodeState::Ready => node.allocation().is_some_and(|request| !is_own_fulfillment(request)),
        _ => false,
    };
    let mut nodes = inputs.snapshot.nodes_of(&ctx.id.provider);
    nodes.any(|(_, node)| node.record.belongs_to(ctx.id) && is_occupied(&node.record))
}

fn is_being_deleted(node: &Node, ctx: &PoolContext<'_>, inputs: &Inputs<'_>) -> bool {
    use NodeState::{Aborted, Deleted, Deleting, Failed, Used};
    let is_ours = node.pool.as_ref() == Some(&ctx.id.pool);
    // `abs()`: a `state_time` in the future (clock skew) does not count as recent either.
    let is_recent = (inputs.now - node.state_time).0.abs() < DELETION_WAIT_TIMEOUT.0;
    is_ours && is_recent && matches!(node.state, Used | Failed | Aborted | Deleting | Deleted)
}
