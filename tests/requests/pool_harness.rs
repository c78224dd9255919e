//! Pool harness: the state machine of a pool that launches nodes, on hand-made inputs.

use std::sync::Arc;

use nodepool_driver::error::CloudError;
use nodepool_driver::facts::{LaunchConfig, ProviderFacts};
use nodepool_driver::health::{CloudHealth, Decision, Refusal};
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, JobEvent, LaunchOrder, Outcome};
use nodepool_model::records::ids::{ExternalId, LauncherId, NodeId, RequestId};
use nodepool_model::records::request::NodeRequest;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::{LockState, NodeChange, Versioned};
use nodepool_policy::pool::{Effect, Event, Pool};
use testkit::fixtures::{Fixture, FixtureSpec, LAUNCHER, NOW, build, launch_config, node_id, pool_id, request_id};

/// A pool that launches nodes of the labels `a` and `b` without host key checks, and a request for nodes.
pub struct PoolHarness {
    pub built: Fixture,
    pub pool: Pool,
    pub request: RequestId,
    pub nodes: Vec<NodeId>,
}

impl PoolHarness {
    pub fn new(labels: &str) -> Self {
        // The fixture requires a host for each label. The provider facts of the harness do not contain the host.
        Self::from_spec(&FixtureSpec {
            hosts: vec!["h1 labels=a".to_owned()],
            requests: vec![format!("200-1 {labels}")],
            ..FixtureSpec::default()
        })
    }

    pub fn from_spec(spec: &FixtureSpec) -> Self {
        let mut built = build(spec);
        let launching = launch_config(&["a", "b"]);
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

    /// A request for one node that another pool of lower priority could serve, too.
    pub fn with_other_pool() -> Self {
        Self::from_spec(&FixtureSpec {
            hosts: vec!["h1 labels=a".to_owned()],
            requests: vec!["200-1 a".to_owned()],
            others: vec!["elsewhere labels=a priority=200".to_owned()],
            ..FixtureSpec::default()
        })
    }

    /// A pool with capacity for `capacity` nodes, including the idle `nodes`.
    pub fn with_capacity(capacity: f64, request: &str, nodes: &[&str]) -> Self {
        let mut harness = Self::from_spec(&FixtureSpec {
            hosts: vec!["h1 labels=a,b".to_owned()],
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            requests: vec![request.to_owned()],
            ..FixtureSpec::default()
        });
        let facts = (*harness.built.facts["lab"]).clone();
        let facts = ProviderFacts { limits: Resources::unlimited().with("instances", capacity), ..facts };
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

    /// A request for two nodes, one of which is ready. The other was refused, and is about to be launched again.
    pub fn about_to_extend() -> Self {
        let mut harness = Self::new("a,a");
        harness.start_launches();
        let [Effect::Save(ready)] = &harness.launched(0)[..] else { panic!("a ready node is saved") };
        harness.apply(ready);
        harness.step(Event::Saved(harness.nodes[0].clone(), Ok(())));
        harness.refuse(1);
        harness.built.snapshot.remove_node(&harness.nodes[1]);
        harness.set_window(Some(1));
        assert!(matches!(&harness.step(Event::Wake)[..], [Effect::Extend { .. }]));
        harness
    }

    pub fn set_zones(&mut self, zones: &[&str]) {
        let mut facts = ProviderFacts::clone(&self.built.facts["lab"]);
        let launching = LaunchConfig::clone(facts.launch_config.as_ref().unwrap());
        let zones = zones.iter().map(|zone| (*zone).to_owned()).collect();
        facts.launch_config = Some(Arc::new(LaunchConfig { zones, ..launching }));
        self.built.facts.insert("lab".into(), Arc::new(facts));
    }

    /// Adds a request and makes it the one that the harness serves.
    pub fn add_request(&mut self, id: &str, labels: &[&str]) {
        (self.request, self.nodes) = (request_id(id), Vec::new());
        let record = NodeRequest::new(labels.iter().map(|label| (*label).into()).collect(), "tester", NOW);
        let stored = Versioned { record: Arc::new(record), version: 0, mzxid: 50, mtime_ms: 0 };
        self.built.snapshot.put_request(self.request.clone(), stored);
    }

    /// Sets the health of the cloud as its TaskManager publishes it.
    pub fn set_health(&mut self, health: CloudHealth) {
        let facts = ProviderFacts { health, ..ProviderFacts::clone(&self.built.facts["lab"]) };
        self.built.facts.insert("lab".into(), Arc::new(facts));
    }

    /// The cloud is full and allows this many undecided launches, or is not full.
    pub fn set_window(&mut self, window: Option<usize>) {
        let refusal = |window| Refusal {
            since: NOW,
            reason: "cores".to_owned(),
            window,
            decided_by: Decision::Creation,
            accepted: 0,
        };
        self.set_health(CloudHealth { full: window.map(refusal), ..CloudHealth::default() });
    }

    /// The cloud refuses the node's launch because it is full.
    pub fn refuse(&mut self, node: usize) -> Vec<Effect> {
        self.set_window(Some(0));
        let refused = JobEvent::Finished(Err(CloudError::Quota("cores".to_owned())));
        self.step(Event::JobUpdate(self.nodes[node].clone(), refused))
    }

    /// Applies a write to the snapshot.
    pub fn apply(&mut self, change: &NodeChange) {
        let mzxid = self.built.snapshot.node(&change.id).map_or(1000, |known| known.mzxid + 1);
        let stored =
            Versioned { record: Arc::new(change.record.clone()), version: change.version + 1, mzxid, mtime_ms: 0 };
        self.built.snapshot.put_node(change.id.clone(), stored);
    }

    /// Steps the pool until the launches are submitted.
    pub fn start_launches(&mut self) {
        let claimed = self.step(Event::Wake);
        let [Effect::Claim(claim)] = &claimed[..] else { panic!("the request is claimed: {claimed:?}") };
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
        let effects = self.step(Event::Claimed(request.clone(), Ok(nodes)));
        let [Effect::Begin { nodes, .. }] = &effects[..] else { panic!("the nodes become `building`") };
        nodes.iter().for_each(|change| self.apply(change));
        let submitted = self.step(Event::Begun(request, Ok(())));
        assert!(submitted.iter().all(|effect| matches!(effect, Effect::Submit { .. })), "{submitted:?}");
    }

    /// Advances the clock by five seconds, after which a new node of the request replaces its last one. Returns the
    /// launch order.
    pub fn extend(&mut self) -> Arc<LaunchOrder> {
        self.built.now = self.built.now + Seconds(5.0);
        let effects = self.step(Event::Clock);
        let [Effect::Extend { reuse, create: build, .. }] = &effects[..] else {
            panic!("capacity is available: {effects:?}")
        };
        assert_eq!((reuse.len(), build.len()), (0, 1));
        let another = node_id(&format!("{}", self.built.snapshot.nodes().count() + 20));
        let stored = Versioned { record: Arc::new(build[0].clone()), version: 0, mzxid: 2, mtime_ms: 0 };
        self.built.snapshot.put_node(another.clone(), stored);
        *self.nodes.last_mut().unwrap() = another.clone();
        let request = self.request.clone();
        let effects = self.step(Event::Claimed(request.clone(), Ok(vec![another])));
        let [Effect::Begin { nodes, .. }] = &effects[..] else { panic!("the node becomes `building`: {effects:?}") };
        self.apply(&nodes[0].clone());
        match &self.step(Event::Begun(request, Ok(())))[..] {
            [Effect::Submit { job: Job::Launch(order), .. }] => order.clone(),
            other => panic!("the launch is submitted: {other:?}"),
        }
    }

    /// Reports that the cloud has launched the node's instance.
    pub fn launched(&mut self, node: usize) -> Vec<Effect> {
        let instance = Instance::new(ExternalId::text(format!("server-{node}")));
        let job_event = JobEvent::Finished(Ok(Outcome::Launched(Box::new(instance))));
        let effects = self.step(Event::JobUpdate(self.nodes[node].clone(), job_event)).into_iter();
        effects.filter(|effect| !matches!(effect, Effect::Report { .. })).collect()
    }
}
