//! Pool: launches while the cloud takes none, or few. They are admitted in turn, suspended, resumed, or given up.

use super::{Effect, Pool};
use crate::inputs::Inputs;
use crate::request::launch::{LaunchEvent, Suspension};
use crate::scheduler::allocate::{Verdict, other_pools_could_serve};
use crate::scheduler::capacity::place_first;
use crate::scheduler::pool_context::{Placement, PoolContext};
use crate::scheduler::reason::Reason;
use nodepool_driver::health::CloudHealth;
use nodepool_model::records::ids::{LabelName, NodeId, RequestId};
use nodepool_model::records::request::{NodeRequest, Rank};
use nodepool_model::report::status::VerdictKind;

impl Pool {
    /// Called when a pass starts.
    pub(crate) fn begin_line(&mut self, inputs: &Inputs<'_>) {
        let facts = inputs.facts.get(&self.id.provider);
        let none = CloudHealth::default();
        let health = facts.map_or(&none, |facts| &facts.health);
        let fulfillments = &self.fulfillments;
        let undecided = |decision| fulfillments.values().flat_map(move |fulfillment| fulfillment.undecided(decision));
        self.line.begin_pass(health, undecided, &self.lines_of_others);
    }

    /// The first placements, as far as the line of launches lets them begin, with the reason why there are no more.
    pub(crate) fn admitted(&mut self, rank: &Rank, placements: Vec<Placement>) -> (Vec<Placement>, Option<Reason>) {
        let mut admitted = Vec::with_capacity(placements.len());
        for placement in placements {
            if let Placement::LaunchNew(label) = &placement
                && let Err(reason) = self.line.admit(rank, label)
            {
                return (admitted, Some(reason));
            }
            admitted.push(placement);
        }
        (admitted, None)
    }

    /// Applies the line of launches to a verdict. An accepted request may begin fewer launches, or none. A request
    /// that lacks capacity is not accepted to wait as long as no launch for it may begin.
    pub(crate) fn in_line(
        &mut self,
        verdict: Verdict,
        rank: &Rank,
        request: &NodeRequest,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) -> Verdict {
        match verdict {
            Verdict::Accept(placements) => match self.admitted(rank, placements) {
                (placements, None) => Verdict::Accept(placements),
                (placements, Some(_)) if placements.iter().any(Placement::is_launch) => Verdict::Accept(placements),
                (_, Some(reason)) => Verdict::Defer(reason),
            },
            Verdict::Defer(reason @ Reason::InsufficientCapacity { .. }) => {
                Verdict::Defer(self.obstacle_in_line(rank, request, ctx, inputs).unwrap_or(reason))
            }
            other => other,
        }
    }

    /// The reason why no launch may begin for a request that lacks capacity. If there is capacity for some of its
    /// nodes, it joins the line of a full cloud, or takes its turn.
    fn obstacle_in_line(
        &mut self,
        rank: &Rank,
        request: &NodeRequest,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
    ) -> Option<Reason> {
        if self.line.is_open() {
            return None;
        }
        let (placements, _) = place_first(request, ctx, &self.reservations, None, inputs);
        match placements.into_iter().find(Placement::is_launch) {
            Some(first) => self.admitted(rank, vec![first]).1,
            None => request.node_types.iter().find_map(|label| self.line.obstacle(rank, label)),
        }
    }

    /// Tells the launches that an outage of the cloud began or ended.
    pub(crate) fn follow_outage(&mut self, inputs: &Inputs<'_>) -> Vec<Effect> {
        let facts = inputs.facts.get(&self.id.provider);
        self.has_met_outage |= facts.is_some_and(|facts| facts.health.outage.is_some());
        if !self.has_met_outage {
            return Vec::new();
        }
        // A provider that a reload has replaced knows neither of the outage nor what a launch needs.
        let is_down = !facts.is_some_and(|facts| facts.health.outage.is_none() && facts.is_refreshed());
        self.has_met_outage = is_down;
        let event = || if is_down { LaunchEvent::OutageBegan } else { LaunchEvent::OutageEnded };
        let mut ranks: Vec<Rank> = Vec::with_capacity(self.fulfillments.len());
        let unknown =
            |id: &RequestId| Rank { priority: id.priority().to_owned(), relative_priority: 0, id: id.clone() };
        for id in self.fulfillments.keys() {
            ranks.push(inputs.snapshot.request(id).map_or_else(|| unknown(id), |stored| Rank::of(id, &stored.record)));
        }
        ranks.sort();
        let mut effects = Vec::new();
        for Rank { id, .. } in &ranks {
            let resumed = self.suspended_nodes(id, is_outage).len();
            effects.extend(self.step_launches(id, event, inputs));
            if !is_down && resumed > 0 {
                self.verdicts.record(id, VerdictKind::Accept, Reason::Launching { nodes: resumed }, inputs.now);
            }
        }
        effects
    }

    /// The requests with suspended launches. At a full cloud they take turns with requests that are not accepted yet.
    pub(crate) fn suspended_ranks(&self, inputs: &Inputs<'_>) -> Vec<Rank> {
        let requests =
            self.suspended_requests().filter_map(|id| inputs.snapshot.request(id).map(|stored| (id, stored)));
        let mut ranks: Vec<Rank> = requests.map(|(id, stored)| Rank::of(id, &stored.record)).collect();
        ranks.sort();
        ranks
    }

    /// Lets the suspended launches of a request probe the cloud again, if it is their turn.
    pub(crate) fn resume_suspended(&mut self, rank: &Rank, inputs: &Inputs<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let suspended = self.fulfillments.get(&rank.id).into_iter().flat_map(|fulfillment| fulfillment.suspended());
        let outage = suspended.map(|(_, _, suspension)| suspension).find_map(|suspension| match suspension {
            Suspension::Outage(error) => Some(error.clone()),
            Suspension::Refused(_) => None,
        });
        if let Some(error) = outage {
            self.verdicts.record(&rank.id, VerdictKind::Defer, Reason::Outage(error), inputs.now);
        }
        if !inputs.facts.get(&self.id.provider).is_some_and(|facts| facts.is_refreshed()) {
            return effects;
        }
        for (node, label) in self.suspended_nodes(&rank.id, |suspension| !is_outage(suspension)) {
            match self.line.admit(rank, &label) {
                Ok(()) => {
                    self.verdicts.record(&rank.id, VerdictKind::Accept, Reason::Launching { nodes: 1 }, inputs.now);
                    effects.extend(self.step_launch(&node, LaunchEvent::Probe, inputs));
                }
                Err(reason) => self.verdicts.record(&rank.id, VerdictKind::Defer, reason, inputs.now),
            }
        }
        effects
    }

    /// Gives up suspended launches, so that their requests are released: those that another pool could serve now, and
    /// probes whose request is not the first in line. A request with other nodes keeps them and waits.
    pub(crate) fn give_up_suspended(&mut self, inputs: &Inputs<'_>) -> Vec<Effect> {
        let mut given_up = Vec::new();
        for (id, fulfillment) in self.fulfillments.iter().filter(|(_, fulfillment)| fulfillment.is_settled()) {
            if fulfillment.has_usable_nodes() || fulfillment.has_progressing_launches() {
                continue;
            }
            let Some(request) = inputs.snapshot.request(id) else { continue };
            let is_unwanted = |suspension: &Suspension, label: &LabelName| {
                let is_first = || self.line.is_first(&Rank::of(id, &request.record), label);
                matches!(suspension, Suspension::Refused(_)) && !is_first()
            };
            let has_instance = fulfillment.launches().any(|(_, launch)| launch.external_id().is_some());
            let mut suspended = fulfillment.suspended().peekable();
            let may_be_served = suspended.peek().is_some()
                && !has_instance
                && other_pools_could_serve(&request.record, &self.launcher, inputs);
            if may_be_served || suspended.any(|(_, label, suspension)| is_unwanted(suspension, label)) {
                given_up.push(id.clone());
            }
        }
        given_up.iter().flat_map(|id| self.close(id, inputs)).collect()
    }

    /// Requests with suspended launches.
    pub(crate) fn suspended_requests(&self) -> impl Iterator<Item = &RequestId> {
        let settled = self.fulfillments.iter().filter(|(_, fulfillment)| fulfillment.is_settled());
        settled.filter(|(_, fulfillment)| fulfillment.suspended().next().is_some()).map(|(id, _)| id)
    }

    fn suspended_nodes(&self, id: &RequestId, is_wanted: impl Fn(&Suspension) -> bool) -> Vec<(NodeId, LabelName)> {
        let suspended = self.fulfillments.get(id).into_iter().flat_map(|fulfillment| fulfillment.suspended());
        let wanted = suspended.filter(|(_, _, suspension)| is_wanted(suspension));
        wanted.map(|(node, label, _)| (node.clone(), label.clone())).collect()
    }
}

fn is_outage(suspension: &Suspension) -> bool {
    matches!(suspension, Suspension::Outage(_))
}
