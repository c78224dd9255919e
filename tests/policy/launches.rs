//! What a pool decides while it builds the nodes of a request, on worlds made by hand.

use std::sync::Arc;

use crate::fixtures::{Fixture, FixtureSpec, LAUNCHER, NOW, build, node_id, pool_id, request_id};
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::facts::{LabelImage, LaunchConfig, LaunchLabel, Login, ProviderFacts};
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, JobEvent, LaunchOrder, Outcome};
use nodepool_model::config::unused_resources::UnusedResourcePolicy;
use nodepool_model::records::ids::{ExternalId, LabelName, LauncherId, NodeId, PoolId, RequestId};
use nodepool_model::records::image_upload::{ImageUpload, UploadKey, UploadState};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::{Seconds, Timestamp};
use nodepool_model::snapshot::{LockState, NodeChange, Versioned, WriteError};
use nodepool_policy::pool::{Effect, Event, Pool};
use nodepool_policy::request::fulfillment::Finish;
use nodepool_policy::scheduler::shared_pools::SharedPoolState;

/// A pool that launches nodes of the label `a`, without a check, and a request for some.
pub struct PoolHarness {
    pub built: Fixture,
    pub pool: Pool,
    pub request: RequestId,
    pub nodes: Vec<NodeId>,
}

impl PoolHarness {
    pub fn new(labels: &str) -> Self {
        // A label is one that a host has; the facts take no notice of the host.
        Self::from_spec(&FixtureSpec {
            hosts: vec!["h1 labels=a".to_owned()],
            requests: vec![format!("200-1 {labels}")],
            ..FixtureSpec::default()
        })
    }

    pub fn from_spec(spec: &FixtureSpec) -> Self {
        let mut built = build(spec);
        let label = LaunchLabel {
            need: Some(Resources::none().with("instances", 1.0)),
            image: LabelImage::Cloud("image".to_owned()),
            login: Login::default(),
            host_key_checking: false,
            console_log: false,
            unavailable: None,
        };
        let launching = LaunchConfig {
            attempts: 1,
            timeout: Seconds(60.0),
            boot_timeout: Seconds(60.0),
            zones: Vec::new(),
            unused_resources: UnusedResourcePolicy::default(),
            labels: [("main".into(), ["a", "b"].map(|name| (name.into(), label.clone())).into())].into(),
        };
        let facts =
            ProviderFacts { refreshed_at: NOW, launch_config: Some(Arc::new(launching)), ..ProviderFacts::initial() };
        built.facts.insert("lab".into(), Arc::new(facts));
        Self {
            built,
            pool: Pool::new(pool_id(), LauncherId::from(LAUNCHER)),
            request: request_id("200-1"),
            nodes: Vec::new(),
        }
    }

    /// With room for so many, idle nodes among them.
    pub fn with_capacity(room: f64, request: &str, nodes: &[&str]) -> Self {
        let mut harness = Self::from_spec(&FixtureSpec {
            hosts: vec!["h1 labels=a,b".to_owned()],
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            requests: vec![request.to_owned()],
            ..FixtureSpec::default()
        });
        let facts = (*harness.built.facts["lab"]).clone();
        let facts = ProviderFacts { limits: Resources::unlimited().with("instances", room), ..facts };
        harness.built.facts.insert("lab".into(), Arc::new(facts));
        harness
    }

    pub fn step(&mut self, event: Event) -> Vec<Effect> {
        if let Event::Claimed(request, Ok(_)) = &event {
            let lock = LockState { exists: true, contenders: ["ours".to_owned()].into(), mtime_ms: 0 };
            self.built.snapshot.set_request_lock(request.clone(), lock);
        }
        self.pool.step(event, &self.built.inputs())
    }

    /// With a request that waited for room and is about to get some.
    pub fn about_to_extend() -> Self {
        let mut harness = Self::new("a");
        harness.start_launches();
        let refused = JobEvent::Finished(Err(CloudError::Quota("cores".to_owned())));
        harness.step(Event::JobUpdate(harness.nodes[0].clone(), refused));
        harness.built.snapshot.remove_node(&harness.nodes[0]);
        harness.built.now = NOW + Seconds(5.0);
        assert!(matches!(&harness.step(Event::Clock)[..], [Effect::Extend { .. }]));
        harness
    }

    /// Carries a write out.
    pub fn apply(&mut self, change: &NodeChange) {
        let mzxid = self.built.snapshot.node(&change.id).map_or(1000, |known| known.mzxid + 1);
        let stored =
            Versioned { record: Arc::new(change.record.clone()), version: change.version + 1, mzxid, mtime_ms: 0 };
        self.built.snapshot.put_node(change.id.clone(), stored);
    }

    /// Until the launches have begun.
    pub fn start_launches(&mut self) {
        let claimed = self.step(Event::Wake);
        let [Effect::Claim(claim)] = &claimed[..] else { panic!("the request is taken up: {claimed:?}") };
        let others = self.built.snapshot.node_count() * 10;
        for (number, record) in claim.create.iter().enumerate() {
            let id = node_id(&(others + number + 1).to_string());
            self.built.snapshot.put_node(
                id.clone(),
                Versioned { record: Arc::new(record.clone()), version: 0, mzxid: 1, mtime_ms: 0 },
            );
            self.nodes.push(id);
        }
        let (request, nodes) = (self.request.clone(), self.nodes.clone());
        let begun = self.step(Event::Claimed(request.clone(), Ok(nodes)));
        let [Effect::Begin { nodes, .. }] = &begun[..] else { panic!("the nodes are building next") };
        nodes.iter().for_each(|change| self.apply(change));
        let submitted = self.step(Event::Begun(request, Ok(())));
        assert!(submitted.iter().all(|effect| matches!(effect, Effect::Submit { .. })), "{submitted:?}");
    }

    /// Five seconds later it gets another node in the place of the last one.
    fn extend(&mut self) -> Arc<LaunchOrder> {
        self.built.now = self.built.now + Seconds(5.0);
        let effects = self.step(Event::Clock);
        let [Effect::Extend { reuse, create: build, .. }] = &effects[..] else { panic!("there is room: {effects:?}") };
        assert_eq!((reuse.len(), build.len()), (0, 1));
        let another = node_id(&format!("{}", self.built.snapshot.nodes().count() + 20));
        let stored = Versioned { record: Arc::new(build[0].clone()), version: 0, mzxid: 2, mtime_ms: 0 };
        self.built.snapshot.put_node(another.clone(), stored);
        *self.nodes.last_mut().unwrap() = another.clone();
        let request = self.request.clone();
        let begun = self.step(Event::Claimed(request.clone(), Ok(vec![another])));
        let [Effect::Begin { nodes, .. }] = &begun[..] else { panic!("it is building next: {begun:?}") };
        self.apply(&nodes[0].clone());
        match &self.step(Event::Begun(request, Ok(())))[..] {
            [Effect::Submit { job: Job::Launch(order), .. }] => order.clone(),
            other => panic!("it is launched: {other:?}"),
        }
    }

    /// The cloud has launched the node's instance.
    pub fn launched(&mut self, node: usize) -> Vec<Effect> {
        let instance = Instance::new(ExternalId::text(format!("server-{node}")));
        let job_event = JobEvent::Finished(Ok(Outcome::Launched(Box::new(instance))));
        let effects = self.step(Event::JobUpdate(self.nodes[node].clone(), job_event)).into_iter();
        effects.filter(|effect| !matches!(effect, Effect::Report { .. })).collect()
    }
}

// Seed 76 of the simulated hours: the launcher tried without end and without a pause.
#[test]
fn a_failed_eviction_is_not_retried_on_the_same_snapshot() {
    let mut harness = PoolHarness::with_capacity(1.0, "200-1 a", &["7 labels=b age=400"]);
    let evicts = |effects: Vec<Effect>| effects.iter().any(|effect| matches!(effect, Effect::Evict(_)));
    let woken = harness.step(Event::Wake);
    assert!(evicts(woken.clone()), "the idle node makes room: {woken:?}");
    harness.step(Event::Claimed(harness.request.clone(), Ok(Vec::new())));
    assert!(!evicts(harness.step(Event::Evicted(Err(WriteError::Conflict)))));
    assert!(!evicts(harness.step(Event::Wake)), "nothing has changed");
    harness.built.snapshot.revision += 1;
    assert!(evicts(harness.step(Event::Wake)), "something has");
    harness.step(Event::Evicted(Err(WriteError::Conflict)));
    assert!(evicts(harness.step(Event::Tick)), "nor is it given up for good");
}

/// The idle node that goes to make room for a request, where there is room for so many.
fn evicted(room: f64, request: &str, nodes: &[&str]) -> Option<String> {
    let effects = PoolHarness::with_capacity(room, request, nodes).step(Event::Wake);
    effects.into_iter().find_map(|effect| match effect {
        Effect::Evict(change) => Some(change.id.to_string()),
        _ => None,
    })
}

// Seed 5947 of the simulated hours: four nodes of a label of which the request wanted one took the room of the others for ever.
#[test]
fn idle_nodes_beyond_the_demand_of_a_label_are_evicted() {
    let evicted = |request: &str, nodes: &[&str]| evicted(3.0, request, nodes);
    let three = ["7 labels=a age=400", "8 labels=a age=500", "9 labels=a age=450"];
    assert_eq!(evicted("200-1 a,b,b", &three).as_deref(), Some("0000000008"), "the oldest one");
    assert_eq!(evicted("200-1 a,a,b", &three).as_deref(), Some("0000000008"));
    assert_eq!(evicted("200-1 a,a,b", &["7 labels=a", "8 labels=a", "9 labels=a locked"]), None, "both are taken");
    assert_eq!(evicted("200-1 a,a,a reuse=no", &three).as_deref(), Some("0000000008"));
}

// Both had their room for ever, and the request waited for as long.
#[test]
fn idle_nodes_that_no_request_can_use_are_evicted() {
    let evicted = |request: &str, nodes: &[&str]| evicted(2.0, request, nodes);
    let of_a_label_that_has_gone = ["7 labels=gone age=400", "8 labels=gone age=500"];
    assert_eq!(evicted("200-1 a", &of_a_label_that_has_gone).as_deref(), Some("0000000008"));
    let of_two_zones = ["7 labels=a zone=one age=500", "8 labels=b zone=two age=400"];
    assert_eq!(evicted("200-1 a,b", &of_two_zones).as_deref(), Some("0000000008"), "the first decides on the zone");
    let of_one_zone = ["7 labels=a zone=one age=500", "8 labels=b zone=one age=400"];
    assert_eq!(evicted("200-1 a,b,a", &of_one_zone), None, "both are needed, and it is not for one more");
}

fn finish_of(effects: &[Effect]) -> &Finish {
    match effects {
        [Effect::Finish { finish, .. }] => finish,
        other => panic!("the request ends: {other:?}"),
    }
}

// zookeeper.md check 27
#[test]
fn a_node_whose_write_failed_is_ready_when_its_request_finishes() {
    let mut harness = PoolHarness::new("a,a");
    harness.start_launches();
    let [Effect::Save(first)] = &harness.launched(0)[..] else { panic!("what is ready is not to be lost") };
    assert_eq!(first.record.state, NodeState::Ready);
    let lost = Err(WriteError::Failed("the connection was lost".to_owned()));
    assert_eq!(harness.step(Event::Saved(harness.nodes[0].clone(), lost)), []);
    let [Effect::Save(second)] = &harness.launched(1)[..] else { panic!("the same for the second") };
    harness.apply(second);
    let effects = harness.step(Event::Saved(harness.nodes[1].clone(), Ok(())));
    let [(_, again), (_, written)] = &finish_of(&effects).nodes[..] else { panic!("both are in it") };
    let again = again.as_ref().expect("the first is written now");
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
    // The picture is older than these answers.
    let effects = harness.step(Event::Saved(harness.nodes[1].clone(), Ok(())));
    let written = finish_of(&effects).nodes.iter().map(|(_, change)| change.as_ref().unwrap().record.state);
    assert_eq!(written.collect::<Vec<_>>(), [NodeState::Ready, NodeState::Ready]);
}

// Seed 9987 of the simulated hours: servers were made for nodes that were gone before they were begun.
#[test]
fn a_request_whose_new_node_is_deleted_is_released() {
    let mut harness = PoolHarness::new("a,a");
    let claimed = harness.step(Event::Wake);
    let [Effect::Claim(claim)] = &claimed[..] else { panic!("the request is taken up: {claimed:?}") };
    let (left, gone) = (node_id("1"), node_id("2"));
    let record = Versioned { record: Arc::new(claim.create[0].clone()), version: 0, mzxid: 1, mtime_ms: 0 };
    harness.built.snapshot.put_node(left.clone(), record);
    let effects = harness.step(Event::Claimed(harness.request.clone(), Ok(vec![left.clone(), gone.clone()])));
    let finish = finish_of(&effects);
    assert_eq!(finish.request.as_ref().unwrap().record.state, RequestState::Requested);
    let [(first, Some(change)), (second, None)] = &finish.nodes[..] else { panic!("{:?}", finish.nodes) };
    assert_eq!((first, second, change.record.state), (&left, &gone, NodeState::Deleting));
}

#[test]
fn a_node_reassigned_meanwhile_is_neither_assigned_nor_freed() {
    let mut harness = PoolHarness::with_capacity(3.0, "200-1 a,b", &["7 labels=a"]);
    let claimed = harness.step(Event::Wake);
    let [Effect::Claim(claim)] = &claimed[..] else { panic!("the request is taken up: {claimed:?}") };
    harness.apply(&claim.reuse[0]);
    let (request, made) = (harness.request.clone(), node_id("8"));
    let record = Versioned { record: Arc::new(claim.create[0].clone()), version: 0, mzxid: 1, mtime_ms: 0 };
    harness.built.snapshot.put_node(made.clone(), record);
    harness.nodes = vec![made.clone()];
    let begun = harness.step(Event::Claimed(request.clone(), Ok(vec![made])));
    let [Effect::Begin { nodes, .. }] = &begun[..] else { panic!("the node is building next") };
    nodes.iter().for_each(|change| harness.apply(change));
    harness.step(Event::Begun(request, Ok(())));
    let mut taken = claim.reuse[0].clone();
    taken.record.allocated_to = Some(request_id("200-2"));
    harness.apply(&taken);
    let effects = harness.launched(0);
    let finish = finish_of(&effects);
    assert_eq!(finish.request.as_ref().unwrap().record.state, RequestState::Requested);
    let [(_, None), (_, Some(freed))] = &finish.nodes[..] else { panic!("only ours is freed: {:?}", finish.nodes) };
    assert_eq!((freed.record.state, &freed.record.allocated_to), (NodeState::Ready, &None));
}

// drivers.md 1.7.3: every attempt is prepared anew. A fault run showed it: twenty attempts with an image that was no more.
#[test]
fn each_attempt_boots_from_the_newest_upload() {
    let mut harness = PoolHarness::new("a");
    let mut facts = ProviderFacts::clone(&harness.built.facts["lab"]);
    let mut launching = LaunchConfig::clone(facts.launch_config.as_ref().unwrap());
    launching.attempts = 4;
    let label = launching.labels.values_mut().next().unwrap().get_mut(&LabelName::from("a")).unwrap();
    label.image = LabelImage::Disk("debian".into());
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
        let gone = CloudError::Failed { kind: FailureKind::Unknown, detail: "no such image".to_owned() };
        let effects = harness.step(Event::JobUpdate(harness.nodes[0].clone(), JobEvent::Finished(Err(gone))));
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
    assert_eq!(fail(&mut harness), Some(None), "there is none, and the driver says so");
    upload(&mut harness, "3", 3.0);
    assert_eq!(fail(&mut harness), Some(Some("image-3".to_owned())));
    let effects = harness.launched(0);
    let [(_, Some(change))] = &finish_of(&effects).nodes[..] else { panic!("the node is written") };
    assert_eq!(change.record.image_id, Some(key("3").image_id()), "what it booted from");
}

/// The zones are tried one after another, each once.
#[test]
fn a_request_whose_zones_were_removed_gets_others() {
    let mut harness = PoolHarness::new("a");
    let mut facts = ProviderFacts::clone(&harness.built.facts["lab"]);
    let launching = LaunchConfig::clone(facts.launch_config.as_ref().unwrap());
    facts.launch_config = Some(Arc::new(LaunchConfig { zones: vec!["z1".to_owned(), "z2".to_owned()], ..launching }));
    harness.built.facts.insert("lab".into(), Arc::new(facts));
    harness.start_launches();
    let refuse = |harness: &mut PoolHarness, zone: &str| {
        let refused = JobEvent::Finished(Err(CloudError::NoZone(zone.to_owned())));
        harness.step(Event::JobUpdate(harness.nodes[0].clone(), refused))
    };
    for (gone, next) in [("z2", "z1"), ("z1", "z2")] {
        let effects = refuse(&mut harness, gone);
        assert!(effects.contains(&Effect::Refresh), "the zones are looked up again: {effects:?}");
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

// zookeeper.md check 37 and R45
#[test]
fn nodes_without_quota_are_deleted_and_the_others_wait() {
    let mut harness = PoolHarness::new("a,a");
    harness.start_launches();
    let [Effect::Save(first)] = &harness.launched(0)[..] else { panic!("what is ready is not to be lost") };
    harness.apply(first);
    assert_eq!(harness.step(Event::Saved(harness.nodes[0].clone(), Ok(()))), []);
    let refused = JobEvent::Finished(Err(CloudError::Quota("cores".to_owned())));
    let effects = harness.step(Event::JobUpdate(harness.nodes[1].clone(), refused));
    let released = effects.iter().find_map(|effect| match effect {
        Effect::Release(nodes) => Some(nodes.clone()),
        _ => None,
    });
    let [(node, Some(aborted))] = &released.expect("the second goes")[..] else { panic!("and only that") };
    assert_eq!((node, aborted.record.state), (&harness.nodes[1], NodeState::Aborted));
    assert!(
        effects.contains(&Effect::Refresh) && !effects.iter().any(|effect| matches!(effect, Effect::Finish { .. }))
    );
    assert!(harness.pool.is_paused());
    harness.built.snapshot.remove_node(node);

    assert_eq!(harness.step(Event::Wake), [], "not at once");
    harness.extend();
    let [Effect::Save(second)] = &harness.launched(1)[..] else { panic!("the same for the second") };
    harness.apply(second);
    let effects = harness.step(Event::Saved(harness.nodes[1].clone(), Ok(())));
    let finish = finish_of(&effects).request.as_ref().expect("the request is still there");
    assert_eq!((finish.record.state, &finish.record.nodes), (RequestState::Fulfilled, &harness.nodes));
}

#[test]
fn a_failed_extension_is_retried_on_the_next_snapshot() {
    let mut harness = PoolHarness::about_to_extend();
    let request = harness.request.clone();
    assert_eq!(harness.step(Event::Claimed(request, Err(WriteError::Conflict))), []);
    assert_eq!(harness.step(Event::Wake), [], "the same picture");
    harness.built.snapshot.revision += 1;
    assert!(matches!(&harness.step(Event::Wake)[..], [Effect::Extend { .. }]));
}

// Seed 16220 of the simulated hours: more servers than a provider may have.
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
        "it was not made"
    );
    let mut harness = refuse(WriteError::Failed("the connection was lost".to_owned()));
    let effects = harness.step(Event::Wake);
    assert!(
        !effects.iter().any(|effect| matches!(effect, Effect::Claim(claim) if !claim.create.is_empty())),
        "{effects:?}"
    );
    let due = harness.pool.due().expect("it is looked at again");
    harness.step(Event::Claimed(harness.request.clone(), Ok(Vec::new())));
    harness.built.advance_to(due);
    assert!(matches!(&harness.step(Event::Clock)[..], [Effect::Extend { create, .. }] if create.len() == 1));
}

// Seed 23424 of the simulated hours: each failed attempt to wait for room had the pool say that it lacks none, and each time
// that it was written there was another picture to try it on.
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
    assert_eq!(harness.step(Event::Wake), [], "another pool of this process is about to take it");
    assert!(harness.pool.is_paused());

    harness.built.snapshot.remove_request(&harness.request.clone());
    harness.built.snapshot.revision += 1;
    harness.step(Event::Wake);
    assert!(!harness.pool.is_paused());
}

// Seed 11995 of the simulated hours: a request waited for ever for the room that its own nodes took.
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
    let [Effect::Extend { reuse, create: build, .. }] = &effects[..] else { panic!("there is room: {effects:?}") };
    assert_eq!((reuse.len(), build.len()), (1, 2));
    harness.step(Event::Claimed(harness.request.clone(), lost));
    harness.apply(&reuse[0]);
    for (id, record) in ["11", "12"].iter().zip(build) {
        let stored = Versioned { record: Arc::new(record.clone()), version: 0, mzxid: 1, mtime_ms: 0 };
        harness.built.snapshot.put_node(node_id(id), stored);
    }
    harness.built.snapshot.revision += 1;
    let effects = harness.step(Event::Wake);
    let [Effect::Begin { nodes, .. }] = &effects[..] else { panic!("it has all that it wants: {effects:?}") };
    assert_eq!(nodes.iter().map(|change| &change.id).collect::<Vec<_>>(), [&node_id("11"), &node_id("12")]);
    nodes.iter().for_each(|change| harness.apply(change));
    harness.step(Event::Begun(harness.request.clone(), Ok(())));
    harness.nodes = vec![node_id("11"), node_id("12")];
    for node in 0..2 {
        let [Effect::Save(saved)] = &harness.launched(node)[..] else { panic!("what is ready is not to be lost") };
        harness.apply(saved);
    }
    harness.step(Event::Saved(harness.nodes[0].clone(), Ok(())));
    let effects = harness.step(Event::Saved(harness.nodes[1].clone(), Ok(())));
    let request = finish_of(&effects).request.as_ref().unwrap();
    assert_eq!(request.record.state, RequestState::Fulfilled);
    assert_eq!(request.record.nodes, ["11", "12", "7"].map(node_id));
}

// drivers.md 1.4: under what an attempt that failed is counted, and what becomes of the node
#[test]
fn every_kind_of_failure_is_counted_under_its_own_key() {
    let failed = |kind| CloudError::Failed { kind, detail: "no luck".to_owned() };
    let cases = [
        (failed(FailureKind::Nodepool), "error.nodepool"),
        (failed(FailureKind::Status), "error.status"),
        (failed(FailureKind::Network), "error.network"),
        (failed(FailureKind::Unknown), "error.unknown"),
        (CloudError::Capacity("full".to_owned()), "error.capacity"),
        (CloudError::Quota("cores".to_owned()), "error.quota"),
        (CloudError::Deadline, "error.unknown"),
        (CloudError::NotFound, "error.unknown"),
        (CloudError::Denied("never".to_owned()), "error.unknown"),
    ];
    for (error, expected) in cases {
        let mut harness = PoolHarness::new("a");
        harness.start_launches();
        let is_quota = matches!(error, CloudError::Quota(_));
        let effects = harness.step(Event::JobUpdate(harness.nodes[0].clone(), JobEvent::Finished(Err(error))));
        let reported: Vec<_> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Report { node, result, .. } => Some((node, *result)),
                _ => None,
            })
            .collect();
        assert_eq!(reported, [(&harness.nodes[0], expected)]);
        let is_over = effects.iter().any(|effect| matches!(effect, Effect::Finish { .. }));
        assert_eq!((is_over, harness.pool.is_paused()), (!is_quota, is_quota), "{expected}");
    }
}
