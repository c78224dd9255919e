//! State transitions of nodes and requests, derived from the change or deletion of a record.

use serde::Serialize;

use crate::records::ids::{LabelName, NodeId, ProviderName, RequestId};
use crate::records::node::{Node, NodeState};
use crate::records::request::{NodeRequest, RequestState};
use crate::records::time::Timestamp;

#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// Time from the record; `None` if it has none for this transition.
    pub at: Option<Timestamp>,
    pub change: StateChange,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StateChange {
    Node { node: NodeId, state: Option<NodeState>, provider: Option<ProviderName>, request: Option<RequestId> },
    Request { request: RequestId, state: Option<RequestState>, nodes: usize, label: Option<LabelName> },
}

impl Transition {
    /// A change of the state or of the allocation. A deleted node has no state.
    pub fn of_node(id: &NodeId, before: Option<&Node>, after: Option<&Node>) -> Option<Self> {
        let state = after.map(|node| node.state);
        let state_changed = before.map(|node| node.state) != state;
        let request = |node: Option<&Node>| node.and_then(|node| node.allocated_to.clone());
        if !state_changed && request(before) == request(after) {
            return None;
        }
        let record = after.or(before)?;
        let at = after.filter(|_| state_changed).map(|node| node.state_time);
        let (provider, request) = (record.provider.clone(), record.allocated_to.clone());
        Some(Self { at, change: StateChange::Node { node: id.clone(), state, provider, request } })
    }

    pub fn of_request(id: &RequestId, before: Option<&NodeRequest>, after: Option<&NodeRequest>) -> Option<Self> {
        let state = after.map(|request| request.state);
        if before.map(|request| request.state) == state {
            return None;
        }
        let record = after.or(before)?;
        let (nodes, label) = (record.nodes.len(), record.node_types.first().cloned());
        let change = StateChange::Request { request: id.clone(), state, nodes, label };
        Some(Self { at: after.map(|request| request.state_time), change })
    }
}
