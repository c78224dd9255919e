//! Data of the live page as JSON: rows without keys, because there are thousands of them, and patches between two
//! snapshots.

use std::collections::BTreeMap;

use serde::ser::SerializeTuple;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::actors::telemetry::gauges::{self, Quota};
use nodepool_model::records::ids::{NodeId, ProviderName, RequestId};
use nodepool_model::records::node::Node;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::report::image_status;
use nodepool_model::report::status::PoolVerdict;
use nodepool_model::snapshot::{Snapshot, nodes_by_state};
use nodepool_policy::inputs::Inputs;
use python_yaml::text::printable;

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
pub fn full_update(revision: u64, snapshot: &Snapshot) -> String {
    let nodes = snapshot.nodes().map(|(id, stored)| NodeLine(id, &stored.record, snapshot.is_node_locked(id)));
    let requests = snapshot.requests().map(|(id, stored)| RequestLine(id, &stored.record));
    to_json(&FullUpdate {
        revision,
        connected: snapshot.connected,
        nodes: nodes.collect(),
        requests: requests.collect(),
        images: images(snapshot),
    })
}

#[derive(Serialize)]
struct FullUpdate<'a> {
    revision: u64,
    connected: bool,
    nodes: Vec<NodeLine<'a>>,
    requests: Vec<RequestLine<'a>>,
    images: Value,
}

/// Patch from the snapshot of the previous revision to the snapshot of this one.
pub fn patch(revision: u64, older: &Snapshot, newer: &Snapshot) -> String {
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
    let from = revision.saturating_sub(1);
    to_json(&Patch { from, revision, connected: newer.connected, nodes, requests, images })
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
    /// Reason why the provider cannot be used.
    pub unavailable: Option<String>,
    /// Time of the last refresh; `None` before the first one.
    pub refreshed_at: Option<f64>,
    pub pools: Vec<PoolStats>,
    pub quotas: Vec<Quota>,
    /// Number of nodes by state.
    pub nodes: BTreeMap<String, usize>,
    pub calls: CallStats,
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

pub fn providers(inputs: &Inputs<'_>, calls: &BTreeMap<ProviderName, CallStats>) -> Vec<ProviderStats> {
    let stats = |(name, section): (&ProviderName, &std::sync::Arc<nodepool_model::config::ProviderConfig>)| {
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
            unavailable: facts.and_then(|facts| facts.unavailable.as_ref()).map(|cause| cause.reason().to_owned()),
            refreshed_at: facts.map(|facts| facts.refreshed_at.0).filter(|at| *at > 0.0),
            pools: pools.collect(),
            quotas: facts.map(|facts| gauges::quotas(name, facts, inputs.snapshot)).unwrap_or_default(),
            nodes,
            calls: calls.get(name).cloned().unwrap_or_default(),
        }
    };
    inputs.config.providers.iter().map(stats).collect()
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
    let is_open = |request: &NodeRequest| matches!(request.state, RequestState::Requested | RequestState::Pending);
    let mut open: Vec<_> = snapshot.requests().filter(|(_, stored)| is_open(&stored.record)).collect();
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
    use nodepool_model::snapshot::Versioned;

    #[test]
    fn a_patch_contains_only_the_changes() {
        let stored = |mzxid, text: &str| Versioned {
            record: serde_json::from_str::<Node>(text).unwrap().into(),
            version: 0,
            mzxid,
            mtime_ms: 0,
        };
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
        let patch = patch(8, &older, &newer);
        let expected = r#"{"from":7,"revision":8,"connected":false,"nodes":{"upserted":[["0000000007","in-use",2.0,null,null,["a"],null,false,null,"<b>",null,null]],"removed":["0000000009"]},"requests":{"upserted":[],"removed":[]}}"#;
        assert_eq!(patch, expected);
        assert_eq!(full_update(8, &older).matches("\"ready\"").count(), 100);
    }
}
