//! Min-ready: the requests to create so that enough idle nodes of each label exist, and the way to finish these
//! requests.

use std::collections::{BTreeMap, BTreeSet};

use super::capacity::lacks_upload;
use crate::inputs::Inputs;
use crate::request::node_updates::deallocate_or_delete;
use nodepool_model::records::component::PoolComponent;
use nodepool_model::records::ids::{LabelName, LauncherId, ProviderName, RequestId};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::NodeChange;

/// Maximum number of open requests per label. Further requests follow when these have ended.
const MAX_OPEN_PER_LABEL: i64 = 1000;
/// Back-off of a label after its requests failed; it doubles with each failure.
const INITIAL_BACKOFF: Seconds = Seconds(1.0);
const MAX_BACKOFF: Seconds = Seconds(60.0);
/// Time after which a request whose creation got no answer is visible, even over a slow connection.
const LOST_ANSWER_TIMEOUT: Seconds = Seconds(10.0);

#[derive(Clone, Debug, PartialEq)]
pub enum MinReadyAction {
    /// One request for one node of this label.
    Submit(LabelName),
    /// The request has ended: deallocates its nodes and deletes the request.
    Finish { request: RequestId, nodes: Vec<NodeChange> },
}

/// The open min-ready requests of this process.
#[derive(Debug, Default)]
pub struct MinReady {
    open: BTreeMap<RequestId, LabelName>,
    /// Requests being created or finished.
    in_flight: BTreeMap<LabelName, usize>,
    finishing: BTreeSet<RequestId>,
    /// Requests that may have been created, by event id. The deadline for finding them starts with the first connected
    /// snapshot.
    unanswered: BTreeMap<String, (LabelName, Option<MonotonicTime>)>,
    backoff: BTreeMap<LabelName, (MonotonicTime, Seconds)>,
}

impl MinReady {
    pub fn plan(&mut self, own: &BTreeSet<LauncherId>, inputs: &Inputs<'_>) -> Vec<MinReadyAction> {
        let mut actions = Vec::new();
        if !inputs.snapshot.connected {
            return actions;
        }
        self.recover_lost_answers(inputs);
        self.finish_ended(inputs, &mut actions);
        for label in inputs.config.labels.values().filter(|label| label.min_ready > 0) {
            let busy = self.open.values().any(|open| *open == label.name) || self.in_flight.contains_key(&label.name);
            let paused = self.backoff.get(&label.name);
            let paused = paused.is_some_and(|(until, _)| *until > inputs.monotonic_now);
            if busy || paused || !can_be_launched(&label.name, own, inputs) {
                continue;
            }
            let missing = label.min_ready.saturating_sub(idle_count(&label.name, inputs) as i64);
            for _ in 0..missing.clamp(0, MAX_OPEN_PER_LABEL) {
                *self.in_flight.entry(label.name.clone()).or_insert(0) += 1;
                actions.push(MinReadyAction::Submit(label.name.clone()));
            }
        }
        actions
    }

    /// The creation of a request with this event id completed. `None`: it failed, or its answer was lost.
    pub fn submitted(&mut self, label: &LabelName, event: &str, request: Option<RequestId>, now: MonotonicTime) {
        if let Some(count) = self.in_flight.get_mut(label) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(label);
            }
        }
        match request {
            Some(request) => drop(self.open.insert(request, label.clone())),
            None => {
                self.unanswered.insert(event.to_owned(), (label.clone(), None));
                // An immediate retry would be rejected again.
                self.back_off(label, now);
            }
        }
    }

    fn back_off(&mut self, label: &LabelName, now: MonotonicTime) {
        let last = self.backoff.get(label).map_or(Seconds(INITIAL_BACKOFF.0 / 2.0), |(_, pause)| *pause);
        let pause = Seconds((last.0 * 2.0).min(MAX_BACKOFF.0));
        self.backoff.insert(label.clone(), (now + pause, pause));
    }

    pub fn finished(&mut self, request: &RequestId, done: bool) {
        self.finishing.remove(request);
        if done {
            self.open.remove(request);
        }
    }

    /// Time at which the next back-off of a label ends.
    pub fn due(&self, now: MonotonicTime) -> Option<MonotonicTime> {
        self.backoff.values().map(|(until, _)| *until).filter(|until| *until > now).min()
    }

    /// The open requests with their labels, for dumps.
    pub fn open_requests(&self) -> BTreeMap<&RequestId, &LabelName> {
        self.open.iter().collect()
    }

    /// Finds own requests whose creation answer was lost. No other process ends them before the session ends, which may
    /// take months.
    fn recover_lost_answers(&mut self, inputs: &Inputs<'_>) {
        if self.unanswered.is_empty() {
            return;
        }
        for (id, request) in inputs.snapshot.requests() {
            let event = request.record.event_id.as_ref();
            if let Some((label, _)) = event.and_then(|event| self.unanswered.remove(event)) {
                self.open.insert(id.clone(), label);
            }
        }
        // The deadline starts here, with the first search: the requests cannot be found while no connection exists,
        // however long that lasts.
        self.unanswered.retain(|_, (_, until)| {
            *until.get_or_insert(inputs.monotonic_now + LOST_ANSWER_TIMEOUT) > inputs.monotonic_now
        });
    }

    fn finish_ended(&mut self, inputs: &Inputs<'_>, actions: &mut Vec<MinReadyAction>) {
        let (mut removed, mut failed) = (Vec::new(), Vec::new());
        for (id, label) in &self.open {
            let Some(request) = inputs.snapshot.request(id) else {
                removed.push(id.clone());
                continue;
            };
            let fulfilled = request.record.state == RequestState::Fulfilled;
            // Unlocking is a change and triggers another pass.
            let locked = inputs.snapshot.nodes_allocated_to(id).any(|node| inputs.snapshot.is_node_locked(node));
            if !fulfilled && request.record.state != RequestState::Failed
                || locked
                || !self.finishing.insert(id.clone())
            {
                continue;
            }
            if fulfilled {
                self.backoff.remove(label);
            } else {
                failed.push(label.clone());
            }
            let nodes = inputs.snapshot.nodes_allocated_to(id).filter_map(|node| {
                let stored = inputs.snapshot.node(node)?;
                Some(stored.change(node.clone(), |record| deallocate_or_delete(record, inputs.now)))
            });
            actions.push(MinReadyAction::Finish { request: id.clone(), nodes: nodes.collect() });
        }
        for id in removed {
            self.open.remove(&id);
        }
        failed.iter().for_each(|label| self.back_off(label, inputs.monotonic_now));
    }
}

/// Number of nodes of a label that are idle, or will be as soon as the clean-up of this launcher releases them: ready
/// nodes of a deleted request. After a lost reply or a reconnect, the deletion of a min-ready request may be visible
/// before its node is idle, because the node has to be read.
fn idle_count(label: &LabelName, inputs: &Inputs<'_>) -> usize {
    let is_ours = |provider: &ProviderName| inputs.config.providers.contains_key(provider);
    let is_left = |node: &Node| {
        node.state == NodeState::Ready && node.labels.contains(label) && node.provider.as_ref().is_some_and(is_ours)
    };
    let left = inputs.snapshot.orphaned_nodes().filter(|(_, node)| is_left(&node.record)).count();
    inputs.snapshot.idle_count_of_all_pools(label) + left
}

/// Whether any pool can launch a node of this label. Static hosts cannot be launched: requests for more of them would
/// only fail. Whether pools of other launchers launch nodes is unknown, so these pools count.
fn can_be_launched(label: &LabelName, own: &BTreeSet<LauncherId>, inputs: &Inputs<'_>) -> bool {
    let ours = inputs.config.providers.values().any(|provider| {
        let facts = inputs
            .facts
            .get(&provider.name)
            .filter(|facts| facts.launch_config.is_some() && facts.refreshed_at.0 > 0.0);
        let mut pools = provider.pools.iter().filter(|(_, pool)| pool.labels.contains(label));
        facts.is_some_and(|facts| {
            pools.any(|(pool, _)| {
                facts.launch_label(pool, label).is_some_and(|label| {
                    label.unavailable.is_none() && lacks_upload(label.image.as_ref(), &provider.name, inputs).is_none()
                })
            })
        })
    });
    let is_foreign = |pool: &PoolComponent| pool.id.as_ref().is_some_and(|id| !own.contains(id));
    ours || inputs.snapshot.pools.serving(&[label].into()).any(is_foreign)
}

/// The record of a min-ready request.
pub fn request(label: &LabelName, event_id: String, now: Timestamp) -> NodeRequest {
    let mut request = NodeRequest::new(vec![label.clone()], nodepool_model::records::request::MIN_READY_REQUESTOR, now);
    request.reuse = false;
    request.event_id = Some(event_id);
    request
}
