//! Memory of the live page's event history, measured in bytes that the process allocates.
//!
//! The allocator counts the bytes of a whole process, so this test is a program of its own.

use std::alloc::System;

use cap::Cap;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::time::Timestamp;
use nodepool_model::report::event_history::EventHistory;
use nodepool_model::snapshot::{Snapshot, Versioned};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const NODES: usize = 10_000;
/// So many requests cause more transitions than the ring holds, which is 100,000.
const REQUESTS: usize = 13_000;

fn stored<T: DeserializeOwned>(mzxid: i64, record: &Value) -> Versioned<T> {
    // The record is parsed from text, as in the mirror, so that names are allocated in the same way.
    let record: T = serde_json::from_str(&record.to_string()).unwrap();
    Versioned { record: record.into(), version: 0, mzxid, mtime_ms: 0 }
}

/// A snapshot, and the history of the differences between its successive states.
struct HistoryRecorder {
    snapshot: Snapshot,
    history: EventHistory,
    zxid: i64,
}

impl HistoryRecorder {
    fn next<T>(&mut self, change: impl FnOnce(&mut Snapshot, i64) -> T) {
        let before = self.snapshot.clone();
        self.zxid += 1;
        change(&mut self.snapshot, self.zxid);
        self.history.record_differences(&before, &self.snapshot, Timestamp(self.zxid as f64));
    }

    fn node(&mut self, number: usize, state: &str, request: Option<usize>) {
        let request = request.map(|number| format!("200-{number:010}"));
        let (provider, label) = (format!("cloud-{}", number % 20), format!("label-{}", number % 50));
        let record = json!({"state": state, "state_time": 1700000000.0, "provider": provider, "pool": "main", "type": [label],
            "allocated_to": request, "hostname": format!("np{number:010}"), "interface_ip": "203.0.113.7"});
        let id = NodeId::from(format!("{number:010}"));
        self.next(|snapshot, zxid| snapshot.put_node(id, stored(zxid, &record)));
    }

    fn request(&mut self, number: usize, state: &str) {
        let record =
            json!({"state": state, "state_time": 1700000000.0, "node_types": [format!("label-{}", number % 50)]});
        let id = RequestId::from(format!("200-{number:010}"));
        self.next(|snapshot, zxid| snapshot.put_request(id, stored(zxid, &record)));
    }

    fn delete(&mut self, number: usize) {
        let (node, request) = (NodeId::from(format!("{number:010}")), RequestId::from(format!("200-{number:010}")));
        self.next(|snapshot, _| {
            snapshot.remove_node(&node);
            snapshot.remove_request(&request);
        });
    }
}

/// The event history is a bounded ring in memory: at most 20 MB at 10,000 nodes.
#[test]
fn event_history_uses_at_most_20_mb_at_10_000_nodes() {
    let mut recorder =
        HistoryRecorder { snapshot: Snapshot::default(), history: EventHistory::new(Timestamp(0.0)), zxid: 0 };
    for number in 0..NODES {
        recorder.node(number, "ready", None);
    }
    // The oldest node serves a request and is deleted; another one is created.
    for number in 0..REQUESTS {
        recorder.request(number, "requested");
        recorder.request(number, "pending");
        recorder.node(number, "ready", Some(number));
        recorder.request(number, "fulfilled");
        recorder.node(number, "in-use", Some(number));
        recorder.node(number, "deleting", Some(number));
        recorder.delete(number);
        recorder.node(NODES + number, "building", None);
        recorder.node(NODES + number, "ready", None);
    }
    // Counts of eight hours; the history keeps those of six.
    for number in 0..2000 {
        recorder.history.record_counts(&recorder.snapshot, Timestamp(f64::from(number)));
    }
    assert_eq!(recorder.history.len(), 100_000, "the ring is full");
    // The snapshot is dropped first, so that data which only the history keeps alive is counted, such as names of
    // deleted nodes.
    recorder.snapshot = Snapshot::default();
    let with = ALLOCATOR.allocated();
    recorder.history = EventHistory::new(Timestamp(0.0));
    let bytes = with - ALLOCATOR.allocated();
    println!("history of {NODES} nodes: {:.1} MB", bytes as f64 / 1e6);
    assert!((1_000_000..20_000_000).contains(&bytes), "{bytes} bytes");
}
