//! Tests of the invariants, each with a violation.

use super::*;
use nodepool_model::records::time::Timestamp;

#[test]
fn a_record_without_what_its_readers_need_is_reported() {
    let check = |data: &str, expected: &[&str]| {
        let found = check_readable("a request", &["state", "node_types"], data.as_bytes());
        assert_eq!(found.iter().map(|violation| &*violation.0).collect::<Vec<_>>(), expected);
    };
    check(r#"{"state": "requested", "node_types": ["a"], "more": 1}"#, &[]);
    check(r#"{"state": null, "node_types": []}"#, &[]);
    check(
        r#"{"node_types": null}"#,
        &["a request lacks state, which its readers need", "a request has a node_types that is not a list"],
    );
    check("{", &["a request is not JSON: EOF while parsing an object at line 1 column 1"]);
}

fn node(state: NodeState, request: &str, label: &str) -> Node {
    Node {
        allocated_to: Some(request.into()),
        labels: vec![label.into()],
        external_id: "server".into(),
        ..Node::new(state, Timestamp(0.0))
    }
}

#[test]
fn a_request_is_fulfilled_with_the_labels_it_requested() {
    let check = |labels: &[&str], assigned: &[(&str, Node)], expected: &[&str]| {
        let labels = labels.iter().map(|label| (*label).into()).collect();
        let nodes = assigned.iter().map(|(id, _)| (*id).into()).collect();
        let request = NodeRequest { nodes, ..NodeRequest::new(labels, "tester", Timestamp(0.0)) };
        let known = |id: &NodeId| assigned.iter().find(|(assigned, _)| *assigned == id.as_str()).map(|(_, node)| node);
        let found = check_fulfilled(&"200-1".into(), &request, known);
        assert_eq!(found.iter().map(|violation| &*violation.0).collect::<Vec<_>>(), expected);
    };
    let good = node(NodeState::Ready, "200-1", "a");
    check(&["a"], &[("1", good.clone())], &[]);
    check(&["a", "a"], &[("1", good.clone())], &["request 200-1 is fulfilled with 1 nodes for 2 labels"]);
    check(&["a", "a"], &[("1", good.clone()), ("1", good.clone())], &["request 200-1 has a node twice"]);
    check(&["b"], &[("1", good)], &["request 200-1 requests b but has node 1 without that label"]);
    check(
        &["a"],
        &[("1", node(NodeState::Building, "200-2", "a"))],
        &[
            "request 200-1 is fulfilled with node 1, which is building",
            "request 200-1 is fulfilled with node 1, which is not allocated to it",
        ],
    );
}

#[test]
fn no_server_in_use_is_deleted() {
    let check = |server: &str, state: NodeState, expected: Option<&str>| {
        let found = check_server_deletion(server, &"1".into(), Some(&node(state, "200-1", "a")));
        assert_eq!(found.as_ref().map(|violation| &*violation.0), expected);
    };
    check("server", NodeState::Deleting, None);
    check("server", NodeState::InUse, Some("server server of node 1 is deleted while it is in-use"));
    check("server", NodeState::Hold, Some("server server of node 1 is deleted while it is hold"));
    check("another", NodeState::InUse, None);
    assert_eq!(check_server_deletion("server", &"1".into(), None), None);
}

// The consumer may lock the nodes as soon as its request is fulfilled.
#[test]
fn nodes_are_unlocked_before_their_request_is_fulfilled() {
    let check = |observations: &[(&str, bool)], expected: &[&str]| {
        let mut checker = InvariantChecker::default();
        let id = NodeId::from("1");
        checker.observe(Observation::Node(&id, Some(&node(NodeState::Building, "200-1", "a"))));
        for (name, is_present) in observations {
            checker.observe(Observation::NodeContender(&id, name, *is_present));
        }
        checker.observe(Observation::Node(&id, Some(&node(NodeState::Ready, "200-1", "a"))));
        checker.observe(Observation::NodeContender(&id, "later contender", true));
        let state = RequestState::Fulfilled;
        let unfulfilled = NodeRequest::new(vec!["a".into()], "tester", Timestamp(0.0));
        let request = NodeRequest { nodes: vec![id], state, ..unfulfilled };
        let found = checker.observe(Observation::Request(&"200-1".into(), Some(&request)));
        assert_eq!(found.iter().map(|violation| &*violation.0).collect::<Vec<_>>(), expected);
    };
    let broken = "request 200-1 is fulfilled with node 1, which is still locked by its launcher";
    check(&[], &[]);
    check(&[("launcher", true)], &[broken]);
    check(&[("launcher", true), ("launcher", false)], &[]);
    check(&[("launcher", true), ("other", true), ("other", false)], &[broken]);
    check(&[("launcher", true), ("other", true), ("launcher", false)], &[]);
}

#[test]
fn a_lowered_limit_applies_to_later_nodes() {
    let (pool, record) = (PoolId::new("south", "main"), node(NodeState::Building, "200-1", "a"));
    let record = Node { provider: Some(pool.provider.clone()), pool: Some(pool.pool.clone()), ..record };
    let mut checker = InvariantChecker::default();
    let server_key = |server: &str| (pool.provider.clone(), server.to_owned());
    for (id, server) in [("1", "s-1"), ("2", "s-2")] {
        checker.observe(Observation::Node(&id.into(), Some(&record)));
        assert_eq!(checker.observe(Observation::Created(&server_key(server), &id.into())), []);
    }
    checker.observe(Observation::PoolLimit(&pool, 2));
    checker.observe(Observation::PoolLimit(&pool, 1));
    checker.observe(Observation::Removed(&server_key("s-2")));
    assert_eq!(checker.observe(Observation::Created(&server_key("s-3"), &"2".into())), []);
    checker.observe(Observation::Node(&"3".into(), Some(&record)));
    let found = checker.observe(Observation::Created(&server_key("s-4"), &"3".into()));
    assert_eq!(found, [Violation("south-main has 3 servers, its limit is 1".to_owned())]);
    // Servers of another pool of the provider do not count.
    checker.observe(Observation::Node(&"4".into(), Some(&Node { pool: Some("annexe".into()), ..record })));
    assert_eq!(checker.observe(Observation::Created(&server_key("s-5"), &"4".into())), []);
}

#[test]
fn a_tenant_does_not_exceed_its_limit() {
    let mut checker = InvariantChecker::default();
    checker.observe(Observation::TenantLimit(&"small".into(), 1));
    let of_small = |state: NodeState, launcher: &str| {
        let (tenant_name, launcher) = (Some("small".into()), Some(launcher.to_owned()));
        Node { tenant_name, launcher, ..node(state, "200-1", "a") }
    };
    let mut observe = |id: &str, record: Node| checker.observe(Observation::Node(&id.into(), Some(&record))).len();
    assert_eq!(observe("1", of_small(NodeState::Building, "east")), 0);
    assert_eq!(observe("2", of_small(NodeState::Init, "east")), 1);
    assert_eq!(observe("2", of_small(NodeState::Building, "east")), 0, "it has the node already");
    // Deallocated idle nodes count for no tenant.
    assert_eq!(observe("1", Node { allocated_to: None, ..of_small(NodeState::Ready, "east") }), 0);
    assert_eq!(observe("2", Node { allocated_to: None, ..of_small(NodeState::Ready, "east") }), 0);
    assert_eq!(observe("1", of_small(NodeState::Ready, "east")), 0);
    assert_eq!(observe("2", of_small(NodeState::Ready, "east")), 1);
    assert_eq!(observe("2", Node { allocated_to: None, ..of_small(NodeState::Ready, "east") }), 0);
    assert_eq!(observe("1", Node { tenant_name: None, ..of_small(NodeState::Ready, "east") }), 0);
    // The launcher that created a node knows its resources; another launcher does not.
    assert_eq!(observe("3", of_small(NodeState::Init, "east")), 0);
    assert_eq!(observe("4", of_small(NodeState::Init, "west")), 0);
    assert_eq!(observe("5", of_small(NodeState::Init, "west")), 1);
}

#[test]
fn an_unlocked_request_is_neglected_where_a_launcher_should_hold_it() {
    let mut checker = InvariantChecker::default();
    let neglected = |checker: &InvariantChecker| -> Vec<(String, bool)> {
        checker.neglected_requests().map(|(id, idle)| (id.to_string(), idle.is_some())).collect()
    };
    let unfulfilled = NodeRequest::new(vec!["a".into()], "tester", Timestamp(0.0));
    checker.observe(Observation::Request(&"200-2".into(), Some(&unfulfilled)));
    assert_eq!(neglected(&checker), [], "no node exists that it could use");
    checker
        .observe(Observation::Node(&"1".into(), Some(&Node { allocated_to: None, ..node(NodeState::Ready, "", "a") })));
    assert_eq!(neglected(&checker), [("200-2".to_owned(), true)]);
    checker.observe(Observation::NodeContender(&"1".into(), "contender", true));
    assert_eq!(neglected(&checker), [], "the node is locked");
    checker.observe(Observation::NodeContender(&"1".into(), "contender", false));
    // A request of higher rank was accepted and abandoned.
    let pending = NodeRequest { state: RequestState::Pending, node_types: vec!["b".into()], ..unfulfilled.clone() };
    checker.observe(Observation::Request(&"100-1".into(), Some(&pending)));
    assert_eq!(neglected(&checker), [("100-1".to_owned(), false)]);
    checker.observe(Observation::RequestContender(&"100-1".into(), true));
    assert_eq!(neglected(&checker), [("200-2".to_owned(), true)]);
    checker.observe(Observation::RequestContender(&"200-2".into(), true));
    assert_eq!(neglected(&checker), []);
    checker.observe(Observation::RequestContender(&"200-2".into(), false));
    // Requests for new nodes or with a tenant, and declined requests, may wait.
    checker.observe(Observation::Request(&"200-2".into(), Some(&NodeRequest { reuse: false, ..unfulfilled.clone() })));
    assert_eq!(neglected(&checker), []);
    checker.observe(Observation::Request(
        &"200-2".into(),
        Some(&NodeRequest { tenant_name: Some("small".into()), ..unfulfilled.clone() }),
    ));
    assert_eq!(neglected(&checker), []);
    checker.observe(Observation::Request(
        &"200-2".into(),
        Some(&NodeRequest { declined_by: vec!["east".into()], ..unfulfilled }),
    ));
    assert_eq!(neglected(&checker), []);
}

#[test]
fn a_node_of_a_fulfilled_request_does_not_change() {
    let check = |request: &str, state: NodeState, owner: Option<&str>, expected: &[&str]| {
        let (id, owned) = (NodeId::from("1"), RequestId::from(request));
        let mut checker = InvariantChecker::default();
        checker.observe(Observation::Node(&id, Some(&node(NodeState::Ready, request, "a"))));
        let unfulfilled = NodeRequest::new(vec!["a".into()], "tester", Timestamp(0.0));
        let fulfilled = NodeRequest { nodes: vec![id.clone()], state: RequestState::Fulfilled, ..unfulfilled };
        assert_eq!(checker.observe(Observation::Request(&owned, Some(&fulfilled))), []);
        let now = Node { allocated_to: owner.map(RequestId::from), ..node(state, request, "a") };
        let found = checker.observe(Observation::Node(&id, Some(&now)));
        assert_eq!(found.iter().map(|violation| &*violation.0).collect::<Vec<_>>(), expected);
    };
    let is = |what: &str| format!("node 1 of 200-1, which is fulfilled, is {what}");
    check("200-1", NodeState::Ready, Some("200-1"), &[]);
    check("200-1", NodeState::Deleting, Some("200-1"), &[&is("deleting and allocated to 200-1")]);
    check("200-1", NodeState::Ready, None, &[&is("ready and allocated to no request")]);
    check("200-1", NodeState::Ready, Some("200-2"), &[&is("ready and allocated to 200-2")]);
    check("900-1", NodeState::Ready, None, &[]);
}

#[test]
fn a_used_node_is_never_reassigned_or_ready_again() {
    let observe = |checker: &mut InvariantChecker, state| {
        let found = checker.observe(Observation::Node(&"1".into(), Some(&node(state, "200-1", "a"))));
        found.into_iter().map(|violation| violation.0).collect::<Vec<_>>()
    };
    let mut checker = InvariantChecker::default();
    let id = NodeId::from("1");
    assert!(observe(&mut checker, NodeState::Ready).is_empty());
    checker.observe(Observation::NodeContender(&id, "user", true));
    checker.observe(Observation::NodeContender(&id, "waiting", true));
    assert!(observe(&mut checker, NodeState::InUse).is_empty());
    assert_eq!(observe(&mut checker, NodeState::Deleting), ["node 1 is deleting while it is used"]);
    assert_eq!(observe(&mut checker, NodeState::Ready), ["node 1 was used and is ready again"]);
    assert!(observe(&mut checker, NodeState::InUse).is_empty());
    checker.observe(Observation::NodeContender(&id, "user", false));
    assert!(observe(&mut checker, NodeState::Deleting).is_empty());
}

#[test]
fn a_server_that_its_node_does_not_name_is_leaked() {
    let (mut checker, server_key) =
        (InvariantChecker::default(), |server: &str| (ProviderName::from("north"), server.to_owned()));
    let id = NodeId::from("1");
    checker.observe(Observation::Node(&id, Some(&node(NodeState::Ready, "200-1", "a"))));
    checker.observe(Observation::Request(&"200-1".into(), None));
    assert_eq!(checker.observe(Observation::Created(&server_key("server"), &id)), []);
    assert_eq!(checker.observe(Observation::Duplicated(&server_key("duplicate"), &id)), []);
    let found = checker.at_quiescence().into_iter().map(|violation| violation.0).collect::<Vec<_>>();
    let duplicate = "server duplicate of north is leaked, node 1 has server";
    assert_eq!(found, [duplicate, "node 1 is allocated to 200-1, which does not exist"]);
}

#[test]
fn a_ready_node_has_a_running_server_of_its_own() {
    let (north, id) = (ProviderName::from("north"), NodeId::from("1"));
    let server_key = |server: &str| (north.clone(), server.to_owned());
    let ready = Node { provider: Some(north.clone()), ..node(NodeState::Ready, "200-1", "a") };
    let building = Node { state: NodeState::Building, ..ready.clone() };
    let check = |observations: &[Observation<'_>], expected: &str| {
        let mut checker = InvariantChecker::default();
        checker.observe(Observation::Node(&id, Some(&building)));
        checker.observe(Observation::Node(&"2".into(), Some(&building)));
        observations.iter().for_each(|observation| drop(checker.observe(observation.clone())));
        let found = checker.observe(Observation::Node(&id, Some(&ready)));
        let texts = found.iter().map(|violation| violation.0.as_str()).collect::<Vec<_>>().join("; ");
        assert_eq!(texts, expected, "{observations:?}");
    };
    let (server, other) = (&server_key("server"), &server_key("other"));
    check(&[], "");
    check(&[Observation::Created(server, &id), Observation::Running(server)], "");
    check(
        &[
            Observation::Created(server, &id),
            Observation::Running(server),
            Observation::Removed(server),
            Observation::Created(other, &id),
        ],
        "",
    );
    check(&[Observation::Created(server, &id)], "node 1 is ready, but its server server of north is not running");
    check(
        &[Observation::Created(other, &id), Observation::Running(other)],
        "node 1 is ready, but its server server of north does not exist",
    );
    let of_other = [Observation::Created(server, &"2".into()), Observation::Running(server)];
    check(&of_other, "node 1 is ready, but its server server of north belongs to another node");
}

#[test]
fn a_server_is_stray_if_its_node_is_deleted_or_names_another() {
    let (mut checker, id, server_key) =
        (InvariantChecker::default(), NodeId::from("1"), |server: &str| ("north".into(), server.to_owned()));
    let strays =
        |checker: &InvariantChecker| checker.stray_servers().map(|((_, server), _)| server.clone()).collect::<Vec<_>>();
    let unnamed = Node { external_id: serde_json::Value::Null.into(), ..node(NodeState::Building, "200-1", "a") };
    checker.observe(Observation::Node(&id, Some(&unnamed)));
    checker.observe(Observation::Created(&server_key("server"), &id));
    checker.observe(Observation::Duplicated(&server_key("duplicate"), &id));
    assert!(strays(&checker).is_empty(), "it is being created");
    checker.observe(Observation::Node(&id, Some(&node(NodeState::Ready, "200-1", "a"))));
    assert_eq!(strays(&checker), ["duplicate"]);
    checker.observe(Observation::Node(&id, None));
    assert_eq!(strays(&checker), ["duplicate", "server"]);
    checker.observe(Observation::Ending(&server_key("duplicate")));
    assert_eq!(strays(&checker), ["server"]);
}

#[test]
fn a_host_has_at_most_as_many_users_as_jobs() {
    let (rack, mut checker) = (ProviderName::from("rack"), InvariantChecker::default());
    checker.observe(Observation::HostSlots(&rack, "host", 1));
    let on_host =
        |state| Node { provider: Some(rack.clone()), hostname: Some("host".to_owned()), ..node(state, "200-1", "a") };
    assert_eq!(checker.at_quiescence(), [Violation("host of rack has 0 nodes for 1 jobs".to_owned())]);
    for (id, state) in
        [("1", NodeState::Ready), ("2", NodeState::Ready), ("1", NodeState::InUse), ("1", NodeState::Hold)]
    {
        assert_eq!(checker.observe(Observation::Node(&id.into(), Some(&on_host(state)))), []);
    }
    let found = checker.observe(Observation::Node(&"2".into(), Some(&on_host(NodeState::InUse))));
    assert_eq!(found, [Violation("host of rack has 2 users for 1 jobs".to_owned())]);
    checker.observe(Observation::Node(&"1".into(), None));
    assert_eq!(checker.observe(Observation::Node(&"2".into(), Some(&on_host(NodeState::Used)))), []);
}
