//! Status of the backing nodes of a provider, for dumps, the page and `nodepool why`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::planner::BackingPlanner;
use super::view::BackingNode;
use nodepool_driver::facts::BackingLabel;
use nodepool_model::records::ids::{LabelName, NodeId, RequestId};
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};

/// Backing nodes and requests of a provider, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackingStatus {
    pub nodes: Vec<BackingNodeStatus>,
    pub requests: BTreeMap<RequestId, RequestStatus>,
    pub waiting: BTreeMap<NodeId, LabelName>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestStatus {
    pub label: LabelName,
    pub state: &'static str,
}

/// A backing node, as far as the launcher knows it that keeps it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct BackingNodeStatus {
    pub node: NodeId,
    /// The metastatic label.
    pub label: LabelName,
    pub state: String,
    /// Whether the provider holds its lock.
    pub is_ours: bool,
    pub slots: u32,
    /// Slots that are taken, with their nodes.
    pub occupants: Vec<(u32, NodeId)>,
    /// It gets no more nodes.
    pub retired: bool,
    pub failures: u32,
    pub age_s: f64,
    /// `None` while it has nodes.
    pub idle_s: Option<f64>,
    pub released_in_s: Option<f64>,
}

impl BackingPlanner {
    pub fn status(&self, now: Timestamp, monotonic_now: MonotonicTime) -> BackingStatus {
        let nodes = self.view.nodes.iter().map(|(id, node)| self.node_status(id, node, now, monotonic_now)).collect();
        let requests = self.requests.open.iter().map(|(id, request)| {
            (id.clone(), RequestStatus { label: request.label.clone(), state: request.state.as_str() })
        });
        let waiting = self.view.waiting().map(|(id, label)| (id.clone(), label.clone())).collect();
        BackingStatus { nodes, requests: requests.collect(), waiting }
    }

    fn node_status(
        &self,
        id: &NodeId,
        node: &BackingNode,
        now: Timestamp,
        monotonic_now: MonotonicTime,
    ) -> BackingNodeStatus {
        let terms = self.terms.get(&node.record.label).filter(|_| !node.record.failed);
        let idle = self.view.idle_since.get(id).map(|since| monotonic_now - *since);
        let age = now - node.record.launched;
        let left = |terms: &Arc<BackingLabel>, idle: Seconds| {
            (terms.grace_time.0 - idle.0).max(terms.min_retention_time.0 - age.0).max(0.0)
        };
        let failures = self.view.failures.get(id).copied().unwrap_or_default();
        BackingNodeStatus {
            node: id.clone(),
            label: node.record.label.clone(),
            state: node.state.as_str().to_owned(),
            is_ours: self.view.is_ours(id),
            slots: node.record.slots,
            occupants: self.view.occupants(id).map(|(slot, node)| (slot, node.clone())).collect(),
            retired: node.record.failed,
            failures: failures.attempts + failures.early_returns,
            age_s: age.0.round(),
            idle_s: idle.map(|idle| idle.0.round()),
            released_in_s: idle.map(|idle| terms.map_or(0.0, |terms| left(terms, idle)).round()),
        }
    }
}
