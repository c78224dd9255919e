//! Requests that a launcher took up and left: those whose nodes are still booting are gone on with, not begun anew.

use crate::inputs::Inputs;
use nodepool_model::records::component::PoolComponent;
use nodepool_model::records::ids::{NodeId, PoolId, RequestId};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::Versioned;

/// How long pools may take until everybody treats such a request as lost.
const GRACE_PERIOD: Seconds = Seconds(60.0);

/// How long those of another launcher may take: it knows its cloud already, and goes on at once or not at all.
const OTHER_LAUNCHER_GRACE_PERIOD: Seconds = Seconds(3.0);

/// A request that a pool can go on with.
#[derive(Clone, Debug, PartialEq)]
pub struct ResumableRequest {
    pub pool: PoolId,
    /// In the order of the wishes; each is ready, building or yet to be begun.
    pub nodes: Vec<NodeId>,
}

/// What a pending request that nobody holds can be gone on with: all its nodes are there, of one pool of ours that
/// launches, and the time for a launch is not over.
pub fn find(id: &RequestId, request: &Versioned<NodeRequest>, world: &Inputs<'_>) -> Option<ResumableRequest> {
    in_one_pool(id, request, world).filter(|left| can_resume(left, request, world))
}

/// The pool is ours and launches what is wished for, and the time for a launch is not over.
fn can_resume(resumable: &ResumableRequest, request: &Versioned<NodeRequest>, world: &Inputs<'_>) -> bool {
    let launching = world.facts.get(&resumable.pool.provider).and_then(|facts| facts.launch_config.as_ref());
    let provider = world.config.providers.get(&resumable.pool.provider);
    let (Some(launching), Some(pool)) =
        (launching, provider.and_then(|provider| provider.pools.get(&resumable.pool.pool)))
    else {
        return false;
    };
    let has_time = (world.now - request.record.state_time).0 <= launching.timeout.0;
    has_time && request.record.node_types.iter().all(|label| pool.labels.contains(label))
}

/// How long such a request is left to those who may go on with it; `None` where nobody can.
pub fn grace_period(id: &RequestId, request: &Versioned<NodeRequest>, world: &Inputs<'_>) -> Option<Seconds> {
    let resumable = in_one_pool(id, request, world)?;
    if can_resume(&resumable, request, world) {
        return Some(GRACE_PERIOD);
    }
    let is_ours = world.config.providers.contains_key(&resumable.pool.provider);
    let can_pool_resume = |pool: &PoolComponent| {
        let is_same_pool = pool.provider_name.as_ref() == Some(&resumable.pool.provider)
            && pool.name.as_ref() == Some(&resumable.pool.pool);
        is_same_pool && pool.resumes_launches()
    };
    let is_served = || world.snapshot.pools.serving(&request.record.distinct_labels()).any(can_pool_resume);
    (!is_ours && is_served()).then_some(OTHER_LAUNCHER_GRACE_PERIOD)
}

/// A pending request that nobody holds, all of whose nodes are there and free, and of the same pool.
fn in_one_pool(id: &RequestId, request: &Versioned<NodeRequest>, world: &Inputs<'_>) -> Option<ResumableRequest> {
    if request.record.state != RequestState::Pending || world.snapshot.is_request_locked(id) {
        return None;
    }
    let mut free: Vec<NodeId> = world.snapshot.live_nodes_of(id).cloned().collect();
    if free.is_empty() || free.len() != request.record.node_types.len() {
        return None;
    }
    let first = &world.snapshot.node(free.first()?)?.record;
    let pool = first.pool_id()?;
    let mut nodes = Vec::with_capacity(free.len());
    for label in &request.record.node_types {
        let fits = |node: &NodeId| {
            let Some(stored) = world.snapshot.node(node) else { return false };
            let record = &stored.record;
            let is_alive = matches!(record.state, NodeState::Ready | NodeState::Building | NodeState::Init);
            record.belongs_to(&pool)
                && is_alive
                && record.labels.contains(label)
                && !world.snapshot.is_node_locked(node)
        };
        let index = free.iter().position(fits)?;
        nodes.push(free.remove(index));
    }
    Some(ResumableRequest { pool, nodes })
}
