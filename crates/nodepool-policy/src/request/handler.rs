//! NodeRequestHandler: one request that this pool has taken up, until it is handed out, declined or given back.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::inputs::Inputs;
use crate::scheduler::allocate::all_pools_declined;
use crate::scheduler::pool_context::{PoolContext, Reservations};
use crate::scheduler::reason::Reason;
use nodepool_model::records::ids::{LauncherId, NodeId, RequestId};
use nodepool_model::records::node::Node;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::static_host::HostIdentity;
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::{NodeChange, RequestChange, Versioned};

/// What the request waits for. One effect is under way at most, but for the probes of its nodes.
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
    /// The picture it was decided on.
    pub revision: u64,
}

/// The transaction that ends a request well: the request fulfilled and its nodes allocated, together.
#[derive(Clone, Debug, PartialEq)]
pub struct ImmediateFulfillment {
    pub request: RequestChange,
    pub nodes: Vec<NodeChange>,
}

impl NodeRequestHandler {
    /// Starts with the nodes that `fill` chose; those on hosts that have to be found alive are probed first.
    pub fn launch(
        id: RequestId,
        nodes: Vec<NodeId>,
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
    ) -> (Self, Vec<(NodeId, HostIdentity)>) {
        let probes: Vec<(NodeId, HostIdentity)> = nodes
            .iter()
            .filter_map(|node| Some((node.clone(), ctx.hosts.identity(&world.snapshot.node(node)?.record)?)))
            .filter(|(_, identity)| ctx.hosts.is_probed(identity))
            .collect();
        let open: BTreeSet<NodeId> = probes.iter().map(|(node, _)| node.clone()).collect();
        let stage = if open.is_empty() { HandlerStage::Fulfilling } else { HandlerStage::Probing { open } };
        (Self { id, nodes, stage, since: world.now, revision: world.snapshot.revision }, probes)
    }

    pub fn declining(id: RequestId, world: &Inputs<'_>) -> Self {
        let revision = world.snapshot.revision;
        Self { id, nodes: Vec::new(), stage: HandlerStage::Declining, since: world.now, revision }
    }

    /// A node answered; returns whether all have.
    pub fn probed(&mut self, node: &NodeId) -> bool {
        let HandlerStage::Probing { open } = &mut self.stage else { return false };
        open.remove(node);
        open.is_empty()
    }

    /// Everything that had to happen before the hand-out has: the transaction, if the world still allows it.
    pub fn launches_complete(&self, reservations: &Reservations, world: &Inputs<'_>) -> Option<ImmediateFulfillment> {
        let request = world.snapshot.request(&self.id)?;
        if request.record.state != RequestState::Requested || world.snapshot.is_request_locked(&self.id) {
            return None;
        }
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for (id, label) in self.nodes.iter().zip(&request.record.node_types) {
            assert!(reservations.is_assigned(id), "a handler hands out only nodes it has claimed");
            let node = world.snapshot.node(id)?;
            // Its host may have been given other labels while it was looked at.
            let fits = node.record.is_idle() && node.record.labels.contains(label);
            if !fits || world.snapshot.is_node_locked(id) {
                return None;
            }
            // Ready stays ready, but the moment of a state's assignment is that of the last assignment of a state: an
            // allocation is none.
            nodes.push(node.change(id.clone(), |record| allocate(record, &self.id, &request.record)));
        }
        let request = request.change(self.id.clone(), |record| {
            record.set_state(RequestState::Fulfilled, world.now);
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

/// The node is the request's from now on.
pub fn allocate(record: &mut Node, id: &RequestId, request: &NodeRequest) {
    record.allocated_to = Some(id.clone());
    record.tenant_name = request.tenant_name.clone();
    record.requestor = request.requestor.clone();
}

/// R32: our name among those who declined; failed when everybody who is online has.
pub fn decline(
    id: &RequestId,
    request: &Versioned<NodeRequest>,
    launcher: &LauncherId,
    world: &Inputs<'_>,
) -> RequestChange {
    request.change(id.clone(), |record| {
        if !record.declined_by.contains(launcher) {
            record.declined_by.push(launcher.clone());
        }
        let is_over = all_pools_declined(record, world);
        record.set_state(if is_over { RequestState::Failed } else { RequestState::Requested }, world.now);
    })
}
