//! State transitions of nodes and requests, derived from the change or deletion of a record.

use serde::Serialize;

use super::Snapshot;
use super::ended_request::EndedRequest;
use crate::records::ids::{LabelName, NodeId, ProviderName, RequestId};
use crate::records::node::{Node, NodeState};
use crate::records::request::{NodeRequest, RequestState};
use crate::records::time::Timestamp;

#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// Time from the record; `None` if the record has no time for this transition.
    pub at: Option<Timestamp>,
    pub change: StateChange,
    /// Summary of the request if it ended with this transition.
    pub ended: Option<Box<EndedRequest>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StateChange {
    Node { node: NodeId, state: Option<NodeState>, provider: Option<ProviderName>, request: Option<RequestId> },
    Request { request: RequestId, state: Option<RequestState>, nodes: usize, label: Option<LabelName> },
}

impl Transition {
    /// The transition, if the state or the allocation changed. A deleted node has no state.
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
        Some(Self { at, change: StateChange::Node { node: id.clone(), state, provider, request }, ended: None })
    }

    /// A change of the state. The snapshot contains the nodes of the request.
    pub fn of_request(
        id: &RequestId,
        before: Option<&NodeRequest>,
        after: Option<&NodeRequest>,
        snapshot: &Snapshot,
    ) -> Option<Self> {
        let state = after.map(|request| request.state);
        if before.map(|request| request.state) == state {
            return None;
        }
        let record = after.or(before)?;
        let (nodes, label) = (record.nodes.len(), record.node_types.first().cloned());
        let change = StateChange::Request { request: id.clone(), state, nodes, label };
        let ended = EndedRequest::of(id, before, after, snapshot).map(Box::new);
        Some(Self { at: after.map(|request| request.state_time), change, ended })
    }
}

impl Snapshot {
    /// Collects the transition of a request, before its record is replaced or removed.
    pub(super) fn collect_request_transition(&mut self, id: &RequestId, after: Option<&NodeRequest>) {
        if self.transitions.is_none() {
            return;
        }
        let before = self.requests.get(id).map(|stored| &*stored.record);
        let transition = Transition::of_request(id, before, after, self);
        if let Some(transitions) = &mut self.transitions {
            transitions.extend(transition);
        }
    }
}
