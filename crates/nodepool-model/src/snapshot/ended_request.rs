//! Ended request: a summary of a request that was fulfilled, failed or deleted, for the live page. Its size is bounded,
//! because the event history retains it after the record is deleted.

use serde::Serialize;

use super::Snapshot;
use crate::records::ids::{LabelName, LauncherId, NodeId, PoolId, RequestId};
use crate::records::request::{MIN_READY_REQUESTOR, NodeRequest, RequestState};
use crate::records::time::Timestamp;

/// Maximum number of entries in each list of a summary.
const MAX_ENTRIES: usize = 16;
/// Names of more bytes are truncated, to half as many characters, so that a long name cannot exceed the memory bound.
const MAX_NAME_LEN: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub struct EndedRequest {
    pub id: RequestId,
    pub outcome: RequestOutcome,
    /// `None` if the record has no creation time.
    pub created: Option<Timestamp>,
    pub requestor: Option<String>,
    /// The first labels, each with its number of requested nodes.
    pub labels: Vec<(LabelName, usize)>,
    /// Number of requested nodes.
    pub requested: usize,
    /// The first assigned nodes.
    pub nodes: Vec<NodeId>,
    /// Number of assigned nodes.
    pub assigned: usize,
    /// Pools of the assigned nodes.
    pub pools: Vec<PoolId>,
    /// Names of the pools that declined the request.
    pub declined_by: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestOutcome {
    Fulfilled,
    Failed,
    /// The request was deleted while it was open.
    Cancelled,
    /// The request was deleted unobserved, so it may have been fulfilled before.
    Unknown,
}

impl EndedRequest {
    /// `None` if the request did not end with this change, or if it keeps idle nodes ready. A deleted request has no
    /// record `after`.
    pub fn of(
        id: &RequestId,
        before: Option<&NodeRequest>,
        after: Option<&NodeRequest>,
        snapshot: &Snapshot,
    ) -> Option<Self> {
        if before.map(|request| request.state) == after.map(|request| request.state) {
            return None;
        }
        let outcome = match after.map(|request| request.state) {
            Some(RequestState::Fulfilled) => RequestOutcome::Fulfilled,
            Some(RequestState::Failed) => RequestOutcome::Failed,
            Some(RequestState::Requested | RequestState::Pending) => return None,
            None if !before.is_some_and(|request| is_open(request.state)) => return None,
            // Without a connection, the mirror detects the deletion later, and misses changes before it.
            None if !snapshot.connected || snapshot.unreadable_requests.contains(id) => RequestOutcome::Unknown,
            None => RequestOutcome::Cancelled,
        };
        let record = after.or(before)?;
        // A pool at quota declines such a request every few seconds, which would displace the requests of consumers.
        if record.requestor.as_deref() == Some(MIN_READY_REQUESTOR) {
            return None;
        }
        let nodes: Vec<&NodeId> = match record.nodes.is_empty() {
            true => snapshot.nodes_allocated_to(id).collect(),
            false => record.nodes.iter().collect(),
        };
        Some(Self {
            id: shortened(id),
            outcome,
            created: record.created_time,
            requestor: record.requestor.as_ref().map(shortened),
            labels: labels_of(record),
            requested: record.node_types.len(),
            assigned: nodes.len(),
            pools: pools_of(&nodes, snapshot),
            nodes: nodes.into_iter().take(MAX_ENTRIES).map(shortened).collect(),
            declined_by: record.declined_by.iter().take(MAX_ENTRIES).map(pool_of_launcher).collect(),
        })
    }
}

pub fn is_open(state: RequestState) -> bool {
    matches!(state, RequestState::Requested | RequestState::Pending)
}

fn labels_of(record: &NodeRequest) -> Vec<(LabelName, usize)> {
    let mut labels: Vec<(&LabelName, usize)> = Vec::new();
    for label in &record.node_types {
        match labels.iter().position(|(known, _)| *known == label) {
            Some(index) => labels[index].1 += 1,
            None if labels.len() < MAX_ENTRIES => labels.push((label, 1)),
            None => {}
        }
    }
    labels.into_iter().map(|(label, count)| (shortened(label), count)).collect()
}

fn pools_of(nodes: &[&NodeId], snapshot: &Snapshot) -> Vec<PoolId> {
    let mut pools: Vec<PoolId> = Vec::new();
    for stored in nodes.iter().filter_map(|id| snapshot.node(id)) {
        let (Some(provider), Some(pool)) = (&stored.record.provider, &stored.record.pool) else { continue };
        let is_known = pools.iter().any(|known| known.provider == *provider && known.pool == *pool);
        if !is_known && pools.len() < MAX_ENTRIES {
            pools.push(PoolId { provider: shortened(provider), pool: shortened(pool) });
        }
    }
    pools
}

/// `<provider>-<pool>` if the id has the form that launchers give it, otherwise the id.
fn pool_of_launcher(launcher: &LauncherId) -> String {
    let worker = launcher.as_str().split_once("-PoolWorker.").and_then(|(_, worker)| worker.rsplit_once('-'));
    shortened(&worker.map_or(launcher.as_str(), |(pool, _)| pool).to_owned())
}

/// The name, or its beginning if it is long.
pub fn shortened<N: AsRef<str> + Clone + From<String>>(name: &N) -> N {
    let text = name.as_ref();
    if text.len() <= MAX_NAME_LEN {
        return name.clone();
    }
    N::from(text.chars().take(MAX_NAME_LEN / 2).chain(['…']).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Versioned;

    fn request(text: &str) -> NodeRequest {
        serde_json::from_str(text).unwrap()
    }

    fn snapshot(nodes: &[(&str, &str)]) -> Snapshot {
        let mut snapshot = Snapshot { connected: true, ..Snapshot::default() };
        for (id, pool) in nodes {
            let record = format!(
                r#"{{"state": "ready", "provider": "lab", "pool": "{pool}", "type": ["a"], "allocated_to": "200-1"}}"#
            );
            let record = serde_json::from_str(&record).unwrap();
            snapshot.put_node(
                (*id).into(),
                Versioned { record: std::sync::Arc::new(record), version: 0, mzxid: 1, mtime_ms: 0 },
            );
        }
        snapshot
    }

    fn ended(before: Option<&str>, after: Option<&str>, snapshot: &Snapshot) -> Option<EndedRequest> {
        let (before, after) = (before.map(request), after.map(request));
        EndedRequest::of(&"200-1".into(), before.as_ref(), after.as_ref(), snapshot)
    }

    const PENDING: &str =
        r#"{"state": "pending", "node_types": ["a", "b", "a"], "requestor": "zuul", "created_time": 7.5}"#;
    const FULFILLED: &str = r#"{"state": "fulfilled", "node_types": ["a", "b", "a"], "nodes": ["1", "2", "3"]}"#;

    #[test]
    fn a_fulfilled_request_names_its_nodes_and_their_pools() {
        let snapshot = snapshot(&[("1", "main"), ("2", "other"), ("3", "main")]);
        let ended = ended(Some(PENDING), Some(FULFILLED), &snapshot).unwrap();
        assert_eq!(ended.outcome, RequestOutcome::Fulfilled);
        assert_eq!(ended.labels, [("a".into(), 2), ("b".into(), 1)]);
        assert_eq!((ended.requested, ended.assigned), (3, 3));
        assert_eq!(ended.pools, [PoolId::new("lab", "main"), PoolId::new("lab", "other")]);
    }

    #[test]
    fn a_failed_request_names_the_pools_that_declined_it() {
        let failed = r#"{"state": "failed", "node_types": ["a"],
            "declined_by": ["nl01.x-PoolWorker.lab-main-0123456789abcdef0123456789abcdef", "odd"]}"#;
        let ended = ended(Some(PENDING), Some(failed), &snapshot(&[])).unwrap();
        assert_eq!(ended.declined_by, ["lab-main", "odd"]);
    }

    #[test]
    fn a_request_that_is_deleted_while_open_is_cancelled() {
        let mut snapshot = snapshot(&[("1", "main")]);
        let cancelled = ended(Some(PENDING), None, &snapshot).unwrap();
        assert_eq!(cancelled.outcome, RequestOutcome::Cancelled);
        assert_eq!((cancelled.created, cancelled.nodes), (Some(Timestamp(7.5)), vec!["1".into()]));
        snapshot.connected = false;
        assert_eq!(ended(Some(PENDING), None, &snapshot).unwrap().outcome, RequestOutcome::Unknown);
        snapshot.connected = true;
        snapshot.set_request_unreadable(&"200-1".into());
        assert_eq!(ended(Some(PENDING), None, &snapshot).unwrap().outcome, RequestOutcome::Unknown);
    }

    #[test]
    fn other_changes_do_not_end_a_request() {
        let snapshot = Snapshot::default();
        let requested = PENDING.replace("pending", "requested");
        for (before, after) in [
            (None, Some(PENDING)),
            (Some(&*requested), Some(PENDING)),
            (Some(PENDING), Some(&*requested)),
            (Some(FULFILLED), Some(FULFILLED)),
            (Some(FULFILLED), None),
            (None, None),
        ] {
            assert_eq!(ended(before, after, &snapshot), None, "{before:?} {after:?}");
        }
    }

    #[test]
    fn requests_for_min_ready_nodes_are_omitted() {
        let failed = r#"{"state": "failed", "node_types": ["a"], "requestor": "NodePool:min-ready"}"#;
        assert_eq!(ended(Some(PENDING), Some(failed), &Snapshot::default()), None);
    }

    #[test]
    fn the_size_of_a_summary_is_bounded() {
        let names: Vec<String> = (0..500).map(|number| format!("{number}-{}", "x".repeat(1000))).collect();
        let names = serde_json::to_string(&names).unwrap();
        let long = "ä".repeat(1000);
        let after = format!(
            r#"{{"state": "failed", "node_types": {names}, "nodes": {names}, "declined_by": {names}, "requestor": "{long}"}}"#
        );
        let ended = ended(None, Some(&after), &Snapshot::default()).unwrap();
        assert_eq!((ended.requested, ended.assigned), (500, 500));
        assert_eq!((ended.labels.len(), ended.nodes.len(), ended.declined_by.len()), (16, 16, 16));
        assert!(format!("{ended:?}").len() < 6000, "{ended:?}");
    }
}
