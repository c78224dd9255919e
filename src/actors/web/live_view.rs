//! Data of the live page as JSON: rows without keys, because there are thousands of them, and patches between two
//! states.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::ser::SerializeTuple;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::actors::runtime::snapshot_feed::{BackingNodes, SlowDeletions};
use crate::actors::telemetry::gauges::{self, Quota};
use nodepool_driver::health::CloudHealth;
use nodepool_model::records::ids::{NodeId, ProviderName, RequestId};
use nodepool_model::records::node::Node;
use nodepool_model::records::request::NodeRequest;
use nodepool_model::report::event_history::EndedEntry;
use nodepool_model::report::image_status;
use nodepool_model::report::status::PoolVerdict;
use nodepool_model::snapshot::ended_request::is_open;
use nodepool_model::snapshot::{Snapshot, nodes_by_state};
pub use nodepool_policy::backing::status::BackingNodeStatus;
use nodepool_policy::inputs::Inputs;
use python_yaml::text::printable;

/// State of the live page after a patch.
#[derive(Clone, Default)]
pub struct PageState {
    /// Number of patches over all ZooKeeper sessions.
    pub revision: u64,
    pub snapshot: Arc<Snapshot>,
    /// The last ended requests, in the order of their numbers.
    pub ended: Vec<Arc<EndedEntry>>,
}

/// A node as a row of the live page: id, state, since when, provider, pool, labels, address, locked, request, comment,
/// zone, host name.
pub struct NodeLine<'a>(pub &'a NodeId, pub &'a Node, pub bool);

impl Serialize for NodeLine<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let NodeLine(id, node, locked) = self;
        let address = node.interface_ip.as_ref().or(node.public_ipv4.as_ref()).or(node.public_ipv6.as_ref());
        let address = address.or(node.private_ipv4.as_ref());
        let mut line = serializer.serialize_tuple(12)?;
        line.serialize_element(id)?;
        line.serialize_element(node.state.as_str())?;
        line.serialize_element(&node.state_time.0.floor())?;
        line.serialize_element(&node.provider)?;
        line.serialize_element(&node.pool)?;
        line.serialize_element(&node.labels)?;
        line.serialize_element(&address)?;
        line.serialize_element(locked)?;
        line.serialize_element(&node.allocated_to)?;
        line.serialize_element(&node.comment)?;
        line.serialize_element(&node.az)?;
        line.serialize_element(&node.hostname)?;
        line.end()
    }
}

/// A request as a row of the live page: id, state, since when, requestor, labels, nodes, declined by, event, relative
/// priority, created.
pub struct RequestLine<'a>(pub &'a RequestId, pub &'a NodeRequest);

impl Serialize for RequestLine<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let RequestLine(id, request) = self;
        let mut line = serializer.serialize_tuple(10)?;
        line.serialize_element(id)?;
        line.serialize_element(request.state.as_str())?;
        line.serialize_element(&request.state_time.0.floor())?;
        line.serialize_element(&request.requestor)?;
        line.serialize_element(&request.node_types)?;
        line.serialize_element(&request.nodes)?;
        line.serialize_element(&request.declined_by)?;
        line.serialize_element(&request.event_id)?;
        line.serialize_element(&request.relative_priority)?;
        line.serialize_element(&request.created_time.unwrap_or(request.state_time).0)?;
        line.end()
    }
}

/// An ended request as a row of the live page: number, id, outcome, created, ended, requestor, labels with their number
/// of nodes, number of requested nodes, pools as provider and name, nodes, number of assigned nodes, declined by.
struct EndedLine<'a>(&'a EndedEntry);

impl Serialize for EndedLine<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let EndedLine(EndedEntry { number, at, request }) = self;
        let pools: Vec<_> = request.pools.iter().map(|id| (&id.provider, &id.pool)).collect();
        let mut line = serializer.serialize_tuple(12)?;
        line.serialize_element(number)?;
        line.serialize_element(&request.id)?;
        line.serialize_element(&request.outcome)?;
        line.serialize_element(&request.created)?;
        line.serialize_element(at)?;
        line.serialize_element(&request.requestor)?;
        line.serialize_element(&request.labels)?;
        line.serialize_element(&request.requested)?;
        line.serialize_element(&pools)?;
        line.serialize_element(&request.nodes)?;
        line.serialize_element(&request.assigned)?;
        line.serialize_element(&request.declined_by)?;
        line.end()
    }
}

fn ended_lines(entries: &[Arc<EndedEntry>]) -> Vec<EndedLine<'_>> {
    entries.iter().map(|entry| EndedLine(entry)).collect()
}

/// Changes of one kind of objects: new or changed rows, and ids of deleted objects.
#[derive(Serialize)]
struct Difference<L> {
    upserted: Vec<L>,
    removed: Vec<String>,
}

impl<L> Default for Difference<L> {
    fn default() -> Self {
        Self { upserted: Vec::new(), removed: Vec::new() }
    }
}

/// The full state, for a page that was just opened.
pub fn full_update(state: &PageState) -> String {
    let snapshot = &state.snapshot;
    let nodes = snapshot.nodes().map(|(id, stored)| NodeLine(id, &stored.record, snapshot.is_node_locked(id)));
    let requests = snapshot.requests().map(|(id, stored)| RequestLine(id, &stored.record));
    to_json(&FullUpdate {
        revision: state.revision,
        connected: snapshot.connected,
        nodes: nodes.collect(),
        requests: requests.collect(),
        images: images(snapshot),
        ended: ended_lines(&state.ended),
    })
}

#[derive(Serialize)]
struct FullUpdate<'a> {
    revision: u64,
    connected: bool,
    nodes: Vec<NodeLine<'a>>,
    requests: Vec<RequestLine<'a>>,
    images: Value,
    ended: Vec<EndedLine<'a>>,
}

/// Patch from the state of the previous revision to the state of this one.
pub fn patch(before: &PageState, after: &PageState) -> String {
    let (older, newer) = (&before.snapshot, &after.snapshot);
    let (mut nodes, mut requests) = (Difference::default(), Difference::default());
    let changed = newer.nodes_changed_since(older);
    for id in &changed {
        match newer.node(id) {
            Some(stored) => nodes.upserted.push(NodeLine(id, &stored.record, newer.is_node_locked(id))),
            None => nodes.removed.push(id.to_string()),
        }
    }
    let changed = newer.requests_changed_since(older);
    for id in &changed {
        match newer.request(id) {
            Some(stored) => requests.upserted.push(RequestLine(id, &stored.record)),
            None => requests.removed.push(id.to_string()),
        }
    }
    let images = (!newer.images.is_same_as(&older.images)).then(|| images(newer));
    let last_sent = before.ended.last().map(|entry| entry.number);
    let first_new = after.ended.partition_point(|entry| Some(entry.number) <= last_sent);
    to_json(&Patch {
        from: before.revision,
        revision: after.revision,
        connected: newer.connected,
        nodes,
        requests,
        images,
        ended: ended_lines(&after.ended[first_new..]),
    })
}

#[derive(Serialize)]
struct Patch<'a> {
    from: u64,
    revision: u64,
    connected: bool,
    nodes: Difference<NodeLine<'a>>,
    requests: Difference<RequestLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<Value>,
    /// Requests that ended since the previous patch.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ended: Vec<EndedLine<'a>>,
}

/// Images with their builds, and the uploads of each build.
fn images(snapshot: &Snapshot) -> Value {
    let images = &snapshot.images;
    let mut uploads: BTreeMap<_, Vec<Value>> = BTreeMap::new();
    for (key, stored) in images.uploads() {
        let upload = &stored.record;
        let upload = json!({"id": key.upload, "provider": key.provider, "state": upload.state, "since": upload.state_time,
            "name": upload.external_name, "external_id": upload.external_id});
        uploads.entry((key.image.clone(), key.build.clone())).or_default().push(upload);
    }
    let image_json = |name| {
        let image = images.image(name)?;
        let builds = image.builds.iter().map(|(id, stored)| {
            let build = &stored.record;
            json!({"id": id, "state": build.state, "since": build.state_time, "builder": build.builder,
                "formats": build.formats, "uploads": uploads.get(&(name.clone(), id.clone()))})
        });
        let request = image.requested_ms.map(|_| if image_status::is_building(image) { "building" } else { "pending" });
        Some(json!({"name": name, "paused": image.paused, "request": request, "builds": builds.collect::<Vec<_>>()}))
    };
    images.names().filter_map(image_json).collect()
}

/// Statistics of one provider of a launcher.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct ProviderStats {
    pub name: String,
    pub driver: String,
    /// Minimum seconds between two calls; `None` without such a limit.
    pub spacing_s: Option<f64>,
    /// Whether the provider has started; `None` if the launcher does not report it.
    pub running: Option<bool>,
    /// Reason why the provider cannot be used.
    pub unavailable: Option<String>,
    /// Outage of the cloud, and its refusals of new nodes.
    pub conditions: Vec<CloudCondition>,
    /// Queries that failed in the last refresh, or are refused to the account.
    pub failed_queries: Vec<String>,
    /// Time of the last refresh; `None` before the first one.
    pub refreshed_at: Option<f64>,
    pub pools: Vec<PoolStats>,
    pub quotas: Vec<Quota>,
    /// Number of nodes by state.
    pub nodes: BTreeMap<String, usize>,
    pub calls: CallStats,
    /// Nodes in whose slots those of a metastatic provider are.
    pub backing_nodes: Vec<BackingNodeStatus>,
}

/// A condition of a cloud.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct CloudCondition {
    pub since: f64,
    pub text: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct PoolStats {
    pub name: String,
    pub max_servers: Option<i64>,
    pub labels: Vec<String>,
}

/// Statistics of a provider's API calls over the last minutes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct CallStats {
    /// Length of the window in seconds.
    pub window_s: f64,
    pub count: u64,
    pub failed: u64,
    pub mean_s: Option<f64>,
    /// Upper bound of the bucket of the 95th percentile; `None` without calls or above all bounds.
    pub p95_s: Option<f64>,
}

pub fn providers(
    inputs: &Inputs<'_>,
    calls: &BTreeMap<ProviderName, CallStats>,
    mut backing_nodes: BackingNodes,
) -> Vec<ProviderStats> {
    let mut stats = |(name, section): (&ProviderName, &std::sync::Arc<nodepool_model::config::ProviderConfig>)| {
        let facts = inputs.facts.get(name);
        let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
        inputs.snapshot.nodes_of(name).for_each(|(_, stored)| {
            *nodes.entry(stored.record.state.as_str().to_owned()).or_default() += 1;
        });
        let pools = section.pools.iter().map(|(pool, config)| PoolStats {
            name: pool.to_string(),
            max_servers: config.max_servers,
            labels: config.labels.iter().map(ToString::to_string).collect(),
        });
        ProviderStats {
            name: name.to_string(),
            driver: section.driver.clone(),
            spacing_s: section.section.number("rate").ok().flatten().filter(|seconds| *seconds > 0.0),
            running: Some(facts.is_some()),
            unavailable: facts.and_then(|facts| facts.unavailable.as_ref()).map(|cause| cause.reason().to_owned()),
            conditions: facts.map(|facts| conditions(&facts.health)).unwrap_or_default(),
            failed_queries: facts
                .iter()
                .flat_map(|facts| facts.failed_queries.iter().chain(&facts.refused_queries))
                .map(ToString::to_string)
                .collect(),
            refreshed_at: facts.map(|facts| facts.refreshed_at.0).filter(|at| *at > 0.0),
            pools: pools.collect(),
            quotas: facts.map(|facts| gauges::quotas(name, facts, inputs.snapshot)).unwrap_or_default(),
            nodes,
            calls: calls.get(name).cloned().unwrap_or_default(),
            backing_nodes: backing_nodes.remove(name).unwrap_or_default(),
        }
    };
    inputs.config.providers.iter().map(&mut stats).collect()
}

/// Adds the deletions that something in the cloud holds up to the conditions of their providers.
pub fn add_slow_deletions(stats: &mut [ProviderStats], deletions: SlowDeletions) {
    for (provider, slow) in deletions {
        let of_provider = stats.iter_mut().filter(|stats| stats.name == provider.as_str());
        let conditions = slow.into_iter().map(|(since, text)| CloudCondition { since: since.0, text: printable(text) });
        let conditions: Vec<CloudCondition> = conditions.collect();
        of_provider.for_each(|stats| stats.conditions.extend(conditions.iter().cloned()));
    }
}

fn conditions(health: &CloudHealth) -> Vec<CloudCondition> {
    let found = health.conditions().into_iter();
    found.map(|(since, text)| CloudCondition { since: since.0, text: printable(text) }).collect()
}

/// Verdicts of the pools by request.
pub fn reasons(verdicts: &BTreeMap<RequestId, Vec<PoolVerdict>>) -> Value {
    let line = |verdict: &PoolVerdict| {
        json!({"pool": format!("{}-{}", verdict.provider, verdict.pool), "verdict": verdict.verdict,
            "reason": printable(verdict.reason.clone()), "since": verdict.since})
    };
    let entries = verdicts.iter().map(|(id, verdicts)| (id.to_string(), verdicts.iter().map(line).collect()));
    Value::Object(entries.collect())
}

/// Open requests, the oldest first.
pub fn waiting(snapshot: &Snapshot, limit: usize) -> Vec<RequestId> {
    let mut open: Vec<_> = snapshot.requests().filter(|(_, stored)| is_open(stored.record.state)).collect();
    open.sort_by(|(_, one), (_, other)| {
        one.record.created_time.partial_cmp(&other.record.created_time).unwrap_or(std::cmp::Ordering::Equal)
    });
    open.into_iter().take(limit).map(|(id, _)| id.clone()).collect()
}

/// Nodes by state, without the empty ones.
pub fn node_state_counts(snapshot: &Snapshot) -> BTreeMap<&'static str, usize> {
    nodes_by_state(snapshot).into_iter().filter(|(_, number)| *number > 0).map(|(s, n)| (s.as_str(), n)).collect()
}

pub fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("strings, integers and finite times serialize")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::records::time::Timestamp;
    use nodepool_model::report::event_history::EventHistory;
    use nodepool_model::snapshot::Versioned;
    use serde::de::DeserializeOwned;

    fn stored<T: DeserializeOwned>(mzxid: i64, text: &str) -> Versioned<T> {
        let record: T = serde_json::from_str(text).unwrap();
        Versioned { record: record.into(), version: 0, mzxid, mtime_ms: 0 }
    }

    fn page(revision: u64, snapshot: &Snapshot, history: &EventHistory) -> PageState {
        PageState { revision, snapshot: Arc::new(snapshot.clone()), ended: history.ended_requests() }
    }

    #[test]
    fn a_patch_contains_only_the_changes() {
        let mut older = Snapshot::default();
        for number in 0..100 {
            older.put_node(
                NodeId::from(format!("{number:010}")),
                stored(1, r#"{"state": "ready", "state_time": 1.5, "type": ["a"]}"#),
            );
        }
        let mut newer = older.clone();
        newer.put_node(
            "0000000007".into(),
            stored(2, r#"{"state": "in-use", "state_time": 2.5, "type": ["a"], "comment": "<b>"}"#),
        );
        newer.remove_node(&"0000000009".into());
        let no_history = EventHistory::new(Timestamp(0.0));
        let patch = patch(&page(7, &older, &no_history), &page(8, &newer, &no_history));
        let expected = r#"{"from":7,"revision":8,"connected":false,"nodes":{"upserted":[["0000000007","in-use",2.0,null,null,["a"],null,false,null,"<b>",null,null]],"removed":["0000000009"]},"requests":{"upserted":[],"removed":[]}}"#;
        assert_eq!(patch, expected);
        assert_eq!(full_update(&page(7, &older, &no_history)).matches("\"ready\"").count(), 100);
    }

    #[test]
    fn a_patch_contains_the_requests_that_ended_since_the_previous_one() {
        let (mut history, mut snapshots) = (EventHistory::new(Timestamp(0.0)), vec![Snapshot::default()]);
        let mut states = vec![page(0, &snapshots[0], &history)];
        let node = r#"{"state": "ready", "provider": "lab", "pool": "main", "type": ["a"]}"#;
        for (number, state) in [(1, "fulfilled"), (2, "failed"), (3, "requested")] {
            let mut snapshot = snapshots[number - 1].clone();
            snapshot.put_node("0000000001".into(), stored(1, node));
            let request = format!(
                r#"{{"state": "{state}", "state_time": {number}0.5, "created_time": 4.25, "node_types": ["a"],
                    "requestor": "<zuul>", "nodes": ["0000000001"], "declined_by": ["x"]}}"#
            );
            snapshot.put_request(format!("200-{number}").into(), stored(number as i64 + 1, &request));
            history.record_differences(&snapshots[number - 1], &snapshot, Timestamp(60.0));
            states.push(page(number as u64, &snapshot, &history));
            snapshots.push(snapshot);
        }
        let ended = |document: &str| serde_json::from_str::<Value>(document).unwrap()["ended"].clone();
        let line = |number: u64, id: &str, outcome: &str, at: f64| {
            json!([number, id, outcome, 4.25, at, "<zuul>", [["a", 1]], 1, [["lab", "main"]], ["0000000001"], 1, ["x"]])
        };
        let (first, second) = (line(0, "200-1", "fulfilled", 10.5), line(1, "200-2", "failed", 20.5));
        assert_eq!(ended(&patch(&states[0], &states[1])), json!([first]));
        assert_eq!(ended(&patch(&states[1], &states[2])), json!([second]));
        assert_eq!(ended(&patch(&states[2], &states[3])), Value::Null, "an open request has not ended");
        assert_eq!(ended(&patch(&states[0], &states[3])), json!([first, second]));
        assert_eq!(ended(&full_update(&states[3])), json!([first, second]));
    }
}
