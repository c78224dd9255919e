//! What happened since the process started, as far as it is remembered: transitions of nodes and requests, and how many nodes
//! were in which state. Bounded: the oldest goes.

use std::collections::VecDeque;

use serde::Serialize;

use super::ids::{LabelName, NodeId, ProviderName, RequestId};
use super::node::NodeState;
use super::request::RequestState;
use super::snapshot::{Snapshot, nodes_by_state};
use super::time::{Span, Timestamp};

/// Transitions that are remembered: of each some 120 bytes, shared names not counted.
const MOST_EVENTS: usize = 100_000;
/// Between two counts.
pub const COUNT_EVERY: Span = Span(15.0);
/// Counts that are kept: six hours.
const MOST_COUNTS: usize = 1440;

pub struct Chronicle {
    since: Timestamp,
    events: VecDeque<Event>,
    counts: VecDeque<Count>,
}

/// One transition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    pub at: Timestamp,
    #[serde(flatten)]
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum What {
    Node { node: NodeId, state: Option<NodeState>, provider: Option<ProviderName>, request: Option<RequestId> },
    Request { request: RequestId, state: Option<RequestState>, nodes: usize, label: Option<LabelName> },
}

/// How many nodes were in each state, in the order of `NodeState::ALL`, and how many requests were open.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Count {
    pub at: Timestamp,
    pub nodes: Vec<u32>,
    pub open: u32,
}

impl Chronicle {
    pub fn new(now: Timestamp) -> Self {
        Self { since: now, events: VecDeque::new(), counts: VecDeque::new() }
    }

    /// From when on everything is remembered.
    pub fn since(&self) -> Timestamp {
        match self.events.front() {
            Some(first) if self.events.len() == MOST_EVENTS => first.at,
            _ => self.since,
        }
    }

    /// Notes what has changed between two pictures. What vanished has no state any more.
    pub fn note(&mut self, older: &Snapshot, newer: &Snapshot, now: Timestamp) {
        for id in newer.requests_changed_since(older) {
            let (before, after) = (older.request(&id), newer.request(&id));
            let state = after.map(|stored| stored.record.state);
            if before.map(|stored| stored.record.state) == state {
                continue;
            }
            let Some(record) = after.or(before).map(|stored| &stored.record) else { continue };
            let at = if after.is_some() { record.state_time } else { now };
            let (nodes, label) = (record.nodes.len(), record.node_types.first().cloned());
            self.remember(at, What::Request { request: id, state, nodes, label });
        }
        for id in newer.nodes_changed_since(older) {
            let (before, after) = (older.node(&id), newer.node(&id));
            let state = after.map(|stored| stored.record.state);
            let request = |stored: Option<&super::snapshot::Stored<super::node::Node>>| {
                stored.and_then(|stored| stored.record.allocated_to.clone())
            };
            if before.map(|stored| stored.record.state) == state && request(before) == request(after) {
                continue;
            }
            let Some(record) = after.or(before).map(|stored| &stored.record) else { continue };
            let (provider, request) = (record.provider.clone(), record.allocated_to.clone());
            let at = if after.is_some_and(|_| before.map(|stored| stored.record.state) != state) {
                record.state_time
            } else {
                now
            };
            self.remember(at, What::Node { node: id, state, provider, request });
        }
    }

    fn remember(&mut self, at: Timestamp, what: What) {
        if self.events.len() >= MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event { at, what });
    }

    /// To be called every [`COUNT_EVERY`].
    pub fn count(&mut self, snapshot: &Snapshot, now: Timestamp) {
        if self.counts.len() >= MOST_COUNTS {
            self.counts.pop_front();
        }
        let nodes = nodes_by_state(snapshot).into_iter().map(|(_, number)| number as u32).collect();
        let is_open = |state: RequestState| matches!(state, RequestState::Requested | RequestState::Pending);
        let open = snapshot.requests().filter(|(_, stored)| is_open(stored.record.state)).count() as u32;
        self.counts.push_back(Count { at: now, nodes, open });
    }

    pub fn counts(&self) -> impl Iterator<Item = &Count> {
        self.counts.iter()
    }

    /// Of one node, the oldest first.
    pub fn of_node(&self, id: &NodeId) -> Vec<&Event> {
        self.events.iter().filter(|event| matches!(&event.what, What::Node { node, .. } if node == id)).collect()
    }

    /// Of one request and of the nodes while they were allocated to it.
    pub fn of_request(&self, id: &RequestId) -> Vec<&Event> {
        let is_of = |event: &&Event| match &event.what {
            What::Request { request, .. } => request == id,
            What::Node { request, .. } => request.as_ref() == Some(id),
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
    use crate::model::snapshot::Stored;

    fn stored<T: serde::de::DeserializeOwned>(mzxid: i64, text: &str) -> Stored<T> {
        Stored { record: serde_json::from_str::<T>(text).unwrap().into(), version: 0, mzxid }
    }

    #[test]
    fn the_life_of_a_request_and_its_node_is_told_in_order() {
        let (node, request) = (NodeId::from("0000000001"), RequestId::from("200-0000000001"));
        let mut chronicle = Chronicle::new(Timestamp(0.0));
        let mut pictures = vec![Snapshot::default()];
        let mut step = |change: &dyn Fn(&mut Snapshot)| {
            let mut next = pictures.last().unwrap().clone();
            change(&mut next);
            chronicle.note(pictures.last().unwrap(), &next, Timestamp(100.0));
            pictures.push(next);
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
        let states: Vec<String> = chronicle
            .of_request(&request)
            .into_iter()
            .map(|event| format!("{} {}", event.at.0, serde_json::to_value(&event.what).unwrap()["state"]))
            .collect();
        assert_eq!(states, ["1 \"requested\"", "2 \"building\"", "3 \"fulfilled\"", "3 \"ready\"", "100 null"]);
        assert_eq!(chronicle.of_node(&node).len(), 3);
        assert_eq!(chronicle.since(), Timestamp(0.0));
    }

    #[test]
    fn the_oldest_is_forgotten_and_that_is_told() {
        let mut chronicle = Chronicle::new(Timestamp(0.0));
        for number in 0..MOST_EVENTS + 10 {
            let what = What::Request { request: RequestId::from("1-1"), state: None, nodes: 0, label: None };
            chronicle.remember(Timestamp(number as f64), what);
        }
        assert_eq!((chronicle.len(), chronicle.since()), (MOST_EVENTS, Timestamp(10.0)));
        for number in 0..MOST_COUNTS + 10 {
            chronicle.count(&Snapshot::default(), Timestamp(number as f64));
        }
        assert_eq!((chronicle.counts().count(), chronicle.counts().next().unwrap().at), (MOST_COUNTS, Timestamp(10.0)));
    }
}
