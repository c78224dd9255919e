//! Decisions of a pool while it launches the nodes of a request, on hand-made inputs.

use std::sync::Arc;

use crate::pool_harness::PoolHarness;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::facts::{LabelImage, LaunchConfig, ProviderFacts};
use nodepool_driver::job::{Job, JobEvent};
use nodepool_model::records::ids::{ExternalId, LabelName, PoolId};
use nodepool_model::records::image_upload::{ImageUpload, UploadKey, UploadState};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::{Versioned, WriteError};
use nodepool_policy::pool::{Effect, Event};
use nodepool_policy::request::fulfillment::Finish;
use nodepool_policy::scheduler::shared_pools::SharedPoolState;
use testkit::fixtures::{node_id, request_id};

fn finish_of(effects: &[Effect]) -> &Finish {
    match effects {
        [Effect::Finish { finish, .. }] => finish,
        other => panic!("the request is finished: {other:?}"),
    }
}

#[test]
fn a_node_whose_write_failed_is_ready_when_its_request_finishes() {
    let mut harness = PoolHarness::new("a,a");
    harness.start_launches();
    let [Effect::Save(first)] = &harness.launched(0)[..] else { panic!("a ready node is saved") };
    assert_eq!(first.record.state, NodeState::Ready);
    let lost = Err(WriteError::Failed("the connection was lost".to_owned()));
    assert_eq!(harness.step(Event::Saved(harness.nodes[0].clone(), lost)), []);
    let [Effect::Save(second)] = &harness.launched(1)[..] else { panic!("the second ready node is saved") };
    harness.apply(second);
    let effects = harness.step(Event::Saved(harness.nodes[1].clone(), Ok(())));
    let [(_, again), (_, written)] = &finish_of(&effects).nodes[..] else { panic!("both nodes are in the finish") };
    let again = again.as_ref().expect("the first node is written now");
    assert_eq!((again.record.state, &again.record.external_id), (NodeState::Ready, &"server-0".into()));
    assert_eq!(*written, None);
}

#[test]
fn an_unwritten_ready_node_is_written_with_the_finish() {
    let mut harness = PoolHarness::new("a,a");
    harness.start_launches();
    for node in 0..2 {
        assert!(matches!(&harness.launched(node)[..], [Effect::Save(_)]));
    }
    assert_eq!(harness.step(Event::Saved(harness.nodes[0].clone(), Ok(()))), []);
    // The snapshot does not contain these writes yet.
    let effects = harness.step(Event::Saved(harness.nodes[1].clone(), Ok(())));
    let written = finish_of(&effects).nodes.iter().map(|(_, change)| change.as_ref().unwrap().record.state);
    assert_eq!(written.collect::<Vec<_>>(), [NodeState::Ready, NodeState::Ready]);
}

// Found by simulation seed 9987: servers were created for nodes that were deleted before their launch began.
#[test]
fn a_request_whose_new_node_is_deleted_is_released() {
    let mut harness = PoolHarness::new("a,a");
    let claimed = harness.step(Event::Wake);
    let [Effect::Claim(claim)] = &claimed[..] else { panic!("the request is claimed: {claimed:?}") };
    let (remaining, deleted) = (node_id("1"), node_id("2"));
    let record = Versioned { record: Arc::new(claim.create[0].clone()), version: 0, mzxid: 1, mtime_ms: 0 };
    harness.built.snapshot.put_node(remaining.clone(), record);
    let effects = harness.step(Event::Claimed(harness.request.clone(), Ok(vec![remaining.clone(), deleted.clone()])));
    let finish = finish_of(&effects);
    assert_eq!(finish.request.as_ref().unwrap().record.state, RequestState::Requested);
    let [(first, Some(change)), (second, None)] = &finish.nodes[..] else { panic!("{:?}", finish.nodes) };
    assert_eq!((first, second, change.record.state), (&remaining, &deleted, NodeState::Deleting));
}

#[test]
fn a_node_reassigned_meanwhile_is_neither_assigned_nor_freed() {
    let mut harness = PoolHarness::with_capacity(3.0, "200-1 a,b", &["7 labels=a"]);
    let claimed = harness.step(Event::Wake);
    let [Effect::Claim(claim)] = &claimed[..] else { panic!("the request is claimed: {claimed:?}") };
    harness.apply(&claim.reuse[0]);
    let (request, created) = (harness.request.clone(), node_id("8"));
    let record = Versioned { record: Arc::new(claim.create[0].clone()), version: 0, mzxid: 1, mtime_ms: 0 };
    harness.built.snapshot.put_node(created.clone(), record);
    harness.nodes = vec![created.clone()];
    let effects = harness.step(Event::Claimed(request.clone(), Ok(vec![created])));
    let [Effect::Begin { nodes, .. }] = &effects[..] else { panic!("the node becomes `building`") };
    nodes.iter().for_each(|change| harness.apply(change));
    harness.step(Event::Begun(request, Ok(())));
    let mut reassigned = claim.reuse[0].clone();
    reassigned.record.allocated_to = Some(request_id("200-2"));
    harness.apply(&reassigned);
    let effects = harness.launched(0);
    let finish = finish_of(&effects);
    assert_eq!(finish.request.as_ref().unwrap().record.state, RequestState::Requested);
    let [(_, None), (_, Some(freed))] = &finish.nodes[..] else {
        panic!("only its own node is freed: {:?}", finish.nodes)
    };
    assert_eq!((freed.record.state, &freed.record.allocated_to), (NodeState::Ready, &None));
}

// Each attempt chooses its image again. Found by a fault run: twenty attempts used a deleted image.
#[test]
fn each_attempt_boots_from_the_newest_upload() {
    let mut harness = PoolHarness::new("a");
    let mut facts = ProviderFacts::clone(&harness.built.facts["lab"]);
    let mut launching = LaunchConfig::clone(facts.launch_config.as_ref().unwrap());
    launching.attempts = 4;
    let label = launching.labels.values_mut().next().unwrap().get_mut(&LabelName::from("a")).unwrap();
    label.image = Some(LabelImage::Disk("debian".into()));
    facts.launch_config = Some(Arc::new(launching));
    harness.built.facts.insert("lab".into(), Arc::new(facts));
    let key = |number: &str| UploadKey {
        provider: "lab".into(),
        image: "debian".into(),
        build: "b".into(),
        upload: number.into(),
    };
    let upload = |harness: &mut PoolHarness, number: &str, age: f64| {
        let mut upload = ImageUpload::new(UploadState::Ready, Timestamp(age));
        upload.external_id = Some(ExternalId::text(format!("image-{number}")));
        let stored = Versioned { record: Arc::new(upload), version: 0, mzxid: 1, mtime_ms: 0 };
        harness.built.snapshot.images.put_upload(key(number), stored);
    };
    upload(&mut harness, "1", 1.0);
    let fail = |harness: &mut PoolHarness| {
        let error = CloudError::Failed { kind: FailureKind::Unknown, detail: "no such image".to_owned() };
        let effects = harness.step(Event::JobUpdate(harness.nodes[0].clone(), JobEvent::Finished(Err(error))));
        effects.into_iter().find_map(|effect| match effect {
            Effect::Submit { job: Job::Launch(order), .. } => Some(order.image.clone().map(|id| id.to_string())),
            _ => None,
        })
    };
    harness.start_launches();
    let image_id =
        |harness: &PoolHarness| harness.built.snapshot.node(&harness.nodes[0]).unwrap().record.image_id.clone();
    assert_eq!(image_id(&harness), Some(key("1").image_id()));
    upload(&mut harness, "2", 2.0);
    assert_eq!(fail(&mut harness), Some(Some("image-2".to_owned())));
    harness.built.snapshot.images.remove_upload(&key("1"));
    harness.built.snapshot.images.remove_upload(&key("2"));
    assert_eq!(fail(&mut harness), Some(None), "no upload exists, which the driver reports");
    upload(&mut harness, "3", 3.0);
    assert_eq!(fail(&mut harness), Some(Some("image-3".to_owned())));
    let effects = harness.launched(0);
    let [(_, Some(change))] = &finish_of(&effects).nodes[..] else { panic!("the node is saved") };
    assert_eq!(change.record.image_id, Some(key("3").image_id()), "the upload from which the node booted");
}

// Each zone is tried once, one after the other.
#[test]
fn a_request_whose_zones_were_removed_gets_others() {
    let mut harness = PoolHarness::new("a");
    harness.set_zones(&["z1", "z2"]);
    harness.start_launches();
    let refuse = |harness: &mut PoolHarness, zone: &str| {
        let refused = JobEvent::Finished(Err(CloudError::NoZone(zone.to_owned())));
        harness.step(Event::JobUpdate(harness.nodes[0].clone(), refused))
    };
    for (removed, next) in [("z2", "z1"), ("z1", "z2")] {
        let effects = refuse(&mut harness, removed);
        assert!(effects.contains(&Effect::Refresh), "the zones are refreshed: {effects:?}");
        let node = harness.nodes[0].clone();
        harness.built.snapshot.remove_node(&node);
        assert_eq!(harness.extend().zone.as_deref(), Some(next));
    }
    let effects = refuse(&mut harness, "z2");
    let finish = effects.iter().find_map(|effect| match effect {
        Effect::Finish { finish, .. } => Some(finish),
        _ => None,
    });
    assert_eq!(finish.unwrap().request.as_ref().unwrap().record.state, RequestState::Failed);
}

#[test]
fn nodes_without_quota_are_deleted_and_the_others_wait() {
    let mut harness = PoolHarness::new("a,a");
    harness.start_launches();
    let [Effect::Save(first)] = &harness.launched(0)[..] else { panic!("a ready node is saved") };
    harness.apply(first);
    assert_eq!(harness.step(Event::Saved(harness.nodes[0].clone(), Ok(()))), []);
    let effects = harness.refuse(1);
    let released = effects.iter().find_map(|effect| match effect {
        Effect::Release(nodes) => Some(nodes.clone()),
        _ => None,
    });
    let [(node, Some(aborted))] = &released.expect("the second node is released")[..] else { panic!("only that node") };
    assert_eq!((node, aborted.record.state), (&harness.nodes[1], NodeState::Aborted));
    assert!(
        effects.contains(&Effect::Refresh) && !effects.iter().any(|effect| matches!(effect, Effect::Finish { .. }))
    );
    assert!(harness.pool.is_paused());
    harness.built.snapshot.remove_node(node);

    assert_eq!(harness.step(Event::Wake), [], "the probe is not due");
    harness.set_window(Some(1));
    harness.extend();
    let [Effect::Save(second)] = &harness.launched(1)[..] else { panic!("the second ready node is saved") };
    harness.apply(second);
    let effects = harness.step(Event::Saved(harness.nodes[1].clone(), Ok(())));
    let finish = finish_of(&effects).request.as_ref().expect("the request still exists");
    assert_eq!((finish.record.state, &finish.record.nodes), (RequestState::Fulfilled, &harness.nodes));
}

#[test]
fn a_failed_extension_is_retried_on_the_next_snapshot() {
    let mut harness = PoolHarness::about_to_extend();
    let request = harness.request.clone();
    assert_eq!(harness.step(Event::Claimed(request, Err(WriteError::Conflict))), []);
    assert_eq!(harness.step(Event::Wake), [], "the same snapshot");
    harness.built.snapshot.revision += 1;
    assert!(matches!(&harness.step(Event::Wake)[..], [Effect::Extend { .. }]));
}

// Found by simulation seed 16220: the provider launched more servers than its limit.
#[test]
fn nodes_of_a_claim_with_a_lost_reply_stay_reserved() {
    let refuse = |error: WriteError| {
        let mut harness = PoolHarness::with_capacity(1.0, "200-1 a", &[]);
        assert!(matches!(&harness.step(Event::Wake)[..], [Effect::Claim(_)]));
        harness.step(Event::Claimed(harness.request.clone(), Err(error)));
        harness.built.snapshot.revision += 1;
        harness
    };
    let mut harness = refuse(WriteError::Conflict);
    assert!(
        matches!(&harness.step(Event::Wake)[..], [Effect::Claim(claim)] if claim.create.len() == 1),
        "the rejected claim reserved nothing"
    );
    let mut harness = refuse(WriteError::Failed("the connection was lost".to_owned()));
    let effects = harness.step(Event::Wake);
    assert!(
        !effects.iter().any(|effect| matches!(effect, Effect::Claim(claim) if !claim.create.is_empty())),
        "{effects:?}"
    );
    let due = harness.pool.due().expect("another run is due");
    harness.step(Event::Claimed(harness.request.clone(), Ok(Vec::new())));
    harness.built.advance_to(due);
    assert!(matches!(&harness.step(Event::Clock)[..], [Effect::Extend { create, .. }] if create.len() == 1));
}

// Found by simulation seed 23424: each failed write to wait for capacity cleared the pool's "lacks capacity" flag. Each
// change of the flag published another snapshot, on which the write was retried.
#[test]
fn a_failed_write_does_not_end_waiting_for_capacity() {
    let mut harness = PoolHarness::with_capacity(1.0, "200-1 a", &["8 labels=b allocated=200-9"]);
    let effects = harness.step(Event::Wake);
    assert!(matches!(&effects[..], [Effect::Claim(claim)] if claim.create.is_empty()), "{effects:?}");
    harness.step(Event::Claimed(harness.request.clone(), Err(WriteError::Conflict)));
    assert_eq!(harness.step(Event::Wake), []);
    assert!(harness.pool.is_paused());

    let mut shared_pools = SharedPoolState::default();
    let other_pool = PoolId::new("elsewhere", "main");
    shared_pools.begin_lease(&other_pool, &harness.request);
    harness.pool.update_leases(&shared_pools);
    harness.built.snapshot.revision += 1;
    assert_eq!(harness.step(Event::Wake), [], "another pool of this process holds the lease");
    assert!(harness.pool.is_paused());

    harness.built.snapshot.remove_request(&harness.request.clone());
    harness.built.snapshot.revision += 1;
    harness.step(Event::Wake);
    assert!(!harness.pool.is_paused());
}

// Found by simulation seed 11995: a request waited forever for the capacity that its own nodes used.
#[test]
fn nodes_of_an_extension_with_a_lost_reply_are_recovered() {
    let lost = Err(WriteError::Failed("the connection was lost".to_owned()));
    let mut harness = PoolHarness::with_capacity(
        3.0,
        "200-1 a,a,b",
        &["7 labels=b", "8 labels=b allocated=200-9", "9 labels=b allocated=200-9"],
    );
    let claimed = harness.step(Event::Wake);
    assert!(
        claimed.iter().any(|effect| matches!(effect, Effect::Claim(claim) if claim.create.is_empty())),
        "{claimed:?}"
    );
    harness.step(Event::Claimed(harness.request.clone(), Ok(Vec::new())));
    for id in ["8", "9"] {
        harness.built.snapshot.remove_node(&node_id(id));
    }
    harness.built.snapshot.revision += 1;
    let effects = harness.step(Event::Wake);
    let [Effect::Extend { reuse, create: build, .. }] = &effects[..] else {
        panic!("capacity is available: {effects:?}")
    };
    assert_eq!((reuse.len(), build.len()), (1, 2));
    harness.step(Event::Claimed(harness.request.clone(), lost));
    harness.apply(&reuse[0]);
    for (id, record) in ["11", "12"].iter().zip(build) {
        let stored = Versioned { record: Arc::new(record.clone()), version: 0, mzxid: 1, mtime_ms: 0 };
        harness.built.snapshot.put_node(node_id(id), stored);
    }
    harness.built.snapshot.revision += 1;
    let effects = harness.step(Event::Wake);
    let [Effect::Begin { nodes, .. }] = &effects[..] else { panic!("all nodes are known: {effects:?}") };
    assert_eq!(nodes.iter().map(|change| &change.id).collect::<Vec<_>>(), [&node_id("11"), &node_id("12")]);
    nodes.iter().for_each(|change| harness.apply(change));
    harness.step(Event::Begun(harness.request.clone(), Ok(())));
    harness.nodes = vec![node_id("11"), node_id("12")];
    for node in 0..2 {
        let [Effect::Save(saved)] = &harness.launched(node)[..] else { panic!("a ready node is saved") };
        harness.apply(saved);
    }
    harness.step(Event::Saved(harness.nodes[0].clone(), Ok(())));
    let effects = harness.step(Event::Saved(harness.nodes[1].clone(), Ok(())));
    let request = finish_of(&effects).request.as_ref().unwrap();
    assert_eq!(request.record.state, RequestState::Fulfilled);
    assert_eq!(request.record.nodes, ["11", "12", "7"].map(node_id));
}

// Each kind of failure has its own metrics key, and determines whether the request fails or can be served again.
#[test]
fn every_kind_of_failure_is_counted_under_its_own_key() {
    let failed = |kind| CloudError::Failed { kind, detail: "injected failure".to_owned() };
    let cases = [
        (failed(FailureKind::Nodepool), "error.nodepool"),
        (failed(FailureKind::Status), "error.status"),
        (failed(FailureKind::Network), "error.network"),
        (failed(FailureKind::Unknown), "error.unknown"),
        (CloudError::Capacity("full".to_owned()), "error.capacity"),
        (CloudError::Quota("cores".to_owned()), "error.quota"),
        (CloudError::Deadline, "error.unknown"),
        (CloudError::not_found("gone"), "error.unknown"),
        (CloudError::Denied("never".to_owned()), "error.unknown"),
    ];
    for (error, expected) in cases {
        let mut harness = PoolHarness::new("a");
        harness.start_launches();
        let effects = harness.step(Event::JobUpdate(harness.nodes[0].clone(), JobEvent::Finished(Err(error))));
        let reported: Vec<_> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Report { node, result, .. } => Some((node, *result)),
                _ => None,
            })
            .collect();
        assert_eq!(reported, [(&harness.nodes[0], expected)]);
        let finish = effects.iter().find_map(|effect| match effect {
            Effect::Finish { finish, .. } => finish.request.as_ref(),
            _ => None,
        });
        let end = if expected == "error.quota" { RequestState::Requested } else { RequestState::Failed };
        assert_eq!(finish.map(|request| request.record.state), Some(end), "{expected}");
    }
}
