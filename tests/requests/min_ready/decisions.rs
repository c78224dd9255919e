//! Decisions about the requests that keep min-ready nodes, on hand-made inputs.

use std::sync::Arc;

use crate::pool_harness::PoolHarness;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::JobEvent;
use nodepool_model::records::ids::LabelName;
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::Versioned;
use nodepool_policy::pool::{Effect, Event};
use nodepool_policy::scheduler::min_ready::{self, MinReady, MinReadyAction};
use testkit::fixtures::{FixtureSpec, NOW, node_id, request_id};

/// A label with min-ready 1.
fn with_one_min_ready() -> (LabelName, PoolHarness, MinReady) {
    with_min_ready("a min-ready=1")
}

fn with_min_ready(label: &str) -> (LabelName, PoolHarness, MinReady) {
    let harness = PoolHarness::from_spec(&FixtureSpec {
        hosts: vec!["h1 labels=a".to_owned()],
        labels: vec![label.to_owned()],
        ..FixtureSpec::default()
    });
    (LabelName::from("a"), harness, MinReady::default())
}

// Regression: a request that ZooKeeper rejects immediately was retried fifty times a second.
#[test]
fn a_rejected_min_ready_request_backs_off() {
    let (label, mut harness, mut min_ready) = with_one_min_ready();
    for backoff in [1.0, 2.0, 4.0] {
        let plan = |min_ready: &mut MinReady, harness: &PoolHarness| {
            min_ready.plan(&Default::default(), &harness.built.inputs())
        };
        assert_eq!(plan(&mut min_ready, &harness), [MinReadyAction::Submit(label.clone())]);
        min_ready.submitted(&label, "event", None, harness.built.monotonic_now());
        assert_eq!(plan(&mut min_ready, &harness), []);
        let due = min_ready.due(harness.built.monotonic_now()).expect("a retry is due");
        assert_eq!(due - harness.built.monotonic_now(), Seconds(backoff));
        harness.built.advance_to(due);
    }
}

// Regression: the node of such a request stayed allocated to it until the session ended.
#[test]
fn a_min_ready_request_with_a_lost_reply_is_recognized() {
    let (label, mut harness, mut min_ready) = with_one_min_ready();
    let plan =
        |min_ready: &mut MinReady, harness: &PoolHarness| min_ready.plan(&Default::default(), &harness.built.inputs());
    assert_eq!(plan(&mut min_ready, &harness), [MinReadyAction::Submit(label.clone())]);
    min_ready.submitted(&label, "event", None, harness.built.monotonic_now());
    harness.built.snapshot.connected = false;
    for _ in 0..3 {
        harness.built.now = harness.built.now + Seconds(60.0);
        assert_eq!(plan(&mut min_ready, &harness), []);
    }
    let mut record = min_ready::request(&label, "event".to_owned(), NOW);
    record.set_state(RequestState::Fulfilled, NOW);
    let id = request_id("100-7");
    harness
        .built
        .snapshot
        .put_request(id.clone(), Versioned { record: Arc::new(record), version: 1, mzxid: 9, mtime_ms: 0 });
    harness.built.snapshot.connected = true;
    let actions = plan(&mut min_ready, &harness);
    assert!(actions.contains(&MinReadyAction::Finish { request: id, nodes: Vec::new() }), "{actions:?}");
}

// Regression: a node in `init`, left by a write whose reply was lost, was released unchanged. It had no owner, and was
// never deleted.
#[test]
fn duplicate_nodes_of_a_min_ready_request_are_deleted_with_it() {
    let spec = FixtureSpec {
        hosts: vec!["h1 labels=a".to_owned()],
        labels: vec!["a min-ready=1".to_owned()],
        nodes: ["1 labels=a init allocated=100-7", "2 labels=a allocated=100-7"].map(str::to_owned).into(),
        ..FixtureSpec::default()
    };
    let (mut harness, mut min_ready, label) =
        (PoolHarness::from_spec(&spec), MinReady::default(), LabelName::from("a"));
    let id = request_id("100-7");
    min_ready.submitted(&label, "event", Some(id.clone()), harness.built.monotonic_now());
    let mut record = min_ready::request(&label, "event".to_owned(), NOW);
    record.set_state(RequestState::Fulfilled, NOW);
    record.nodes = vec![node_id("2")];
    let stored = Versioned { record: Arc::new(record), version: 1, mzxid: 9, mtime_ms: 0 };
    harness.built.snapshot.put_request(id, stored);
    let actions = min_ready.plan(&Default::default(), &harness.built.inputs());
    let finished = actions.iter().find_map(|action| match action {
        MinReadyAction::Finish { nodes, .. } => Some(nodes.iter().map(|node| node.record.state).collect::<Vec<_>>()),
        _ => None,
    });
    assert_eq!(finished, Some(vec![NodeState::Deleting, NodeState::Ready]), "{actions:?}");
}

// The deletion of a request may be visible before its node is read again.
#[test]
fn a_ready_node_of_a_deleted_request_counts() {
    let spec = FixtureSpec {
        hosts: vec!["h1 labels=a".to_owned()],
        labels: vec!["a min-ready=1".to_owned()],
        nodes: vec!["1 labels=a allocated=900-7".to_owned()],
        ..FixtureSpec::default()
    };
    let harness = PoolHarness::from_spec(&spec);
    assert_eq!(MinReady::default().plan(&Default::default(), &harness.built.inputs()), []);
}

// Regression: such a request received freed capacity before requests of consumers.
#[test]
fn a_min_ready_request_without_quota_does_not_wait() {
    let mut harness = PoolHarness::new("a");
    let own = min_ready::request(&"a".into(), "event".to_owned(), NOW);
    let mzxid = harness.built.snapshot.request(&harness.request).unwrap().mzxid + 1;
    let stored = Versioned { record: Arc::new(own), version: 1, mzxid, mtime_ms: 0 };
    assert!(harness.built.snapshot.put_request(harness.request.clone(), stored));
    harness.start_launches();
    let refused = JobEvent::Finished(Err(CloudError::Quota("cores".to_owned())));
    let effects = harness.step(Event::JobUpdate(harness.nodes[0].clone(), refused));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Finish { .. })), "{effects:?}");
    assert!(!harness.pool.is_paused());
}

// Regression: a mistyped number created requests until memory was exhausted.
#[test]
fn min_ready_nodes_are_requested_in_batches() {
    let (_, harness, mut min_ready) = with_min_ready("a min-ready=9e18");
    let actions = min_ready.plan(&Default::default(), &harness.built.inputs());
    assert_eq!(actions.len(), 1000);
    assert_eq!(
        min_ready.plan(&Default::default(), &harness.built.inputs()),
        [],
        "the next batch follows when these requests exist"
    );
}
