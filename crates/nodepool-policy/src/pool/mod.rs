//! Pool: the mind of one PoolWorker. Looks at open requests by rank and owns those that it has taken up.

pub mod events;
pub(crate) mod launches;
pub(crate) mod pending_usage;
pub(crate) mod view;
pub(crate) mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::events::{Effect, Event, LivenessResult};
use crate::inputs::Inputs;
use crate::request::fulfillment::Fulfillment;
use crate::request::handler::{HandlerStage, NodeRequestHandler, decline};
use crate::scheduler::allocate::{Verdict, verdict};
use crate::scheduler::pool_context::{Placement, PoolContext, Reservations, StaticHostIndex};
use crate::scheduler::reason::Reason;
use crate::scheduler::shared_pools::{RequestLeases, SharedPoolState};
use crate::scheduler::tenant_usage::{PendingTenantUsage, TenantReservations};
use crate::scheduler::verdicts::Verdicts;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::{LabelName, LauncherId, NodeId, PoolId, RequestId};
use nodepool_model::records::request::{NodeRequest, Rank, RequestState};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::{MonotonicTime, Timestamp};
use nodepool_model::report::status::VerdictKind;
use nodepool_model::snapshot::{Versioned, WriteError};

/// Requests taken up in one pass. Of thousands that could all be served, the first are on their way while the next are
/// looked at.
const MAX_ACCEPTED_PER_PASS: usize = 64;

pub struct Pool {
    pub(super) id: PoolId,
    pub(super) launcher: LauncherId,
    hosts: Option<StaticHostIndex>,
    pub(super) handlers: BTreeMap<RequestId, NodeRequestHandler>,
    /// Requests with nodes that are being built.
    pub(super) fulfillments: BTreeMap<RequestId, Fulfillment>,
    /// Which of them a new node is for.
    pub(super) building: BTreeMap<NodeId, RequestId>,
    /// Which of them there is no room for, as far as is known.
    pub(super) short_of_capacity: BTreeSet<RequestId>,
    /// What the nodes of claims under way take; no picture shows them yet.
    pub(super) claiming: BTreeMap<RequestId, Resources>,
    /// The same of claims whose answer was lost, and until when: where they were carried out, pictures show that only later. So long
    /// their requests count for tenants, too.
    pub(super) unconfirmed_claims: Vec<(MonotonicTime, RequestId, Resources)>,
    /// Not after the first moment that a launch waits for.
    pub(super) next_due: Option<MonotonicTime>,
    pub(super) next_zone: usize,
    /// Requests that the cloud had no quota for, and when they may be tried again.
    pub(super) backoff_until: BTreeMap<RequestId, MonotonicTime>,
    pub(super) reservations: Reservations,
    /// Labels that a waiting request has been short of since it began to wait, and how many idle nodes of each it needs.
    pub(super) waiting: BTreeMap<RequestId, BTreeMap<LabelName, usize>>,
    pub(super) verdicts: Verdicts,
    retiring: BTreeSet<NodeId>,
    /// The picture on which an idle node was chosen that is about to go, so that there is room.
    pub(super) evicting: Option<u64>,
    /// The picture on which one was chosen that could not go: the same would lead to the same failure.
    pub(super) not_evicted_at: Option<u64>,
    /// Requests of which a write failed, and the picture that had led to it.
    pub(super) failed_at: BTreeMap<RequestId, u64>,
    pub(super) draining: bool,
    /// The last pass ended before it had seen every request.
    has_more: bool,
    /// In the last pass a request had no room.
    pub(super) lacks_capacity: bool,
    /// What the provider's other pools are busy with at the moment.
    other_pools_busy: usize,
    /// What the other pools of this process keep for tenants.
    other_pools_reservations: Arc<TenantReservations>,
    /// For tenants with limits, until pictures show it: by this pool, and by the others of this process.
    pub(super) pending_usage: PendingTenantUsage,
    pub(super) other_pools_pending_usage: Vec<Arc<PendingTenantUsage>>,
    /// Requests that pools of this process are about to take.
    leases: Arc<RequestLeases>,
    /// The pools of this process.
    started_pools: Arc<BTreeSet<LauncherId>>,
    /// The registry in which all of them were there.
    complete_at: Option<u64>,
    pub(super) fulfilled_count: u64,
}

impl Pool {
    pub fn new(id: PoolId, launcher: LauncherId) -> Self {
        Self {
            id,
            launcher,
            hosts: None,
            handlers: BTreeMap::new(),
            fulfillments: BTreeMap::new(),
            building: BTreeMap::new(),
            short_of_capacity: BTreeSet::new(),
            claiming: BTreeMap::new(),
            unconfirmed_claims: Vec::new(),
            next_due: None,
            next_zone: 0,
            backoff_until: BTreeMap::new(),
            reservations: Reservations::default(),
            waiting: BTreeMap::new(),
            verdicts: Verdicts::default(),
            retiring: BTreeSet::new(),
            evicting: None,
            not_evicted_at: None,
            failed_at: BTreeMap::new(),
            draining: false,
            has_more: false,
            lacks_capacity: false,
            other_pools_busy: 0,
            other_pools_reservations: Arc::default(),
            pending_usage: PendingTenantUsage::new(),
            other_pools_pending_usage: Vec::new(),
            leases: Arc::default(),
            started_pools: Arc::default(),
            complete_at: None,
            fulfilled_count: 0,
        }
    }

    /// Takes in one event. Answers leave nothing decided: the next `Wake` does that, on the picture of then.
    pub fn step(&mut self, event: Event, world: &Inputs<'_>) -> Vec<Effect> {
        match event {
            Event::Wake => self.schedule(world),
            Event::Tick => {
                self.failed_at.clear();
                self.not_evicted_at = None;
                self.schedule(world)
            }
            Event::Fulfilled(id, answer) => {
                let is_done = answer.is_ok();
                self.end_handler(&id, answer.err(), world);
                if is_done {
                    self.fulfilled_count += 1;
                    self.forget(&id);
                }
                Vec::new()
            }
            Event::Declined(id, answer) => {
                self.end_handler(&id, answer.err(), world);
                Vec::new()
            }
            Event::Claimed(id, answer) => self.claimed(&id, answer, world),
            Event::Adopted(id, answer) => self.adopted(&id, answer, world),
            Event::Begun(id, answer) => self.begun(&id, answer, world),
            Event::Saved(node, answer) => self.saved(&node, answer.is_ok(), world),
            Event::Finished(id, answer) => {
                self.finished(&id, answer, world);
                Vec::new()
            }
            Event::JobUpdate(node, news) => self.job_update(&node, news, world),
            Event::Scanned(node, attempt, found) => self.scanned(&node, attempt, found, world),
            Event::Clock => {
                let mut effects = self.clock(world);
                effects.extend(self.schedule(world));
                effects
            }
            Event::Probed(request, node, answer) => self.probed(&request, &node, answer, world),
            Event::Retired(node, _) => {
                self.retiring.remove(&node);
                Vec::new()
            }
            Event::Evicted(answer) => {
                self.not_evicted_at = self.evicting.take().filter(|_| answer.is_err());
                Vec::new()
            }
            Event::Draining => {
                self.draining = true;
                self.release_waiting(world)
            }
        }
    }

    /// What this pool is busy with at the moment: hand-outs and nodes that are launched. `max-concurrency` counts those of all
    /// pools of a provider.
    pub fn busy(&self) -> usize {
        self.handlers.len() + self.claiming.len() + self.building.len()
    }

    /// Whether another pass has work though nothing has changed.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    pub fn set_other_pools_busy(&mut self, busy: usize) {
        self.other_pools_busy = busy;
    }

    pub fn update_leases(&mut self, shared: &SharedPoolState) {
        self.leases = shared.leases().clone();
        self.other_pools_pending_usage = shared.pending_usage_of_others(&self.launcher);
    }

    pub fn update_shared_state(&mut self, shared: &SharedPoolState) {
        self.other_pools_reservations = shared.reservations_of_others(&self.launcher);
        if !Arc::ptr_eq(&self.started_pools, shared.started_pools()) {
            self.started_pools = shared.started_pools().clone();
            self.complete_at = None;
        }
    }

    /// What waiting requests keep for their tenants by the last pass; `None` where that did not come to the end.
    pub fn tenant_reservations(&self) -> Option<&TenantReservations> {
        (!self.has_more && !self.draining).then(|| self.reservations.tenants.own())
    }

    /// Nothing is under way: a draining pool may stop.
    pub fn is_idle(&self) -> bool {
        self.handlers.is_empty() && self.fulfillments.is_empty() && self.retiring.is_empty() && self.evicting.is_none()
    }

    /// One look at all open requests, in the order in which they are served (R18).
    fn schedule(&mut self, world: &Inputs<'_>) -> Vec<Effect> {
        self.has_more = false;
        self.expire(world.monotonic_now);
        self.reservations.begin_pass(self.pending_need());
        self.count_pending_usage(world.snapshot);
        let Some((provider, pool)) = self.section(world) else { return self.wind_down(None, world) };
        if let Some(reason) = self.obstacle(&provider, world) {
            for (rank, _) in world.snapshot.waiting_requests() {
                self.verdicts.record(&rank.id, VerdictKind::Defer, reason.clone(), world.now);
            }
            self.forget_ended(world);
            return self.wind_down(Some(reason), world);
        }
        let hosts = self.static_host_index(world);
        let (id, launcher) = (self.id.clone(), self.launcher.clone());
        let ctx = PoolContext { id: &id, launcher: &launcher, provider: &provider, pool: &pool, hosts: &hosts };
        let mut effects = self.abandon_unused(world);
        // What a launch needs to know of the cloud is known after the first survey.
        let knows_cloud = hosts.facts.refreshed_at > Timestamp::default();
        let are_more_left = knows_cloud && self.adopt(&ctx, world, &mut effects);
        self.resume(&ctx, world, &mut effects);
        let lacked_capacity = std::mem::take(&mut self.lacks_capacity);
        let other_pools_reservations = self.other_pools_reservations.clone();
        let mut other_pools_reservations = other_pools_reservations.iter().peekable();
        // Those this pool has all labels for come first, then those it may have to decline.
        let mut lacking = Vec::new();
        let busy = self.busy();
        for (rank, request) in world.snapshot.waiting_requests() {
            if self.handlers.contains_key(&rank.id) || self.fulfillments.contains_key(&rank.id) {
                continue;
            }
            if self.busy() >= busy + MAX_ACCEPTED_PER_PASS {
                self.has_more = true;
                self.lacks_capacity |= lacked_capacity;
                lacking.clear();
                break;
            }
            while let Some((before, (tenant, amounts))) = other_pools_reservations.next_if(|(before, _)| *before < rank)
            {
                // It may have gone since the other pool looked.
                if world.snapshot.is_waiting(before) {
                    self.reservations.tenants.reserve_for_other_pool(before, tenant, amounts);
                }
            }
            if self.is_unchanged(&rank.id, world) {
                self.lacks_capacity |= lacked_capacity;
                continue;
            }
            match missing_labels(&request.record, &pool) {
                0 => self.schedule_one(rank, request, &ctx, world, &mut effects),
                missing => lacking.push((missing, rank, request)),
            }
        }
        lacking.sort_by_key(|(missing, ..)| *missing);
        for (_, rank, request) in lacking {
            self.schedule_one(rank, request, &ctx, world, &mut effects);
        }
        self.has_more |= are_more_left;
        self.hosts = Some(hosts);
        self.forget_ended(world);
        effects
    }

    /// Whether there is nothing new to be found out about a request. What the pool lacked for it, it lacks as long: each change of
    /// mind about that is written, and makes another picture to look at, on which the same write would fail again.
    fn is_unchanged(&mut self, id: &RequestId, world: &Inputs<'_>) -> bool {
        if self.leases.get(id).is_some_and(|pool| *pool != self.id) {
            self.verdicts.record(id, VerdictKind::Yield, Reason::HandledByOtherPool, world.now);
            return true;
        }
        // The same picture would lead to the same failure; a newer one, or the next tick, may not.
        self.failed_at.get(id) == Some(&world.snapshot.revision)
    }

    fn schedule_one(
        &mut self,
        rank: &Rank,
        request: &Versioned<NodeRequest>,
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let id = &rank.id;
        if self.backoff_until.contains_key(id) {
            // Others may take what they would leave to this pool (R45): its cloud has refused that a moment ago.
            self.lacks_capacity |= !request.record.is_min_ready();
            self.verdicts.record(id, VerdictKind::Defer, Reason::OverQuota, world.now);
            return;
        }
        let mut decided = verdict(id, request, ctx, &self.reservations, world);
        let limit = ctx.provider.max_concurrency;
        if matches!(decided, Verdict::Accept(_)) && limit > 0 && (self.busy() + self.other_pools_busy) as i64 >= limit {
            decided = Verdict::Defer(Reason::Concurrency { limit });
        }
        let kind = decided.kind();
        match decided {
            Verdict::Ignore(reason) | Verdict::Yield(reason) => {
                self.waiting.remove(id);
                self.verdicts.record(id, kind, reason, world.now);
            }
            Verdict::Defer(reason) => {
                self.reserve_for(rank, &request.record, &reason, ctx, world);
                // Others need not leave to this pool what it cannot serve as long as its cloud does not answer.
                self.lacks_capacity |= matches!(reason, Reason::NotRefreshed(Some(_)));
                if let Reason::InsufficientCapacity { .. } = reason {
                    self.lacks_capacity = true;
                    effects.extend(self.evict_for(&request.record, None, ctx, world));
                    effects.extend(self.wait_for_capacity(id, request, ctx, world));
                }
                self.verdicts.record(id, kind, reason, world.now);
            }
            Verdict::Decline(reasons) => {
                self.waiting.remove(id);
                let texts = reasons.iter().map(Reason::to_string).collect();
                self.verdicts.record(id, kind, reasons.into_iter().next().unwrap_or(Reason::Disabled), world.now);
                self.handlers.insert(id.clone(), NodeRequestHandler::declining(id.clone(), world));
                let change = Box::new(decline(id, request, ctx.launcher, world));
                effects.push(Effect::Decline { request: change, reasons: texts });
            }
            Verdict::Accept(placements) => {
                self.waiting.remove(id);
                self.add_pending_usage(id, &request.record, ctx, world);
                let reused = |placement: &Placement| match placement {
                    Placement::ReuseIdle(node) => Some(node.clone()),
                    Placement::LaunchNew(_) => None,
                };
                match placements.iter().map(reused).collect() {
                    Some(nodes) => self.accept(id, nodes, ctx, world, effects),
                    None => effects.push(self.start_fulfillment(id, request, placements, ctx, world)),
                }
            }
        }
    }

    fn accept(
        &mut self,
        id: &RequestId,
        nodes: Vec<NodeId>,
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
        effects: &mut Vec<Effect>,
    ) {
        for node in &nodes {
            let stored = world.snapshot.node(node).expect("a verdict names only nodes of its snapshot");
            self.reservations.assign(node, &stored.record);
        }
        let (handler, probes) = NodeRequestHandler::launch(id.clone(), nodes, ctx, world);
        self.verdicts.record(id, VerdictKind::Accept, handler.reason(), world.now);
        if probes.is_empty() {
            let plan = handler.launches_complete(&self.reservations, world);
            effects.push(Effect::Fulfill(Box::new(plan.expect("the verdict was made on this very snapshot"))));
        }
        for (node, host) in probes {
            effects.push(Effect::Probe { request: id.clone(), node, host });
        }
        let earlier = self.handlers.insert(id.clone(), handler);
        assert!(earlier.is_none(), "two handlers for request {id}");
    }

    fn probed(
        &mut self,
        request: &RequestId,
        node: &NodeId,
        answer: LivenessResult,
        world: &Inputs<'_>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let LivenessResult::Dead(_) = answer
            && let Some(stored) = world.snapshot.node(node)
            && stored.record.is_idle()
            && self.retiring.insert(node.clone())
        {
            effects.push(Effect::Retire { node: node.clone(), version: stored.version });
        }
        if let LivenessResult::Dead(why) | LivenessResult::NotChecked(why) = answer {
            if self.handlers.contains_key(request) {
                self.end_handler(request, None, world);
                self.verdicts.record(request, VerdictKind::Defer, Reason::DeadHost(why), world.now);
            }
            return effects;
        }
        let complete = self.handlers.get_mut(request).is_some_and(|handler| handler.probed(node));
        if !complete {
            return effects;
        }
        let handler = self.handlers.get_mut(request).expect("it was there a line ago");
        match handler.launches_complete(&self.reservations, world) {
            Some(plan) => {
                handler.stage = HandlerStage::Fulfilling;
                let reason = handler.reason();
                self.verdicts.record(request, VerdictKind::Accept, reason, world.now);
                effects.push(Effect::Fulfill(Box::new(plan)));
            }
            None => self.end_handler(request, None, world),
        }
        effects
    }

    fn section(&self, world: &Inputs<'_>) -> Option<(Arc<ProviderConfig>, Arc<PoolConfig>)> {
        let provider = world.config.providers.get(&self.id.provider)?;
        Some((provider.clone(), provider.pools.get(&self.id.pool)?.clone()))
    }

    /// What keeps this pool from looking at requests at all.
    fn obstacle(&mut self, provider: &ProviderConfig, world: &Inputs<'_>) -> Option<Reason> {
        if !world.snapshot.connected || self.draining {
            return Some(Reason::NotConnected);
        }
        if provider.max_concurrency == 0 {
            return Some(Reason::HandlesNothing);
        }
        // R7: deciding with a registry that does not show ourselves would fail requests wrongly; so would deciding before
        // the pools that start with us are there.
        (!self.is_complete(world)).then_some(Reason::NotRegistered)
    }

    fn is_complete(&mut self, world: &Inputs<'_>) -> bool {
        let registry = &world.snapshot.pools;
        if self.complete_at != Some(registry.revision()) {
            let pools: BTreeSet<&LauncherId> =
                registry.pools().filter_map(|(_, pool)| pool.record.id.as_ref()).collect();
            let is_complete =
                pools.contains(&self.launcher) && self.started_pools.iter().all(|pool| pools.contains(pool));
            self.complete_at = is_complete.then(|| registry.revision());
        }
        self.complete_at.is_some()
    }

    fn static_host_index(&mut self, world: &Inputs<'_>) -> StaticHostIndex {
        let unseen = || Arc::new(nodepool_driver::facts::ProviderFacts::initial());
        let facts = world.facts.get(&self.id.provider).cloned().unwrap_or_else(unseen);
        match self.hosts.take() {
            Some(hosts) if hosts.is_built_from(&facts) => hosts,
            _ => StaticHostIndex::new(facts, &self.id),
        }
    }

    fn end_handler(&mut self, id: &RequestId, error: Option<WriteError>, world: &Inputs<'_>) {
        let Some(handler) = self.handlers.remove(id) else { return };
        match error {
            Some(WriteError::Failed(_)) => self.record_unconfirmed_claim(id, Resources::none(), world),
            _ => drop(self.pending_usage.remove(id)),
        }
        for node in &handler.nodes {
            self.reservations.release(node);
        }
        if let Some(error) = error {
            let is_overtaken = matches!(error, WriteError::Conflict | WriteError::Contended);
            // What came between is in the picture already, where that has moved on since the decision.
            let revision = if is_overtaken { handler.revision } else { world.snapshot.revision };
            self.failed_at.insert(id.clone(), revision);
            // Why a pool declines holds whoever wrote first, who may have ended the request with it.
            if !(handler.stage == HandlerStage::Declining && is_overtaken) {
                self.verdicts.record(id, VerdictKind::Defer, Reason::WriteFailed(error.to_string()), world.now);
            }
        }
    }

    /// After a pass every open request has a verdict, so what is more belongs to requests that have ended. Those that
    /// are being handed out end by themselves, and looking through all verdicts for them would only take time.
    fn forget_ended(&mut self, world: &Inputs<'_>) {
        if self.verdicts.open_count() <= world.snapshot.open_count() + self.handlers.len() + self.fulfillments.len() {
            return;
        }
        let is_open = |id: &RequestId| {
            let request = world.snapshot.request(id);
            request
                .is_some_and(|request| matches!(request.record.state, RequestState::Requested | RequestState::Pending))
        };
        for id in self.verdicts.without(is_open) {
            self.forget(&id);
        }
    }

    pub(super) fn forget(&mut self, id: &RequestId) {
        self.waiting.remove(id);
        self.failed_at.remove(id);
        self.backoff_until.remove(id);
        self.verdicts.end(id);
    }
}

fn missing_labels(request: &NodeRequest, pool: &PoolConfig) -> usize {
    match request.node_types.as_slice() {
        [only] => usize::from(!pool.labels.contains(only)),
        many => many.iter().collect::<BTreeSet<_>>().iter().filter(|label| !pool.labels.contains(**label)).count(),
    }
}
