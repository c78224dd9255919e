//! Capacity for launched nodes: the limits of cloud and pool, minus what is used and reserved.

use std::collections::{BTreeMap, BTreeSet};

use super::pool_context::{Placement, PoolContext};
use super::reason::Reason;
use crate::inputs::Inputs;
use crate::scheduler::reservations::Reservations;
use nodepool_driver::facts::{LabelImage, PoolQuota, Unavailable};
use nodepool_model::records::ids::{LabelName, NodeId, PoolId, ProviderName};
use nodepool_model::records::request::NodeRequest;
use nodepool_model::records::resources::Resources;

/// Reasons to decline a request of a launching pool: unusable labels, missing images, and needs that never fit.
pub fn launch_decline_reasons(request: &NodeRequest, ctx: &PoolContext<'_>, inputs: &Inputs<'_>) -> Vec<Reason> {
    let facts = &ctx.hosts.facts;
    if let Some(Unavailable::Permanent(why)) = &facts.unavailable {
        return vec![Reason::OutOfService(why.clone())];
    }
    let unavailable = |name: &LabelName| {
        let label = facts.launch_label(&ctx.id.pool, name)?;
        label.unavailable.clone().or_else(|| lacks_upload(label.image.as_ref(), &ctx.id.provider, inputs))
    };
    let (mut broken, mut missing) = ((Vec::new(), None), (Vec::new(), None));
    for label in request.distinct_labels() {
        let (labels, why, text) = match unavailable(label) {
            Some(Unavailable::Permanent(text)) => (&mut broken.0, &mut broken.1, text),
            Some(Unavailable::Temporary(text)) => (&mut missing.0, &mut missing.1, text),
            None => continue,
        };
        labels.push(label.clone());
        why.get_or_insert(text);
    }
    if let (labels, Some(why)) = broken {
        return vec![Reason::LabelsBroken { labels, why }];
    }
    if let (labels, Some(why)) = missing {
        return vec![Reason::ImagesNotAvailable { labels, why }];
    }
    let mut need = Resources::none();
    request.node_types.iter().for_each(|label| need.add(facts.need(&ctx.id.pool, label)));
    let of_cloud = || {
        let of_pool = facts.pool_quotas.get(&ctx.id.pool).and_then(|quota| quota.limits.shortage(&need));
        of_pool.or_else(|| facts.max_capacity().shortage(&need)).filter(|_| !ctx.pool.ignore_provider_quota)
    };
    match ctx.pool.limits.shortage(&need).or_else(of_cloud) {
        Some((resource, wanted, limit)) => vec![Reason::NeverFits { resource, wanted, limit }],
        None => Vec::new(),
    }
}

/// Unavailability of a label whose image from the builder has not been uploaded to this provider.
pub(crate) fn lacks_upload(
    image: Option<&LabelImage>,
    provider: &ProviderName,
    inputs: &Inputs<'_>,
) -> Option<Unavailable> {
    let Some(LabelImage::Disk(name)) = image else { return None };
    let upload = inputs.snapshot.images.newest_upload(provider, name);
    upload.is_none().then(|| Unavailable::Temporary(format!("image {name} has not been uploaded to this provider")))
}

/// Number of idle nodes of each label that the request can reuse, whether or not capacity suffices for the rest.
pub fn reusable<'a>(
    request: &'a NodeRequest,
    ctx: &PoolContext<'_>,
    reservations: &Reservations,
    zone: Option<&str>,
    inputs: &Inputs<'_>,
) -> BTreeMap<&'a LabelName, usize> {
    let mut idle = IdleNodeSelector { ctx, reservations, inputs, zone, selected: BTreeSet::new() };
    let mut selected = BTreeMap::new();
    for label in request.node_types.iter().filter(|_| request.reuse) {
        if idle.select(label).is_some() {
            *selected.entry(label).or_insert(0) += 1;
        }
    }
    selected
}

/// Selects idle nodes for one request, one after another; all are in the zone of the first.
struct IdleNodeSelector<'a> {
    ctx: &'a PoolContext<'a>,
    reservations: &'a Reservations,
    inputs: &'a Inputs<'a>,
    zone: Option<&'a str>,
    selected: BTreeSet<NodeId>,
}

impl IdleNodeSelector<'_> {
    fn select(&mut self, label: &LabelName) -> Option<NodeId> {
        let snapshot = self.inputs.snapshot;
        let facts = &self.ctx.hosts.facts;
        let is_ending = |id: &NodeId| snapshot.node(id).is_some_and(|node| facts.is_ending(id, &node.record));
        let is_free = |id: &&NodeId| {
            !self.selected.contains(*id)
                && !self.reservations.is_assigned(id)
                && !snapshot.is_node_locked(id)
                && !is_ending(id)
        };
        let zone_of = |id: &NodeId| snapshot.node(id).and_then(|node| node.record.az.as_deref());
        let fits = |id: &&NodeId| self.zone.is_none() || zone_of(id) == self.zone;
        let id = snapshot.idle_nodes(self.ctx.id, label).filter(is_free).find(fits)?.clone();
        self.zone = self.zone.or(zone_of(&id));
        self.selected.insert(id.clone());
        Some(id)
    }
}

/// Places a request: idle nodes if the request may reuse them, else new ones while capacity lasts. If a zone is given,
/// the idle nodes are in that zone.
pub fn place(
    request: &NodeRequest,
    ctx: &PoolContext<'_>,
    reservations: &Reservations,
    zone: Option<&str>,
    inputs: &Inputs<'_>,
) -> Result<Vec<Placement>, Reason> {
    let (placements, shortage) = place_first(request, ctx, reservations, zone, inputs);
    shortage.map_or(Ok(placements), Err)
}

/// Places the first nodes of a request, as many as capacity allows, with the reason why there are no more.
pub fn place_first(
    request: &NodeRequest,
    ctx: &PoolContext<'_>,
    reservations: &Reservations,
    zone: Option<&str>,
    inputs: &Inputs<'_>,
) -> (Vec<Placement>, Option<Reason>) {
    let facts = &ctx.hosts.facts;
    if !facts.is_refreshed() {
        let why = facts.unavailable.as_ref().map(|unavailable| unavailable.reason().to_owned());
        return (Vec::new(), Some(Reason::NotRefreshed(why)));
    }
    let need = |pool: &PoolId, label: &LabelName| facts.need(&pool.pool, label);
    let quota = facts.pool_quotas.get(&ctx.id.pool).filter(|_| !ctx.pool.ignore_provider_quota);
    let (mut pool_capacity, mut quota_capacity) =
        (ctx.pool.limits.clone(), quota.map_or_else(Resources::unlimited, PoolQuota::capacity));
    for capacity in [&mut pool_capacity, &mut quota_capacity] {
        capacity.subtract(&inputs.snapshot.usage_totals.used_by_pool(ctx.id, |label| need(ctx.id, label)));
    }
    let mut cloud_capacity = if ctx.pool.ignore_provider_quota { Resources::unlimited() } else { facts.capacity() };
    cloud_capacity.subtract(&inputs.snapshot.usage_totals.used_by_provider(&ctx.id.provider, need));
    for capacity in [&mut pool_capacity, &mut quota_capacity, &mut cloud_capacity] {
        capacity.subtract(&reservations.pending_launches);
        capacity.subtract(&reservations.reserved_resources);
    }
    let mut idle = IdleNodeSelector { ctx, reservations, inputs, zone, selected: BTreeSet::new() };
    let mut placements = Vec::new();
    for label in &request.node_types {
        if let Some(node) = request.reuse.then(|| idle.select(label)).flatten() {
            placements.push(Placement::ReuseIdle(node));
            continue;
        }
        let one = facts.need(&ctx.id.pool, label);
        for capacity in [&mut pool_capacity, &mut quota_capacity, &mut cloud_capacity] {
            if let Some((resource, wanted, available)) = capacity.shortage(one) {
                return (placements, Some(Reason::InsufficientCapacity { resource, wanted, available }));
            }
            capacity.subtract(one);
        }
        placements.push(Placement::LaunchNew(label.clone()));
    }
    (placements, None)
}
