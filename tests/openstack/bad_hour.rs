//! A cloud that is full, or does not respond: no request fails, and requests are served in order when it is back.

use std::time::Duration;

use nodepool_model::records::ids::RequestId;
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use serde_json::{Value, json};
use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::TestCloud;
use testkit::openstack_harness::harness::{CLOUD_TIMEOUT, OpenStackHarness, with_launcher};
use testkit::wait;

/// One attempt per node, so that each failure that counts fails a request.
fn provider(cloud: &TestCloud, name: &str) -> Value {
    let mut provider = cloud.provider(name);
    (provider["launch-retries"], provider["launch-timeout"]) = (json!(1), json!(60));
    provider
}

async fn submit(harness: &OpenStackHarness, count: usize) -> Vec<RequestId> {
    let mut requests = Vec::new();
    for _ in 0..count {
        requests.push(harness.consumer.submit_labels(&["a"]).await);
    }
    requests
}

/// Number of creations that the cloud has refused.
async fn refusals(cloud: &TestCloud) -> u64 {
    cloud.simulation().state().await["quota_refusals"].as_u64().unwrap()
}

/// An outage begins while a node boots and requests arrive, and lasts until all of them wait for its end.
async fn assert_outage_fails_nothing(what: &str, fault: Value, end: Value) {
    let cloud = TestCloud::simulated(&["--boot-time-s", "2"]).await;
    // Timeout in seconds for calls that hang.
    cloud.set("api_timeout", json!(2));
    with_launcher(
        &cloud,
        |name| vec![provider(&cloud, name)],
        async |harness| {
            let (first, _) = harness.obtain_nodes(&["a"]).await;
            let booting = harness.consumer.submit_labels(&["a"]).await;
            let is_created = async || cloud.simulation().state().await["servers_created"] == 2;
            wait::until(&format!("{what}: the second server"), CLOUD_TIMEOUT, is_created).await;
            cloud.simulation().knobs(fault).await;
            let mut requests = submit(harness, 12).await;
            let last = harness.consumer.submit_labels(&["a"]).await;
            harness.wait_for_reason(&last, "the cloud does not respond").await;
            // Idle nodes are assigned meanwhile.
            harness.accept_and_release(&first).await;
            cloud.simulation().knobs(end).await;
            requests.extend([booting, last]);
            for id in &requests {
                harness.wait_until_fulfilled(id).await;
            }
            for id in &requests {
                harness.accept_and_release(id).await;
            }
            harness.wait_until_empty().await;
            let state = cloud.simulation().state().await;
            assert_eq!(state["double_creates"], 0, "{what}: {state}");
        },
    )
    .await;
}

#[test]
fn an_outage_with_errors_fails_no_request() {
    let fault = json!({"faults": ["503 service=compute"]});
    on_real_time(assert_outage_fails_nothing("503", fault, json!({"faults": []})));
}

#[test]
fn an_outage_of_the_network_fails_no_request() {
    let fault = json!({"refuse_connections": true});
    on_real_time(assert_outage_fails_nothing("refused", fault, json!({"refuse_connections": false})));
}

#[test]
fn an_outage_without_answers_fails_no_request() {
    let fault = json!({"faults": ["hang"], "hang_s": 5});
    on_real_time(assert_outage_fails_nothing("hang", fault, json!({"faults": []})));
}

#[test]
fn a_full_cloud_is_probed_alone_and_then_serves_in_order() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--hidden-quota-servers", "0", "--boot-time-s", "0.1"]).await;
        with_launcher(
            &cloud,
            |name| vec![provider(&cloud, name)],
            async |harness| {
                let requests = submit(harness, 20).await;
                for id in &requests {
                    harness.wait_for_reason(id, "quota: the cloud refuses new nodes: Quota exceeded for ports").await;
                }
                let before = refusals(&cloud).await;
                assert!(before <= 20, "{before} creations");
                // The record of the first request stays `building` from one probe to the next.
                wait::until("three probes", CLOUD_TIMEOUT, async || refusals(&cloud).await >= before + 3).await;
                let building = async || {
                    let nodes = harness.consumer.nodes().await;
                    nodes.into_iter().filter(|(_, node)| node.state == NodeState::Building).map(|(id, _)| id).collect()
                };
                let probe: Vec<_> = building().await;
                assert_eq!(probe.len(), 1);
                let pending = harness.consumer.request(&requests[0]).await.unwrap();
                assert_eq!(pending.state, RequestState::Pending);
                let waiting = harness.consumer.request(&requests[1]).await.unwrap();
                assert_eq!(waiting.state, RequestState::Requested);
                for (served, id) in requests.iter().enumerate() {
                    cloud.simulation().knobs(json!({"hidden_quota_servers": served + 1})).await;
                    let nodes = harness.wait_until_fulfilled(id).await;
                    assert!(served > 0 || harness.consumer.request(id).await.unwrap().nodes == probe, "{nodes:?}");
                }
                let state = cloud.simulation().state().await;
                println!("{} refusals for 20 nodes: {state}", refusals(&cloud).await);
                for id in &requests {
                    harness.accept_and_release(id).await;
                }
                harness.wait_until_empty().await;
            },
        )
        .await;
    });
}

#[test]
fn a_released_server_makes_room_for_the_next_request_at_once() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--hidden-quota-servers", "1", "--boot-time-s", "0.1"]).await;
        with_launcher(
            &cloud,
            |name| vec![provider(&cloud, name)],
            async |harness| {
                let (first, _) = harness.obtain_nodes(&["a"]).await;
                let second = harness.consumer.submit_labels(&["a"]).await;
                harness.wait_for_reason(&second, "quota: the cloud refuses new nodes").await;
                // The probes are far apart by now.
                wait::until("four probes", Duration::from_secs(60), async || refusals(&cloud).await >= 5).await;
                let before = refusals(&cloud).await;
                harness.accept_and_release(&first).await;
                harness.wait_until_fulfilled(&second).await;
                assert_eq!(refusals(&cloud).await, before, "the probe after the deletion succeeded");
                harness.accept_and_release(&second).await;
                harness.wait_until_empty().await;
            },
        )
        .await;
    });
}
