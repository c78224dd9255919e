//! Resumable requests: requests that a launcher accepted and abandoned. If their nodes are still booting, a pool
//! resumes them instead of starting again.

use crate::inputs::Inputs;
use nodepool_model::records::component::PoolComponent;
use nodepool_model::records::ids::{NodeId, PoolId, RequestId};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::Versioned;

/// Time for the pools to resume such a request. After this time, the request counts as lost.
const GRACE_PERIOD: Seconds = Seconds(60.0);

/// Time for the pools of another launcher to resume such a request. This time is short, because a running launcher has
/// its provider facts already and resumes a request at once or not at all.
const OTHER_LAUNCHER_GRACE_PERIOD: Seconds = Seconds(3.0);

/// A request that a pool can resume.
#[derive(Clone, Debug, PartialEq)]
pub struct ResumableRequest {
    pub pool: PoolId,
    /// In the order of the requested labels; each node is ready, building, or its launch has not started.
    pub nodes: Vec<NodeId>,
}

/// A pending, unlocked request that can be resumed: all its nodes exist, they belong to one launching pool of this
/// configuration, and the launch timeout has not passed.
pub fn find(id: &RequestId, request: &Versioned<NodeRequest>, inputs: &Inputs<'_>) -> Option<ResumableRequest> {
    in_one_pool(id, request, inputs).filter(|resumable| can_resume(resumable, request, inputs))
}

/// Whether the pool is configured here and offers the requested labels, and the launch timeout has not passed.
fn can_resume(resumable: &ResumableRequest, request: &Versioned<NodeRequest>, inputs: &Inputs<'_>) -> bool {
    let launch_config = inputs.facts.get(&resumable.pool.provider).and_then(|facts| facts.launch_config.as_ref());
    let provider = inputs.config.providers.get(&resumable.pool.provider);
    let (Some(launch_config), Some(pool)) =
        (launch_config, provider.and_then(|provider| provider.pools.get(&resumable.pool.pool)))
    else {
        return false;
    };
    let has_time = (inputs.now - request.record.state_time).0 <= launch_config.timeout.0;
    has_time && request.record.node_types.iter().all(|label| pool.labels.contains(label))
}

/// Time for which the clean-up leaves such a request to the pools that can resume it; `None` if no pool can.
pub fn grace_period(id: &RequestId, request: &Versioned<NodeRequest>, inputs: &Inputs<'_>) -> Option<Seconds> {
    let resumable = in_one_pool(id, request, inputs)?;
    if can_resume(&resumable, request, inputs) {
        return Some(GRACE_PERIOD);
    }
    let is_ours = inputs.config.providers.contains_key(&resumable.pool.provider);
    let can_pool_resume = |pool: &PoolComponent| {
        let is_same_pool = pool.provider_name.as_ref() == Some(&resumable.pool.provider)
            && pool.name.as_ref() == Some(&resumable.pool.pool);
        is_same_pool && pool.resumes_launches()
    };
    let is_served = || inputs.snapshot.pools.serving(&request.record.distinct_labels()).any(can_pool_resume);
    (!is_ours && is_served()).then_some(OTHER_LAUNCHER_GRACE_PERIOD)
}

/// A pending, unlocked request whose nodes all exist, are unlocked, and belong to the same pool.
fn in_one_pool(id: &RequestId, request: &Versioned<NodeRequest>, inputs: &Inputs<'_>) -> Option<ResumableRequest> {
    if request.record.state != RequestState::Pending || inputs.snapshot.is_request_locked(id) {
        return None;
    }
    let mut free: Vec<NodeId> = inputs.snapshot.live_nodes_of(id).cloned().collect();
    if free.is_empty() || free.len() != request.record.node_types.len() {
        return None;
    }
    let first = &inputs.snapshot.node(free.first()?)?.record;
    let pool = first.pool_id()?;
    let mut nodes = Vec::with_capacity(free.len());
    for label in &request.record.node_types {
        let fits = |node: &NodeId| {
            let Some(stored) = inputs.snapshot.node(node) else { return false };
            let record = &stored.record;
            let is_alive = matches!(record.state, NodeState::Ready | NodeState::Building | NodeState::Init);
            record.belongs_to(&pool)
                && is_alive
                && record.labels.contains(label)
                && !inputs.snapshot.is_node_locked(node)
        };
        let index = free.iter().position(fits)?;
        nodes.push(free.remove(index));
    }
    Some(ResumableRequest { pool, nodes })
}
