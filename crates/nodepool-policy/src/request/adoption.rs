//! Pool: adoption of requests that a previous process of this launcher, or another launcher, accepted and abandoned.

use super::fulfillment::{Adoption, Fulfillment};
use super::resumable::{self, ResumableRequest};
use crate::inputs::Inputs;
use crate::pool::{Effect, Pool};
use crate::scheduler::pool_context::PoolContext;
use crate::scheduler::reason::Reason;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::NodeRequest;
use nodepool_model::report::status::VerdictKind;
use nodepool_model::snapshot::{Versioned, WriteError};

/// Maximum number of requests adopted in one pass.
const MAX_ADOPTED_PER_PASS: usize = 64;

impl Pool {
    /// Adopts abandoned requests of this pool. True if more of them may remain.
    pub(crate) fn adopt(&mut self, ctx: &PoolContext<'_>, inputs: &Inputs<'_>, effects: &mut Vec<Effect>) -> bool {
        let mut adopted = 0;
        for (id, request) in inputs.snapshot.pending_unlocked_requests() {
            if self.fulfillments.contains_key(id) || self.handlers.contains_key(id) {
                continue;
            }
            if self.failed_at.get(id) == Some(&inputs.snapshot.revision) {
                continue;
            }
            let Some(resumable) = resumable::find(id, request, inputs).filter(|resumable| resumable.pool == self.id)
            else {
                continue;
            };
            if adopted >= MAX_ADOPTED_PER_PASS {
                return true;
            }
            adopted += 1;
            effects.extend(self.adopt_one(id, request, &resumable, ctx, inputs));
        }
        false
    }

    fn adopt_one(
        &mut self,
        id: &RequestId,
        request: &Versioned<NodeRequest>,
        resumable: &ResumableRequest,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) -> Option<Effect> {
        let rules = ctx.hosts.facts.launch_config.clone()?;
        let mut zone = None;
        for node in &resumable.nodes {
            let stored = inputs.snapshot.node(node)?;
            zone = zone.or_else(|| self.zone_of(node, &stored.record.az, ctx));
            match stored.record.state {
                NodeState::Ready => self.reservations.assign(node, &stored.record),
                _ => drop(self.building.insert(node.clone(), id.clone())),
            }
        }
        let (fulfillment, nodes) = Fulfillment::adopt(&request.record, resumable, zone, &rules, inputs);
        let reason = Reason::Launching { nodes: nodes.len() };
        self.verdicts.record(id, VerdictKind::Accept, reason, inputs.now);
        self.fulfillments.insert(id.clone(), fulfillment);
        let request = request.change(id.clone(), |_| {});
        Some(Effect::Adopt(Box::new(Adoption { request, nodes })))
    }

    /// The zone of a node: from its record, or else from the provider facts.
    fn zone_of(&self, node: &NodeId, recorded: &Option<String>, ctx: &PoolContext<'_>) -> Option<String> {
        let observed = || ctx.hosts.facts.zones.get(node).cloned();
        recorded.clone().or_else(observed)
    }

    pub(crate) fn adopted(
        &mut self,
        id: &RequestId,
        answer: Result<(), WriteError>,
        inputs: &Inputs<'_>,
    ) -> Vec<Effect> {
        match answer {
            Ok(()) => self.begun(id, answer, inputs),
            // Another launcher holds the request now, or it was deleted.
            Err(error) => {
                self.end_fulfillment(id);
                self.failed_at.insert(id.clone(), inputs.snapshot.revision);
                self.verdicts.record(id, VerdictKind::Defer, Reason::WriteFailed(error.to_string()), inputs.now);
                Vec::new()
            }
        }
    }
}
