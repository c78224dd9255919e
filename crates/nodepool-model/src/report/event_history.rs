//! Event history since the start of the process: transitions of nodes and requests, and counts of nodes by state. It is
//! bounded: the oldest entries are dropped.

use std::collections::VecDeque;

use serde::Serialize;

use crate::records::ids::{NodeId, RequestId};
use crate::records::request::RequestState;
use crate::records::time::{Seconds, Timestamp};
use crate::snapshot::transition::{StateChange, Transition};
use crate::snapshot::{Snapshot, nodes_by_state};

/// Maximum number of transitions. Each takes some 120 bytes, without shared names.
const MAX_EVENTS: usize = 100_000;
/// Interval between two counts.
pub const COUNT_INTERVAL: Seconds = Seconds(15.0);
/// Maximum number of counts: six hours.
const MAX_COUNTS: usize = 1440;
/// Names are truncated to this length, so that a long name cannot exceed the memory bound.
const MAX_NAME_LEN: usize = 64;

pub struct EventHistory {
    since: Timestamp,
    events: VecDeque<Event>,
    counts: VecDeque<StateCounts>,
}

/// One transition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    pub at: Timestamp,
    /// By our clock; `at` is a record's time and may be earlier.
    #[serde(skip)]
    recorded_at: Timestamp,
    #[serde(flatten)]
    pub change: StateChange,
}

/// How many nodes were in each state, in the order of `NodeState::ALL`, and how many requests were open.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StateCounts {
    pub at: Timestamp,
    pub nodes: Vec<u32>,
    pub open: u32,
}

impl EventHistory {
    pub fn new(now: Timestamp) -> Self {
        Self { since: now, events: VecDeque::new(), counts: VecDeque::new() }
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
        for id in newer.requests_changed_since(older) {
            let (before, after) = (older.request(&id), newer.request(&id));
            let transition = Transition::of_request(&id, before.map(|old| &*old.record), after.map(|new| &*new.record));
            transition.into_iter().for_each(|transition| self.record(transition, now));
        }
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
        let mut change = transition.change;
        match &mut change {
            StateChange::Node { provider: Some(name), .. } => shorten(name),
            StateChange::Request { label: Some(name), .. } => shorten(name),
            _ => {}
        }
        self.events.push_back(Event { at: transition.at.unwrap_or(now), recorded_at: now, change });
    }

    /// To be called every [`COUNT_INTERVAL`].
    pub fn record_counts(&mut self, snapshot: &Snapshot, now: Timestamp) {
        if self.counts.len() >= MAX_COUNTS {
            self.counts.pop_front();
        }
        let nodes = nodes_by_state(snapshot).into_iter().map(|(_, number)| number as u32).collect();
        let is_open = |state: RequestState| matches!(state, RequestState::Requested | RequestState::Pending);
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

fn shorten<N: AsRef<str> + From<String>>(name: &mut N) {
    let text = name.as_ref();
    if text.len() > MAX_NAME_LEN {
        let short: String = text.chars().take(MAX_NAME_LEN / 2).chain(['…']).collect();
        *name = N::from(short);
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
        // A comment is no transition.
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
    }

    #[test]
    fn the_oldest_events_are_dropped_and_since_moves_forward() {
        let mut history = EventHistory::new(Timestamp(0.0));
        for number in 0..MAX_EVENTS + 10 {
            let change = StateChange::Request { request: RequestId::from("1-1"), state: None, nodes: 0, label: None };
            // Records with old times do not move `since` back.
            history.record(Transition { at: Some(Timestamp(-1.0)), change }, Timestamp(number as f64));
        }
        assert_eq!((history.len(), history.since()), (MAX_EVENTS, Timestamp(10.0)));
        for number in 0..MAX_COUNTS + 10 {
            history.record_counts(&Snapshot::default(), Timestamp(number as f64));
        }
        assert_eq!((history.counts().count(), history.counts().next().unwrap().at), (MAX_COUNTS, Timestamp(10.0)));
    }
}
