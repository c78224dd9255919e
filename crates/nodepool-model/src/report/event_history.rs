//! Event history since the start of the process: transitions of nodes and requests, counts of nodes by state, and the
//! last ended requests. It is bounded: the oldest entries are dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;

use crate::records::ids::{NodeId, RequestId};
use crate::records::time::{Seconds, Timestamp};
use crate::snapshot::ended_request::{EndedRequest, RequestOutcome, is_open, shortened};
use crate::snapshot::transition::{StateChange, Transition};
use crate::snapshot::{Snapshot, nodes_by_state};

/// Maximum number of transitions. Each takes some 120 bytes, without shared names.
const MAX_EVENTS: usize = 100_000;
/// Interval between two counts.
pub const COUNT_INTERVAL: Seconds = Seconds(15.0);
/// Maximum number of counts: six hours.
const MAX_COUNTS: usize = 1440;
/// Maximum number of ended requests. Each takes less than 6 kB, and usually some 500 bytes.
pub const MAX_ENDED_REQUESTS: usize = 50;

pub struct EventHistory {
    since: Timestamp,
    events: VecDeque<Event>,
    counts: VecDeque<StateCounts>,
    ended: VecDeque<Arc<EndedEntry>>,
    /// Number of the next ended request.
    next_ended: u64,
}

/// One transition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    pub at: Timestamp,
    /// Time by the clock of this process; `at` is a record's time and may be earlier.
    #[serde(skip)]
    recorded_at: Timestamp,
    #[serde(flatten)]
    pub change: StateChange,
}

/// Number of nodes in each state, in the order of `NodeState::ALL`, and number of open requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StateCounts {
    pub at: Timestamp,
    pub nodes: Vec<u32>,
    pub open: u32,
}

/// An ended request, with its number in the order of recording.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedEntry {
    pub number: u64,
    /// Time from the record, or of the observed deletion.
    pub at: Timestamp,
    pub request: EndedRequest,
}

impl EventHistory {
    pub fn new(now: Timestamp) -> Self {
        Self { since: now, events: VecDeque::new(), counts: VecDeque::new(), ended: VecDeque::new(), next_ended: 0 }
    }

    /// Time since which the history is complete.
    pub fn since(&self) -> Timestamp {
        match self.events.front() {
            Some(first) if self.events.len() == MAX_EVENTS => first.recorded_at,
            _ => self.since,
        }
    }

    /// Records the differences between two snapshots if the transitions between them were not observed.
    pub fn record_differences(&mut self, older: &Snapshot, newer: &Snapshot, now: Timestamp) {
        let of_request = |id: &RequestId| {
            let (before, after) = (older.request(id), newer.request(id));
            let (before, after) = (before.map(|old| &*old.record), after.map(|new| &*new.record));
            let mut transition = Transition::of_request(id, before, after, newer)?;
            if let Some(ended) = transition.ended.as_mut().filter(|_| after.is_none()) {
                ended.outcome = RequestOutcome::Unknown;
            }
            Some(transition)
        };
        let changed = newer.requests_changed_since(older);
        let mut transitions: Vec<Transition> = changed.iter().filter_map(of_request).collect();
        // Requests that had ended before the start of this process are listed in the order of their ends.
        transitions.sort_by_key(|transition| transition.at.unwrap_or(now));
        transitions.into_iter().for_each(|transition| self.record(transition, now));
        for id in newer.nodes_changed_since(older) {
            let (before, after) = (older.node(&id), newer.node(&id));
            let transition = Transition::of_node(&id, before.map(|old| &*old.record), after.map(|new| &*new.record));
            transition.into_iter().for_each(|transition| self.record(transition, now));
        }
    }

    pub fn record(&mut self, transition: Transition, now: Timestamp) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        let at = transition.at.unwrap_or(now);
        let mut change = transition.change;
        match &mut change {
            StateChange::Node { provider, request, .. } => {
                *provider = provider.as_ref().map(shortened);
                *request = request.as_ref().map(shortened);
            }
            StateChange::Request { label, .. } => *label = label.as_ref().map(shortened),
        }
        self.events.push_back(Event { at, recorded_at: now, change });
        if let Some(request) = transition.ended {
            self.record_ended(*request, at);
        }
    }

    fn record_ended(&mut self, request: EndedRequest, at: Timestamp) {
        if self.ended.len() >= MAX_ENDED_REQUESTS {
            self.ended.pop_front();
        }
        self.ended.push_back(Arc::new(EndedEntry { number: self.next_ended, at, request }));
        self.next_ended += 1;
    }

    /// The last ended requests, in the order of recording.
    pub fn ended_requests(&self) -> Vec<Arc<EndedEntry>> {
        self.ended.iter().cloned().collect()
    }

    /// Number of ended requests since the start, including those that were dropped.
    pub fn ended_count(&self) -> u64 {
        self.next_ended
    }

    /// Records the current counts; called every [`COUNT_INTERVAL`].
    pub fn record_counts(&mut self, snapshot: &Snapshot, now: Timestamp) {
        if self.counts.len() >= MAX_COUNTS {
            self.counts.pop_front();
        }
        let nodes = nodes_by_state(snapshot).into_iter().map(|(_, number)| number as u32).collect();
        let open = snapshot.requests().filter(|(_, stored)| is_open(stored.record.state)).count() as u32;
        self.counts.push_back(StateCounts { at: now, nodes, open });
    }

    pub fn counts(&self) -> impl Iterator<Item = &StateCounts> {
        self.counts.iter()
    }

    /// Events of one node, the oldest first.
    pub fn of_node(&self, id: &NodeId) -> Vec<&Event> {
        self.events
            .iter()
            .filter(|event| matches!(&event.change, StateChange::Node { node, .. } if node == id))
            .collect()
    }

    /// Events of one request, and of its nodes while they were allocated to it.
    pub fn of_request(&self, id: &RequestId) -> Vec<&Event> {
        let is_of = |event: &&Event| match &event.change {
            StateChange::Request { request, .. } => request == id,
            StateChange::Node { request, .. } => request.as_ref() == Some(id),
        };
        self.events.iter().filter(is_of).collect()
    }

    pub fn len(&self) -> usize {
        self.events.len()
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Versioned;

    fn stored<T: serde::de::DeserializeOwned>(mzxid: i64, text: &str) -> Versioned<T> {
        Versioned { record: serde_json::from_str::<T>(text).unwrap().into(), version: 0, mzxid, mtime_ms: 0 }
    }

    #[test]
    fn transitions_of_a_request_and_its_node_are_recorded_in_order() {
        let (node, request) = (NodeId::from("0000000001"), RequestId::from("200-0000000001"));
        let mut history = EventHistory::new(Timestamp(0.0));
        let mut snapshots = vec![Snapshot::default()];
        let mut step = |change: &dyn Fn(&mut Snapshot)| {
            let mut next = snapshots.last().unwrap().clone();
            change(&mut next);
            history.record_differences(snapshots.last().unwrap(), &next, Timestamp(100.0));
            snapshots.push(next);
        };
        step(&|next| {
            next.put_request(
                request.clone(),
                stored(1, r#"{"state": "requested", "state_time": 1.0, "node_types": ["a"]}"#),
            );
        });
        step(&|next| {
            next.put_node(
                node.clone(),
                stored(
                    2,
                    r#"{"state": "building", "state_time": 2.0, "allocated_to": "200-0000000001", "provider": "p"}"#,
                ),
            );
        });
        step(&|next| {
            next.put_node(
                node.clone(),
                stored(
                    3,
                    r#"{"state": "ready", "state_time": 3.0, "allocated_to": "200-0000000001", "provider": "p"}"#,
                ),
            );
            next.put_request(
                request.clone(),
                stored(3, r#"{"state": "fulfilled", "state_time": 3.0, "nodes": ["0000000001"]}"#),
            );
        });
        // A change of the comment is not a transition.
        step(&|next| {
            next.put_node(node.clone(), stored(4, r#"{"state": "ready", "state_time": 3.0, "allocated_to": "200-0000000001", "provider": "p", "comment": "x"}"#));
        });
        step(&|next| next.remove_node(&node));
        let states: Vec<String> = history
            .of_request(&request)
            .into_iter()
            .map(|event| format!("{} {}", event.at.0, serde_json::to_value(&event.change).unwrap()["state"]))
            .collect();
        assert_eq!(states, ["1 \"requested\"", "2 \"building\"", "3 \"fulfilled\"", "3 \"ready\"", "100 null"]);
        assert_eq!(history.of_node(&node).len(), 3);
        assert_eq!(history.since(), Timestamp(0.0));
        let ended = history.ended_requests();
        assert_eq!((ended.len(), ended[0].at, &ended[0].request.id), (1, Timestamp(3.0), &request));
    }

    /// Between two sessions, transitions are not observed.
    #[test]
    fn a_request_that_vanished_between_two_sessions_has_an_unknown_outcome() {
        let open = r#"{"state": "requested", "state_time": 1.0, "node_types": ["a"]}"#;
        let fulfilled = |at: u32| format!(r#"{{"state": "fulfilled", "state_time": {at}.0, "node_types": ["a"]}}"#);
        let mut first = Snapshot::default();
        first.put_request("200-1".into(), stored(1, &fulfilled(9)));
        first.put_request("200-2".into(), stored(2, &fulfilled(5)));
        first.put_request("200-3".into(), stored(3, open));
        first.put_request("200-4".into(), stored(4, open));
        let mut second = first.clone();
        second.remove_request(&"200-1".into());
        second.remove_request(&"200-3".into());
        second.put_request("200-4".into(), stored(5, &fulfilled(20)));
        let mut history = EventHistory::new(Timestamp(0.0));
        history.record_differences(&Snapshot::default(), &first, Timestamp(10.0));
        history.record_differences(&first, &second, Timestamp(30.0));
        let ended = history.ended_requests();
        let ended: Vec<_> =
            ended.iter().map(|e| (e.number, e.request.id.as_str(), e.request.outcome, e.at.0)).collect();
        let expected = [
            (0, "200-2", RequestOutcome::Fulfilled, 5.0),
            (1, "200-1", RequestOutcome::Fulfilled, 9.0),
            (2, "200-4", RequestOutcome::Fulfilled, 20.0),
            (3, "200-3", RequestOutcome::Unknown, 30.0),
        ];
        assert_eq!(ended, expected);
    }

    #[test]
    fn a_long_provider_or_request_of_a_node_is_shortened() {
        let (mut history, long) = (EventHistory::new(Timestamp(0.0)), "x".repeat(100_000));
        let mut snapshot = Snapshot::default();
        let record = format!(r#"{{"state": "ready", "provider": "{long}", "allocated_to": "{long}"}}"#);
        snapshot.put_node("0000000001".into(), stored(1, &record));
        history.record_differences(&Snapshot::default(), &snapshot, Timestamp(1.0));
        let change = &history.of_node(&"0000000001".into())[0].change;
        assert!(serde_json::to_string(change).unwrap().len() < 1_000);
    }

    #[test]
    fn only_the_last_ended_requests_are_retained() {
        let (mut history, mut snapshot) = (EventHistory::new(Timestamp(0.0)), Snapshot::default());
        let total = MAX_ENDED_REQUESTS + 7;
        snapshot.transitions = Some(Vec::new());
        for number in 0..total {
            let record = stored(number as i64 + 1, r#"{"state": "failed", "state_time": 1.0, "node_types": ["a"]}"#);
            snapshot.put_request(format!("200-{number:010}").into(), record);
        }
        let transitions = snapshot.transitions.take().unwrap();
        transitions.into_iter().for_each(|transition| history.record(transition, Timestamp(2.0)));
        assert_eq!((history.ended_requests().len(), history.ended_count()), (MAX_ENDED_REQUESTS, total as u64));
        assert_eq!(history.ended_requests()[0].number, 7);
    }

    #[test]
    fn the_oldest_events_are_dropped_and_since_moves_forward() {
        let mut history = EventHistory::new(Timestamp(0.0));
        for number in 0..MAX_EVENTS + 10 {
            let change = StateChange::Request { request: RequestId::from("1-1"), state: None, nodes: 0, label: None };
            // Records with old times do not move `since` back.
            history.record(Transition { at: Some(Timestamp(-1.0)), change, ended: None }, Timestamp(number as f64));
        }
        assert_eq!((history.len(), history.since()), (MAX_EVENTS, Timestamp(10.0)));
        for number in 0..MAX_COUNTS + 10 {
            history.record_counts(&Snapshot::default(), Timestamp(number as f64));
        }
        assert_eq!((history.counts().count(), history.counts().next().unwrap().at), (MAX_COUNTS, Timestamp(10.0)));
    }
}
