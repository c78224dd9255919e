//! Whether there is room for nodes that are launched: the limits of cloud and pool, and what is used and kept of them.

use std::collections::{BTreeMap, BTreeSet};

use super::pool_context::{Placement, PoolContext, Reservations};
use super::reason::Reason;
use crate::inputs::Inputs;
use nodepool_driver::facts::{LabelImage, Unavailable};
use nodepool_model::records::ids::{LabelName, NodeId, PoolId, ProviderName};
use nodepool_model::records::request::NodeRequest;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Timestamp;

/// R31 for nodes that are launched: labels that cannot work here, images that are missing, and what never fits.
pub fn launch_decline_reasons(request: &NodeRequest, ctx: &PoolContext<'_>, world: &Inputs<'_>) -> Vec<Reason> {
    let facts = &ctx.hosts.facts;
    if let Some(Unavailable::Permanent(why)) = &facts.unavailable {
        return vec![Reason::OutOfService(why.clone())];
    }
    let trouble = |name: &LabelName| {
        let label = facts.launch_label(&ctx.id.pool, name)?;
        label.unavailable.clone().or_else(|| lacks_upload(&label.image, &ctx.id.provider, world))
    };
    let (mut broken, mut missing) = ((Vec::new(), None), (Vec::new(), None));
    for label in request.distinct_labels() {
        let (labels, why, text) = match trouble(label) {
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
    let of_cloud =
        (!ctx.pool.ignore_provider_quota).then(|| facts.max_capacity()).and_then(|most| most.shortage(&need));
    match ctx.pool.limits.shortage(&need).or(of_cloud) {
        Some((resource, wanted, limit)) => vec![Reason::NeverFits { resource, wanted, limit }],
        None => Vec::new(),
    }
}

/// An image of the builder that has not been uploaded to this provider.
pub(crate) fn lacks_upload(image: &LabelImage, provider: &ProviderName, world: &Inputs<'_>) -> Option<Unavailable> {
    let LabelImage::Disk(name) = image else { return None };
    let upload = world.snapshot.images.newest_upload(provider, name);
    upload.is_none().then(|| Unavailable::Temporary(format!("image {name} has not been uploaded to this provider")))
}

/// How many idle nodes of each label a request takes, whether there is room for the others or not.
pub fn reusable<'a>(
    request: &'a NodeRequest,
    ctx: &PoolContext<'_>,
    reservations: &Reservations,
    zone: Option<&str>,
    world: &Inputs<'_>,
) -> BTreeMap<&'a LabelName, usize> {
    let mut idle = IdleNodeSelector { ctx, reservations, world, zone, selected: BTreeSet::new() };
    let mut selected = BTreeMap::new();
    for label in request.node_types.iter().filter(|_| request.reuse) {
        if idle.select(label).is_some() {
            *selected.entry(label).or_insert(0) += 1;
        }
    }
    selected
}

/// Idle nodes that go to one request, one after the other: all of one zone, that of the first.
struct IdleNodeSelector<'a> {
    ctx: &'a PoolContext<'a>,
    reservations: &'a Reservations,
    world: &'a Inputs<'a>,
    zone: Option<&'a str>,
    selected: BTreeSet<NodeId>,
}

impl IdleNodeSelector<'_> {
    fn select(&mut self, label: &LabelName) -> Option<NodeId> {
        let snapshot = self.world.snapshot;
        let is_free = |id: &&NodeId| {
            !self.selected.contains(*id) && !self.reservations.is_assigned(id) && !snapshot.is_node_locked(id)
        };
        let zone_of = |id: &NodeId| snapshot.node(id).and_then(|node| node.record.az.as_deref());
        let fits = |id: &&NodeId| self.zone.is_none() || zone_of(id) == self.zone;
        let id = snapshot.idle_nodes(self.ctx.id, label).filter(is_free).find(fits)?.clone();
        self.zone = self.zone.or(zone_of(&id));
        self.selected.insert(id.clone());
        Some(id)
    }
}

/// Idle nodes where there are any and the request takes them, new ones otherwise as long as there is room. Where a zone is given
/// the nodes are of that.
pub fn place(
    request: &NodeRequest,
    ctx: &PoolContext<'_>,
    reservations: &Reservations,
    zone: Option<&str>,
    world: &Inputs<'_>,
) -> Result<Vec<Placement>, Reason> {
    let facts = &ctx.hosts.facts;
    if facts.refreshed_at == Timestamp::default() {
        return Err(Reason::NotRefreshed(facts.unavailable.as_ref().map(|trouble| trouble.reason().to_owned())));
    }
    let need = |pool: &PoolId, label: &LabelName| facts.need(&pool.pool, label);
    let mut pool_capacity = ctx.pool.limits.clone();
    pool_capacity.subtract(&world.snapshot.usage_totals.used_by_pool(ctx.id, |label| need(ctx.id, label)));
    let mut cloud_capacity = if ctx.pool.ignore_provider_quota { Resources::unlimited() } else { facts.capacity() };
    cloud_capacity.subtract(&world.snapshot.usage_totals.used_by_provider(&ctx.id.provider, need));
    for capacity in [&mut pool_capacity, &mut cloud_capacity] {
        capacity.subtract(&reservations.pending_launches);
        capacity.subtract(&reservations.reserved_resources);
    }
    let mut idle = IdleNodeSelector { ctx, reservations, world, zone, selected: BTreeSet::new() };
    let mut placements = Vec::new();
    for label in &request.node_types {
        if let Some(node) = request.reuse.then(|| idle.select(label)).flatten() {
            placements.push(Placement::ReuseIdle(node));
            continue;
        }
        let one = facts.need(&ctx.id.pool, label);
        for capacity in [&mut pool_capacity, &mut cloud_capacity] {
            if let Some((resource, wanted, left)) = capacity.shortage(one) {
                return Err(Reason::InsufficientCapacity { resource, wanted, available: left });
            }
            capacity.subtract(one);
        }
        placements.push(Placement::LaunchNew(label.clone()));
    }
    Ok(placements)
}
