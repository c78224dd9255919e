//! Fulfillment: the last write of a request and its nodes.

use super::{Fulfillment, FulfillmentStage};
use crate::inputs::Inputs;
use crate::request::handler::decline;
use crate::request::node_updates::{deallocate, id_value, own_node, ready_change, state_change};
use crate::request::requested_node::{RequestedNode, RequestedNodeState, is_usable};
use nodepool_model::records::ids::{LauncherId, NodeId, RequestId};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::snapshot::{NodeChange, RequestChange, Versioned};

/// The transaction that finishes a request: the request, and its nodes with their last change, if any.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    pub request: Option<RequestChange>,
    pub nodes: Vec<(NodeId, Option<NodeChange>)>,
}

impl Fulfillment {
    /// Finishes the request: fulfilled if every node is ready, declined if one failed, otherwise released because one
    /// was aborted.
    pub fn finish(&mut self, id: &RequestId, launcher: &LauncherId, inputs: &Inputs<'_>) -> Finish {
        self.stage = FulfillmentStage::Finishing;
        let has_failed = self.has_failed();
        // A request that another process has ended counts as deleted.
        let is_open = |stored: &&Versioned<NodeRequest>| stored.record.state.may_become(RequestState::Requested);
        let request = inputs.snapshot.request(id).filter(is_open);
        // A node that is not written again must still exist as it was written.
        let is_still_valid = |entry: &RequestedNode, record: &Node| match entry.state {
            RequestedNodeState::Reused => record.state == NodeState::Ready && record.allocated_to.as_ref() == Some(id),
            _ => true,
        };
        let exists = |entry: &RequestedNode| {
            let stored = entry.node.as_ref().and_then(|node| own_node(node, inputs));
            stored.is_some_and(|stored| is_still_valid(entry, &stored.record))
        };
        let is_ready_in_snapshot =
            |node: &NodeId| inputs.snapshot.node(node).is_some_and(|stored| stored.record.state == NodeState::Ready);
        let fulfils = request.is_some() && self.requested_nodes.iter().all(|entry| is_usable(entry) && exists(entry));
        let mut nodes = Vec::new();
        for entry in &self.requested_nodes {
            let Some(node) = &entry.node else { continue };
            let change = match &entry.state {
                RequestedNodeState::Ready { launched, is_saved } if !is_saved || !is_ready_in_snapshot(node) => {
                    ready_change(node, launched, inputs).map(|change| entry.with_image(change))
                }
                RequestedNodeState::Failed(recorded_id) => {
                    state_change(node, NodeState::Failed, inputs).map(|mut change| {
                        // The write of the id may have failed.
                        if let Some(id) = id_value(recorded_id) {
                            change.record.external_id = id;
                        }
                        change
                    })
                }
                RequestedNodeState::Aborted => state_change(node, NodeState::Aborted, inputs),
                // Its launch never started, so no instance exists.
                RequestedNodeState::New => state_change(node, NodeState::Deleting, inputs),
                RequestedNodeState::Unassigned
                | RequestedNodeState::Reused
                | RequestedNodeState::Ready { .. }
                | RequestedNodeState::Launching(_) => None,
            };
            let freed = !fulfils && is_usable(entry) && exists(entry);
            let change = match (change, freed) {
                (change, false) => change,
                (None, true) => inputs.snapshot.node(node).map(|stored| stored.change(node.clone(), deallocate)),
                (Some(mut change), true) => {
                    deallocate(&mut change.record);
                    Some(change)
                }
            };
            nodes.push((node.clone(), change));
        }
        let request = request.map(|stored| match (fulfils, has_failed) {
            (true, _) => stored.change(id.clone(), |record| {
                record.set_state(RequestState::Fulfilled, inputs.now);
                record.nodes = self.nodes();
            }),
            (false, true) => decline(id, stored, launcher, inputs),
            (false, false) => stored.change(id.clone(), |record| record.set_state(RequestState::Requested, inputs.now)),
        });
        Finish { request, nodes }
    }
}
