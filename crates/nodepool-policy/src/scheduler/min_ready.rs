//! Min-ready: which requests to create so that enough idle nodes of each label wait, and what to do with them then.

use std::collections::{BTreeMap, BTreeSet};

use super::capacity::lacks_upload;
use crate::inputs::Inputs;
use crate::request::node_updates::deallocate_or_delete;
use nodepool_model::records::component::PoolComponent;
use nodepool_model::records::ids::{LabelName, LauncherId, RequestId};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::NodeChange;

/// Requests for one label at a time: the next ones follow when these have ended.
const MAX_OPEN_PER_LABEL: i64 = 1000;
/// A label whose nodes nobody could provide is asked for again after this time, and then after twice the time.
const INITIAL_BACKOFF: Seconds = Seconds(1.0);
const MAX_BACKOFF: Seconds = Seconds(60.0);
/// What was created without an answer is seen by then, also over a slow connection.
const LOST_ANSWER_TIMEOUT: Seconds = Seconds(10.0);

#[derive(Clone, Debug, PartialEq)]
pub enum MinReadyAction {
    /// One request for one node of this label.
    Submit(LabelName),
    /// The request has ended: its nodes become free and it goes.
    Finish { request: RequestId, nodes: Vec<NodeChange> },
}

/// The requests that this process has open for its labels.
#[derive(Debug, Default)]
pub struct MinReady {
    open: BTreeMap<RequestId, LabelName>,
    /// Requests being created or finished.
    in_flight: BTreeMap<LabelName, usize>,
    finishing: BTreeSet<RequestId>,
    /// Requests that may have been created, by their events, and until when they are looked for, once there is a picture to look at.
    unanswered: BTreeMap<String, (LabelName, Option<MonotonicTime>)>,
    backoff: BTreeMap<LabelName, (MonotonicTime, Seconds)>,
}

impl MinReady {
    pub fn plan(&mut self, own: &BTreeSet<LauncherId>, world: &Inputs<'_>) -> Vec<MinReadyAction> {
        let mut actions = Vec::new();
        if !world.snapshot.connected {
            return actions;
        }
        self.recover_lost_answers(world);
        self.finish_ended(world, &mut actions);
        for label in world.config.labels.values().filter(|label| label.min_ready > 0) {
            let busy = self.open.values().any(|open| *open == label.name) || self.in_flight.contains_key(&label.name);
            let paused = self.backoff.get(&label.name);
            let paused = paused.is_some_and(|(until, _)| *until > world.monotonic_now);
            if busy || paused || !can_be_launched(&label.name, own, world) {
                continue;
            }
            let missing = label.min_ready.saturating_sub(world.snapshot.idle_count_of_all_pools(&label.name) as i64);
            for _ in 0..missing.clamp(0, MAX_OPEN_PER_LABEL) {
                *self.in_flight.entry(label.name.clone()).or_insert(0) += 1;
                actions.push(MinReadyAction::Submit(label.name.clone()));
            }
        }
        actions
    }

    /// A request with this event was created; or it was not, or nobody knows.
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
                // What is refused is refused again at once.
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

    /// When a paused label may be asked for again.
    pub fn due(&self, now: MonotonicTime) -> Option<MonotonicTime> {
        self.backoff.values().map(|(until, _)| *until).filter(|until| *until > now).min()
    }

    /// For dumps: the requests that are open, by label.
    pub fn open_requests(&self) -> BTreeMap<&RequestId, &LabelName> {
        self.open.iter().collect()
    }

    /// Requests of ours that turn up after all. Nobody else ends them, and the session may last for months.
    fn recover_lost_answers(&mut self, world: &Inputs<'_>) {
        if self.unanswered.is_empty() {
            return;
        }
        for (id, request) in world.snapshot.requests() {
            let event = request.record.event_id.as_ref();
            if let Some((label, _)) = event.and_then(|event| self.unanswered.remove(event)) {
                self.open.insert(id.clone(), label);
            }
        }
        // Not before they were looked for: without a connection there is nothing to be seen, however long that takes.
        self.unanswered.retain(|_, (_, until)| {
            *until.get_or_insert(world.monotonic_now + LOST_ANSWER_TIMEOUT) > world.monotonic_now
        });
    }

    fn finish_ended(&mut self, world: &Inputs<'_>, actions: &mut Vec<MinReadyAction>) {
        let (mut removed, mut failed) = (Vec::new(), Vec::new());
        for (id, label) in &self.open {
            let Some(request) = world.snapshot.request(id) else {
                removed.push(id.clone());
                continue;
            };
            let fulfilled = request.record.state == RequestState::Fulfilled;
            // Its unlocking is a change and makes us look again.
            let locked = world.snapshot.nodes_allocated_to(id).any(|node| world.snapshot.is_node_locked(node));
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
            let nodes = world.snapshot.nodes_allocated_to(id).filter_map(|node| {
                let stored = world.snapshot.node(node)?;
                Some(stored.change(node.clone(), |record| deallocate_or_delete(record, world.now)))
            });
            actions.push(MinReadyAction::Finish { request: id.clone(), nodes: nodes.collect() });
        }
        for id in removed {
            self.open.remove(&id);
        }
        failed.iter().for_each(|label| self.back_off(label, world.monotonic_now));
    }
}

/// Could anybody make a new node of this label? Static hosts are there or not; asking for more of them only makes
/// requests that fail. Of other launchers' pools that is not known, so they count.
fn can_be_launched(label: &LabelName, own: &BTreeSet<LauncherId>, world: &Inputs<'_>) -> bool {
    let ours = world.config.providers.values().any(|provider| {
        let facts =
            world.facts.get(&provider.name).filter(|facts| facts.launch_config.is_some() && facts.refreshed_at.0 > 0.0);
        let mut pools = provider.pools.iter().filter(|(_, pool)| pool.labels.contains(label));
        facts.is_some_and(|facts| {
            pools.any(|(pool, _)| {
                facts.launch_label(pool, label).is_some_and(|known| {
                    known.unavailable.is_none() && lacks_upload(&known.image, &provider.name, world).is_none()
                })
            })
        })
    });
    let is_foreign = |pool: &PoolComponent| pool.id.as_ref().is_some_and(|id| !own.contains(id));
    ours || world.snapshot.pools.serving(&[label].into()).any(is_foreign)
}

/// The record of such a request.
pub fn request(label: &LabelName, event_id: String, now: Timestamp) -> NodeRequest {
    let mut request = NodeRequest::new(vec![label.clone()], nodepool_model::records::request::MIN_READY_REQUESTOR, now);
    request.reuse = false;
    request.event_id = Some(event_id);
    request
}
