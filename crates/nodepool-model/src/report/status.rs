//! Lists of nodes, requests and labels for the CLI and the web API, and the verdicts that explain why a request waits.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::list::{Cell, Column};
use crate::records::ids::{LabelName, LauncherId, NodeId, PoolName, ProviderName, RequestId};
use crate::records::node::Node;
use crate::records::request::NodeRequest;
use crate::records::time::Timestamp;
use crate::snapshot::Snapshot;
use crate::snapshot::versioned::Versioned;

/// A row of the node list.
#[derive(Clone, Debug)]
pub struct NodeRow {
    pub id: NodeId,
    pub node: Arc<Node>,
    /// Whether the node's lock has a contender.
    pub locked: bool,
    /// The time up to which ages are counted.
    pub now: Timestamp,
}

/// All columns of `list --detail` and of the web's node list; `list` shows the first [`NODE_COLUMNS_BRIEF`].
pub const NODE_COLUMNS: &[Column<NodeRow>] = &[
    Column { key: "id", header: "ID", value: |row| (&row.id).into() },
    Column { key: "provider", header: "Provider", value: |row| (&row.node.provider).into() },
    Column { key: "label", header: "Label", value: |row| Cell::texts(&row.node.labels) },
    Column { key: "server_id", header: "Server ID", value: |row| Cell::Json(&row.node.external_id) },
    Column { key: "public_ipv4", header: "Public IPv4", value: |row| (&row.node.public_ipv4).into() },
    Column { key: "ipv6", header: "IPv6", value: |row| (&row.node.public_ipv6).into() },
    Column { key: "state", header: "State", value: |row| row.node.state.as_str().into() },
    Column { key: "age", header: "Age", value: |row| age(row.node.state_time, row.now).into() },
    Column { key: "locked", header: "Locked", value: |row| if row.locked { "locked" } else { "unlocked" }.into() },
    Column { key: "pool", header: "Pool", value: |row| (&row.node.pool).into() },
    Column { key: "hostname", header: "Hostname", value: |row| (&row.node.hostname).into() },
    Column { key: "private_ipv4", header: "Private IPv4", value: |row| (&row.node.private_ipv4).into() },
    Column { key: "AZ", header: "AZ", value: |row| (&row.node.az).into() },
    Column { key: "username", header: "Username", value: |row| (&row.node.username).into() },
    Column { key: "connection_port", header: "Port", value: |row| port_or_redacted(&row.node) },
    Column { key: "launcher", header: "Launcher", value: |row| (&row.node.launcher).into() },
    Column { key: "allocated_to", header: "Allocated To", value: |row| (&row.node.allocated_to).into() },
    Column { key: "hold_job", header: "Hold Job", value: |row| (&row.node.hold_job).into() },
    Column { key: "comment", header: "Comment", value: |row| (&row.node.comment).into() },
    Column { key: "user_data", header: "User Data", value: |row| Cell::Json(&row.node.user_data) },
    Column { key: "driver_data", header: "Driver Data", value: |row| Cell::Json(&row.node.driver_data) },
];

pub const NODE_COLUMNS_BRIEF: usize = 9;

/// Container drivers store credentials in place of a port; they are never shown.
pub fn port_or_redacted(node: &Node) -> Cell<'_> {
    match node.port() {
        Some(_) => Cell::Json(&node.connection_port),
        None => "redacted".into(),
    }
}

/// A row of the request list.
#[derive(Clone, Debug)]
pub struct RequestRow {
    pub id: RequestId,
    pub request: Arc<NodeRequest>,
}

/// The column `Priority` shows the relative priority; the priority itself is part of the id.
pub const REQUEST_COLUMNS: &[Column<RequestRow>] = &[
    Column { key: "id", header: "Request ID", value: |row| (&row.id).into() },
    Column { key: "relative_priority", header: "Priority", value: |row| Cell::Number(row.request.relative_priority) },
    Column { key: "state", header: "State", value: |row| row.request.state.as_str().into() },
    Column { key: "requestor", header: "Requestor", value: |row| (&row.request.requestor).into() },
    Column { key: "node_types", header: "Node Types", value: |row| Cell::texts(&row.request.node_types) },
    Column { key: "nodes", header: "Nodes", value: |row| Cell::texts(&row.request.nodes) },
    Column { key: "declined_by", header: "Declined By", value: |row| Cell::texts(&row.request.declined_by) },
    Column { key: "event_id", header: "Event ID", value: |row| (&row.request.event_id).into() },
];

/// All nodes, or one of them.
pub fn nodes(snapshot: &Snapshot, only: Option<&NodeId>, now: Timestamp) -> Vec<NodeRow> {
    let row = |(id, stored): (&NodeId, &Versioned<Node>)| NodeRow {
        id: id.clone(),
        node: stored.record.clone(),
        locked: snapshot.is_node_locked(id),
        now,
    };
    match only {
        Some(id) => snapshot.node(id).map(|stored| row((id, stored))).into_iter().collect(),
        None => snapshot.nodes().map(row).collect(),
    }
}

pub fn requests(snapshot: &Snapshot) -> Vec<RequestRow> {
    let row = |(id, stored): (&RequestId, &Versioned<NodeRequest>)| RequestRow {
        id: id.clone(),
        request: stored.record.clone(),
    };
    snapshot.requests().map(row).collect()
}

/// A label that some registered pool serves.
pub const LABEL_COLUMNS: &[Column<LabelName>] =
    &[Column { key: "label", header: "Label", value: |label| label.into() }];

/// `DD:HH:MM:SS`. A time in the future has a negative day part, and the rest counts forward from there.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = (now - since).0.floor();
    let days = (seconds / 86_400.0).floor();
    let rest = seconds.rem_euclid(86_400.0);
    let (hours, minutes) = ((rest / 3600.0).floor(), (rest % 3600.0 / 60.0).floor());
    format!("{days:02.0}:{hours:02.0}:{minutes:02.0}:{:02.0}", rest % 60.0)
}

/// Last verdict of one pool about one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolVerdict {
    pub launcher: LauncherId,
    pub provider: ProviderName,
    pub pool: PoolName,
    pub verdict: VerdictKind,
    /// Cause for operators, such as missing capacity.
    pub reason: String,
    /// First time of this verdict with this reason.
    pub since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictKind {
    /// Nothing to decide: the request ended, was declined before, or is being served.
    Ignore,
    /// Another pool is better placed to serve it.
    Yield,
    /// This pool could serve it, but not now.
    Defer,
    /// This pool can never serve it.
    Decline,
    /// This pool serves it.
    Accept,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::json as wire;
    use crate::report::list;

    #[test]
    fn ages_count_days_without_bound_and_backwards_from_the_future() {
        let cases = [(0.0, "00:00:00:00"), (90_061.9, "01:01:01:01"), (-5.0, "-1:23:59:55"), (1e7, "115:17:46:40")];
        for (seconds, expected) in cases {
            assert_eq!(age(Timestamp(1e9), Timestamp(1e9 + seconds)), expected);
        }
        assert!(age(Timestamp(f64::MAX), Timestamp(0.0)).starts_with('-'));
    }

    fn row(text: &str) -> NodeRow {
        let node: Node = wire::from_bytes(text.as_bytes()).unwrap();
        NodeRow { id: "0000000001".into(), node: Arc::new(node), locked: true, now: Timestamp(100.0) }
    }

    #[test]
    fn credentials_in_place_of_a_port_are_not_shown() {
        let row = row(r#"{"state": "ready", "connection_port": {"token": "secret"}, "type": ["a", "b"]}"#);
        let shown = String::from_utf8(list::python_json(NODE_COLUMNS, std::slice::from_ref(&row))).unwrap();
        assert!(shown.contains(r#""connection_port": "redacted""#) && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn nodes_are_listed_with_nine_columns_and_with_twenty_one_in_detail() {
        let row = row(r#"{"state": "ready", "state_time": 99.0, "type": ["a", "b"], "external_id": {"pod": "x"}}"#);
        let brief = list::table(&NODE_COLUMNS[..NODE_COLUMNS_BRIEF], std::slice::from_ref(&row)).to_string();
        let line = brief.lines().nth(3).unwrap();
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells, ["0000000001", "", "a,b", "{'pod': 'x'}", "", "", "ready", "00:00:00:01", "locked"]);
        assert_eq!(NODE_COLUMNS.len(), 21);
    }

    #[test]
    fn a_request_as_json_has_its_lists_as_arrays() {
        let request = NodeRequest::new(vec!["a".into(), "b".into()], "me", Timestamp(0.0));
        let row = RequestRow { id: "200-0000000001".into(), request: Arc::new(request) };
        let expected = r#"[{"id": "200-0000000001", "relative_priority": 0, "state": "requested", "requestor": "me", "node_types": ["a", "b"], "nodes": [], "declined_by": [], "event_id": null}]"#;
        assert_eq!(String::from_utf8(list::python_json(REQUEST_COLUMNS, &[row])).unwrap(), expected);
    }
}
