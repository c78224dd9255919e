//! A launcher on Azure: withdrawn requests, exhausted quotas, full sizes, records, machines that were removed by hand.

use std::time::Duration;

use nodepool_model::records::ids::NodeId;
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_zk::paths;
use serde_json::json;
use testkit::clouds::cloud_launcher::{CloudLauncher, TIMEOUT};
use testkit::clouds::simulated_azure::{LOCATION, SimulatedAzure};
use testkit::in_process_launcher::on_real_time;
use testkit::{real, wait};

use crate::driver::{QUICK, configuration};

/// More than the interval of searches for parts.
const INTERVAL: Duration = Duration::from_secs(700);
const UNKNOWN_LIMITS: [&str; 2] = ["--fault", "AuthorizationFailed action=usages"];

struct Harness {
    cloud: SimulatedAzure,
    launcher: CloudLauncher,
}

impl Harness {
    async fn start(config: String, flags: &[&str]) -> Self {
        let cloud = SimulatedAzure::start(&[&QUICK, flags].concat()).await;
        let launcher = CloudLauncher::start(config, cloud.driver()).await;
        Self { cloud, launcher }
    }

    async fn wait_for_counter(&mut self, name: &str, value: f64) {
        let launcher = &mut self.launcher;
        wait::until(&format!("{name} {value}"), TIMEOUT, async || launcher.counter(name) >= value).await;
    }

    async fn wait_until_empty(&self) {
        wait::until("nothing to be left", TIMEOUT, async || self.cloud.resources().await.is_empty()).await;
    }
}

fn small(pool: &str) -> String {
    configuration("", pool, "")
}

#[test]
fn a_request_that_is_withdrawn_during_the_boot_leaves_nothing() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        // The launcher looks for leaks only after an hour.
        let cloud = SimulatedAzure::start(&QUICK).await;
        cloud.knobs(json!({"boot_s": "600"})).await;
        let mut launcher = CloudLauncher::prepare(small(""), cloud.driver());
        launcher.cleanup_interval(3600.0);
        launcher.run().await;
        let harness = Harness { cloud, launcher };
        let consumer = &harness.launcher.consumer;
        let request = consumer.submit_labels(&["small"]).await;
        wait::until("a creation one second ago", TIMEOUT, async || {
            let (now, calls) = harness.cloud.calls_until_now("vm.create").await;
            calls.first().and_then(|call| call["at_ms"].as_f64()).is_some_and(|at| now - at >= 1000.0)
        })
        .await;
        let node = consumer.nodes().await.remove(0).0;
        consumer.zk.delete(&paths::request(&request), -1).await.unwrap();
        harness.launcher.wait_until_gone(&node).await;
        assert_eq!(harness.cloud.resources().await, Vec::<String>::new());
    });
}

#[test]
fn the_record_of_a_node_has_its_place_size_and_addresses() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let harness = Harness::start(small(""), &[]).await;
        let node = harness.launcher.served("small").await;
        let record = harness.launcher.consumer.raw_node(&node).await;
        // The zone is empty, as in Nodepool 11.
        let place = (&record["az"], &record["cloud"], &record["region"]);
        assert_eq!(place, (&json!(""), &json!("Azure"), &json!(LOCATION)));
        assert_eq!(record["external_id"], json!(format!("np{node}")));
        assert_eq!(record["interface_ip"], record["public_ipv4"]);
        let expected = json!({"cores": 2, "instances": 1, "ram": 8192, "standardDSv3Family": 2});
        assert_eq!(record["resources"], expected);
    });
}

#[test]
fn an_exhausted_quota_aborts_the_node_and_the_request_waits() {
    if real::skipped() {
        return;
    }
    // Azure refuses a creation, or accepts it and fails later.
    for later in [None, Some("--quota-in-operation")] {
        on_real_time(async {
            let flags: Vec<&str> =
                UNKNOWN_LIMITS.into_iter().chain(["--limits", "standardDSv3Family=2"]).chain(later).collect();
            let mut harness = Harness::start(small(""), &flags).await;
            let first = harness.launcher.consumer.submit_labels(&["small"]).await;
            harness.launcher.consumer.fulfilled_nodes(&first).await;
            let second = harness.launcher.consumer.submit_labels(&["small"]).await;
            harness.launcher.wait_for_reason(&second, "exceeding approved standardDSv3Family Cores quota").await;
            let state = harness.launcher.consumer.request(&second).await.unwrap().state;
            assert!(!matches!(state, RequestState::Fulfilled | RequestState::Failed), "{state:?}");
            harness.launcher.release(&first).await;
            harness.launcher.consumer.fulfilled_nodes(&second).await;
            harness.wait_for_counter("nodepool.launch.error.quota", 1.0).await;
        });
    }
}

#[test]
fn a_full_size_is_one_failed_attempt_with_its_own_counter() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let fault = ["--fault", "SkuNotAvailable in=operation times=1 action=vm.create"];
        let mut harness = Harness::start(small(""), &fault).await;
        let node = harness.launcher.served("small").await;
        assert_eq!(harness.launcher.consumer.node_state(&node).await, Some(NodeState::Ready));
        assert_eq!(harness.cloud.calls("vm.create").await.len(), 2);
        harness.wait_for_counter("nodepool.launch.provider.az.error.capacity", 1.0).await;
        assert_eq!(harness.cloud.names("vms").await.len(), 1);
    });
}

#[test]
fn a_request_shows_that_its_size_was_full() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let fault = ["--fault", "AllocationFailed times=1 action=vm.create"];
        let harness = Harness::start(small(""), &fault).await;
        harness.cloud.knobs(json!({"boot_s": "3"})).await;
        let request = harness.launcher.consumer.submit_labels(&["small"]).await;
        harness.launcher.wait_for_reason(&request, "Standard_D2s_v3 is full until").await;
        harness.launcher.consumer.fulfilled_nodes(&request).await;
    });
}

#[test]
fn throttling_delays_a_request_and_counts_no_attempt() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = Harness::start(configuration("launch-retries: 1", "", ""), &[]).await;
        harness.launcher.served("small").await;
        harness.cloud.control("throttle?calls=3&retry_after_s=2").await;
        harness.launcher.served("small").await;
        assert_eq!(harness.launcher.counter("nodepool.launch.error.unknown"), 0.0);
        assert_eq!(harness.cloud.names("vms").await.len(), 2);
    });
}

/// Deletes the record of a node, so that no launcher knows of it.
async fn forget(harness: &Harness, node: &NodeId) {
    let (zk, path) = (&harness.launcher.consumer.zk, paths::node(node));
    for path in [format!("{path}/lock"), path] {
        zk.delete(&path, -1).await.unwrap();
    }
}

/// Removes the machine of a node by hand. Azure reserves the interface.
async fn remove_machine(harness: &Harness, node: &NodeId) {
    harness.cloud.control(&format!("remove-vm?vm=np{node}")).await;
    let kinds = ["vms", "nics", "ips", "disks"];
    let mut left = Vec::new();
    for kind in kinds {
        left.push(harness.cloud.names(kind).await.len());
    }
    assert_eq!(left, [0, 1, 1, 1], "{kinds:?}");
}

#[test]
fn a_deletion_removes_the_parts_of_a_machine_that_was_removed() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let harness = Harness::start(small(""), &["--nic-reserved-s", "3"]).await;
        let request = harness.launcher.consumer.submit_labels(&["small"]).await;
        let node = harness.launcher.consumer.fulfilled_nodes(&request).await.remove(0);
        remove_machine(&harness, &node).await;
        harness.launcher.release(&request).await;
        harness.launcher.wait_until_gone(&node).await;
        assert_eq!(harness.cloud.resources().await, Vec::<String>::new());
    });
}

#[test]
fn leaked_parts_of_a_machine_that_was_removed_are_deleted() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let harness = Harness::start(small(""), &["--nic-reserved-s", "3"]).await;
        harness.cloud.control("create?kind=nic&prefix=np0000009999-nic").await;
        let request = harness.launcher.consumer.submit_labels(&["small"]).await;
        let node = harness.launcher.consumer.fulfilled_nodes(&request).await.remove(0);
        harness.cloud.control(&format!("remove-vm?vm=np{node}")).await;
        harness.cloud.control("create?kind=nic&prefix=other").await;
        // The record of the node goes last, so that no deletion runs.
        forget(&harness, &node).await;
        // Interfaces of others stay.
        let others = ["nics np0000009999-nic", "nics other"];
        let mut searches = harness.cloud.calls("disk.list").await.len();
        while harness.cloud.resources().await != others {
            harness.launcher.advance_clock(INTERVAL).await;
            searches += 1;
            wait::until("a search", TIMEOUT, async || harness.cloud.calls("disk.list").await.len() >= searches).await;
        }
    });
}

#[test]
fn a_leaked_machine_is_deleted_with_its_parts() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = Harness::start(small(""), &[]).await;
        let request = harness.launcher.consumer.submit_labels(&["small"]).await;
        let node = harness.launcher.consumer.fulfilled_nodes(&request).await.remove(0);
        forget(&harness, &node).await;
        harness.wait_until_empty().await;
        harness.wait_for_counter("nodepool.provider.az.leaked.instances", 1.0).await;
    });
}
