//! Requests that a launcher took up and left: those whose nodes are still booting are gone on with, not begun anew.

use crate::model::ids::{NodeId, PoolId, RequestId};
use crate::model::node::NodeState;
use crate::model::request::{NodeRequest, RequestState};
use crate::model::snapshot::Stored;
use crate::model::time::Span;
use crate::model::world::World;

/// How long pools may take until everybody treats such a request as lost.
pub const GRACE: Span = Span(60.0);

/// A request that a pool can go on with.
#[derive(Clone, Debug, PartialEq)]
pub struct Left {
    pub pool: PoolId,
    /// In the order of the wishes; each is ready, building or yet to be begun.
    pub nodes: Vec<NodeId>,
}

/// What a pending request that nobody holds can be gone on with: all its nodes are there, of one pool of ours that
/// launches, and the time for a launch is not over.
pub fn of(id: &RequestId, request: &Stored<NodeRequest>, world: &World<'_>) -> Option<Left> {
    if request.record.state != RequestState::Pending || world.snapshot.is_request_locked(id) {
        return None;
    }
    let mut free: Vec<NodeId> = world.snapshot.nodes_allocated_to(id).cloned().collect();
    if free.is_empty() || free.len() != request.record.node_types.len() {
        return None;
    }
    let first = &world.snapshot.node(free.first()?)?.record;
    let pool = PoolId { provider: first.provider.clone()?, pool: first.pool.clone()? };
    let launching = world.facts.get(&pool.provider)?.launching.as_ref()?;
    let section = world.config.providers.get(&pool.provider)?.pools.get(&pool.pool)?;
    if (world.now - request.record.state_time).0 > launching.timeout.0 {
        return None;
    }
    let mut nodes = Vec::with_capacity(free.len());
    for label in &request.record.node_types {
        let fits = |node: &NodeId| {
            let Some(stored) = world.snapshot.node(node) else { return false };
            let record = &stored.record;
            let is_of_pool =
                record.provider.as_ref() == Some(&pool.provider) && record.pool.as_ref() == Some(&pool.pool);
            let is_alive = matches!(record.state, NodeState::Ready | NodeState::Building | NodeState::Init);
            is_of_pool && is_alive && record.labels.contains(label) && !world.snapshot.is_node_locked(node)
        };
        let index = free.iter().position(fits).filter(|_| section.labels.contains(label))?;
        nodes.push(free.remove(index));
    }
    Some(Left { pool, nodes })
}
