//! The open requests of a provider for backing nodes.

use std::collections::BTreeMap;

use serde_json::json;

use nodepool_model::records::ids::{LabelName, NodeId, RequestId};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::{MonotonicTime, Timestamp};
use nodepool_model::snapshot::Snapshot;

/// A request that a launcher of this provider has made.
#[derive(Clone, Debug, PartialEq)]
pub struct BackingRequest {
    /// The metastatic label that needs the node.
    pub label: LabelName,
    /// The worker that made it, and that alone ends it.
    pub worker: String,
    pub state: RequestState,
    pub nodes: Vec<NodeId>,
    pub created: Option<Timestamp>,
}

/// Open requests, kept up to date with the snapshot by its differences.
#[derive(Debug)]
pub struct BackingRequests {
    owner: String,
    seen: Option<Snapshot>,
    pub open: BTreeMap<RequestId, BackingRequest>,
    /// Since when no node waits for these.
    pub unneeded_since: BTreeMap<RequestId, MonotonicTime>,
}

impl BackingRequests {
    pub fn new(owner: String) -> Self {
        Self { owner, seen: None, open: BTreeMap::new(), unneeded_since: BTreeMap::new() }
    }

    pub fn update(&mut self, snapshot: &Snapshot) {
        let before = self.seen.replace(snapshot.clone());
        let changed: Vec<RequestId> = match before {
            Some(before) => snapshot.requests_changed_since(&before).into_iter().collect(),
            None => snapshot.requests().map(|(id, _)| id.clone()).collect(),
        };
        for id in changed {
            match snapshot.request(&id).and_then(|stored| self.read(&stored.record)) {
                Some(request) => drop(self.open.insert(id, request)),
                None => {
                    self.open.remove(&id);
                    self.unneeded_since.remove(&id);
                }
            }
        }
    }

    /// Requests of a Nodepool 11 launcher do not name their label, and are that launcher's own affair.
    fn read(&self, request: &NodeRequest) -> Option<BackingRequest> {
        if request.requestor.as_deref() != Some(&self.owner) {
            return None;
        }
        let data = request.requestor_data.value();
        Some(BackingRequest {
            label: data.get("label")?.as_str()?.into(),
            worker: data.get("worker")?.as_str()?.to_owned(),
            state: request.state,
            nodes: request.nodes.clone(),
            created: request.created_time,
        })
    }
}

/// The record of a request for one backing node.
pub fn request(owner: &str, order: &BackingOrder, worker: &str, event_id: String, now: Timestamp) -> NodeRequest {
    let mut request = NodeRequest::new(vec![order.backing_label.clone()], owner, now);
    request.requestor_data = json!({"label": order.label, "worker": worker}).into();
    request.event_id = Some(event_id);
    request.created_time = Some(now);
    request
}

/// A backing node that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingOrder {
    /// The metastatic label.
    pub label: LabelName,
    pub backing_label: LabelName,
}
