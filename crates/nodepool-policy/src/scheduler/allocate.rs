//! Allocation: one pool's verdict about one request. The pool accepts, yields, defers or declines.

use std::collections::{BTreeMap, BTreeSet};

use super::capacity::{launch_decline_reasons, place};
use super::matching::{self, Shortage};
use super::pool_context::{Placement, PoolContext, StaticHostIndex};
use super::reason::Reason;
use crate::inputs::Inputs;
use crate::scheduler::reservations::Reservations;
use nodepool_model::config::PoolConfig;
use nodepool_model::records::component::PoolComponent;
use nodepool_model::records::ids::{LabelName, LauncherId, NodeId, RequestId};
use nodepool_model::records::request::{MAX_NODES, NodeRequest, RequestState};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::static_host::{HostIdentity, StaticHost};
use nodepool_model::report::status::VerdictKind;
use nodepool_model::snapshot::Versioned;

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The request is not for this pool.
    Ignore(Reason),
    /// Another pool or launcher shall serve it.
    Yield(Reason),
    /// This pool could serve it, but not now.
    Defer(Reason),
    /// This pool can never serve it.
    Decline(Vec<Reason>),
    /// Serve it with these placements, one per requested label, in order.
    Accept(Vec<Placement>),
}

impl Verdict {
    pub fn kind(&self) -> VerdictKind {
        match self {
            Verdict::Ignore(_) => VerdictKind::Ignore,
            Verdict::Yield(_) => VerdictKind::Yield,
            Verdict::Defer(_) => VerdictKind::Defer,
            Verdict::Decline(_) => VerdictKind::Decline,
            Verdict::Accept(_) => VerdictKind::Accept,
        }
    }
}

/// Rules from top to bottom; the first that matches decides.
pub fn verdict(
    id: &RequestId,
    request: &Versioned<NodeRequest>,
    ctx: &PoolContext<'_>,
    reservations: &Reservations,
    inputs: &Inputs<'_>,
) -> Verdict {
    let record = &*request.record;
    match record.state {
        RequestState::Requested => {}
        RequestState::Pending => return Verdict::Ignore(Reason::BeingServed),
        RequestState::Fulfilled | RequestState::Failed => return Verdict::Ignore(Reason::Ended),
    }
    if record.declined_by.contains(ctx.launcher) {
        // A pool that could have served the request may have disappeared without declining. If every remaining pool has
        // declined, this pool declines again, so that the request fails instead of waiting forever.
        if all_pools_declined(record, inputs) && !inputs.snapshot.is_request_locked(id) {
            return Verdict::Decline(vec![Reason::DeclinedBefore]);
        }
        return Verdict::Ignore(Reason::DeclinedBefore);
    }
    if let Some(reason) = yield_reason(record, ctx, inputs) {
        return Verdict::Yield(reason);
    }
    let declined = decline_reasons(record, ctx, inputs);
    if declined.is_empty() {
        // Tenant limits, concurrency and idle nodes matter only to a pool that could serve the request.
        if let Some(reason) = over_tenant_limit(record, ctx, reservations, inputs) {
            return Verdict::Defer(reason);
        }
    }
    if inputs.snapshot.is_request_locked(id) {
        return Verdict::Yield(Reason::Locked);
    }
    if !declined.is_empty() {
        return Verdict::Decline(declined);
    }
    let placed = match ctx.hosts.launches() {
        true => place(record, ctx, reservations, None, inputs),
        false => place_on_static_hosts(record, ctx, reservations, inputs)
            .map(|nodes| nodes.into_iter().map(Placement::ReuseIdle).collect()),
    };
    match placed {
        Ok(placements) => Verdict::Accept(placements),
        // A min-ready request does not wait for capacity.
        Err(reason @ Reason::InsufficientCapacity { .. }) if record.is_min_ready() => Verdict::Decline(vec![reason]),
        Err(reason) => Verdict::Defer(reason),
    }
}

/// Whether every registered pool has declined.
pub fn all_pools_declined(request: &NodeRequest, inputs: &Inputs<'_>) -> bool {
    inputs.snapshot.pools().filter_map(|(_, pool)| pool.record.id.as_ref()).all(|id| request.declined_by.contains(id))
}

/// Reason to yield: another pool is preferred, as long as it is registered and has not declined.
fn yield_reason(request: &NodeRequest, ctx: &PoolContext<'_>, inputs: &Inputs<'_>) -> Option<Reason> {
    let wanted = request.distinct_labels();
    if let Some(preferred) = &request.provider
        && *preferred != ctx.id.provider
        && candidates(request, &wanted, inputs).any(|pool| pool.provider_name.as_ref() == Some(preferred))
    {
        return Some(Reason::PreferredProvider(preferred.clone()));
    }
    let first = candidates(request, &wanted, inputs).next()?;
    if first.priority < ctx.pool.priority && !first.paused {
        let launcher = first.id.clone().unwrap_or_else(|| LauncherId::from("another pool"));
        return Some(Reason::PreferredPool { launcher, priority: first.priority });
    }
    let lacking = lacking_labels(&wanted, ctx.pool);
    (!lacking.is_empty()).then_some(Reason::OthersHaveLabels(lacking))
}

/// Pools that have the labels and have not declined: preferred ones first, paused ones last.
fn candidates<'a>(
    request: &'a NodeRequest,
    wanted: &'a BTreeSet<&LabelName>,
    inputs: &Inputs<'a>,
) -> impl Iterator<Item = &'a PoolComponent> {
    let has_declined = |pool: &PoolComponent| pool.id.as_ref().is_some_and(|id| request.declined_by.contains(id));
    inputs.snapshot.pools.serving(wanted).filter(move |pool| !has_declined(pool))
}

/// Whether another pool has the labels, has not declined, and does not report a lack of capacity.
pub(crate) fn other_pools_could_serve(request: &NodeRequest, launcher: &LauncherId, inputs: &Inputs<'_>) -> bool {
    let wanted = request.distinct_labels();
    let is_other = |pool: &PoolComponent| pool.id.as_ref().is_some_and(|id| id != launcher);
    candidates(request, &wanted, inputs).any(|pool| is_other(pool) && !pool.paused)
}

fn lacking_labels(wanted: &BTreeSet<&LabelName>, pool: &PoolConfig) -> Vec<LabelName> {
    wanted.iter().filter(|label| !pool.labels.contains(**label)).map(|label| (*label).clone()).collect()
}

/// Reasons why this pool can never serve the request; empty if it can serve it.
pub(crate) fn decline_reasons(request: &NodeRequest, ctx: &PoolContext<'_>, inputs: &Inputs<'_>) -> Vec<Reason> {
    if ctx.pool.max_servers.is_some_and(|limit| limit <= 0) {
        return vec![Reason::Disabled];
    }
    let lacking = lacking_labels(&request.distinct_labels(), ctx.pool);
    if !lacking.is_empty() {
        return vec![Reason::LabelsNotAvailable(lacking)];
    }
    let wanted = request.node_types.len();
    if wanted > MAX_NODES {
        return vec![Reason::TooManyNodes { wanted }];
    }
    if ctx.hosts.launches() {
        return launch_decline_reasons(request, ctx, inputs);
    }
    if !request.reuse || request.is_min_ready() {
        return vec![Reason::LaunchesNothing];
    }
    if ctx.hosts.facts.static_hosts.is_empty() {
        return Vec::new(); // The hosts are not known yet.
    }
    match slot_shortage(request, StaticHostIndex::configured, |host| host.slots as usize, ctx) {
        Some((labels, wanted, slots)) => vec![Reason::ExceedsQuota { labels, wanted, slots }],
        None => Vec::new(),
    }
}

/// Labels with more requested nodes than slots. The given functions count the slots per label and per host.
fn slot_shortage(
    request: &NodeRequest,
    of_label: impl Fn(&StaticHostIndex, &LabelName) -> usize,
    of_host: impl Fn(&StaticHost) -> usize,
    ctx: &PoolContext<'_>,
) -> Option<(Vec<LabelName>, usize, usize)> {
    let counts = label_counts(request);
    if let Some((label, wanted)) = counts.iter().find(|(label, wanted)| of_label(ctx.hosts, label) < **wanted) {
        return Some((vec![(*label).clone()], *wanted, of_label(ctx.hosts, label)));
    }
    if counts.len() == 1 {
        return None;
    }
    // A slot of a host with several labels counts for each label, but serves one node at a time.
    let fitting = matching::assign(&request.node_types, |label, most| {
        let hosts = ctx.hosts.facts.static_hosts.iter().enumerate();
        let fitting = hosts.filter(|(_, host)| host.pool == ctx.id.pool && host.labels.contains(label));
        fitting.flat_map(|(index, host)| (0..of_host(host)).map(move |slot| (index, slot))).take(most).collect()
    });
    fitting.err().map(label_shortage)
}

fn label_shortage(short: Shortage<'_, LabelName>) -> (Vec<LabelName>, usize, usize) {
    let labels: BTreeSet<_> = short.kinds.into_iter().cloned().collect();
    (labels.into_iter().collect(), short.wanted, short.found)
}

/// Number of requested nodes of each label.
pub fn label_counts(request: &NodeRequest) -> BTreeMap<&LabelName, usize> {
    let mut counts = BTreeMap::new();
    for label in &request.node_types {
        *counts.entry(label).or_insert(0) += 1;
    }
    counts
}

/// The tenant limit that the request would exceed. Labels that this pool lacks do not count.
pub(crate) fn over_tenant_limit(
    request: &NodeRequest,
    ctx: &PoolContext<'_>,
    reservations: &Reservations,
    inputs: &Inputs<'_>,
) -> Option<Reason> {
    let tenant = request.tenant_name.as_ref()?;
    let mut available = inputs.config.tenant_limits.get(tenant)?.clone();
    available.subtract(&inputs.snapshot.usage_totals.used_by_tenant(tenant));
    if let Some(committed) = reservations.tenants.committed(tenant) {
        available.subtract(committed);
    }
    let (resource, wanted, free) = available.shortage(&tenant_need(request, ctx))?;
    Some(Reason::OverTenantLimit { tenant: tenant.clone(), resource, wanted, available: free })
}

/// Whether the request fits its tenant's limits at all. A request that never fits reserves nothing.
pub fn fits_tenant(request: &NodeRequest, ctx: &PoolContext<'_>, inputs: &Inputs<'_>) -> bool {
    let limit = request.tenant_name.as_ref().and_then(|tenant| inputs.config.tenant_limits.get(tenant));
    limit.is_none_or(|limit| limit.shortage(&tenant_need(request, ctx)).is_none())
}

/// Resources that a request takes from its tenant's limits.
pub fn tenant_need(request: &NodeRequest, ctx: &PoolContext<'_>) -> Resources {
    let mut need = Resources::none();
    for label in request.node_types.iter().filter(|label| ctx.pool.labels.contains(*label)) {
        need.add(ctx.hosts.facts.need(&ctx.id.pool, label));
    }
    need
}

/// Idle nodes for every requested label, or the first shortage.
fn place_on_static_hosts(
    request: &NodeRequest,
    ctx: &PoolContext<'_>,
    reservations: &Reservations,
    inputs: &Inputs<'_>,
) -> Result<Vec<NodeId>, Reason> {
    if inputs.facts.get(&ctx.id.provider).is_none_or(|facts| facts.static_hosts.is_empty()) {
        return Err(Reason::NotRefreshed(None));
    }
    let unreachable = |(labels, wanted, usable)| Reason::Unreachable { labels, wanted, usable };
    for (label, wanted) in label_counts(request) {
        let idle = inputs.snapshot.idle_count(ctx.id, label).saturating_sub(reservations.assigned(label));
        let reserved = reservations.reserved(label);
        if idle < wanted + reserved {
            return Err(usable_slot_shortage(request, ctx, inputs)
                .map_or_else(|| Reason::NoIdleNode { label: label.clone(), wanted, idle, reserved }, unreachable));
        }
    }
    matching::assign(&request.node_types, |label, most| {
        let rotated = inputs.snapshot.idle_nodes_after(ctx.id, label, reservations.last_assigned.get(label));
        let mut assignable = rotated.filter(|id| is_assignable(id, request, ctx, reservations, inputs));
        if reservations.doubtful_hosts.is_empty() {
            return assignable.take(most).cloned().collect();
        }
        let is_doubtful = |id: &NodeId| {
            let host = inputs.snapshot.node(id).and_then(|node| HostIdentity::of(&node.record));
            host.is_some_and(|host| reservations.doubtful_hosts.contains(&host))
        };
        let (mut nodes, mut doubtful) = (Vec::new(), Vec::new());
        while nodes.len() < most
            && let Some(id) = assignable.next()
        {
            if is_doubtful(id) { &mut doubtful } else { &mut nodes }.push(id.clone());
        }
        let missing = most - nodes.len();
        nodes.extend(doubtful.into_iter().take(missing));
        nodes
    })
    .map_err(|short| {
        let (labels, wanted, free) = label_shortage(short);
        usable_slot_shortage(request, ctx, inputs)
            .map_or_else(|| Reason::NoFreeNodes { labels, wanted, free }, unreachable)
    })
}

/// Labels that the hosts could not serve even without other requests: too many hosts are down, or their nodes are held.
fn usable_slot_shortage(
    request: &NodeRequest,
    ctx: &PoolContext<'_>,
    inputs: &Inputs<'_>,
) -> Option<(Vec<LabelName>, usize, usize)> {
    let held: Vec<_> = inputs.snapshot.nodes_on_hold(&ctx.id.provider).map(|(_, node)| &node.record).collect();
    let mut held_on: BTreeMap<HostIdentity, usize> = BTreeMap::new();
    for identity in held.iter().filter_map(|node| ctx.hosts.identity(node)) {
        *held_on.entry(identity).or_insert(0) += 1;
    }
    let of_label = |hosts: &StaticHostIndex, label: &LabelName| {
        let held = held.iter().filter(|node| node.labels.contains(label)).count();
        hosts.usable(label).saturating_sub(held)
    };
    let of_host = |host: &StaticHost| match host.may_serve() {
        true => (host.slots as usize).saturating_sub(held_on.get(&host.identity).copied().unwrap_or(0)),
        false => 0,
    };
    slot_shortage(request, of_label, of_host, ctx)
}

fn is_assignable(
    id: &NodeId,
    request: &NodeRequest,
    ctx: &PoolContext<'_>,
    reservations: &Reservations,
    inputs: &Inputs<'_>,
) -> bool {
    if reservations.is_assigned(id) || inputs.snapshot.is_node_locked(id) {
        return false;
    }
    let node = &inputs.snapshot.node(id).expect("an index names only existing nodes").record;
    // A node with a label that is reserved for requests of higher rank is spared, unless enough idle nodes of that
    // label remain. The check assumes that this request takes one of them for each requested node whose label this node
    // has.
    let is_reserved = node.labels.iter().filter(|label| reservations.reserved(label) > 0).any(|label| {
        let idle = inputs.snapshot.idle_count(ctx.id, label).saturating_sub(reservations.assigned(label));
        let taken = request.node_types.iter().filter(|label| node.labels.contains(label)).count();
        idle < reservations.reserved(label) + taken
    });
    !is_reserved && ctx.hosts.identity(node).is_some_and(|host| !ctx.hosts.is_dead(&host))
}
