//! What a pool decides while it builds the nodes of a request, on worlds made by hand.

mod worlds;

use std::sync::Arc;

use nodepool::model::cloud::{
    ExternalId, Facts, Instance, LabelImage, LaunchLabel, Launching, Login, News, Outcome, Tidy,
};
use nodepool::model::ids::{LauncherId, NodeId, RequestId};
use nodepool::model::node::NodeState;
use nodepool::model::snapshot::{NodeChange, Stored, WriteError};
use nodepool::model::time::Span;
use nodepool::policy::assembly::Finish;
use nodepool::policy::pool::{Effect, Event, Pool};
use worlds::{Built, LAUNCHER, NOW, Spec, build, node_id, pool_id, request_id};

/// A pool whose label is that of a host, whose provider launches, without a check, and a request for so many.
struct Scene {
    built: Built,
    pool: Pool,
    request: RequestId,
    nodes: Vec<NodeId>,
}

impl Scene {
    fn new(wishes: &str) -> Self {
        // A label is one that a host has; the facts take no notice of the host.
        let mut built = build(&Spec {
            hosts: vec!["h1 labels=a".to_owned()],
            requests: vec![format!("200-1 {wishes}")],
            ..Spec::default()
        });
        let label = LaunchLabel {
            need: None,
            image: LabelImage::Cloud("image".to_owned()),
            login: Login::default(),
            host_key_checking: false,
            console_log: false,
            trouble: None,
        };
        let launching = Launching {
            attempts: 1,
            timeout: Span(60.0),
            boot_timeout: Span(60.0),
            zones: Vec::new(),
            tidy: Tidy::default(),
            labels: [("main".into(), [("a".into(), label)].into())].into(),
        };
        let facts = Facts { seen_at: NOW, launching: Some(Arc::new(launching)), ..Facts::unseen() };
        built.facts.insert("lab".into(), Arc::new(facts));
        Self {
            built,
            pool: Pool::new(pool_id(), LauncherId::from(LAUNCHER)),
            request: request_id("200-1"),
            nodes: Vec::new(),
        }
    }

    fn step(&mut self, event: Event) -> Vec<Effect> {
        self.pool.step(event, &self.built.world())
    }

    /// Carries a write out.
    fn apply(&mut self, change: &NodeChange) {
        let stored = Stored { record: Arc::new(change.record.clone()), version: 1, mzxid: 1000 };
        self.built.snapshot.put_node(change.id.clone(), stored);
    }

    /// Until the launches have begun.
    fn begin(&mut self) {
        let taken_up = self.step(Event::Wake);
        let [Effect::Claim(claim)] = &taken_up[..] else { panic!("the request is taken up: {taken_up:?}") };
        for (number, record) in claim.build.iter().enumerate() {
            let id = node_id(&(number + 1).to_string());
            self.built.snapshot.put_node(id.clone(), Stored { record: Arc::new(record.clone()), version: 0, mzxid: 1 });
            self.nodes.push(id);
        }
        let (request, nodes) = (self.request.clone(), self.nodes.clone());
        let begun = self.step(Event::Claimed(request.clone(), Ok(nodes)));
        let [Effect::Begin { nodes, .. }] = &begun[..] else { panic!("the nodes are building next") };
        nodes.iter().for_each(|change| self.apply(change));
        let submitted = self.step(Event::Begun(request, Ok(())));
        assert!(submitted.iter().all(|effect| matches!(effect, Effect::Submit { .. })), "{submitted:?}");
    }

    /// The cloud has launched the node's instance.
    fn launched(&mut self, node: usize) -> Vec<Effect> {
        let instance = Instance::new(ExternalId::text(format!("server-{node}")));
        let news = News::Ended(Ok(Outcome::Launched(Box::new(instance))));
        let effects = self.step(Event::News(self.nodes[node].clone(), news)).into_iter();
        effects.filter(|effect| !matches!(effect, Effect::Report { .. })).collect()
    }
}

fn the_finish(effects: &[Effect]) -> &Finish {
    match effects {
        [Effect::Finish { finish, .. }] => finish,
        other => panic!("the request ends: {other:?}"),
    }
}

// zookeeper.md check 27
#[test]
fn a_node_whose_write_failed_is_ready_by_the_end_of_its_request() {
    let mut scene = Scene::new("a,a");
    scene.begin();
    let [Effect::Save(first)] = &scene.launched(0)[..] else { panic!("what is ready is not to be lost") };
    assert_eq!(first.record.state, NodeState::Ready);
    let lost = Err(WriteError::Failed("the connection was lost".to_owned()));
    assert_eq!(scene.step(Event::Saved(scene.nodes[0].clone(), lost)), []);
    let [Effect::Save(second)] = &scene.launched(1)[..] else { panic!("the same for the second") };
    scene.apply(second);
    let effects = scene.step(Event::Saved(scene.nodes[1].clone(), Ok(())));
    let [(_, again), (_, written)] = &the_finish(&effects).nodes[..] else { panic!("both are in it") };
    let again = again.as_ref().expect("the first is written now");
    assert_eq!((again.record.state, &again.record.external_id), (NodeState::Ready, &"server-0".into()));
    assert_eq!(*written, None);
}
