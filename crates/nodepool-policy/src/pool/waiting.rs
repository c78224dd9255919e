//! The part of a pool's mind that is about requests which wait: what they keep from those behind them; and one for which there
//! is no room: pending and locked, so that nobody else begins it, with the nodes that it has, until there is room for the others
//! (R38, R45).

use super::{Effect, Pool};
use crate::inputs::Inputs;
use crate::request::fulfillment::Fulfillment;
use crate::scheduler::allocate::{
    decline_reasons, fits_tenant, other_pools_could_serve, over_tenant_limit, tenant_need,
};
use crate::scheduler::capacity::place;
use crate::scheduler::eviction::{is_any_being_deleted, is_any_occupied};
use crate::scheduler::pool_context::PoolContext;
use crate::scheduler::reason::Reason;
use nodepool_model::records::ids::{LabelName, RequestId};
use nodepool_model::records::request::{NodeRequest, Rank, RequestState};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use nodepool_model::report::status::VerdictKind;
use nodepool_model::snapshot::Versioned;

/// A cloud that refused a node for want of quota is asked again after so long.
pub(crate) const QUOTA_BACKOFF: Seconds = Seconds(5.0);

impl Pool {
    /// A waiting request keeps what it is short of from those behind it, so that it cannot starve: every label that it
    /// was ever short of while it waited. What it is not short of goes on to the others.
    pub(crate) fn reserve_for(
        &mut self,
        rank: &Rank,
        request: &NodeRequest,
        reason: &Reason,
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
    ) {
        match reason {
            Reason::NoIdleNode { label, wanted, .. } => self.reserve_nodes(&rank.id, [(label, *wanted)]),
            // Of none of these labels a node can be spared, however many are idle.
            Reason::NoFreeNodes { labels, wanted, .. } => {
                self.reserve_nodes(&rank.id, labels.iter().map(|label| (label, *wanted)));
                for label in labels {
                    let idle = world.snapshot.idle_count(ctx.id, label);
                    self.reservations.reserve(label, idle.saturating_sub(*wanted));
                }
            }
            Reason::OverTenantLimit { tenant, resource, .. } if fits_tenant(request, ctx, world) => {
                let need = tenant_need(request, ctx);
                self.reservations.tenants.reserve(rank, tenant, Resources::none().with(resource, need.get(resource)));
            }
            Reason::InsufficientCapacity { resource, .. } => {
                let facts = &ctx.hosts.facts;
                let needs = request.node_types.iter().map(|label| facts.need(&ctx.id.pool, label).get(resource));
                self.reservations.reserve_resource(resource, needs.sum());
            }
            // Nothing it could be kept for: it cannot be served before something else changes.
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

    /// Takes up a request that has no room, where no other pool could serve it now. One at a time, the first by rank.
    pub(crate) fn wait_for_capacity(
        &mut self,
        id: &RequestId,
        request: &Versioned<NodeRequest>,
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
    ) -> Option<Effect> {
        if !self.short_of_capacity.is_empty()
            || !ctx.hosts.launches()
            || other_pools_could_serve(&request.record, &self.launcher, world)
        {
            return None;
        }
        let (fulfillment, claim) = Fulfillment::claim_without_capacity(id, request, world);
        self.fulfillments.insert(id.clone(), fulfillment);
        self.short_of_capacity.insert(id.clone());
        Some(Effect::Claim(Box::new(claim)))
    }

    /// Goes on with the requests that wait, by rank. They come before those that nobody has taken up.
    pub(crate) fn resume(&mut self, ctx: &PoolContext<'_>, world: &Inputs<'_>, effects: &mut Vec<Effect>) {
        let mut ranks = Vec::new();
        for id in self.waiting_requests() {
            // One that somebody else has ended is as good as gone.
            let open = |request: &&Versioned<NodeRequest>| request.record.state.may_become(RequestState::Pending);
            // So is one whose lock somebody has broken: it is not ours any more.
            let held = world.snapshot.is_request_locked(&id);
            match world.snapshot.request(&id).filter(open).filter(|_| held) {
                Some(request) => ranks.push(Rank::of(&id, &request.record)),
                None => effects.extend(self.finish(&id, world)),
            }
        }
        ranks.sort();
        for rank in &ranks {
            effects.extend(self.resume_one(rank, ctx, world));
        }
        effects.extend(self.yield_to_first(&ranks, ctx, world));
    }

    /// Of several that wait with nodes of their own none may ever find room for the rest, where nobody else has any that would end by
    /// itself. So the last of them by rank is given back, and the first has its nodes, or their room.
    fn yield_to_first(&mut self, ranks: &[Rank], ctx: &PoolContext<'_>, world: &Inputs<'_>) -> Vec<Effect> {
        let [first, others @ ..] = ranks else { return Vec::new() };
        let waits = |rank: &Rank| {
            self.fulfillments.get(&rank.id).is_some_and(|assembly| assembly.is_waiting() && assembly.lacks_capacity())
        };
        let holds = |rank: &&Rank| waits(rank) && self.fulfillments[&rank.id].has_usable_nodes();
        if !waits(first) || !self.building.is_empty() || self.evicting.is_some() {
            return Vec::new();
        }
        let Some(last) = others.iter().rev().find(holds) else { return Vec::new() };
        let is_own_fulfillment = |request: &RequestId| self.fulfillments.contains_key(request);
        if is_any_being_deleted(ctx, world) || is_any_occupied(ctx, is_own_fulfillment, world) {
            return Vec::new();
        }
        self.finish(&last.id, world)
    }

    fn resume_one(&mut self, rank: &Rank, ctx: &PoolContext<'_>, world: &Inputs<'_>) -> Vec<Effect> {
        let (Some(request), Some(fulfillment)) =
            (world.snapshot.request(&rank.id), self.fulfillments.get_mut(&rank.id))
        else {
            return Vec::new();
        };
        if let Some(reason) = decline_reasons(&request.record, ctx, world).first() {
            fulfillment.fail(reason.to_string());
            return self.finish(&rank.id, world);
        }
        for (node, is_new) in fulfillment.recover_lost_answer(&rank.id, &self.id, world) {
            if is_new {
                self.building.insert(node, rank.id.clone());
            } else if let Some(stored) = world.snapshot.node(&node) {
                // For whoever looks for idle nodes it may have become one again.
                self.reservations.assign(&node, &stored.record);
            }
        }
        if !fulfillment.lacks_capacity() {
            self.short_of_capacity.remove(&rank.id);
            return self.continue_fulfillment(&rank.id, Vec::new(), world);
        }
        let (remaining, zone) = (fulfillment.remaining_request(&request.record), fulfillment.zone().map(str::to_owned));
        let decided = if self.backoff_until.contains_key(&rank.id) {
            Err(fulfillment.abort_reason())
        } else if let Some(reason) = over_tenant_limit(&remaining, ctx, &self.reservations, world) {
            Err(reason)
        } else {
            place(&remaining, ctx, &self.reservations, zone.as_deref(), world)
        };
        match decided {
            // The same picture would lead to the same failure.
            Ok(_) if self.failed_at.get(&rank.id) == Some(&world.snapshot.revision) => Vec::new(),
            Ok(placements) => vec![self.extend(&rank.id, &request.record, placements, ctx, world)],
            Err(reason) => {
                self.reserve_for(rank, &remaining, &reason, ctx, world);
                let eviction = matches!(reason, Reason::InsufficientCapacity { .. })
                    .then(|| self.evict_for(&remaining, zone.as_deref(), ctx, world));
                self.verdicts.record(&rank.id, VerdictKind::Defer, reason, world.now);
                eviction.flatten().into_iter().collect()
            }
        }
    }

    /// The cloud refused nodes for want of quota: they go, the others stay, and the request waits for room. Where it has none
    /// and somebody else could serve it, it is given back instead.
    pub(crate) fn release_aborted_nodes(&mut self, id: &RequestId, world: &Inputs<'_>) -> Option<Vec<Effect>> {
        // Who keeps nodes in store does not wait for room.
        let request = world.snapshot.request(id).filter(|stored| !stored.record.is_min_ready())?;
        let fulfillment = self.fulfillments.get_mut(id).filter(|assembly| assembly.was_aborted())?;
        let should_release_request =
            !fulfillment.has_usable_nodes() && other_pools_could_serve(&request.record, &self.launcher, world);
        if should_release_request || self.draining || fulfillment.has_failed() {
            return None;
        }
        let (nodes, reason) = (fulfillment.release_aborted_nodes(world), fulfillment.abort_reason());
        for node in fulfillment.nodes().iter().chain(nodes.iter().map(|(node, _)| node)) {
            self.building.remove(node);
        }
        self.short_of_capacity.insert(id.clone());
        self.backoff_until.insert(id.clone(), world.monotonic_now + QUOTA_BACKOFF);
        self.verdicts.record(id, VerdictKind::Defer, reason, world.now);
        Some(vec![Effect::Refresh, Effect::Release(nodes)])
    }

    /// A pool that takes up nothing new keeps nobody waiting.
    pub(crate) fn release_waiting(&mut self, world: &Inputs<'_>) -> Vec<Effect> {
        self.waiting_requests().iter().flat_map(|id| self.finish(id, world)).collect()
    }

    /// What a pool does that looks at no requests: nobody is kept waiting by one that will take up nothing more.
    pub(crate) fn wind_down(&mut self, obstacle: Option<Reason>, world: &Inputs<'_>) -> Vec<Effect> {
        if !world.snapshot.connected {
            return Vec::new();
        }
        let mut effects = self.abandon_unused(world);
        if self.draining || matches!(obstacle, None | Some(Reason::HandlesNothing)) {
            effects.extend(self.release_waiting(world));
        }
        effects
    }

    /// Those that can go on as soon as there is room; others are on their way to that, or on from it.
    fn waiting_requests(&self) -> Vec<RequestId> {
        let is_waiting = |id: &&RequestId| self.fulfillments.get(*id).is_some_and(Fulfillment::is_waiting);
        self.short_of_capacity.iter().filter(is_waiting).cloned().collect()
    }

    /// Whether a request waits for room here. Others may take what they would else leave to this pool.
    pub fn is_paused(&self) -> bool {
        self.lacks_capacity || !self.short_of_capacity.is_empty()
    }
}
