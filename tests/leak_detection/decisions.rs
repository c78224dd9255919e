//! Decisions about leaked instances: the proof that a deletion requires, and instances that are never deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::{Instance, InstanceState, Inventory};
use nodepool_model::records::ids::{ExternalId, NodeId, ProviderName};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::{Seconds, Timestamp};
use nodepool_model::snapshot::Versioned;
use nodepool_policy::cleanup::leaks::{Effect, Event, LeakDetector, LeakReason, Proof};
use testkit::fixtures::{Fixture, FixtureSpec, NOW, build, launch_config};

fn inputs(nodes: &[&str]) -> Fixture {
    let nodes = nodes.iter().map(|line| (*line).to_owned()).collect();
    let mut built = build(&FixtureSpec { nodes, ..FixtureSpec::default() });
    let launching = launch_config(&[]);
    let facts =
        ProviderFacts { launch_config: Some(Arc::new(launching)), refreshed_at: NOW, ..ProviderFacts::initial() };
    built.facts = BTreeMap::from([("lab".into(), Arc::new(facts))]);
    built
}

fn instance(id: &str, provider: &str, node: &str) -> Instance {
    let mut instance = Instance::new(ExternalId::text(id));
    let mark = [("nodepool_provider_name", provider), ("nodepool_node_id", node)];
    instance.metadata = mark.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    instance
}

fn lab_provider() -> ProviderName {
    "lab".into()
}

fn listed(instances: &[Instance]) -> Event {
    Event::Listed(lab_provider(), Some(Arc::new(Inventory::new(instances.to_vec()))))
}

fn ids_listed(instances: &[Instance]) -> Event {
    Event::ServerIdsListed(lab_provider(), instances.iter().map(|instance| instance.external_id.to_string()).collect())
}

fn proven(nodes: &[(&str, Option<Node>)]) -> Event {
    let nodes = nodes.iter().map(|(id, node)| (NodeId::from((*id).to_owned()), node.clone().map(Box::new)));
    Event::Proven(lab_provider(), Some(Proof { nodes: nodes.collect(), issued_ids_below: 1000, uploads: None }))
}

/// Runs a sweep, its listing and the proof from ZooKeeper. Returns the effects of the listing: none if the ids alone
/// show no candidate.
fn sweep(leaks: &mut LeakDetector, built: &Fixture, instances: &[Instance], then: Event) -> Vec<Effect> {
    let mut listing = leaks.step(Event::Sweep, &built.inputs());
    if listing == [Effect::ListServerIds(lab_provider())] {
        listing = leaks.step(ids_listed(instances), &built.inputs());
        if listing.is_empty() {
            return Vec::new();
        }
    }
    assert_eq!(listing, [Effect::List(lab_provider())]);
    let effects = leaks.step(listed(instances), &built.inputs());
    leaks.step(then, &built.inputs());
    effects
}

fn deleted(effects: &[Effect]) -> Vec<(String, LeakReason)> {
    let deletion = |effect: &Effect| match effect {
        Effect::Delete { candidate, .. } => Some((candidate.external_id.to_string(), candidate.reason)),
        _ => None,
    };
    effects.iter().filter_map(deletion).collect()
}

const DELETED: &str = "0000000099";

// A deletion requires the same instance id in two sweeps, and a fresh read of ZooKeeper between them.
#[test]
fn a_leak_needs_two_sightings_and_a_zookeeper_check() {
    let (mut leaks, built) = (LeakDetector::default(), inputs(&[]));
    let instances = [instance("a", "lab", DELETED)];
    let first = sweep(&mut leaks, &built, &instances, proven(&[(DELETED, None)]));
    assert_eq!(first, [Effect::Prove(lab_provider(), vec![NodeId::from(DELETED.to_owned())])]);
    let second = sweep(&mut leaks, &built, &instances, proven(&[(DELETED, None)]));
    assert_eq!(deleted(&second), [("a".to_owned(), LeakReason::NoNode)]);
}

/// Inputs with one ready node that has this instance.
fn ready_with(id: &str) -> Fixture {
    let mut built = inputs(&["1 ready"]);
    let (node, stored) =
        built.snapshot.nodes().next().map(|(id, stored)| (id.clone(), stored.clone())).expect("a node");
    let mut record = Node::clone(&stored.record);
    record.external_id = id.into();
    built.snapshot.remove_node(&node);
    built.snapshot.put_node(node, Versioned { record: Arc::new(record), ..stored });
    built
}

// Regression: a clock that was set back by an hour suspended listings for an hour.
#[test]
fn listings_run_every_ten_minutes_despite_clock_steps() {
    for by in [Seconds(-3600.0), Seconds(3600.0)] {
        let (mut leaks, mut built) = (LeakDetector::default(), ready_with("a"));
        let known = [instance("a", "lab", "0000000001")];
        leaks.step(Event::Sweep, &built.inputs());
        leaks.step(listed(&known), &built.inputs());
        built.set_clock(by);
        assert_eq!(leaks.step(Event::Sweep, &built.inputs()), [Effect::ListServerIds(lab_provider())]);
        leaks.step(ids_listed(&known), &built.inputs());
        built.advance_to(built.monotonic_now() + Seconds(600.0));
        assert_eq!(leaks.step(Event::Sweep, &built.inputs()), [Effect::List(lab_provider())]);
    }
}

#[test]
fn without_candidates_only_ids_are_listed_until_one_is_new() {
    let (mut leaks, mut built) = (LeakDetector::default(), ready_with("a"));
    let known = [instance("a", "lab", "0000000001"), instance("b", "other", DELETED)];
    assert_eq!(leaks.step(Event::Sweep, &built.inputs()), [Effect::List(lab_provider())], "no instance is known yet");
    assert_eq!(leaks.step(listed(&known), &built.inputs()), []);
    for _ in 0..3 {
        assert_eq!(leaks.step(Event::Sweep, &built.inputs()), [Effect::ListServerIds(lab_provider())]);
        assert_eq!(leaks.step(ids_listed(&known), &built.inputs()), []);
    }
    let all = [known.as_slice(), &[instance("c", "lab", DELETED)]].concat();
    assert_eq!(leaks.step(Event::Sweep, &built.inputs()), [Effect::ListServerIds(lab_provider())]);
    assert_eq!(leaks.step(ids_listed(&all), &built.inputs()), [Effect::List(lab_provider())], "an unknown instance");
    assert_eq!(
        leaks.step(listed(&all), &built.inputs()),
        [Effect::Prove(lab_provider(), vec![NodeId::from(DELETED.to_owned())])]
    );
    leaks.step(proven(&[(DELETED, None)]), &built.inputs());
    assert_eq!(
        leaks.step(Event::Sweep, &built.inputs()),
        [Effect::List(lab_provider())],
        "a candidate needs a full listing"
    );
    assert_eq!(deleted(&leaks.step(listed(&all), &built.inputs())).len(), 1);
    leaks.step(proven(&[(DELETED, None)]), &built.inputs());
    leaks.step(Event::Sweep, &built.inputs());
    leaks.step(listed(&known), &built.inputs());
    // The instance of a deleted node is a candidate; a failed listing of ids proves nothing.
    let id = built.snapshot.nodes().next().expect("a node").0.clone();
    leaks.step(Event::Sweep, &built.inputs());
    leaks.step(Event::Listed(lab_provider(), None), &built.inputs());
    assert_eq!(leaks.step(Event::Sweep, &built.inputs()), [Effect::List(lab_provider())]);
    leaks.step(listed(&known), &built.inputs());
    built.snapshot.remove_node(&id);
    assert_eq!(leaks.step(Event::Sweep, &built.inputs()), [Effect::ListServerIds(lab_provider())]);
    assert_eq!(leaks.step(ids_listed(&known), &built.inputs()), [Effect::List(lab_provider())]);
}

// A reload removes the provider between the two listings, and adds it again before the next sweep.
#[test]
fn a_missed_listing_is_made_by_the_next_sweep() {
    let (mut leaks, built) = (LeakDetector::default(), ready_with("a"));
    let known = [instance("a", "lab", "0000000001")];
    leaks.step(Event::Sweep, &built.inputs());
    leaks.step(listed(&known), &built.inputs());
    let all = [known.as_slice(), &[instance("c", "lab", DELETED)]].concat();
    assert_eq!(leaks.step(Event::Sweep, &built.inputs()), [Effect::ListServerIds(lab_provider())]);
    assert_eq!(leaks.step(ids_listed(&all), &built.inputs()), [Effect::List(lab_provider())]);
    assert_eq!(leaks.step(Event::Sweep, &built.inputs()), [], "a listing is in flight");
    assert_eq!(leaks.step(Event::Listed(lab_provider(), None), &built.inputs()), []);
    sweep(&mut leaks, &built, &all, proven(&[(DELETED, None)]));
    assert_eq!(deleted(&sweep(&mut leaks, &built, &all, proven(&[(DELETED, None)]))).len(), 1);
}

#[test]
fn instances_known_or_unconfirmed_by_zookeeper_are_kept() {
    let node = Node::new(NodeState::Ready, Timestamp(1.0));
    for answer in [proven(&[(DELETED, Some(node))]), proven(&[]), Event::Proven(lab_provider(), None)] {
        let (mut leaks, built) = (LeakDetector::default(), inputs(&[]));
        let instances = [instance("a", "lab", DELETED)];
        for _ in 0..3 {
            let effects = sweep(&mut leaks, &built, &instances, answer.clone());
            assert_eq!(deleted(&effects), [], "{answer:?}");
        }
    }
}

#[test]
fn a_failed_listing_discards_the_proof() {
    let (mut leaks, built) = (LeakDetector::default(), inputs(&[]));
    let instances = [instance("a", "lab", DELETED)];
    sweep(&mut leaks, &built, &instances, proven(&[(DELETED, None)]));
    leaks.step(Event::Sweep, &built.inputs());
    leaks.step(Event::Listed(lab_provider(), None), &built.inputs());
    assert_eq!(deleted(&sweep(&mut leaks, &built, &instances, proven(&[(DELETED, None)]))), []);
    assert_eq!(deleted(&sweep(&mut leaks, &built, &instances, proven(&[(DELETED, None)]))).len(), 1);
}

#[test]
fn nothing_is_decided_while_zookeeper_is_unreachable() {
    let (mut leaks, mut built) = (LeakDetector::default(), inputs(&[]));
    let instances = [instance("a", "lab", DELETED)];
    sweep(&mut leaks, &built, &instances, proven(&[(DELETED, None)]));
    built.snapshot.connected = false;
    assert_eq!(leaks.step(Event::Sweep, &built.inputs()), []);
    built.snapshot.connected = true;
    assert_eq!(deleted(&sweep(&mut leaks, &built, &instances, proven(&[(DELETED, None)]))), []);
}

#[test]
fn foreign_and_terminating_instances_are_no_leaks() {
    let (mut leaks, built) = (LeakDetector::default(), inputs(&[]));
    let mut terminating = instance("b", "lab", DELETED);
    terminating.state = InstanceState::Stopping;
    let instances = [instance("a", "other", DELETED), terminating, Instance::new(ExternalId::text("c"))];
    for _ in 0..3 {
        assert_eq!(sweep(&mut leaks, &built, &instances, proven(&[(DELETED, None)])), []);
    }
}

// Leaked instances reduce the capacity. An instance counts when it is listed twice, because that of a node just deleted
// may be listed once more.
#[test]
fn leaked_instances_count_towards_limits_until_deleted() {
    let (mut leaks, mut built) = (LeakDetector::default(), inputs(&[]));
    let amounts = Resources::none().with("cores", 4.0).with("instances", 1.0);
    let mut leaked = Instance { resources: amounts.clone(), ..instance("a", "lab", DELETED) };
    let another = Instance { resources: amounts.clone(), ..instance("b", "other", DELETED) };
    let reported_usage = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::SetLeakedUsage(provider, amounts) => Some((provider.clone(), amounts.clone())),
            _ => None,
        })
    };
    let mut sweep_usage = |built: &Fixture, instances: &[Instance]| {
        reported_usage(&sweep(&mut leaks, built, instances, proven(&[(DELETED, None)])))
    };
    assert_eq!(sweep_usage(&built, &[leaked.clone(), another.clone()]), None, "listed once");
    assert_eq!(sweep_usage(&built, &[leaked.clone(), another.clone()]), Some((lab_provider(), amounts.clone())));
    let known = ProviderFacts { leaked: amounts, ..ProviderFacts::clone(&built.facts[&lab_provider()]) };
    built.facts = BTreeMap::from([(lab_provider(), Arc::new(known))]);
    leaked.state = InstanceState::Stopping;
    assert_eq!(sweep_usage(&built, &[leaked, another.clone()]), None, "still terminating, and already reported");
    assert_eq!(sweep_usage(&built, &[another]), Some((lab_provider(), Resources::none())));
}

#[test]
fn instances_with_unissued_node_ids_are_reported_and_kept() {
    let (mut leaks, built) = (LeakDetector::default(), inputs(&[]));
    // An id from before ZooKeeper was restored, an id in a foreign format, and a leak.
    let instances = [("a", "0000000100"), ("b", "100"), ("c", DELETED)].map(|(id, node)| instance(id, "lab", node));
    let nodes: BTreeMap<NodeId, Option<Box<Node>>> =
        ["0000000100", "100", DELETED].map(|id| (NodeId::from(id.to_owned()), None)).into();
    let proof = |issued_ids_below| {
        Event::Proven(lab_provider(), Some(Proof { nodes: nodes.clone(), issued_ids_below, uploads: None }))
    };
    let reported = |effects: &[Effect]| match effects {
        [Effect::UnissuedId(_, candidates)] => {
            candidates.iter().map(|candidate| candidate.external_id.to_string()).collect()
        }
        _ => Vec::new(),
    };
    leaks.step(Event::Sweep, &built.inputs());
    leaks.step(listed(&instances), &built.inputs());
    assert_eq!(reported(&leaks.step(proof(100), &built.inputs())), ["a", "b"]);
    for _ in 0..2 {
        leaks.step(Event::Sweep, &built.inputs());
        assert_eq!(deleted(&leaks.step(listed(&instances), &built.inputs())), [("c".to_owned(), LeakReason::NoNode)]);
        // ZooKeeper has issued the first id to another node since.
        assert_eq!(reported(&leaks.step(proof(101), &built.inputs())), ["a", "b"]);
    }
}

#[test]
fn a_duplicate_instance_is_deleted_but_not_during_the_launch() {
    let mut node = Node::new(NodeState::Ready, Timestamp(1.0));
    node.external_id = "a".into();
    for (state, expected) in
        [(NodeState::Ready, 1), (NodeState::InUse, 1), (NodeState::Building, 0), (NodeState::Init, 0)]
    {
        let (mut leaks, mut built) = (LeakDetector::default(), inputs(&["1 ready"]));
        let id = built.snapshot.nodes().next().expect("the fixture has a node").0.clone();
        node.state = state;
        let mut stored = built.snapshot.node(&id).expect("the node exists").clone();
        stored.record = Arc::new(node.clone());
        built.snapshot.remove_node(&id);
        built.snapshot.put_node(id.clone(), stored);
        let instances = [instance("a", "lab", id.as_str()), instance("b", "lab", id.as_str())];
        let proof = || proven(&[(id.as_str(), Some(node.clone()))]);
        sweep(&mut leaks, &built, &instances, proof());
        let effects = deleted(&sweep(&mut leaks, &built, &instances, proof()));
        assert_eq!(effects.len(), expected, "{state:?}");
        assert!(effects.iter().all(|(id, why)| id == "b" && *why == LeakReason::OtherInstance), "{effects:?}");
    }
}

#[test]
fn leaks_beyond_the_budget_are_reported_and_kept() {
    let (mut leaks, built) = (LeakDetector::default(), inputs(&[]));
    let ids: Vec<String> = (100..120).map(|number| format!("{number:010}")).collect();
    let instances: Vec<Instance> = ids.iter().map(|id| instance(id, "lab", id)).collect();
    let deleted_nodes: Vec<(&str, Option<Node>)> = ids.iter().map(|id| (id.as_str(), None)).collect();
    sweep(&mut leaks, &built, &instances, proven(&deleted_nodes));
    let effects = sweep(&mut leaks, &built, &instances, proven(&deleted_nodes));
    assert_eq!(deleted(&effects), []);
    let reported = effects
        .iter()
        .any(|effect| matches!(effect, Effect::Exceeded { candidates, budget: 10, .. } if candidates.len() == 20));
    assert!(reported, "{effects:?}");
    // The budget is a tenth: 20 of 200 instances.
    let known: Vec<Instance> = (0..180).map(|number| instance(&format!("x{number}"), "lab", "0000000001")).collect();
    let all: Vec<Instance> = instances.iter().chain(&known).cloned().collect();
    let built = inputs(&["1 ready"]);
    sweep(&mut leaks, &built, &all, proven(&deleted_nodes));
    assert_eq!(deleted(&sweep(&mut leaks, &built, &all, proven(&deleted_nodes))).len(), 20);
}
