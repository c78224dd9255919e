//! The part of a pool's mind that minds requests with nodes to be built: from the claim over the launches to the end.

use super::waiting::QUOTA_BACKOFF;
use super::{Effect, Pool};
use crate::inputs::Inputs;
use crate::request::fulfillment::{Fulfillment, FulfillmentEffect, FulfillmentStage};
use crate::request::launch::{LaunchEffect, LaunchEvent};
use crate::scheduler::pool_context::{Placement, PoolContext};
use crate::scheduler::reason::Reason;
use nodepool_driver::job::JobEvent;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::{MonotonicTime, Seconds};
use nodepool_model::report::status::VerdictKind;
use nodepool_model::snapshot::{Versioned, WriteError};

/// What was written without an answer is seen by then, also over a slow connection.
const LOST_ANSWER_TIMEOUT: Seconds = Seconds(10.0);

impl Pool {
    /// Takes a request up of which at least one node has to be built.
    pub(crate) fn start_fulfillment(
        &mut self,
        id: &RequestId,
        request: &Versioned<NodeRequest>,
        placements: Vec<Placement>,
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
    ) -> Effect {
        self.assign_placements(id, &placements, ctx, world);
        let zone = self.zone_for(&placements, ctx, world);
        let (fulfillment, claim) = Fulfillment::claim(id, request, placements, zone, ctx, world);
        let nodes = claim.create.len();
        self.verdicts.record(id, VerdictKind::Accept, Reason::Launching { nodes }, world.now);
        let earlier = self.fulfillments.insert(id.clone(), fulfillment);
        assert!(earlier.is_none(), "two assemblies for request {id}");
        Effect::Claim(Box::new(claim))
    }

    /// Takes for a request that has waited what there is room for now.
    pub(crate) fn extend(
        &mut self,
        id: &RequestId,
        request: &NodeRequest,
        placements: Vec<Placement>,
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
    ) -> Effect {
        self.assign_placements(id, &placements, ctx, world);
        self.add_pending_usage(id, request, ctx, world);
        let known = self.fulfillments.get(id).and_then(|assembly| assembly.zone().map(str::to_owned));
        let zone = known.or_else(|| self.zone_for(&placements, ctx, world));
        let nodes = placements.iter().filter(|choice| matches!(choice, Placement::LaunchNew(_))).count();
        self.verdicts.record(id, VerdictKind::Accept, Reason::Launching { nodes }, world.now);
        let fulfillment = self.fulfillments.get_mut(id).expect("only a request that was taken up is extended");
        self.short_of_capacity.remove(id);
        let (reuse, create) = fulfillment.extend(id, request, placements, zone, ctx, world);
        Effect::Extend { request: id.clone(), reuse, create }
    }

    /// What these choices take is not there for others, though no picture shows it yet.
    fn assign_placements(
        &mut self,
        id: &RequestId,
        placements: &[Placement],
        ctx: &PoolContext<'_>,
        world: &Inputs<'_>,
    ) {
        let mut pending_launches = Resources::none();
        for placement in placements {
            match placement {
                Placement::ReuseIdle(node) => {
                    let stored = world.snapshot.node(node).expect("a verdict names only nodes of its snapshot");
                    self.reservations.assign(node, &stored.record);
                }
                Placement::LaunchNew(label) => pending_launches.add(ctx.hosts.facts.need(&self.id.pool, label)),
            }
        }
        self.reservations.add_pending_launch(&pending_launches);
        self.claiming.insert(id.clone(), pending_launches);
    }

    /// All new nodes of a request share a zone: that of the first reused node, else the next one in turn.
    fn zone_for(&mut self, placements: &[Placement], ctx: &PoolContext<'_>, world: &Inputs<'_>) -> Option<String> {
        let of_reused = placements.iter().find_map(|choice| match choice {
            Placement::ReuseIdle(node) => world.snapshot.node(node)?.record.az.clone(),
            Placement::LaunchNew(_) => None,
        });
        let known = ctx.hosts.facts.launch_config.as_ref().map_or(&[][..], |launching| &launching.zones);
        let zones = if ctx.pool.availability_zones.is_empty() { known } else { &ctx.pool.availability_zones };
        if of_reused.is_some() || zones.is_empty() {
            return of_reused;
        }
        self.next_zone = self.next_zone.wrapping_add(1);
        zones.get(self.next_zone % zones.len()).cloned()
    }

    /// What nodes of claims under way take; no picture shows them yet.
    pub(crate) fn pending_need(&self) -> Resources {
        let mut total = Resources::none();
        self.claiming
            .values()
            .chain(self.unconfirmed_claims.iter().map(|(_, _, need)| need))
            .for_each(|need| total.add(need));
        total
    }

    pub(crate) fn claimed(
        &mut self,
        id: &RequestId,
        answer: Result<Vec<NodeId>, WriteError>,
        world: &Inputs<'_>,
    ) -> Vec<Effect> {
        let pending_launches = self.claiming.remove(id);
        let nodes = match answer {
            Ok(nodes) => nodes,
            Err(error) => {
                match error {
                    WriteError::Failed(_) => {
                        self.record_unconfirmed_claim(id, pending_launches.unwrap_or_default(), world)
                    }
                    _ => drop(self.pending_usage.remove(id)),
                }
                let revision = world.snapshot.revision;
                self.claim_failed(id, world);
                self.failed_at.insert(id.clone(), revision);
                self.verdicts.record(id, VerdictKind::Defer, Reason::WriteFailed(error.to_string()), world.now);
                let is_still_waiting = self.fulfillments.get(id).is_some_and(Fulfillment::is_waiting);
                return if self.draining && is_still_waiting { self.finish(id, world) } else { Vec::new() };
            }
        };
        self.continue_fulfillment(id, nodes, world)
    }

    /// Nobody knows what came of a claim.
    pub(crate) fn record_unconfirmed_claim(&mut self, id: &RequestId, need: Resources, world: &Inputs<'_>) {
        self.unconfirmed_claims.push((world.monotonic_now + LOST_ANSWER_TIMEOUT, id.clone(), need));
    }

    /// With these new nodes, and what else it has; it waits on where that is not all.
    pub(crate) fn continue_fulfillment(
        &mut self,
        id: &RequestId,
        nodes: Vec<NodeId>,
        world: &Inputs<'_>,
    ) -> Vec<Effect> {
        let rules = world.facts.get(&self.id.provider).and_then(|facts| facts.launch_config.clone());
        let Some(fulfillment) = self.fulfillments.get_mut(id) else { return Vec::new() };
        for node in &nodes {
            self.building.insert(node.clone(), id.clone());
        }
        let changes = fulfillment.claimed(nodes, rules.as_deref(), &self.id, world);
        if fulfillment.is_waiting() {
            self.pending_usage.remove(id);
            return if self.draining { self.finish(id, world) } else { Vec::new() };
        }
        if changes.is_empty() || fulfillment.is_node_missing(world) {
            // The configuration lost their labels in this very moment, or ZooKeeper them.
            return self.finish(id, world);
        }
        vec![Effect::Begin { request: id.clone(), nodes: changes }]
    }

    /// A request that has its lock waits on, with what it had before; another one was not taken up.
    fn claim_failed(&mut self, id: &RequestId, world: &Inputs<'_>) {
        let Some(fulfillment) =
            self.fulfillments.get_mut(id).filter(|assembly| assembly.stage == FulfillmentStage::Extending)
        else {
            return self.end_fulfillment(id);
        };
        let is_back = |node: &NodeId| {
            let record = world.snapshot.node(node).map(|stored| &stored.record);
            record.is_none_or(|record| record.allocated_to.as_ref() != Some(id))
        };
        self.short_of_capacity.insert(id.clone());
        let had = fulfillment.nodes();
        fulfillment.extension_failed(is_back);
        let has: Vec<NodeId> = fulfillment.nodes();
        for node in had.iter().filter(|node| !has.contains(node)) {
            self.reservations.release(node);
        }
    }

    pub(crate) fn begun(&mut self, id: &RequestId, answer: Result<(), WriteError>, world: &Inputs<'_>) -> Vec<Effect> {
        self.pending_usage.remove(id);
        if answer.is_err() {
            // Somebody else holds a lock of ours: everything is given back, and the rules for lost requests apply.
            return self.finish(id, world);
        }
        let rules = world.facts.get(&self.id.provider).and_then(|facts| facts.launch_config.clone());
        let request = world.snapshot.request(id).map(|stored| stored.record.clone());
        let (Some(fulfillment), Some(rules), Some(request)) = (self.fulfillments.get_mut(id), rules, request) else {
            return self.finish(id, world);
        };
        let launch_effects = fulfillment.begin_launches(&request, id, &rules, &self.id, world);
        self.next_due = earlier(self.next_due, fulfillment.due());
        let mut effects: Vec<Effect> =
            launch_effects.into_iter().filter_map(|(node, ask)| effect_of(node, ask)).collect();
        effects.extend(self.finish_complete(id, world));
        effects
    }

    pub(crate) fn job_update(&mut self, node: &NodeId, event: JobEvent, world: &Inputs<'_>) -> Vec<Effect> {
        self.step_launch(node, LaunchEvent::JobUpdate(event), world)
    }

    pub(crate) fn scanned(
        &mut self,
        node: &NodeId,
        attempt: u32,
        found: Result<Vec<String>, String>,
        world: &Inputs<'_>,
    ) -> Vec<Effect> {
        self.step_launch(node, LaunchEvent::Scanned(attempt, found), world)
    }

    pub(crate) fn saved(&mut self, node: &NodeId, is_written: bool, world: &Inputs<'_>) -> Vec<Effect> {
        let Some(request) = self.building.get(node).cloned() else { return Vec::new() };
        let Some(fulfillment) = self.fulfillments.get_mut(&request) else { return Vec::new() };
        let mut effects: Vec<Effect> = fulfillment
            .saved(node, is_written, world)
            .map(|change| Effect::Save(Box::new(change)))
            .into_iter()
            .collect();
        effects.extend(self.finish_complete(&request, world));
        effects
    }

    /// Time has passed.
    pub(crate) fn clock(&mut self, world: &Inputs<'_>) -> Vec<Effect> {
        let due = |launches: &Fulfillment| launches.due().is_some_and(|due| due <= world.monotonic_now);
        let nodes: Vec<NodeId> =
            self.fulfillments.values().filter(|assembly| due(assembly)).flat_map(Fulfillment::launching).collect();
        let effects = nodes.iter().flat_map(|node| self.step_launch(node, LaunchEvent::Clock, world)).collect();
        self.next_due = self.fulfillments.values().filter_map(Fulfillment::due).min();
        effects
    }

    /// When `Event::Clock` is wanted at the latest. It may come too soon: of thousands of launches only the one that
    /// something happens to is looked at.
    pub fn due(&self) -> Option<MonotonicTime> {
        let counted = self.unconfirmed_claims.iter().map(|(until, ..)| *until);
        self.backoff_until.values().copied().chain(self.next_due).chain(counted).min()
    }

    pub(crate) fn expire(&mut self, now: MonotonicTime) {
        self.backoff_until.retain(|_, until| *until > now);
        for (_, request, _) in self.unconfirmed_claims.extract_if(.., |(until, ..)| *until <= now) {
            if !self.claiming.contains_key(&request) && !self.handlers.contains_key(&request) {
                self.pending_usage.remove(&request);
            }
        }
    }

    /// R43: requests that are gone want no nodes.
    pub(crate) fn abandon_unused(&mut self, world: &Inputs<'_>) -> Vec<Effect> {
        let unused: Vec<NodeId> =
            world.snapshot.orphaned_launches().filter(|node| self.building.contains_key(*node)).cloned().collect();
        unused.iter().flat_map(|node| self.step_launch(node, LaunchEvent::Abandon, world)).collect()
    }

    /// The request is written and everything given back, or somebody else will find it.
    pub(crate) fn finished(&mut self, id: &RequestId, answer: Result<(), WriteError>, world: &Inputs<'_>) {
        let is_fulfilled =
            world.snapshot.request(id).is_some_and(|stored| stored.record.state == RequestState::Fulfilled);
        self.end_fulfillment(id);
        match answer {
            Ok(()) if is_fulfilled => {
                self.fulfilled_count += 1;
                self.forget(id);
            }
            Ok(()) => {}
            Err(error) => {
                self.failed_at.insert(id.clone(), world.snapshot.revision);
                let reason = Reason::WriteFailed(error.to_string());
                self.verdicts.record(id, VerdictKind::Defer, reason, world.now);
            }
        }
    }

    fn step_launch(&mut self, node: &NodeId, event: LaunchEvent, world: &Inputs<'_>) -> Vec<Effect> {
        let Some(request) = self.building.get(node).cloned() else { return Vec::new() };
        let Some(fulfillment) = self.fulfillments.get_mut(&request) else { return Vec::new() };
        let mut effects = Vec::new();
        for effect in fulfillment.step(node, event, world) {
            match effect {
                FulfillmentEffect::Launch(ask) => effects.extend(effect_of(node.clone(), ask)),
                FulfillmentEffect::Save(change) => effects.push(Effect::Save(change)),
            }
        }
        self.next_due = earlier(self.next_due, fulfillment.due());
        effects.extend(self.finish_complete(&request, world));
        effects
    }

    fn finish_complete(&mut self, id: &RequestId, world: &Inputs<'_>) -> Vec<Effect> {
        if !self.fulfillments.get(id).is_some_and(Fulfillment::launches_complete) {
            return Vec::new();
        }
        self.release_aborted_nodes(id, world).unwrap_or_else(|| self.finish(id, world))
    }

    pub(crate) fn finish(&mut self, id: &RequestId, world: &Inputs<'_>) -> Vec<Effect> {
        let Some(fulfillment) = self.fulfillments.get_mut(id) else { return Vec::new() };
        let finish = fulfillment.finish(id, &self.launcher, world);
        let mut effects = Vec::new();
        if let Some(why) = fulfillment.failure() {
            let reason = Reason::LaunchFailed(why.to_owned());
            self.verdicts.record(id, VerdictKind::Decline, reason, world.now);
        }
        if fulfillment.was_aborted() {
            self.backoff_until.insert(id.clone(), world.monotonic_now + QUOTA_BACKOFF);
            effects.push(Effect::Refresh);
        }
        effects.push(Effect::Finish { request: id.clone(), finish: Box::new(finish) });
        effects
    }

    pub(crate) fn end_fulfillment(&mut self, id: &RequestId) {
        let Some(fulfillment) = self.fulfillments.remove(id) else { return };
        if self.unconfirmed_claims.iter().all(|(_, lost, _)| lost != id) {
            self.pending_usage.remove(id);
        }
        self.short_of_capacity.remove(id);
        for node in fulfillment.nodes() {
            self.reservations.release(&node);
            self.building.remove(&node);
        }
    }
}

fn earlier(one: Option<MonotonicTime>, other: Option<MonotonicTime>) -> Option<MonotonicTime> {
    one.into_iter().chain(other).min()
}

fn effect_of(node: NodeId, effect: LaunchEffect) -> Option<Effect> {
    match effect {
        LaunchEffect::Submit(job) => Some(Effect::Submit { node, job }),
        LaunchEffect::Abandon => Some(Effect::Abandon { node }),
        LaunchEffect::Scan(target) => Some(Effect::Scan { node, target }),
        LaunchEffect::ShowConsole { external_id, text } => Some(Effect::ShowConsole { node, external_id, text }),
        LaunchEffect::Report { result, took, zone } => Some(Effect::Report { node, result, took, zone }),
        // An assembly takes these itself.
        LaunchEffect::SaveId(_) | LaunchEffect::Finished(_) => None,
    }
}
