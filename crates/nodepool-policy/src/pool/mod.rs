//! Pool: state machine of one PoolWorker. Schedules open requests by rank and owns those that it has accepted.

pub mod events;
pub(crate) mod launches;
pub(crate) mod line;
pub(crate) mod liveness;
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
use crate::scheduler::launch_line::{LaunchLine, PoolLine};
use crate::scheduler::pool_context::{Placement, PoolContext, StaticHostIndex};
use crate::scheduler::reason::Reason;
use crate::scheduler::reservations::Reservations;
use crate::scheduler::shared_pools::{RequestLeases, SharedPoolState};
use crate::scheduler::tenant_usage::{PendingTenantUsage, TenantReservations};
use crate::scheduler::verdicts::Verdicts;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::{LabelName, LauncherId, NodeId, PoolId, RequestId};
use nodepool_model::records::request::{NodeRequest, Rank, RequestState};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::static_host::HostIdentity;
use nodepool_model::records::time::MonotonicTime;
use nodepool_model::report::status::VerdictKind;
use nodepool_model::snapshot::{Versioned, WriteError};

/// Maximum number of requests accepted in one pass. If thousands can be served, the first are being written while the
/// next are scheduled.
const MAX_ACCEPTED_PER_PASS: usize = 64;

pub struct Pool {
    pub(super) id: PoolId,
    pub(super) launcher: LauncherId,
    hosts: Option<StaticHostIndex>,
    pub(super) handlers: BTreeMap<RequestId, NodeRequestHandler>,
    /// Requests with nodes that are being launched.
    pub(super) fulfillments: BTreeMap<RequestId, Fulfillment>,
    /// The request in `fulfillments` that a new node is for.
    pub(super) building: BTreeMap<NodeId, RequestId>,
    /// The requests in `fulfillments` for which capacity is insufficient, as far as is known.
    pub(super) short_of_capacity: BTreeSet<RequestId>,
    /// Resources of claims in flight, which no snapshot shows yet.
    pub(super) claiming: BTreeMap<RequestId, Resources>,
    /// Resources of claims whose answer was lost, each with the time at which snapshots must show it if it was
    /// performed. Until then, the requests of these claims also count for tenants.
    pub(super) unconfirmed_claims: Vec<(MonotonicTime, RequestId, Resources)>,
    /// Time at or before the first timeout of a launch.
    pub(super) next_due: Option<MonotonicTime>,
    pub(super) next_zone: usize,
    /// Lines of launches while the cloud is full, as of the last pass; and the parts of the provider's other pools.
    pub(super) line: LaunchLine,
    pub(super) lines_of_others: Vec<Arc<PoolLine>>,
    /// Launches have met an outage whose end has not been handled yet.
    pub(super) has_met_outage: bool,
    /// Requests whose zone was missing, and the end of their back-off.
    pub(super) backoff_until: BTreeMap<RequestId, MonotonicTime>,
    pub(super) reservations: Reservations,
    /// Labels that a waiting request has lacked since it began to wait, and how many idle nodes of each it needs.
    pub(super) waiting: BTreeMap<RequestId, BTreeMap<LabelName, usize>>,
    pub(super) verdicts: Verdicts,
    retiring: BTreeSet<NodeId>,
    /// Static hosts that failed a probe recently, and when.
    dead_hosts: BTreeMap<HostIdentity, MonotonicTime>,
    /// Revision of the snapshot on which an idle node was selected for the eviction in flight.
    pub(super) evicting: Option<u64>,
    /// Revision of the snapshot on which an eviction failed: the same snapshot would lead to the same failure.
    pub(super) not_evicted_at: Option<u64>,
    /// Requests for which a write failed, and the revision of the snapshot that led to the write.
    pub(super) failed_at: BTreeMap<RequestId, u64>,
    pub(super) draining: bool,
    /// The last pass ended before it had handled every request.
    has_more: bool,
    /// In the last pass, capacity was insufficient for a request.
    pub(super) lacks_capacity: bool,
    /// Requests and launches in progress in the provider's other pools.
    other_pools_busy: usize,
    /// Tenant reservations of the other pools of this process.
    other_pools_reservations: Arc<TenantReservations>,
    /// Pending usage of tenants with limits, until snapshots show it: of this pool, and of the others of this process.
    pub(super) pending_usage: PendingTenantUsage,
    pub(super) other_pools_pending_usage: Vec<Arc<PendingTenantUsage>>,
    /// Requests leased by pools of this process.
    leases: Arc<RequestLeases>,
    /// The pools of this process.
    started_pools: Arc<BTreeSet<LauncherId>>,
    /// Revision of the registry that contained all started pools.
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
            line: LaunchLine::default(),
            lines_of_others: Vec::new(),
            has_met_outage: false,
            backoff_until: BTreeMap::new(),
            reservations: Reservations::default(),
            waiting: BTreeMap::new(),
            verdicts: Verdicts::default(),
            retiring: BTreeSet::new(),
            dead_hosts: BTreeMap::new(),
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

    /// Handles one event. An answer makes no scheduling decision: the next `Wake` makes it, on the snapshot of that
    /// time.
    pub fn step(&mut self, event: Event, inputs: &Inputs<'_>) -> Vec<Effect> {
        match event {
            Event::Wake => self.schedule(inputs),
            Event::Tick => {
                self.failed_at.clear();
                self.not_evicted_at = None;
                self.schedule(inputs)
            }
            Event::Fulfilled(id, answer) => {
                let is_done = answer.is_ok();
                self.end_handler(&id, answer.err(), inputs);
                if is_done {
                    self.fulfilled_count += 1;
                    self.forget(&id);
                }
                Vec::new()
            }
            Event::Declined(id, answer) => {
                self.end_handler(&id, answer.err(), inputs);
                Vec::new()
            }
            Event::Claimed(id, answer) => self.claimed(&id, answer, inputs),
            Event::Adopted(id, answer) => self.adopted(&id, answer, inputs),
            Event::Begun(id, answer) => self.begun(&id, answer, inputs),
            Event::Saved(node, answer) => self.saved(&node, answer.is_ok(), inputs),
            Event::Finished(id, answer) => {
                self.finished(&id, answer, inputs);
                Vec::new()
            }
            Event::JobUpdate(node, event) => self.job_update(&node, event, inputs),
            Event::Scanned(node, attempt, found) => self.scanned(&node, attempt, found, inputs),
            Event::Clock => {
                let mut effects = self.clock(inputs);
                effects.extend(self.schedule(inputs));
                effects
            }
            Event::Probed(request, node, answer) => self.probed(&request, &node, answer, inputs),
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
                self.release_waiting(inputs)
            }
        }
    }

    /// Requests and launches in progress in this pool. `max-concurrency` counts those of all pools of a provider.
    pub fn busy(&self) -> usize {
        self.handlers.len() + self.claiming.len() + self.building.len()
    }

    /// Whether another pass is needed even without a change.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    pub fn set_other_pools_busy(&mut self, busy: usize) {
        self.other_pools_busy = busy;
    }

    pub fn update_leases(&mut self, shared: &SharedPoolState) {
        self.leases = shared.leases().clone();
        self.other_pools_pending_usage = shared.pending_usage_of_others(&self.launcher);
        self.lines_of_others = shared.lines_of_others(&self.id.provider, &self.launcher);
    }

    pub fn update_shared_state(&mut self, shared: &SharedPoolState) {
        self.other_pools_reservations = shared.reservations_of_others(&self.launcher);
        if !Arc::ptr_eq(&self.started_pools, shared.started_pools()) {
            self.started_pools = shared.started_pools().clone();
            self.complete_at = None;
        }
    }

    /// Requests that have begun to wait, or wait for another reason, since the last call.
    pub fn take_reports(&mut self) -> Vec<(RequestId, String)> {
        self.verdicts.take_reports()
    }

    /// The part in the lines of the provider, for its other pools.
    pub fn line(&self) -> &PoolLine {
        self.line.own()
    }

    /// Tenant reservations of the last pass; `None` if it did not reach the end.
    pub fn tenant_reservations(&self) -> Option<&TenantReservations> {
        (!self.has_more && !self.draining).then(|| self.reservations.tenants.own())
    }

    /// Whether nothing is in flight, so that a draining pool may stop.
    pub fn is_idle(&self) -> bool {
        self.handlers.is_empty() && self.fulfillments.is_empty() && self.retiring.is_empty() && self.evicting.is_none()
    }

    /// One scheduling pass over all open requests, by rank.
    fn schedule(&mut self, inputs: &Inputs<'_>) -> Vec<Effect> {
        self.has_more = false;
        self.expire(inputs.monotonic_now);
        self.reservations.begin_pass(self.pending_need());
        self.count_pending_usage(inputs.snapshot);
        self.line = LaunchLine::default();
        let mut effects = self.follow_outage(inputs);
        let Some((provider, pool)) = self.section(inputs) else {
            effects.extend(self.wind_down(None, inputs));
            return effects;
        };
        if let Some(reason) = self.obstacle(&provider, inputs) {
            for (rank, _) in inputs.snapshot.waiting_requests() {
                self.verdicts.record(&rank.id, VerdictKind::Defer, reason.clone(), inputs.now);
            }
            self.forget_ended(inputs);
            effects.extend(self.wind_down(Some(reason), inputs));
            return effects;
        }
        effects.extend(self.run_pass(&provider, &pool, inputs));
        effects
    }

    fn run_pass(&mut self, provider: &ProviderConfig, pool: &PoolConfig, inputs: &Inputs<'_>) -> Vec<Effect> {
        self.begin_line(inputs);
        let hosts = self.static_host_index(inputs);
        let (id, launcher) = (self.id.clone(), self.launcher.clone());
        let ctx = PoolContext { id: &id, launcher: &launcher, provider, pool, hosts: &hosts };
        let mut effects = self.abandon_unused(inputs);
        // The first refresh provides what a launch needs to know about the cloud.
        let is_refreshed = hosts.facts.is_refreshed();
        let are_more_left = is_refreshed && self.adopt(&ctx, inputs, &mut effects);
        self.resume(&ctx, inputs, &mut effects);
        let previously_lacked_capacity = std::mem::take(&mut self.lacks_capacity);
        let other_pools_reservations = self.other_pools_reservations.clone();
        let mut other_pools_reservations = other_pools_reservations.iter().peekable();
        let mut probing = self.probed_labels(inputs).into_iter().peekable();
        let mut suspended = self.suspended_ranks(inputs).into_iter().peekable();
        // Requests whose labels the pool has come first, then those that it may have to decline.
        let mut lacking = Vec::new();
        let busy = self.busy();
        for (rank, request) in inputs.snapshot.waiting_requests() {
            if self.handlers.contains_key(&rank.id) || self.fulfillments.contains_key(&rank.id) {
                continue;
            }
            if self.busy() >= busy + MAX_ACCEPTED_PER_PASS {
                self.has_more = true;
                self.lacks_capacity |= previously_lacked_capacity;
                lacking.clear();
                break;
            }
            while let Some(before) = suspended.next_if(|before| before < rank) {
                effects.extend(self.resume_suspended(&before, inputs));
            }
            while let Some((before, (tenant, amounts))) = other_pools_reservations.next_if(|(before, _)| *before < rank)
            {
                // The request may have been deleted since the other pool's pass.
                if inputs.snapshot.is_waiting(before) {
                    self.reservations.tenants.reserve_for_other_pool(before, tenant, amounts);
                }
            }
            while let Some((_, label, host)) = probing.next_if(|(before, ..)| before < rank) {
                self.keep_for_probed(&label, host);
            }
            if self.is_unchanged(&rank.id, inputs) {
                self.lacks_capacity |= previously_lacked_capacity;
                continue;
            }
            match missing_labels(&request.record, pool) {
                0 => self.schedule_one(rank, request, &ctx, inputs, &mut effects),
                missing => lacking.push((missing, rank, request)),
            }
        }
        if !self.has_more {
            for rank in suspended {
                effects.extend(self.resume_suspended(&rank, inputs));
            }
        }
        lacking.sort_by_key(|(missing, ..)| *missing);
        for (_, rank, request) in lacking {
            self.schedule_one(rank, request, &ctx, inputs, &mut effects);
        }
        effects.extend(self.give_up_suspended(inputs));
        self.has_more |= are_more_left;
        self.hosts = Some(hosts);
        self.forget_ended(inputs);
        effects
    }

    /// Whether a request need not be decided again. In this case a lack of capacity is kept. Otherwise `paused` would
    /// change and be written, which makes a new snapshot, on which the same write would fail again.
    fn is_unchanged(&mut self, id: &RequestId, inputs: &Inputs<'_>) -> bool {
        if self.leases.get(id).is_some_and(|pool| *pool != self.id) {
            self.verdicts.record(id, VerdictKind::Yield, Reason::HandledByOtherPool, inputs.now);
            return true;
        }
        // The same snapshot would lead to the same failure; a newer one, or the next tick, may not.
        self.failed_at.get(id) == Some(&inputs.snapshot.revision)
    }

    fn schedule_one(
        &mut self,
        rank: &Rank,
        request: &Versioned<NodeRequest>,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let id = &rank.id;
        if self.backoff_until.contains_key(id) {
            // Other pools may serve what they would yield to this pool: its cloud refused the request recently.
            self.lacks_capacity |= !request.record.is_min_ready();
            return;
        }
        let mut decided = verdict(id, request, ctx, &self.reservations, inputs);
        let limit = ctx.provider.max_concurrency;
        if matches!(decided, Verdict::Accept(_)) && limit > 0 && (self.busy() + self.other_pools_busy) as i64 >= limit {
            decided = Verdict::Defer(Reason::Concurrency { limit });
        }
        let decided = self.in_line(decided, rank, &request.record, ctx, inputs);
        let kind = decided.kind();
        match decided {
            Verdict::Ignore(reason) | Verdict::Yield(reason) => {
                self.waiting.remove(id);
                self.verdicts.record(id, kind, reason, inputs.now);
            }
            Verdict::Defer(reason) => {
                self.reserve_for(rank, &request.record, &reason, ctx, inputs);
                // Other pools need not yield to this pool while its cloud does not respond.
                self.lacks_capacity |= match &reason {
                    Reason::NotRefreshed(Some(_)) => true,
                    Reason::CloudFull(_) | Reason::Outage(_) => !request.record.is_min_ready(),
                    _ => false,
                };
                if let Reason::InsufficientCapacity { .. } = reason {
                    self.lacks_capacity = true;
                    effects.extend(self.evict_for(&request.record, None, ctx, inputs));
                    effects.extend(self.wait_for_capacity(id, request, ctx, inputs));
                }
                self.verdicts.record(id, kind, reason, inputs.now);
            }
            Verdict::Decline(reasons) => {
                self.waiting.remove(id);
                let texts = reasons.iter().map(Reason::to_string).collect();
                self.verdicts.record(id, kind, reasons.into_iter().next().unwrap_or(Reason::Disabled), inputs.now);
                self.handlers.insert(id.clone(), NodeRequestHandler::declining(id.clone(), inputs));
                let change = Box::new(decline(id, request, ctx.launcher, inputs));
                effects.push(Effect::Decline { request: change, reasons: texts });
            }
            Verdict::Accept(placements) => {
                self.waiting.remove(id);
                self.add_pending_usage(id, &request.record, ctx, inputs);
                let reused = |placement: &Placement| match placement {
                    Placement::ReuseIdle(node) => Some(node.clone()),
                    Placement::LaunchNew(_) => None,
                };
                // Fewer placements than nodes: the line of launches lets only the first ones begin.
                match placements.iter().map(reused).collect() {
                    Some(nodes) => self.accept(id, nodes, ctx, inputs, effects),
                    None => effects.push(self.start_fulfillment(id, request, placements, ctx, inputs)),
                }
            }
        }
    }

    fn section(&self, inputs: &Inputs<'_>) -> Option<(Arc<ProviderConfig>, Arc<PoolConfig>)> {
        let provider = inputs.config.providers.get(&self.id.provider)?;
        Some((provider.clone(), provider.pools.get(&self.id.pool)?.clone()))
    }

    /// Reason why this pool schedules no requests at all.
    fn obstacle(&mut self, provider: &ProviderConfig, inputs: &Inputs<'_>) -> Option<Reason> {
        if self.draining {
            return Some(Reason::Draining);
        }
        if !inputs.snapshot.connected {
            return Some(Reason::NotConnected);
        }
        if provider.max_concurrency == 0 {
            return Some(Reason::HandlesNothing);
        }
        // A registry without this pool, or without the pools that start with it, would lead to wrongly failed requests.
        (!self.is_complete(inputs)).then_some(Reason::NotRegistered)
    }

    fn is_complete(&mut self, inputs: &Inputs<'_>) -> bool {
        let registry = &inputs.snapshot.pools;
        if self.complete_at != Some(registry.revision()) {
            let pools: BTreeSet<&LauncherId> =
                registry.pools().filter_map(|(_, pool)| pool.record.id.as_ref()).collect();
            let is_complete =
                pools.contains(&self.launcher) && self.started_pools.iter().all(|pool| pools.contains(pool));
            self.complete_at = is_complete.then(|| registry.revision());
        }
        self.complete_at.is_some()
    }

    fn static_host_index(&mut self, inputs: &Inputs<'_>) -> StaticHostIndex {
        let initial = || Arc::new(nodepool_driver::facts::ProviderFacts::initial());
        let facts = inputs.facts.get(&self.id.provider).cloned().unwrap_or_else(initial);
        match self.hosts.take() {
            Some(hosts) if hosts.is_built_from(&facts) => hosts,
            _ => StaticHostIndex::new(facts, &self.id),
        }
    }

    fn end_handler(&mut self, id: &RequestId, error: Option<WriteError>, inputs: &Inputs<'_>) {
        let Some(handler) = self.handlers.remove(id) else { return };
        match error {
            Some(WriteError::Failed(_)) => self.record_unconfirmed_claim(id, Resources::none(), inputs),
            _ => drop(self.pending_usage.remove(id)),
        }
        for node in &handler.nodes {
            self.reservations.release(node);
        }
        if let Some(error) = error {
            let is_overtaken = matches!(error, WriteError::Conflict | WriteError::Contended);
            // If the snapshot is newer than the decision, it already contains the conflicting change.
            let revision = if is_overtaken { handler.revision } else { inputs.snapshot.revision };
            self.failed_at.insert(id.clone(), revision);
            // The reason of a decline is valid whichever pool wrote first; that write may have ended the request.
            if !(handler.stage == HandlerStage::Declining && is_overtaken) {
                self.verdicts.record(id, VerdictKind::Defer, Reason::WriteFailed(error.to_string()), inputs.now);
            }
        }
    }

    /// After a pass every open request has a verdict, so further verdicts belong to ended requests. Requests that are
    /// being fulfilled end by themselves; searching all verdicts for them would only cost time.
    fn forget_ended(&mut self, inputs: &Inputs<'_>) {
        if self.verdicts.open_count() <= inputs.snapshot.open_count() + self.handlers.len() + self.fulfillments.len() {
            return;
        }
        let is_open = |id: &RequestId| {
            let request = inputs.snapshot.request(id);
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
