//! Faults of the simulated cloud: if replies are wrong, late or lost, every node is launched or fails alone, and no
//! server is created twice.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use futures::future::{LocalBoxFuture, join_all};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use serde_json::{Value, json};
use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::TestCloud;
use testkit::openstack_harness::harness::{CLOUD_TIMEOUT, with_launcher};
use testkit::wait;

/// Calls of a refresh, before the first launch.
const REFRESH_CALLS: [&str; 4] = [
    "method=POST path=^/identity/v3/auth/tokens$",
    "method=GET path=^/compute/v2.1/flavors/detail$",
    "method=GET path=^/image/v2/images$",
    "method=GET path=^/compute/v2.1/limits$",
];

/// Calls from the launch of a node to its deletion.
const LIFECYCLE_CALLS: [&str; 7] = [
    "method=POST path=^/compute/v2.1/servers$",
    "method=GET path=^/compute/v2.1/servers/detail$",
    "method=GET path=^/network/v2.0/ports$",
    "method=POST path=^/network/v2.0/floatingips$",
    "method=GET path=^/network/v2.0/floatingips$",
    "method=DELETE path=^/network/v2.0/floatingips/",
    "method=DELETE path=^/compute/v2.1/servers/",
];

/// Provider with floating IPs and with enough launch attempts for one fault of every call.
fn provider(cloud: &TestCloud, name: &str) -> Value {
    let mut provider = cloud.provider(name);
    provider["launch-retries"] = json!(8);
    provider["launch-timeout"] = json!(60);
    provider["pools"][0]["auto-floating-ip"] = json!(true);
    provider
}

/// Asserts that all servers and floating IPs are deleted, and that no server was created twice.
async fn assert_clean(cloud: &TestCloud, what: &str) {
    let settled = async || {
        let state = cloud.simulation().state().await;
        state["servers"] == 0 && state["floating_ips"] == 0
    };
    wait::until(&format!("{what}: everything to be deleted"), CLOUD_TIMEOUT, settled).await;
    let state = cloud.simulation().state().await;
    assert_eq!(state["double_creates"], 0, "{what}: {state}");
}

/// Runs all cases concurrently and reports those that fail.
async fn run_all<'a>(cases: impl IntoIterator<Item = (String, LocalBoxFuture<'a, ()>)>) {
    let (names, cases): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    let outcomes = join_all(cases.into_iter().map(|case| AssertUnwindSafe(case).catch_unwind())).await;
    let failed: Vec<_> = names.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_err()).collect();
    assert!(failed.is_empty(), "failed cases: {:?}", failed.iter().map(|(name, _)| name).collect::<Vec<_>>());
}

/// Asserts that a request for two nodes is fulfilled with these knobs, whose faults are rare enough for it.
async fn assert_survives(what: &str, knobs: Value) {
    let cloud = TestCloud::simulated(&[]).await;
    // Timeout in seconds for calls that hang.
    cloud.set("api_timeout", json!(2));
    cloud.simulation().knobs(knobs).await;
    with_launcher(
        &cloud,
        |name| vec![provider(&cloud, name)],
        async |harness| {
            let (id, nodes) = harness.obtain_nodes(&["a", "a"]).await;
            assert!(nodes.iter().all(|node| node.public_ipv4.is_some()), "{what}: {nodes:?}");
            harness.accept_and_release(&id).await;
            harness.wait_until_empty().await;
            assert_clean(&cloud, what).await;
            let state = cloud.simulation().state().await;
            println!("{what}: {} servers for 2 nodes, faults: {}", state["servers_created"], state["faults_struck"]);
        },
    )
    .await;
}

fn survival_case(what: &str, knobs: Value) -> (String, LocalBoxFuture<'_, ()>) {
    (what.to_owned(), assert_survives(what, knobs).boxed_local())
}

/// Case in which each of these calls has `times` faults of this kind.
fn fault_case<'a>(
    calls: impl IntoIterator<Item = &'static str>,
    kind: &'a str,
    times: u32,
) -> (String, LocalBoxFuture<'a, ()>) {
    let faults: Vec<String> = calls.into_iter().map(|call| format!("{kind} times={times} {call}")).collect();
    survival_case(kind, json!({"faults": faults}))
}

/// The lifecycle calls except those that contain this word.
fn lifecycle_calls_except(word: &str) -> impl Iterator<Item = &'static str> {
    LIFECYCLE_CALLS.into_iter().filter(move |call| !call.contains(word))
}

fn all_calls() -> impl Iterator<Item = &'static str> {
    REFRESH_CALLS.into_iter().chain(LIFECYCLE_CALLS)
}

#[test]
fn errors_of_every_call_are_survived() {
    on_real_time(async {
        let general = ["500", "503", "429"].map(|kind| fault_case(all_calls(), kind, 1));
        // During a refresh these statuses mean that the cloud rejects the credentials.
        let lifecycle_only = ["400", "409", "401"].map(|kind| fault_case(LIFECYCLE_CALLS, kind, 1));
        // A 404 for a deletion means that nothing has to be deleted. For a server, listings decide.
        let lifecycle_only = lifecycle_only.into_iter().chain([fault_case(lifecycle_calls_except("DELETE"), "404", 1)]);
        run_all(general.into_iter().chain(lifecycle_only)).await;
    });
}

#[test]
fn invalid_replies_are_survived() {
    on_real_time(async {
        let kinds = ["html", "truncated", "redirect", "closed", "hang", "lost-answer"];
        run_all(kinds.map(|kind| fault_case(all_calls(), kind, 1))).await;
    });
}

#[test]
fn unusual_replies_are_survived() {
    on_real_time(async {
        // An image without a status cannot be used, and a port without an address cannot be public.
        let calls = || all_calls().filter(|call| !call.contains("/images") && !call.contains("/ports"));
        let unusual = ["missing-fields", "unknown-state", "repeated-marker"].map(|kind| fault_case(calls(), kind, 2));
        let no_ids = "missing-fields fields=id,server,servers,floatingip,ports,token";
        // A partial list cannot be detected, but the launcher searches several lists before it gives a server up.
        let others =
            [fault_case(all_calls(), no_ids, 1), fault_case(lifecycle_calls_except("/network/"), "partial-list", 2)];
        run_all(unusual.into_iter().chain(others)).await;
    });
}

#[test]
fn a_slow_busy_or_inconsistent_cloud_is_survived() {
    on_real_time(async {
        let cases = [
            ("throttled with 429", json!({"throttle_every": 5, "retry_after_s": 1})),
            ("throttled with 413", json!({"throttle_every": 5, "retry_after_s": 1, "throttle_status": 413})),
            ("stale lists", json!({"stale_lists_s": 3.0})),
            ("pages of one", json!({"page_size": 1})),
            ("short-lived tokens", json!({"token_lifetime_s": 2.0})),
            ("failing servers", json!({"boot_fails_every": 2})),
            ("disappearing servers", json!({"vanish_every": 2, "vanish_after_s": 0.5, "boot_time_s": 1.5})),
        ];
        run_all(cases.map(|(what, knobs)| survival_case(what, knobs))).await;
    });
}

#[test]
fn a_token_that_is_revoked_is_replaced() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&[]).await;
        with_launcher(
            &cloud,
            |name| vec![provider(&cloud, name)],
            async |harness| {
                for _ in 0..2 {
                    let (id, _) = harness.obtain_nodes(&["a"]).await;
                    cloud.simulation().revoke_tokens().await;
                    harness.accept_and_release(&id).await;
                    harness.wait_until_empty().await;
                }
                assert_clean(&cloud, "revoked").await;
            },
        )
        .await;
    });
}

/// Asserts that a request for one node is declined after its two attempts, and that later requests are served.
async fn assert_declined(what: &str, knobs: Value) {
    let cloud = TestCloud::simulated(&[]).await;
    // Timeout in seconds for calls that hang.
    cloud.set("api_timeout", json!(2));
    let configure = |name: &str| {
        let mut provider = provider(&cloud, name);
        (provider["launch-retries"], provider["launch-timeout"]) = (json!(2), json!(5));
        vec![provider]
    };
    with_launcher(&cloud, configure, async |harness| {
        let (before, _) = harness.obtain_nodes(&["a"]).await;
        cloud.simulation().knobs(knobs).await;
        let id = harness.consumer.submit_labels(&["a"]).await;
        let request = harness.wait_for_end(&id).await;
        assert_eq!((request.state, request.nodes.len()), (RequestState::Failed, 0), "{what}");
        let usual = json!({"faults": [], "boot_sticks_every": 0, "vanish_every": 0, "boot_fails_every": 0});
        cloud.simulation().knobs(usual).await;
        let nodes = harness.consumer.request(&before).await.expect("the first request is still fulfilled").nodes;
        assert_eq!(harness.node(&nodes[0]).await.state, NodeState::Ready, "{what}");
        let (after, _) = harness.obtain_nodes(&["a"]).await;
        harness.accept_and_release(&before).await;
        harness.accept_and_release(&after).await;
        harness.wait_until_empty().await;
        assert_clean(&cloud, what).await;
    })
    .await;
}

#[test]
fn a_cloud_that_never_recovers_fails_only_its_request() {
    on_real_time(async {
        let kinds = ["500", "503", "400", "html", "closed", "hang"];
        let refused =
            kinds.map(|kind| (kind, json!({"faults": [format!("{kind} method=POST path=^/compute/v2.1/servers$")]})));
        let others = [
            ("no address", json!({"faults": ["500 path=^/network/v2.0/floatingips$"]})),
            ("stuck in BUILD", json!({"boot_sticks_every": 1})),
            ("disappears", json!({"vanish_every": 1, "vanish_after_s": 0.1})),
            ("ERROR", json!({"boot_fails_every": 1})),
        ];
        let cases = refused.into_iter().chain(others);
        run_all(cases.map(|(what, knobs)| (what.to_owned(), assert_declined(what, knobs).boxed_local()))).await;
    });
}

// Before, the launch waited for its timeout.
#[test]
fn the_state_of_a_server_that_lists_lack_ends_its_launch() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--hidden-every", "1", "--boot-fails-every", "1"]).await;
        let configure = |name: &str| {
            let mut provider = provider(&cloud, name);
            (provider["launch-retries"], provider["launch-timeout"]) = (json!(1), json!(3600));
            vec![provider]
        };
        with_launcher(&cloud, configure, async |harness| {
            let id = harness.consumer.submit_labels(&["a"]).await;
            assert_eq!(harness.wait_for_end(&id).await.state, RequestState::Failed);
            harness.wait_for_reason(&id, "No valid host was found").await;
            harness.wait_until_empty().await;
            assert_clean(&cloud, "hidden server").await;
        })
        .await;
    });
}

#[test]
fn a_fault_that_only_the_server_itself_tells_is_asked_for() {
    on_real_time(async {
        let faults = "missing-fields fields=fault path=^/compute/v2.1/servers/detail$";
        let cloud = TestCloud::simulated(&["--boot-fails-every", "2", "--fault", faults]).await;
        let quota = json!({"boot_failure": "Quota exceeded for ports"});
        cloud.simulation().knobs(quota).await;
        with_launcher(
            &cloud,
            |name| vec![provider(&cloud, name)],
            async |harness| {
                let (first, _) = harness.obtain_nodes(&["a"]).await;
                let second = harness.consumer.submit_labels(&["a"]).await;
                // The refused server is deleted, and the probe that follows succeeds.
                let request = harness.wait_for_end(&second).await;
                assert_eq!(request.state, RequestState::Fulfilled);
                let state = cloud.simulation().state().await;
                assert_eq!(state["servers_created"], 3, "{state}");
                harness.accept_and_release(&first).await;
                harness.accept_and_release(&second).await;
                harness.wait_until_empty().await;
            },
        )
        .await;
    });
}

#[test]
fn an_undeletable_server_blocks_no_other_node() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--delete-sticks-every", "2"]).await;
        with_launcher(
            &cloud,
            |name| vec![provider(&cloud, name)],
            async |harness| {
                let (id, _) = harness.obtain_nodes(&["a", "a"]).await;
                harness.accept_and_release(&id).await;
                let one_left = async || harness.consumer.nodes().await.len() == 1;
                wait::until("the other node to be deleted", CLOUD_TIMEOUT, one_left).await;
                let (id, _) = harness.obtain_nodes(&["a"]).await;
                let stuck: Vec<NodeState> = harness.consumer.nodes().await.iter().map(|(_, node)| node.state).collect();
                assert_eq!(stuck, [NodeState::Deleting, NodeState::Ready]);
                harness.accept_and_release(&id).await;
                wait::until("the second node to be deleted", CLOUD_TIMEOUT, one_left).await;
                // The operator deletes the server by hand.
                cloud.simulation().reset().await;
                harness.wait_until_empty().await;
            },
        )
        .await;
    });
}

/// The server exists, but the reply to its creation was lost, and lists do not contain it yet.
#[test]
fn a_server_with_a_lost_create_reply_is_found_in_stale_lists() {
    on_real_time(async {
        let knobs =
            json!({"stale_lists_s": 1.5, "faults": ["lost-answer every=2 method=POST path=^/compute/v2.1/servers$"]});
        assert_survives("lost replies and stale lists", knobs).await;
    });
}

#[test]
fn adoption_waits_for_a_server_that_lists_do_not_show_yet() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&[]).await;
        let lost = "lost-answer times=1 method=POST path=^/compute/v2.1/servers$";
        cloud.simulation().knobs(json!({"stale_lists_s": 3, "faults": [lost]})).await;
        with_launcher(
            &cloud,
            |name| vec![provider(&cloud, name)],
            async |harness| {
                let id = harness.consumer.submit_labels(&["a"]).await;
                let is_created = async || cloud.simulation().state().await["servers_created"] == 1;
                wait::until("the server to be created", CLOUD_TIMEOUT, is_created).await;
                harness.restart(&cloud).await;
                harness.wait_until_fulfilled(&id).await;
                assert_eq!(cloud.simulation().state().await["servers_created"], 1);
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
                assert_clean(&cloud, "adopted").await;
            },
        )
        .await;
    });
}
