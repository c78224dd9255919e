//! Pool: requests that need launched nodes, from claim to fulfilment.

use super::waiting::ZONE_BACKOFF;
use super::{Effect, Pool};
use crate::inputs::Inputs;
use crate::request::fulfillment::{Fulfillment, FulfillmentEffect, FulfillmentStage};
use crate::request::launch::{LaunchEffect, LaunchEvent, Suspension};
use crate::scheduler::pool_context::{Placement, PoolContext};
use crate::scheduler::reason::Reason;
use nodepool_driver::job::JobEvent;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::{MonotonicTime, Seconds};
use nodepool_model::report::status::VerdictKind;
use nodepool_model::snapshot::{Versioned, WriteError};

/// Time after which a write whose answer was lost is visible, even over a slow connection.
const LOST_ANSWER_TIMEOUT: Seconds = Seconds(10.0);

impl Pool {
    /// Accepts a request that needs at least one launched node.
    pub(crate) fn start_fulfillment(
        &mut self,
        id: &RequestId,
        request: &Versioned<NodeRequest>,
        placements: Vec<Placement>,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) -> Effect {
        self.assign_placements(id, &placements, ctx, inputs);
        let zone = self.zone_for(&placements, ctx, inputs);
        let (fulfillment, claim) = Fulfillment::claim(id, request, placements, zone, ctx, inputs);
        let nodes = claim.create.len();
        if fulfillment.lacks_capacity() {
            self.short_of_capacity.insert(id.clone());
        }
        self.verdicts.record(id, VerdictKind::Accept, Reason::Launching { nodes }, inputs.now);
        let existing = self.fulfillments.insert(id.clone(), fulfillment);
        assert!(existing.is_none(), "two fulfillments for request {id}");
        Effect::Claim(Box::new(claim))
    }

    /// Claims nodes for a waiting request, now that capacity is available.
    pub(crate) fn extend(
        &mut self,
        id: &RequestId,
        request: &NodeRequest,
        placements: Vec<Placement>,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) -> Effect {
        self.assign_placements(id, &placements, ctx, inputs);
        self.add_pending_usage(id, request, ctx, inputs);
        let known = self.fulfillments.get(id).and_then(|fulfillment| fulfillment.zone().map(str::to_owned));
        let zone = known.or_else(|| self.zone_for(&placements, ctx, inputs));
        let nodes = placements.iter().filter(|placement| placement.is_launch()).count();
        self.verdicts.record(id, VerdictKind::Accept, Reason::Launching { nodes }, inputs.now);
        let fulfillment = self.fulfillments.get_mut(id).expect("only an accepted request is extended");
        let (reuse, create) = fulfillment.extend(id, request, placements, zone, ctx, inputs);
        if !fulfillment.lacks_capacity() {
            self.short_of_capacity.remove(id);
        }
        Effect::Extend { request: id.clone(), reuse, create }
    }

    /// Reserves the nodes and resources that these placements take, because no snapshot shows them yet.
    fn assign_placements(
        &mut self,
        id: &RequestId,
        placements: &[Placement],
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) {
        let mut pending_launches = Resources::none();
        for placement in placements {
            match placement {
                Placement::ReuseIdle(node) => {
                    let stored = inputs.snapshot.node(node).expect("a verdict names only nodes of its snapshot");
                    self.reservations.assign(node, &stored.record);
                }
                Placement::LaunchNew(label) => pending_launches.add(ctx.hosts.facts.need(&self.id.pool, label)),
            }
        }
        self.reservations.add_pending_launch(&pending_launches);
        self.claiming.insert(id.clone(), pending_launches);
    }

    /// All new nodes of a request share a zone: that of the first reused node, else the next one in turn.
    fn zone_for(&mut self, placements: &[Placement], ctx: &PoolContext<'_>, inputs: &Inputs<'_>) -> Option<String> {
        let of_reused = placements.iter().find_map(|placement| match placement {
            Placement::ReuseIdle(node) => inputs.snapshot.node(node)?.record.az.clone(),
            Placement::LaunchNew(_) => None,
        });
        let known = ctx.hosts.facts.launch_config.as_ref().map_or(&[][..], |launch_config| &launch_config.zones);
        let zones = if ctx.pool.availability_zones.is_empty() { known } else { &ctx.pool.availability_zones };
        if of_reused.is_some() || zones.is_empty() {
            return of_reused;
        }
        self.next_zone = self.next_zone.wrapping_add(1);
        zones.get(self.next_zone % zones.len()).cloned()
    }

    /// Resources of claims in flight, which no snapshot shows yet.
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
        inputs: &Inputs<'_>,
    ) -> Vec<Effect> {
        let pending_launches = self.claiming.remove(id);
        let nodes = match answer {
            Ok(nodes) => nodes,
            Err(error) => {
                match error {
                    WriteError::Failed(_) => {
                        self.record_unconfirmed_claim(id, pending_launches.unwrap_or_default(), inputs)
                    }
                    _ => drop(self.pending_usage.remove(id)),
                }
                let revision = inputs.snapshot.revision;
                self.claim_failed(id, inputs);
                self.failed_at.insert(id.clone(), revision);
                self.verdicts.record(id, VerdictKind::Defer, Reason::WriteFailed(error.to_string()), inputs.now);
                let is_still_waiting = self.fulfillments.get(id).is_some_and(Fulfillment::is_waiting);
                return if self.draining && is_still_waiting { self.close(id, inputs) } else { Vec::new() };
            }
        };
        self.continue_fulfillment(id, nodes, inputs)
    }

    /// The answer to a claim was lost: the usage of the claim counts until snapshots must show it.
    pub(crate) fn record_unconfirmed_claim(&mut self, id: &RequestId, need: Resources, inputs: &Inputs<'_>) {
        self.unconfirmed_claims.push((inputs.monotonic_now + LOST_ANSWER_TIMEOUT, id.clone(), need));
    }

    /// Continues a request with these new nodes and those that it has; the request keeps waiting if nodes are still
    /// missing.
    pub(crate) fn continue_fulfillment(
        &mut self,
        id: &RequestId,
        nodes: Vec<NodeId>,
        inputs: &Inputs<'_>,
    ) -> Vec<Effect> {
        let rules = inputs.facts.get(&self.id.provider).and_then(|facts| facts.launch_config.clone());
        let Some(fulfillment) = self.fulfillments.get_mut(id) else { return Vec::new() };
        for node in &nodes {
            self.building.insert(node.clone(), id.clone());
        }
        let changes = fulfillment.claimed(nodes, rules.as_deref(), &self.id, inputs);
        if fulfillment.is_waiting() {
            self.pending_usage.remove(id);
            return if self.draining { self.close(id, inputs) } else { self.finish_complete(id, inputs) };
        }
        if changes.is_empty() || fulfillment.is_node_missing(inputs) {
            // A reload has just removed the labels, or the nodes were deleted in ZooKeeper.
            return self.close(id, inputs);
        }
        vec![Effect::Begin { request: id.clone(), nodes: changes }]
    }

    /// A request that was locked before keeps waiting with its earlier nodes; a new one was not accepted.
    fn claim_failed(&mut self, id: &RequestId, inputs: &Inputs<'_>) {
        let Some(fulfillment) =
            self.fulfillments.get_mut(id).filter(|fulfillment| fulfillment.stage == FulfillmentStage::Extending)
        else {
            return self.end_fulfillment(id);
        };
        let is_unallocated = |node: &NodeId| {
            let record = inputs.snapshot.node(node).map(|stored| &stored.record);
            record.is_none_or(|record| record.allocated_to.as_ref() != Some(id))
        };
        self.short_of_capacity.insert(id.clone());
        let before = fulfillment.nodes();
        fulfillment.extension_failed(is_unallocated);
        let remaining: Vec<NodeId> = fulfillment.nodes();
        for node in before.iter().filter(|node| !remaining.contains(node)) {
            self.reservations.release(node);
        }
    }

    pub(crate) fn begun(&mut self, id: &RequestId, answer: Result<(), WriteError>, inputs: &Inputs<'_>) -> Vec<Effect> {
        self.pending_usage.remove(id);
        if answer.is_err() {
            // Another process holds one of these locks: everything is released, and the rules for lost requests apply.
            return self.close(id, inputs);
        }
        let rules = inputs.facts.get(&self.id.provider).and_then(|facts| facts.launch_config.clone());
        let request = inputs.snapshot.request(id).map(|stored| stored.record.clone());
        let (Some(fulfillment), Some(rules), Some(request)) = (self.fulfillments.get_mut(id), rules, request) else {
            return self.close(id, inputs);
        };
        let launch_effects = fulfillment.begin_launches(&request, id, &rules, &self.id, inputs);
        self.next_due = earlier(self.next_due, fulfillment.due());
        let mut effects: Vec<Effect> =
            launch_effects.into_iter().filter_map(|(node, effect)| effect_of(node, effect)).collect();
        if self.has_met_outage {
            effects.extend(self.step_launches(id, || LaunchEvent::OutageBegan, inputs));
        }
        effects.extend(self.finish_complete(id, inputs));
        effects
    }

    pub(crate) fn job_update(&mut self, node: &NodeId, event: JobEvent, inputs: &Inputs<'_>) -> Vec<Effect> {
        self.step_launch(node, LaunchEvent::JobUpdate(event), inputs)
    }

    pub(crate) fn scanned(
        &mut self,
        node: &NodeId,
        attempt: u32,
        found: Result<Vec<String>, String>,
        inputs: &Inputs<'_>,
    ) -> Vec<Effect> {
        self.step_launch(node, LaunchEvent::Scanned(attempt, found), inputs)
    }

    pub(crate) fn saved(&mut self, node: &NodeId, is_written: bool, inputs: &Inputs<'_>) -> Vec<Effect> {
        let Some(request) = self.building.get(node).cloned() else { return Vec::new() };
        let Some(fulfillment) = self.fulfillments.get_mut(&request) else { return Vec::new() };
        let mut effects: Vec<Effect> = fulfillment
            .saved(node, is_written, inputs)
            .map(|change| Effect::Save(Box::new(change)))
            .into_iter()
            .collect();
        effects.extend(self.finish_complete(&request, inputs));
        effects
    }

    /// Handles due timeouts of launches.
    pub(crate) fn clock(&mut self, inputs: &Inputs<'_>) -> Vec<Effect> {
        let due = |fulfillment: &Fulfillment| fulfillment.due().is_some_and(|due| due <= inputs.monotonic_now);
        let nodes: Vec<NodeId> = self
            .fulfillments
            .values()
            .filter(|fulfillment| due(fulfillment))
            .flat_map(Fulfillment::launching)
            .collect();
        let effects = nodes.iter().flat_map(|node| self.step_launch(node, LaunchEvent::Clock, inputs)).collect();
        self.next_due = self.fulfillments.values().filter_map(Fulfillment::due).min();
        effects
    }

    /// Latest time at which `Event::Clock` is due. It may be earlier than necessary, because only a launch with an
    /// event updates it: thousands of launches may be in progress.
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

    /// Abandons launches whose request was deleted.
    pub(crate) fn abandon_unused(&mut self, inputs: &Inputs<'_>) -> Vec<Effect> {
        let unused: Vec<NodeId> =
            inputs.snapshot.orphaned_launches().filter(|node| self.building.contains_key(*node)).cloned().collect();
        unused.iter().flat_map(|node| self.step_launch(node, LaunchEvent::Abandon, inputs)).collect()
    }

    /// Handles the answer to the last write. After a failure, the clean-up finds the request.
    pub(crate) fn finished(&mut self, id: &RequestId, answer: Result<(), WriteError>, inputs: &Inputs<'_>) {
        let is_fulfilled =
            inputs.snapshot.request(id).is_some_and(|stored| stored.record.state == RequestState::Fulfilled);
        self.end_fulfillment(id);
        match answer {
            Ok(()) if is_fulfilled => {
                self.fulfilled_count += 1;
                self.forget(id);
            }
            Ok(()) => {}
            Err(error) => {
                self.failed_at.insert(id.clone(), inputs.snapshot.revision);
                let reason = Reason::WriteFailed(error.to_string());
                self.verdicts.record(id, VerdictKind::Defer, reason, inputs.now);
            }
        }
    }

    pub(crate) fn step_launch(&mut self, node: &NodeId, event: LaunchEvent, inputs: &Inputs<'_>) -> Vec<Effect> {
        let Some(request) = self.building.get(node).cloned() else { return Vec::new() };
        let Some(fulfillment) = self.fulfillments.get_mut(&request) else { return Vec::new() };
        let mut effects = Vec::new();
        for effect in fulfillment.step(node, event, inputs) {
            match effect {
                FulfillmentEffect::Launch(effect) => effects.extend(effect_of(node.clone(), effect)),
                FulfillmentEffect::Save(change) => effects.push(Effect::Save(change)),
            }
        }
        self.next_due = earlier(self.next_due, fulfillment.due());
        self.has_met_outage |=
            fulfillment.suspended().any(|(_, _, suspension)| matches!(suspension, Suspension::Outage(_)));
        effects.extend(self.finish_complete(&request, inputs));
        effects
    }

    /// Steps all launches of a request.
    pub(crate) fn step_launches(
        &mut self,
        id: &RequestId,
        event: impl Fn() -> LaunchEvent,
        inputs: &Inputs<'_>,
    ) -> Vec<Effect> {
        let nodes = self.fulfillments.get(id).map(Fulfillment::launching).unwrap_or_default();
        nodes.iter().flat_map(|node| self.step_launch(node, event(), inputs)).collect()
    }

    /// Ends a request whose launches have all ended, unless it waits for further nodes.
    pub(crate) fn finish_complete(&mut self, id: &RequestId, inputs: &Inputs<'_>) -> Vec<Effect> {
        let Some(fulfillment) = self.fulfillments.get(id).filter(|fulfillment| fulfillment.is_settled()) else {
            return Vec::new();
        };
        let (is_complete, is_waiting) = (fulfillment.launches_complete(), fulfillment.is_waiting());
        let may_end = !is_waiting || fulfillment.has_failed() || fulfillment.was_aborted();
        match self.release_aborted_nodes(id, inputs) {
            Some(effects) => effects,
            None if is_complete && may_end => self.finish(id, inputs),
            None => Vec::new(),
        }
    }

    /// Ends a request, or lets its launches end first. Those that are suspended would never end.
    pub(crate) fn close(&mut self, id: &RequestId, inputs: &Inputs<'_>) -> Vec<Effect> {
        let Some(fulfillment) = self.fulfillments.get_mut(id) else { return Vec::new() };
        if !fulfillment.has_open_launches() {
            return self.finish(id, inputs);
        }
        fulfillment.close();
        self.short_of_capacity.remove(id);
        self.step_launches(id, || LaunchEvent::GiveUp, inputs)
    }

    pub(crate) fn finish(&mut self, id: &RequestId, inputs: &Inputs<'_>) -> Vec<Effect> {
        let Some(fulfillment) = self.fulfillments.get_mut(id) else { return Vec::new() };
        let finish = fulfillment.finish(id, &self.launcher, inputs);
        let mut effects = Vec::new();
        if let Some(why) = fulfillment.failure() {
            let reason = Reason::LaunchFailed(why.to_owned());
            self.verdicts.record(id, VerdictKind::Decline, reason, inputs.now);
        }
        if fulfillment.was_aborted() {
            if let Some(zone) = fulfillment.missing_zone() {
                self.verdicts.record(id, VerdictKind::Defer, Reason::NoZone(zone.clone()), inputs.now);
                self.backoff_until.insert(id.clone(), inputs.monotonic_now + ZONE_BACKOFF);
            }
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
        // The fulfillment handles these itself.
        LaunchEffect::SaveId(_) | LaunchEffect::ForgetId | LaunchEffect::Finished(_) => None,
    }
}
