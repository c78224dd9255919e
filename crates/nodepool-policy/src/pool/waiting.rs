//! Pool: waiting requests and their reservations. A request for which capacity is insufficient is accepted and stays
//! pending and locked, so that no other pool starts it. It keeps the nodes that it has until capacity is available for
//! the rest.

use std::collections::BTreeSet;

use super::{Effect, Pool};
use crate::inputs::Inputs;
use crate::request::fulfillment::Fulfillment;
use crate::scheduler::allocate::{
    decline_reasons, fits_tenant, other_pools_could_serve, over_tenant_limit, tenant_need,
};
use crate::scheduler::capacity::place_first;
use crate::scheduler::eviction::{is_any_being_deleted, is_any_occupied};
use crate::scheduler::pool_context::PoolContext;
use crate::scheduler::reason::Reason;
use nodepool_model::records::ids::{LabelName, RequestId};
use nodepool_model::records::request::{NodeRequest, Rank, RequestState};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use nodepool_model::report::status::VerdictKind;
use nodepool_model::snapshot::Versioned;

/// Back-off after the zone of a node was missing.
pub(crate) const ZONE_BACKOFF: Seconds = Seconds(5.0);

impl Pool {
    /// A waiting request reserves what it lacks against requests of lower rank, so that it cannot starve: every label
    /// that it has lacked while it waited. Everything else remains available to others.
    pub(crate) fn reserve_for(
        &mut self,
        rank: &Rank,
        request: &NodeRequest,
        reason: &Reason,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) {
        match reason {
            Reason::NoIdleNode { label, wanted, .. } => self.reserve_nodes(&rank.id, [(label, *wanted)]),
            // No node with one of these labels can be spared, however many are idle.
            Reason::NoFreeNodes { labels, wanted, .. } => {
                self.reserve_nodes(&rank.id, labels.iter().map(|label| (label, *wanted)));
                for label in labels {
                    let idle = inputs.snapshot.idle_count(ctx.id, label);
                    self.reservations.reserve(label, idle.saturating_sub(*wanted));
                }
            }
            Reason::OverTenantLimit { tenant, resource, .. } if fits_tenant(request, ctx, inputs) => {
                let need = tenant_need(request, ctx);
                self.reservations.tenants.reserve(rank, tenant, Resources::none().with(resource, need.get(resource)));
            }
            Reason::InsufficientCapacity { resource, .. } => {
                let facts = &ctx.hosts.facts;
                let needs = request.node_types.iter().map(|label| facts.need(&ctx.id.pool, label).get(resource));
                self.reservations.reserve_resource(resource, needs.sum());
            }
            // A reservation is pointless: the request cannot be served before something else changes.
            _ => drop(self.waiting.remove(&rank.id)),
        }
    }

    fn reserve_nodes<'a>(&mut self, id: &RequestId, short: impl IntoIterator<Item = (&'a LabelName, usize)>) {
        let reserved = self.waiting.entry(id.clone()).or_default();
        for (label, wanted) in short {
            reserved.insert(label.clone(), wanted);
        }
        for (label, wanted) in reserved {
            self.reservations.reserve(label, *wanted);
        }
    }

    /// Accepts a request for which capacity is insufficient, if no other pool could serve it now. Only one such request
    /// is accepted at a time, the first by rank.
    pub(crate) fn wait_for_capacity(
        &mut self,
        id: &RequestId,
        request: &Versioned<NodeRequest>,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) -> Option<Effect> {
        if !self.short_of_capacity.is_empty()
            || !ctx.hosts.launches()
            || other_pools_could_serve(&request.record, &self.launcher, inputs)
        {
            return None;
        }
        let (fulfillment, claim) = Fulfillment::claim_without_capacity(id, request, inputs);
        self.fulfillments.insert(id.clone(), fulfillment);
        self.short_of_capacity.insert(id.clone());
        Some(Effect::Claim(Box::new(claim)))
    }

    /// Resumes the waiting requests, by rank. They precede requests that have not been accepted yet.
    pub(crate) fn resume(&mut self, ctx: &PoolContext<'_>, inputs: &Inputs<'_>, effects: &mut Vec<Effect>) {
        let mut ranks = Vec::new();
        for id in self.paused_requests() {
            // A request that another process has ended counts as deleted.
            let open = |request: &&Versioned<NodeRequest>| request.record.state.may_become(RequestState::Pending);
            // So does a request whose lock was deleted: this launcher no longer owns it.
            let held = inputs.snapshot.is_request_locked(&id);
            match inputs.snapshot.request(&id).filter(open).filter(|_| held) {
                Some(request) => ranks.push(Rank::of(&id, &request.record)),
                None => effects.extend(self.close(&id, inputs)),
            }
        }
        ranks.sort();
        for (index, rank) in ranks.iter().enumerate() {
            if self.fulfillments.get(&rank.id).is_some_and(Fulfillment::is_waiting) {
                effects.extend(self.resume_one(rank, index == 0, ctx, inputs));
            }
        }
        effects.extend(self.yield_to_first(&ranks, ctx, inputs));
    }

    /// Deadlock avoidance: if several requests hold some nodes and wait for more, and no other node is about to be
    /// released, none can finish. The lowest-ranked one is released, and the first receives its nodes, or their
    /// capacity.
    fn yield_to_first(&mut self, ranks: &[Rank], ctx: &PoolContext<'_>, inputs: &Inputs<'_>) -> Vec<Effect> {
        let [first, others @ ..] = ranks else { return Vec::new() };
        let waits = |rank: &Rank| {
            self.fulfillments.get(&rank.id).is_some_and(|fulfillment| {
                let lacks_capacity = fulfillment.is_waiting() && fulfillment.lacks_capacity();
                lacks_capacity || fulfillment.is_settled() && fulfillment.suspended().next().is_some()
            })
        };
        let holds = |rank: &&Rank| waits(rank) && self.fulfillments[&rank.id].has_usable_nodes();
        let is_launching = || self.fulfillments.values().any(Fulfillment::has_progressing_launches);
        if !waits(first) || self.evicting.is_some() || is_launching() {
            return Vec::new();
        }
        let Some(last) = others.iter().rev().find(holds) else { return Vec::new() };
        let is_own_fulfillment = |request: &RequestId| self.fulfillments.contains_key(request);
        if is_any_being_deleted(ctx, inputs) || is_any_occupied(ctx, is_own_fulfillment, inputs) {
            return Vec::new();
        }
        self.close(&last.id, inputs)
    }

    /// Claims further nodes for a waiting request. The first request in rank receives each node as soon as there is
    /// capacity for it, the others only all of them: so they hold no nodes that the first one lacks.
    fn resume_one(&mut self, rank: &Rank, is_first: bool, ctx: &PoolContext<'_>, inputs: &Inputs<'_>) -> Vec<Effect> {
        let ended = self.finish_complete(&rank.id, inputs);
        if !ended.is_empty() {
            return ended;
        }
        let (Some(request), Some(fulfillment)) =
            (inputs.snapshot.request(&rank.id), self.fulfillments.get_mut(&rank.id))
        else {
            return Vec::new();
        };
        if let Some(reason) = decline_reasons(&request.record, ctx, inputs).first() {
            fulfillment.fail(reason.to_string());
            return self.close(&rank.id, inputs);
        }
        for (node, is_new) in fulfillment.recover_lost_answer(&rank.id, &self.id, inputs) {
            if is_new {
                self.building.insert(node, rank.id.clone());
            } else if let Some(stored) = inputs.snapshot.node(&node) {
                // The node's reservation may have been released when the extension counted as failed.
                self.reservations.assign(&node, &stored.record);
            }
        }
        if !fulfillment.lacks_capacity() {
            self.short_of_capacity.remove(&rank.id);
            return self.continue_fulfillment(&rank.id, Vec::new(), inputs);
        }
        if self.failed_at.get(&rank.id) == Some(&inputs.snapshot.revision) {
            // The same snapshot would lead to the same failure.
            return Vec::new();
        }
        let (remaining, zone) = (fulfillment.remaining_request(&request.record), fulfillment.zone().map(str::to_owned));
        let (placements, shortage) = if self.backoff_until.contains_key(&rank.id) {
            (Vec::new(), fulfillment.missing_zone().cloned().map(Reason::NoZone))
        } else if let Some(reason) = over_tenant_limit(&remaining, ctx, &self.reservations, inputs) {
            (Vec::new(), Some(reason))
        } else {
            let (placements, shortage) = place_first(&remaining, ctx, &self.reservations, zone.as_deref(), inputs);
            let (admitted, refusal) = self.admitted(rank, placements);
            (admitted, refusal.or(shortage))
        };
        let may_extend = !placements.is_empty() && (shortage.is_none() || is_first);
        let is_unwanted = match &shortage {
            // Requests in line at a full cloud are unclaimed, so that they take their turn by rank.
            Some(Reason::CloudFull(_)) => !may_extend,
            _ => self.line.outage().is_some() && other_pools_could_serve(&request.record, &self.launcher, inputs),
        };
        if is_unwanted && self.has_no_nodes(&rank.id) {
            return self.close(&rank.id, inputs);
        }
        let mut effects = Vec::new();
        if let Some(reason) = shortage {
            self.reserve_for(rank, &remaining, &reason, ctx, inputs);
            if !may_extend && matches!(reason, Reason::InsufficientCapacity { .. }) {
                effects.extend(self.evict_for(&remaining, zone.as_deref(), ctx, inputs));
            }
            self.verdicts.record(&rank.id, VerdictKind::Defer, reason, inputs.now);
        }
        if may_extend {
            effects.push(self.extend(&rank.id, &request.record, placements, ctx, inputs));
        }
        effects
    }

    /// Whether a request has no nodes here, and none is being launched.
    fn has_no_nodes(&self, id: &RequestId) -> bool {
        let fulfillment = self.fulfillments.get(id);
        fulfillment.is_some_and(|fulfillment| !fulfillment.has_usable_nodes() && !fulfillment.has_open_launches())
    }

    /// The cloud refused nodes because it is full, or their zone is missing: they are released, and the request waits
    /// with its other nodes. A request that has no other nodes is released instead, so that any pool can serve it; if
    /// only the zone was missing, unless no other pool could.
    pub(crate) fn release_aborted_nodes(&mut self, id: &RequestId, inputs: &Inputs<'_>) -> Option<Vec<Effect>> {
        // A min-ready request does not wait for capacity.
        let request = inputs.snapshot.request(id).filter(|stored| !stored.record.is_min_ready())?;
        let fulfillment = self.fulfillments.get_mut(id).filter(|fulfillment| fulfillment.has_releasable_nodes())?;
        if self.draining || fulfillment.has_failed() || fulfillment.is_closing() {
            return None;
        }
        let has_other_nodes = fulfillment.has_usable_nodes() || fulfillment.has_open_launches();
        match fulfillment.missing_zone().cloned() {
            // The other nodes are in the same zone. The next one is chosen when all are known to have failed.
            Some(_) if fulfillment.has_open_launches() => return None,
            Some(zone) => {
                if !has_other_nodes && other_pools_could_serve(&request.record, &self.launcher, inputs) {
                    return None;
                }
                self.backoff_until.insert(id.clone(), inputs.monotonic_now + ZONE_BACKOFF);
                self.verdicts.record(id, VerdictKind::Defer, Reason::NoZone(zone), inputs.now);
            }
            None if !has_other_nodes => return None,
            None => {}
        }
        let nodes = fulfillment.release_aborted_nodes(inputs);
        for (node, _) in &nodes {
            self.building.remove(node);
        }
        self.short_of_capacity.insert(id.clone());
        Some(vec![Effect::Refresh, Effect::Release(nodes)])
    }

    /// A pool that accepts no new requests releases its waiting ones.
    pub(crate) fn release_waiting(&mut self, inputs: &Inputs<'_>) -> Vec<Effect> {
        self.paused_requests().iter().flat_map(|id| self.close(id, inputs)).collect()
    }

    /// Pass of a pool that schedules no requests: if it will accept nothing more, it releases its waiting requests.
    pub(crate) fn wind_down(&mut self, obstacle: Option<Reason>, inputs: &Inputs<'_>) -> Vec<Effect> {
        if !inputs.snapshot.connected {
            return Vec::new();
        }
        let mut effects = self.abandon_unused(inputs);
        if self.draining || matches!(obstacle, None | Some(Reason::HandlesNothing)) {
            effects.extend(self.release_waiting(inputs));
        }
        effects
    }

    /// Requests that continue as soon as capacity is available; others are being extended or launched.
    fn paused_requests(&self) -> BTreeSet<RequestId> {
        let is_waiting = |id: &&RequestId| self.fulfillments.get(*id).is_some_and(Fulfillment::is_waiting);
        let waiting = self.short_of_capacity.iter().filter(is_waiting);
        waiting.chain(self.suspended_requests()).cloned().collect()
    }

    /// Whether a request waits for capacity here. Other pools may serve what they would otherwise yield to this pool.
    pub fn is_paused(&self) -> bool {
        self.lacks_capacity || !self.short_of_capacity.is_empty() || self.suspended_requests().next().is_some()
    }
}
