//! State of a pool for dumps, and its last verdict about a request.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Pool;
use crate::request::fulfillment::Fulfillment;
use crate::scheduler::reason::Reason;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::request::RequestState;
use nodepool_model::records::time::{MonotonicTime, Timestamp};
use nodepool_model::report::status::{PoolVerdict, VerdictKind};
use nodepool_model::snapshot::Snapshot;

#[derive(Clone, Debug, Serialize)]
pub struct PoolView {
    pub actor: &'static str,
    pub name: String,
    pub draining: bool,
    /// A request waits for capacity.
    pub paused: bool,
    pub fulfilled_count: u64,
    pub requests: Vec<HandlerView>,
    pub launches: Vec<FulfillmentView>,
    pub deferred: Vec<DeferredView>,
}

#[derive(Clone, Debug, Serialize)]
pub struct HandlerView {
    pub id: RequestId,
    pub for_s: f64,
    pub waiting_for: String,
    pub nodes: Vec<NodeId>,
}

/// A request with nodes that are being launched.
#[derive(Clone, Debug, Serialize)]
pub struct FulfillmentView {
    pub id: RequestId,
    pub for_s: f64,
    /// Duration of the current launch attempt of each node.
    pub attempts_for_s: BTreeMap<NodeId, f64>,
    #[serde(flatten)]
    pub fulfillment: Fulfillment,
}

#[derive(Clone, Debug, Serialize)]
pub struct DeferredView {
    pub id: RequestId,
    pub for_s: f64,
    pub reason: String,
}

impl Pool {
    /// The last verdict about a request, while the request is open or ended recently.
    pub fn last_verdict(&self, id: &RequestId, snapshot: &Snapshot) -> Option<PoolVerdict> {
        let is_ours = self.handlers.contains_key(id) || self.fulfillments.contains_key(id);
        let pending = snapshot.request(id).filter(|stored| stored.record.state == RequestState::Pending && !is_ours);
        let (verdict, reason, since) = match (pending, self.verdicts.last(id)) {
            // A scheduling pass skips requests that other pools have accepted.
            (Some(stored), _) => (VerdictKind::Ignore, Reason::BeingServed.to_string(), stored.record.state_time),
            (None, Some(recorded)) => (recorded.kind, recorded.reason.to_string(), recorded.since),
            (None, None) => return None,
        };
        let obstacles = self.fulfillments.get(id).into_iter().flat_map(|fulfillment| fulfillment.launches());
        let obstacles =
            obstacles.filter_map(|(node, launch)| Some(format!("; node {node} waits: {}", launch.obstacle()?)));
        let reason = reason + &obstacles.collect::<String>();
        let (provider, pool) = (self.id.provider.clone(), self.id.pool.clone());
        Some(PoolVerdict { launcher: self.launcher.clone(), provider, pool, verdict, reason, since })
    }

    pub fn view(&self, now: Timestamp, monotonic_now: MonotonicTime) -> PoolView {
        let requests = self.handlers.values().map(|handler| HandlerView {
            id: handler.id.clone(),
            for_s: (now - handler.since).0,
            waiting_for: handler.reason().to_string(),
            nodes: handler.nodes.clone(),
        });
        let deferred = self.verdicts.deferred().map(|(id, recorded)| DeferredView {
            id: id.clone(),
            for_s: (now - recorded.since).0,
            reason: recorded.reason.to_string(),
        });
        let launches = self.fulfillments.iter().map(|(id, fulfillment)| FulfillmentView {
            id: id.clone(),
            for_s: (now - fulfillment.since).0,
            attempts_for_s: fulfillment
                .launches()
                .map(|(node, launch)| (node.clone(), launch.attempt_duration(monotonic_now).0))
                .collect(),
            fulfillment: fulfillment.clone(),
        });
        PoolView {
            actor: "PoolWorker",
            name: format!("{}/{}", self.id.provider, self.id.pool),
            draining: self.draining,
            paused: self.is_paused(),
            fulfilled_count: self.fulfilled_count,
            requests: requests.collect(),
            launches: launches.collect(),
            deferred: deferred.collect(),
        }
    }
}
