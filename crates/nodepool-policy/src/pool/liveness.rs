//! Pool: requests that idle nodes serve. Nodes of static hosts that require a liveness check are probed first.

use super::{Effect, LivenessResult, Pool};
use crate::inputs::Inputs;
use crate::request::handler::{HandlerStage, NodeRequestHandler};
use crate::scheduler::pool_context::PoolContext;
use crate::scheduler::reason::Reason;
use nodepool_model::records::ids::{LabelName, NodeId, RequestId};
use nodepool_model::records::request::Rank;
use nodepool_model::records::static_host::HostIdentity;
use nodepool_model::records::time::Seconds;
use nodepool_model::report::status::VerdictKind;

/// Time for which a host that failed a probe is used only if no other is idle.
const DEAD_HOST_MEMORY: Seconds = Seconds(300.0);

impl Pool {
    pub(super) fn accept(
        &mut self,
        id: &RequestId,
        nodes: Vec<NodeId>,
        ctx: &PoolContext<'_>,
        inputs: &Inputs<'_>,
        effects: &mut Vec<Effect>,
    ) {
        for node in &nodes {
            let stored = inputs.snapshot.node(node).expect("a verdict names only nodes of its snapshot");
            self.reservations.assign(node, &stored.record);
        }
        let (handler, probes) = NodeRequestHandler::launch(id.clone(), nodes, ctx, inputs);
        self.verdicts.record(id, VerdictKind::Accept, handler.reason(), inputs.now);
        if probes.is_empty() {
            let plan = handler.launches_complete(&self.reservations, inputs);
            effects.push(Effect::Fulfill(Box::new(plan.expect("the verdict was made on this very snapshot"))));
        }
        let request = inputs.snapshot.request(id).map(|stored| stored.record.clone());
        for (node, host) in probes {
            let index = handler.nodes.iter().position(|own| *own == node);
            if let Some(label) = index.and_then(|index| request.as_ref()?.node_types.get(index).cloned()) {
                self.keep_for_probed(&label, Some(host.clone()));
            }
            effects.push(Effect::Probe { request: id.clone(), node, host });
        }
        let existing = self.handlers.insert(id.clone(), handler);
        assert!(existing.is_none(), "two handlers for request {id}");
    }

    pub(super) fn probed(
        &mut self,
        request: &RequestId,
        node: &NodeId,
        answer: LivenessResult,
        inputs: &Inputs<'_>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let LivenessResult::Dead(_) = answer
            && let Some(stored) = inputs.snapshot.node(node)
        {
            self.dead_hosts.extend(HostIdentity::of(&stored.record).map(|host| (host, inputs.monotonic_now)));
            if stored.record.is_idle() && self.retiring.insert(node.clone()) {
                effects.push(Effect::Retire { node: node.clone(), version: stored.version });
            }
        }
        if let LivenessResult::Dead(why) | LivenessResult::NotChecked(why) = answer {
            if self.handlers.contains_key(request) {
                self.end_handler(request, None, inputs);
                self.verdicts.record(request, VerdictKind::Defer, Reason::DeadHost(why), inputs.now);
            }
            return effects;
        }
        let complete = self.handlers.get_mut(request).is_some_and(|handler| handler.probed(node));
        if !complete {
            return effects;
        }
        let handler = self.handlers.get_mut(request).expect("the handler has just been probed");
        match handler.launches_complete(&self.reservations, inputs) {
            Some(plan) => {
                handler.stage = HandlerStage::Fulfilling;
                let reason = handler.reason();
                self.verdicts.record(request, VerdictKind::Accept, reason, inputs.now);
                effects.push(Effect::Fulfill(Box::new(plan)));
            }
            None => self.end_handler(request, None, inputs),
        }
        effects
    }

    /// The labels and hosts of nodes that are being probed, by the rank of their requests. If a host is dead, its
    /// request takes the next node, so one is kept for it. The hosts are used last, like those that were dead recently.
    pub(super) fn probed_labels(&mut self, inputs: &Inputs<'_>) -> Vec<(Rank, LabelName, Option<HostIdentity>)> {
        let now = inputs.monotonic_now;
        self.dead_hosts.retain(|_, at| now - *at < DEAD_HOST_MEMORY);
        self.reservations.doubtful_hosts = self.dead_hosts.keys().cloned().collect();
        let mut labels = Vec::new();
        for handler in self.handlers.values() {
            let HandlerStage::Probing { open } = &handler.stage else { continue };
            let Some(request) = inputs.snapshot.request(&handler.id) else { continue };
            let requested = handler.nodes.iter().zip(&request.record.node_types);
            for (node, label) in requested.filter(|(node, _)| open.contains(*node)) {
                let host = inputs.snapshot.node(node).and_then(|node| HostIdentity::of(&node.record));
                labels.push((Rank::of(&handler.id, &request.record), label.clone(), host));
            }
        }
        labels.sort();
        labels
    }

    /// Keeps one node of the label for a request whose host is being probed, against requests of lower rank.
    pub(super) fn keep_for_probed(&mut self, label: &LabelName, host: Option<HostIdentity>) {
        self.reservations.reserve(label, 1);
        self.reservations.doubtful_hosts.extend(host);
    }
}
