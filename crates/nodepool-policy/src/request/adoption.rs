//! The part of a pool's mind that goes on with requests that were left half served: by an earlier life of this launcher,
//! or by one that is gone.

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

/// Requests gone on with in one pass.
const MAX_ADOPTED_PER_PASS: usize = 64;

impl Pool {
    /// Requests of this pool that somebody left. True where there may be more of them.
    pub(crate) fn adopt(&mut self, ctx: &PoolContext<'_>, world: &Inputs<'_>, effects: &mut Vec<Effect>) -> bool {
        let mut adopted = 0;
        for (id, request) in world.snapshot.pending_unlocked_requests() {
            if self.fulfillments.contains_key(id) || self.handlers.contains_key(id) {
                continue;
            }
            if self.failed_at.get(id) == Some(&world.snapshot.revision) {
                continue;
            }
            let Some(resumable) = resumable::find(id, request, world).filter(|left| left.pool == self.id) else {
                continue;
            };
            if adopted >= MAX_ADOPTED_PER_PASS {
                return true;
            }
            adopted += 1;
            effects.extend(self.adopt_one(id, request, &resumable, ctx, world));
        }
        false
    }

    fn adopt_one(
        &mut self,
        id: &RequestId,
        request: &Versioned<NodeRequest>,
        resumable: &ResumableRequest,
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
    ) -> Option<Effect> {
        let rules = ctx.hosts.facts.launch_config.clone()?;
        let mut zone = None;
        for node in &resumable.nodes {
            let stored = world.snapshot.node(node)?;
            zone = zone.or_else(|| self.zone_of(node, &stored.record.az, ctx));
            match stored.record.state {
                NodeState::Ready => self.reservations.assign(node, &stored.record),
                _ => drop(self.building.insert(node.clone(), id.clone())),
            }
        }
        let (fulfillment, nodes) = Fulfillment::adopt(&request.record, resumable, zone, &rules, world);
        let reason = Reason::Launching { nodes: nodes.len() };
        self.verdicts.record(id, VerdictKind::Accept, reason, world.now);
        self.fulfillments.insert(id.clone(), fulfillment);
        let request = request.change(id.clone(), |_| {});
        Some(Effect::Adopt(Box::new(Adoption { request, nodes })))
    }

    /// Where a node is, by its record or by what the cloud shows of it.
    fn zone_of(&self, node: &NodeId, recorded: &Option<String>, ctx: &PoolContext<'_>) -> Option<String> {
        let shown = || ctx.hosts.facts.zones.get(node).cloned();
        recorded.clone().or_else(shown)
    }

    pub(crate) fn adopted(
        &mut self,
        id: &RequestId,
        answer: Result<(), WriteError>,
        world: &Inputs<'_>,
    ) -> Vec<Effect> {
        match answer {
            Ok(()) => self.begun(id, answer, world),
            // Somebody was faster, or the request is gone: whoever holds it now sees to it.
            Err(error) => {
                self.end_fulfillment(id);
                self.failed_at.insert(id.clone(), world.snapshot.revision);
                self.verdicts.record(id, VerdictKind::Defer, Reason::WriteFailed(error.to_string()), world.now);
                Vec::new()
            }
        }
    }
}
