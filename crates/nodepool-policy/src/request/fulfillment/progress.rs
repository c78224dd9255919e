//! Fulfillment: the progress of its launches.

use super::{Fulfillment, FulfillmentStage};
use crate::request::launch::{Launch, Suspension};
use crate::request::requested_node::{RequestedNode, RequestedNodeState, WriteState, is_usable};
use nodepool_driver::health::Decision;
use nodepool_model::records::ids::{LabelName, NodeId};
use nodepool_model::records::time::MonotonicTime;

impl Fulfillment {
    /// Error of the last node that failed.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The zone that was missing when a node was aborted.
    pub fn missing_zone(&self) -> Option<&String> {
        self.missing_zones.last().filter(|_| self.zone.is_none())
    }

    /// Whether the cloud refused a node because its quota was exceeded or its zone was missing.
    pub fn was_aborted(&self) -> bool {
        self.requested_nodes.iter().any(|entry| matches!(entry.state, RequestedNodeState::Aborted))
    }

    /// Whether an aborted node can be released now.
    pub fn has_releasable_nodes(&self) -> bool {
        self.requested_nodes.iter().any(RequestedNode::is_releasable)
    }

    pub fn has_failed(&self) -> bool {
        self.requested_nodes.iter().any(|entry| matches!(entry.state, RequestedNodeState::Failed(_)))
    }

    /// Whether the request has usable nodes, which would be lost with it.
    pub fn has_usable_nodes(&self) -> bool {
        self.requested_nodes.iter().any(is_usable)
    }

    /// Whether a launch or the write of its result is in progress.
    pub fn has_open_launches(&self) -> bool {
        let is_open = |entry: &RequestedNode| {
            matches!(entry.state, RequestedNodeState::Launching(_)) || entry.write != WriteState::Idle
        };
        self.requested_nodes.iter().any(is_open)
    }

    /// Whether a launch is in progress and not suspended.
    pub fn has_progressing_launches(&self) -> bool {
        self.launches().any(|(_, launch)| launch.suspension().is_none())
    }

    /// Whether the request is between two writes.
    pub fn is_settled(&self) -> bool {
        matches!(self.stage, FulfillmentStage::Waiting | FulfillmentStage::Building)
    }

    /// Whether all launches have finished, successfully or not.
    pub fn launches_complete(&self) -> bool {
        self.is_settled() && !self.has_open_launches()
    }

    /// The request gets no further nodes, and ends as soon as its launches have ended.
    pub fn close(&mut self) {
        (self.stage, self.is_closing) = (FulfillmentStage::Building, true);
    }

    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Nodes whose launches are suspended, with their labels.
    pub fn suspended(&self) -> impl Iterator<Item = (&NodeId, &LabelName, &Suspension)> {
        self.requested_nodes.iter().filter_map(|entry| match &entry.state {
            RequestedNodeState::Launching(launch) => Some((entry.node.as_ref()?, &entry.label, launch.suspension()?)),
            _ => None,
        })
    }

    /// Labels of the nodes for which the cloud has yet to show whether it has capacity.
    pub fn undecided(&self, decision: Decision) -> impl Iterator<Item = &LabelName> {
        self.requested_nodes.iter().filter_map(move |entry| {
            let is_undecided = match &entry.state {
                RequestedNodeState::New => true,
                RequestedNodeState::Launching(launch) => {
                    launch.suspension().is_none() && (decision == Decision::Ready || launch.external_id().is_none())
                }
                _ => false,
            };
            is_undecided.then_some(&entry.label)
        })
    }

    pub fn due(&self) -> Option<MonotonicTime> {
        let launches = self.requested_nodes.iter().filter_map(|entry| match &entry.state {
            RequestedNodeState::Launching(launch) => launch.due(),
            _ => None,
        });
        launches.min()
    }

    /// Nodes whose launches are in flight.
    pub fn launching(&self) -> Vec<NodeId> {
        self.launches().map(|(node, _)| node.clone()).collect()
    }

    pub fn launches(&self) -> impl Iterator<Item = (&NodeId, &Launch)> {
        self.requested_nodes.iter().filter_map(|entry| match &entry.state {
            RequestedNodeState::Launching(launch) => Some((entry.node.as_ref()?, &**launch)),
            _ => None,
        })
    }
}
