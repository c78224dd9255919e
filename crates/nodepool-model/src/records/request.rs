//! Node request record, its states, and the rank of requests.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize};

use super::ids::{LabelName, LauncherId, NodeId, ProviderName, RequestId, TenantName};
use super::interned::JsonMap;
use super::raw_json::RawJson;
use super::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestState {
    Requested,
    Pending,
    Fulfilled,
    Failed,
}

impl RequestState {
    pub fn as_str(self) -> &'static str {
        match self {
            RequestState::Requested => "requested",
            RequestState::Pending => "pending",
            RequestState::Fulfilled => "fulfilled",
            RequestState::Failed => "failed",
        }
    }

    /// Whether a launcher may change a request from this state to `next`.
    pub fn may_become(self, next: RequestState) -> bool {
        use RequestState::*;
        match self {
            Requested | Pending => matches!(next, Requested | Pending | Fulfilled | Failed),
            Fulfilled | Failed => false,
        }
    }
}

/// Requestor of the requests that keep idle nodes ready.
pub const MIN_READY_REQUESTOR: &str = "NodePool:min-ready";
/// Priority of min-ready requests: after all others.
pub const MIN_READY_PRIORITY: &str = "900";
/// Maximum number of nodes of one request. The fulfilling write names each node twice, and ZooKeeper accepts 1 MiB.
pub const MAX_NODES: usize = 10_000;

/// Record of one request. The request's id is part of the znode's path, not of the record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRequest {
    pub state: RequestState,
    #[serde(default, deserialize_with = "null_is_default")]
    pub state_time: Timestamp,
    #[serde(default, deserialize_with = "null_is_default")]
    pub declined_by: Vec<LauncherId>,
    /// One entry per requested node; the order matters, repeats are allowed.
    #[serde(default, deserialize_with = "null_is_default")]
    pub node_types: Vec<LabelName>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub nodes: Vec<NodeId>,
    /// `false` forbids the use of existing nodes.
    #[serde(default = "yes")]
    pub reuse: bool,
    #[serde(default)]
    pub requestor: Option<String>,
    /// Data of the requestor, written back unchanged.
    #[serde(default)]
    pub requestor_data: RawJson,
    /// Preferred provider, as long as it can serve the request.
    #[serde(default)]
    pub provider: Option<ProviderName>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub relative_priority: i64,
    #[serde(default)]
    pub event_id: Option<String>,
    #[serde(default)]
    pub created_time: Option<Timestamp>,
    #[serde(default)]
    pub tenant_name: Option<TenantName>,
    /// Keys of other programs, written back unchanged.
    #[serde(flatten)]
    pub extra: JsonMap,
}

/// Context of an OpenTelemetry span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct SpanInfo {
    pub trace_id: u128,
    pub span_id: u64,
    #[serde(default)]
    pub trace_flags: u8,
}

/// `NaN` or `None` of Python in place of a value counts as a missing key.
fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn yes() -> bool {
    true
}

impl NodeRequest {
    pub fn new(node_types: Vec<LabelName>, requestor: &str, now: Timestamp) -> Self {
        Self {
            state: RequestState::Requested,
            state_time: now,
            declined_by: Vec::new(),
            node_types,
            nodes: Vec::new(),
            reuse: true,
            requestor: Some(requestor.to_owned()),
            requestor_data: RawJson::default(),
            provider: None,
            relative_priority: 0,
            event_id: None,
            created_time: None,
            tenant_name: None,
            extra: JsonMap::default(),
        }
    }

    pub fn set_state(&mut self, next: RequestState, now: Timestamp) {
        assert!(self.state.may_become(next), "invalid request state change from {:?} to {next:?}", self.state);
        self.state = next;
        self.state_time = now;
    }

    /// The requestor's span that ends when the request is fulfilled, as stored by Zuul.
    pub fn span(&self) -> Option<SpanInfo> {
        #[derive(Deserialize)]
        struct Data {
            span_info: Option<SpanInfo>,
        }
        let data: Data = serde_json::from_str(self.requestor_data.text()).ok()?;
        // Zero is not a valid id in OpenTelemetry.
        data.span_info.filter(|span| span.trace_id != 0 && span.span_id != 0)
    }

    pub fn is_min_ready(&self) -> bool {
        self.requestor.as_deref() == Some(MIN_READY_REQUESTOR)
    }

    /// The requested labels, each once.
    pub fn distinct_labels(&self) -> BTreeSet<&LabelName> {
        self.node_types.iter().collect()
    }
}

/// Order in which requests are served: priority, then relative priority, then age.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    pub priority: String,
    pub relative_priority: i64,
    pub id: RequestId,
}

impl Rank {
    pub fn of(id: &RequestId, request: &NodeRequest) -> Self {
        // `id` decides by age: ids with equal priorities compare by their sequence.
        Self { priority: id.priority().to_owned(), relative_priority: request.relative_priority, id: id.clone() }
    }
}

/// Labels in one line for operators: each label once with its count, and at most ten labels.
pub fn summarize_labels(labels: &[LabelName]) -> String {
    const MAX_SHOWN: usize = 10;
    let mut counts: Vec<(&LabelName, usize)> = Vec::new();
    let mut known = BTreeMap::new();
    for label in labels {
        let index = *known.entry(label).or_insert(counts.len());
        match counts.get_mut(index) {
            Some((_, count)) => *count += 1,
            None => counts.push((label, 1)),
        }
    }
    let word = |(label, count): &(&LabelName, usize)| match count {
        1 => label.to_string(),
        count => format!("{count} × {label}"),
    };
    let shown = counts.iter().take(MAX_SHOWN).map(word).collect::<Vec<_>>().join(", ");
    match counts.len().saturating_sub(MAX_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_summarized_in_one_line() {
        let labels = |text: &str| -> Vec<LabelName> { text.split(' ').map(LabelName::from).collect() };
        assert_eq!(summarize_labels(&labels("b a b")), "2 × b, a");
        let many: Vec<String> = (0..12).map(|number| format!("l{number}")).collect();
        assert_eq!(summarize_labels(&labels(&many.join(" "))), "l0, l1, l2, l3, l4, l5, l6, l7, l8, l9 and 2 more");
    }
    use crate::records::json;

    #[test]
    fn a_request_as_zuul_creates_it_gets_the_defaults() {
        let text = br#"{"requestor_data": {"job_name": "unit"}, "node_types": ["a", "a"], "requestor": "z",
            "created_time": 1795175600.25, "provider": null, "state": "requested", "state_time": 1795175600.2,
            "relative_priority": 3, "event_id": "c0ffee", "tenant_name": "tenant-one", "later": 1}"#;
        let request: NodeRequest = json::from_bytes(text).unwrap();
        assert_eq!((request.nodes.len(), request.reuse, request.declined_by.len()), (0, true, 0));
        let written = String::from_utf8(json::to_bytes(&request)).unwrap();
        assert!(written.ends_with(r#""tenant_name": "tenant-one", "later": 1}"#), "{written}");
    }

    #[test]
    fn an_unknown_state_is_refused() {
        assert!(json::from_bytes::<NodeRequest>(br#"{"state": "dreaming"}"#).is_err());
    }

    #[test]
    fn non_json_number_tokens_of_python_are_read_as_null() {
        let text = br#"{"state": "requested", "state_time": NaN, "relative_priority": NaN, "nodes": null}"#;
        let request: NodeRequest = json::from_bytes(text).unwrap();
        assert_eq!((request.state_time, request.relative_priority), (Timestamp::default(), 0));
        assert_eq!(request.nodes, []);
    }

    #[test]
    fn precedence_beats_relative_priority_which_beats_age() {
        let rank = |id: &str, relative| {
            let mut request = NodeRequest::new(vec![], "z", Timestamp(0.0));
            request.relative_priority = relative;
            Rank::of(&RequestId::from(id), &request)
        };
        let mut ranks = [
            rank("200-0000000001", 2),
            rank("200-0000000002", 1),
            rank("100-0000000009", 9),
            rank("200-0000000000", 2),
        ];
        ranks.sort();
        let order: Vec<&str> = ranks.iter().map(|rank| rank.id.as_str()).collect();
        assert_eq!(order, ["100-0000000009", "200-0000000002", "200-0000000000", "200-0000000001"]);
    }
}
