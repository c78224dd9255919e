//! A launcher on the simulated EC2: full places, limits, launch templates of fleets, old records, reuse by zone.

use std::collections::BTreeSet;

use nodepool::actors::process::identity::Identity;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_zk::paths;
use serde_json::{Value, json};
use testkit::clouds::simulated_ec2::{IMAGE, SUBNETS};
use testkit::in_process_launcher::{node_record, on_real_time};
use testkit::real;
use testkit::wait;

use crate::launcher_harness::{LauncherHarness, TIMEOUT};
use crate::simulated::configuration;

fn small() -> String {
    configuration("", "", &[("small", "")])
}

/// Code of each RunInstances; empty for an instance.
async fn codes(harness: &LauncherHarness) -> Vec<String> {
    let calls = harness.cloud.calls("RunInstances").await;
    calls.iter().map(|call| call["code"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Requests a node, and waits for it. Returns the request.
async fn request(harness: &LauncherHarness) -> RequestId {
    let request = harness.consumer.submit_labels(&["small"]).await;
    harness.consumer.fulfilled_nodes(&request).await;
    request
}

#[test]
fn a_full_place_is_one_failed_attempt_with_its_own_counter() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let fault = ["--fault", "InsufficientInstanceCapacity action=RunInstances times=1"];
        let mut harness = LauncherHarness::start(small(), &fault).await;
        let node = harness.served("small").await;
        assert_eq!(harness.consumer.node_state(&node).await, Some(NodeState::Ready));
        assert_eq!(codes(&harness).await, ["InsufficientInstanceCapacity", ""]);
        wait::until("the counter of the second attempt", TIMEOUT, async || {
            harness.counter("nodepool.launch.provider.west.ready") == 1.0
        })
        .await;
        assert_eq!(harness.counter("nodepool.launch.provider.west.error.capacity"), 1.0);
        assert_eq!(harness.counter("nodepool.launch.error.capacity"), 1.0);
    });
}

/// The first node takes all that AWS has. The request for a second one waits until that node is deleted.
async fn wait_for_room(flags: &[&str], code: &str) {
    let mut harness = LauncherHarness::start(small(), flags).await;
    let first = request(&harness).await;
    let second = harness.consumer.submit_labels(&["small"]).await;
    wait::until("a refused launch", TIMEOUT, async || codes(&harness).await.iter().any(|one| one == code)).await;
    harness.wait_for_reason(&second, code).await;
    let state = harness.consumer.request(&second).await.unwrap().state;
    assert!(!matches!(state, RequestState::Fulfilled | RequestState::Failed), "{state:?}");
    harness.release(&first).await;
    harness.consumer.fulfilled_nodes(&second).await;
    let found = codes(&harness).await;
    assert!(found.iter().all(|one| one.is_empty() || one == code), "{found:?}");
    assert_eq!(found.iter().filter(|one| one.is_empty()).count(), 2);
    assert!(harness.counter("nodepool.launch.provider.west.error.quota") >= 1.0);
}

#[test]
fn a_request_waits_while_the_subnet_has_no_free_address() {
    if real::skipped() {
        return;
    }
    on_real_time(wait_for_room(&["--subnet-addresses", "1"], "InsufficientFreeAddressesInSubnet"));
}

#[test]
fn a_request_waits_while_an_unlisted_quota_is_exhausted() {
    if real::skipped() {
        return;
    }
    // The launcher learns the quota only by the refused launch.
    let flags = ["--refuse-quotas", "--quotas", "L-1216C47A=2"];
    on_real_time(wait_for_room(&flags, "VcpuLimitExceeded"));
}

#[test]
fn a_node_above_a_listed_quota_is_not_launched_until_there_is_room() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let harness = LauncherHarness::start(small(), &["--quotas", "L-1216C47A=4"]).await;
        let [first, _second] = [request(&harness).await, request(&harness).await];
        let third = harness.consumer.submit_labels(&["small"]).await;
        harness.wait_for_reason(&third, "L-1216C47A").await;
        assert_eq!(codes(&harness).await, ["", ""]);
        harness.release(&first).await;
        harness.consumer.fulfilled_nodes(&third).await;
        assert_eq!(codes(&harness).await, ["", "", ""]);
    });
}

/// Names of the launch templates.
async fn templates(harness: &LauncherHarness) -> BTreeSet<String> {
    let names = harness.by_state("launch_templates").await;
    serde_json::from_value(names).expect("the state has the names of the launch templates")
}

#[test]
fn launchers_with_different_versions_of_a_fleet_label_both_launch() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let config = |userdata: &str| {
            let fleet = "fleet: {instance-types: [t3.small, t3.medium], allocation-strategy: prioritized}";
            configuration("", "", &[("small", &format!("cloud-image: base, {fleet}, userdata: {userdata}"))])
        };
        let harness = LauncherHarness::start(config("old"), &[]).await;
        let old = harness.served("small").await;
        let before = templates(&harness).await;
        assert_eq!(before.len(), 1);
        let other = harness.add_launcher(Identity::named("other"), &config("new")).await;
        let launched_by = async |node: &NodeId| harness.consumer.raw_node(node).await["launcher"].clone();
        let of_old = launched_by(&old).await;
        wait::until("a node of each launcher", TIMEOUT, async || {
            launched_by(&harness.served("small").await).await != of_old
        })
        .await;
        other.stop();
        harness.wait_for_pools(1).await;
        assert_eq!(launched_by(&harness.served("small").await).await, of_old);
        let both = templates(&harness).await;
        assert!(both.len() == 2 && both.is_superset(&before), "{both:?}");
        // Both templates are deleted by hand.
        for name in &both {
            harness.ec2.ok("DeleteLaunchTemplate", &[("LaunchTemplateName", name)]).await;
        }
        harness.served("small").await;
        wait::until("the template of a new launch", TIMEOUT, async || !templates(&harness).await.is_empty()).await;
    });
}

#[test]
fn the_instance_of_a_record_with_a_plain_text_id_is_deleted() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = LauncherHarness::prepare(small(), &[]).await;
        let parameters = [("ImageId", IMAGE), ("InstanceType", "t3.medium"), ("MinCount", "1"), ("MaxCount", "1")];
        let answer = harness.ec2.ok("RunInstances", &parameters).await;
        let id = answer.find("instanceId").text().to_owned();
        let mut node = node_record(NodeState::Used, None);
        (node.provider, node.labels) = (Some("west".into()), vec!["small".into()]);
        node.external_id = json!(id).into();
        let node = harness.consumer.create_node(&node).await;
        assert_eq!(harness.consumer.raw_node(&node).await["external_id"], json!(id));
        harness.run().await;
        harness.wait_until_gone(&node).await;
        assert_eq!(harness.by_state("instances").await, json!({"terminated": 1}));
    });
}

#[test]
fn a_request_that_is_withdrawn_during_the_boot_leaves_no_instance() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        // Instances that boot for ten minutes, and a launcher that looks for leaks only after an hour.
        let mut harness = LauncherHarness::prepare(small(), &[]).await;
        harness.cloud.knobs(json!({"boot_s": 600})).await;
        harness.cleanup_interval(3600.0);
        harness.run().await;
        let request = harness.consumer.submit_labels(&["small"]).await;
        wait::until("a launch one second ago", TIMEOUT, async || {
            let history = harness.cloud.history().await;
            let now = history["now_ms"].as_f64().expect("the history has its time");
            let calls = history["calls"].as_array().expect("the history has a list of calls");
            let launch = calls.iter().find(|call| call["action"] == "RunInstances");
            launch.and_then(|call| call["at_ms"].as_f64()).is_some_and(|at| now - at >= 1000.0)
        })
        .await;
        let node = harness.consumer.nodes().await.remove(0).0;
        harness.consumer.zk.delete(&paths::request(&request), -1).await.unwrap();
        harness.wait_until_gone(&node).await;
        assert_eq!(harness.by_state("instances").await, json!({"terminated": 1}));
    });
}

async fn fill(harness: &LauncherHarness, places: Value) {
    harness.cloud.knobs(json!({"full_places": places})).await;
}

#[test]
fn a_ready_node_of_another_zone_is_not_reused_for_the_same_request() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let pool = format!("subnet-ids: [{}, {}]", SUBNETS[0], SUBNETS[1]);
        let harness = LauncherHarness::start(configuration("", &pool, &[("small", "")]), &[]).await;
        let zone = async |node: &NodeId| harness.consumer.raw_node(node).await["az"].clone();
        let mut idle = BTreeSet::new();
        let mut requests = Vec::new();
        for (full, free) in [("b", "a"), ("a", "b")] {
            fill(&harness, json!([format!("t3.medium us-west-2{full}")])).await;
            let request = harness.consumer.submit_labels(&["small"]).await;
            let node = harness.consumer.fulfilled_nodes(&request).await.remove(0);
            assert_eq!(zone(&node).await, format!("us-west-2{free}"));
            idle.insert(node);
            requests.push(request);
        }
        fill(&harness, json!([])).await;
        for request in &requests {
            harness.consumer.zk.delete(&paths::request(request), -1).await.unwrap();
        }
        wait::until("two idle nodes", TIMEOUT, async || harness.consumer.ready_nodes().await == 2).await;
        let request = harness.consumer.submit_labels(&["small", "small"]).await;
        let nodes = harness.consumer.fulfilled_nodes(&request).await;
        assert_eq!(nodes.iter().filter(|node| idle.contains(*node)).count(), 1, "{nodes:?} of {idle:?}");
        assert_eq!(harness.by_state("instances").await, json!({"running": 3}));
    });
}
