//! NodeRequestHandler: one request that this pool has accepted, until it is fulfilled, declined or released.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::inputs::Inputs;
use crate::scheduler::allocate::all_pools_declined;
use crate::scheduler::pool_context::PoolContext;
use crate::scheduler::reason::Reason;
use crate::scheduler::reservations::Reservations;
use nodepool_model::records::ids::{LauncherId, NodeId, RequestId};
use nodepool_model::records::node::Node;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::static_host::HostIdentity;
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::{NodeChange, RequestChange, Versioned};

/// Stage of a request. At most one effect is in flight, except for the probes of its nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HandlerStage {
    Probing { open: BTreeSet<NodeId> },
    Fulfilling,
    Declining,
}

#[derive(Clone, Debug, Serialize)]
pub struct NodeRequestHandler {
    pub id: RequestId,
    pub nodes: Vec<NodeId>,
    pub stage: HandlerStage,
    pub since: Timestamp,
    /// Revision of the snapshot on which the request was decided.
    pub revision: u64,
}

/// The transaction that fulfils a request from existing nodes: the request becomes `fulfilled` and its nodes are
/// allocated, together.
#[derive(Clone, Debug, PartialEq)]
pub struct ImmediateFulfillment {
    pub request: RequestChange,
    pub nodes: Vec<NodeChange>,
}

impl NodeRequestHandler {
    /// Starts with the nodes that the verdict selected, and returns the probes: nodes on hosts that require a liveness
    /// check are probed first.
    pub fn launch(
        id: RequestId,
        nodes: Vec<NodeId>,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) -> (Self, Vec<(NodeId, HostIdentity)>) {
        let probes: Vec<(NodeId, HostIdentity)> = nodes
            .iter()
            .filter_map(|node| Some((node.clone(), ctx.hosts.identity(&inputs.snapshot.node(node)?.record)?)))
            .filter(|(_, identity)| ctx.hosts.is_probed(identity))
            .collect();
        let open: BTreeSet<NodeId> = probes.iter().map(|(node, _)| node.clone()).collect();
        let stage = if open.is_empty() { HandlerStage::Fulfilling } else { HandlerStage::Probing { open } };
        (Self { id, nodes, stage, since: inputs.now, revision: inputs.snapshot.revision }, probes)
    }

    pub fn declining(id: RequestId, inputs: &Inputs<'_>) -> Self {
        let revision = inputs.snapshot.revision;
        Self { id, nodes: Vec::new(), stage: HandlerStage::Declining, since: inputs.now, revision }
    }

    /// Records that a node passed its probe; returns whether all nodes have passed.
    pub fn probed(&mut self, node: &NodeId) -> bool {
        let HandlerStage::Probing { open } = &mut self.stage else { return false };
        open.remove(node);
        open.is_empty()
    }

    /// All probes succeeded: returns the transaction that fulfils the request, if the snapshot still allows it.
    pub fn launches_complete(&self, reservations: &Reservations, inputs: &Inputs<'_>) -> Option<ImmediateFulfillment> {
        let request = inputs.snapshot.request(&self.id)?;
        if request.record.state != RequestState::Requested || inputs.snapshot.is_request_locked(&self.id) {
            return None;
        }
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for (id, label) in self.nodes.iter().zip(&request.record.node_types) {
            assert!(reservations.is_assigned(id), "a handler fulfils only with nodes that are assigned to it");
            let node = inputs.snapshot.node(id)?;
            // The host's labels may have changed during the probe.
            let fits = node.record.is_idle() && node.record.labels.contains(label);
            if !fits || inputs.snapshot.is_node_locked(id) {
                return None;
            }
            // Allocation does not change the state, so `state_time` stays as it was.
            nodes.push(node.change(id.clone(), |record| allocate(record, &self.id, &request.record)));
        }
        let request = request.change(self.id.clone(), |record| {
            record.set_state(RequestState::Fulfilled, inputs.now);
            record.nodes = self.nodes.clone();
        });
        Some(ImmediateFulfillment { request, nodes })
    }

    pub fn reason(&self) -> Reason {
        match &self.stage {
            HandlerStage::Probing { open } => Reason::Checking { nodes: open.len() },
            HandlerStage::Fulfilling => Reason::Fulfilling { nodes: self.nodes.len() },
            HandlerStage::Declining => Reason::DeclinedBefore,
        }
    }
}

/// Allocates the node to the request.
pub fn allocate(record: &mut Node, id: &RequestId, request: &NodeRequest) {
    record.allocated_to = Some(id.clone());
    record.tenant_name = request.tenant_name.clone();
    record.requestor = request.requestor.clone();
}

/// Adds this launcher to `declined_by`. The request fails once every registered pool has declined.
pub fn decline(
    id: &RequestId,
    request: &Versioned<NodeRequest>,
    launcher: &LauncherId,
    inputs: &Inputs<'_>,
) -> RequestChange {
    request.change(id.clone(), |record| {
        if !record.declined_by.contains(launcher) {
            record.declined_by.push(launcher.clone());
        }
        let is_over = all_pools_declined(record, inputs);
        record.set_state(if is_over { RequestState::Failed } else { RequestState::Requested }, inputs.now);
    })
}
