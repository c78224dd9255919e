//! A launcher on the Compute Engine: withdrawn requests, exhausted quotas, full zones, labels out of service, leaks.

use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_zk::paths;
use serde_json::json;
use testkit::clouds::cloud_launcher::{CloudLauncher, TIMEOUT};
use testkit::clouds::simulated_gce::{PROJECT, SimulatedGce, ZONES};
use testkit::in_process_launcher::on_real_time;
use testkit::{real, wait};

use crate::driver::{configuration, create, marks};

const QUICK: [&str; 8] = ["--boot-s", "0.1", "--delete-s", "0.1", "--operation-s", "0", "--fail-s", "0.1"];

struct Harness {
    cloud: SimulatedGce,
    launcher: CloudLauncher,
}

impl Harness {
    async fn start(config: String, flags: &[&str]) -> Self {
        let cloud = SimulatedGce::start(&[&QUICK, flags].concat()).await;
        let launcher = CloudLauncher::start(config, cloud.driver()).await;
        Self { cloud, launcher }
    }

    /// The number of instances, in any state.
    async fn instances(&self) -> u64 {
        let state = self.cloud.state().await;
        let by_state = state["projects"][PROJECT]["instances"].as_object().unwrap_or_else(|| panic!("{state}"));
        by_state.values().filter_map(|count| count.as_u64()).sum()
    }

    async fn inserts(&self) -> usize {
        self.cloud.calls("instances.insert").await.len()
    }

    async fn wait_for_counter(&mut self, name: &str, value: f64) {
        let launcher = &mut self.launcher;
        wait::until(&format!("{name} {value}"), TIMEOUT, async || launcher.counter(name) >= value).await;
    }
}

fn small() -> String {
    configuration("", "", &[("small", "")])
}

#[test]
fn a_request_that_is_withdrawn_during_the_boot_leaves_no_instance() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        // Instances that boot for ten minutes, and a launcher that looks for leaks only after an hour.
        let cloud = SimulatedGce::start(&[&QUICK[2..], &["--boot-s", "600"]].concat()).await;
        let mut launcher = CloudLauncher::prepare(small(), cloud.driver());
        launcher.cleanup_interval(3600.0);
        launcher.run().await;
        let harness = Harness { cloud, launcher };
        let consumer = &harness.launcher.consumer;
        let request = consumer.submit_labels(&["small"]).await;
        wait::until("an insert one second ago", TIMEOUT, async || {
            let (now, calls) = harness.cloud.calls_until_now("instances.insert").await;
            calls.first().and_then(|call| call["time_ms"].as_f64()).is_some_and(|at| now - at >= 1000.0)
        })
        .await;
        let node = consumer.nodes().await.remove(0).0;
        consumer.zk.delete(&paths::request(&request), -1).await.unwrap();
        harness.launcher.wait_until_gone(&node).await;
        assert_eq!(harness.instances().await, 0);
    });
}

#[test]
fn an_instance_whose_answers_are_all_lost_is_deleted() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let config = configuration("launch-retries: 1", "", &[("small", "")]);
        let flags = ["--fault", "lost-answer action=instances.insert times=3"];
        let cloud = SimulatedGce::start(&[&QUICK[..], &flags].concat()).await;
        let mut launcher = CloudLauncher::prepare(config, cloud.driver());
        launcher.cleanup_interval(3600.0);
        launcher.run().await;
        let harness = Harness { cloud, launcher };
        let request = harness.launcher.consumer.submit_labels(&["small"]).await;
        harness.launcher.consumer.wait_for_end(&request).await;
        assert_eq!(harness.inserts().await, 3);
        wait::until("the end of the instance", TIMEOUT, async || harness.instances().await == 0).await;
        wait::until("the end of the node", TIMEOUT, async || harness.launcher.consumer.nodes().await.is_empty()).await;
    });
}

#[test]
fn an_exhausted_quota_aborts_the_node_and_the_request_waits() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        // The launcher learns the quota only by the operation that fails.
        let flags = ["--quotas", "CPUS=2", "--fault", "403 reason=forbidden action=regions.get"];
        let mut harness = Harness::start(small(), &flags).await;
        let first = harness.launcher.consumer.submit_labels(&["small"]).await;
        harness.launcher.consumer.fulfilled_nodes(&first).await;
        let second = harness.launcher.consumer.submit_labels(&["small"]).await;
        harness.launcher.wait_for_reason(&second, "QUOTA_EXCEEDED").await;
        let state = harness.launcher.consumer.request(&second).await.unwrap().state;
        assert!(!matches!(state, RequestState::Fulfilled | RequestState::Failed), "{state:?}");
        harness.launcher.release(&first).await;
        harness.launcher.consumer.fulfilled_nodes(&second).await;
        harness.wait_for_counter("nodepool.launch.error.quota", 1.0).await;
    });
}

#[test]
fn a_full_zone_is_one_failed_attempt_with_its_own_counter() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let fault = ["--operation-fault", "ZONE_RESOURCE_POOL_EXHAUSTED times=1"];
        let mut harness = Harness::start(small(), &fault).await;
        let node = harness.launcher.served("small").await;
        assert_eq!(harness.launcher.consumer.node_state(&node).await, Some(NodeState::Ready));
        assert_eq!(harness.inserts().await, 2);
        harness.wait_for_counter("nodepool.launch.provider.iowa.error.capacity", 1.0).await;
    });
}

#[test]
fn a_request_shows_the_full_zones_of_its_launch() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let zones = format!("zones: [{}]", ZONES.join(", "));
        let config = configuration(&zones, "", &[("small", "")]);
        let harness = Harness::start(config, &["--full-zone", "us-central1-a * *"]).await;
        harness.cloud.knobs(json!({"boot_s": "3"})).await;
        let request = harness.launcher.consumer.submit_labels(&["small"]).await;
        harness.launcher.wait_for_reason(&request, "e2-medium in us-central1-a is full until").await;
        let nodes = harness.launcher.consumer.fulfilled_nodes(&request).await;
        let record = harness.launcher.consumer.raw_node(&nodes[0]).await;
        assert_eq!((&record["az"], &record["external_id"]), (&json!(ZONES[1]), &json!(format!("np{}", nodes[0]))));
        harness.launcher.release(&request).await;
        harness.launcher.wait_until_gone(&nodes[0]).await;
        assert_eq!(harness.instances().await, 0);
    });
}

#[test]
fn an_unknown_machine_type_affects_its_label_alone() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let labels = [("small", ""), ("odd", "instance-type: e9-giant")];
        let harness = Harness::start(configuration("", "", &labels), &[]).await;
        let request = harness.launcher.consumer.submit_labels(&["odd"]).await;
        let ended = harness.launcher.consumer.wait_for_end(&request).await;
        assert_eq!(ended.state, RequestState::Failed);
        harness.launcher.served("small").await;
        assert_eq!(harness.inserts().await, 1);
    });
}

#[test]
fn leaked_instances_are_deleted_also_when_they_are_stopped() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = Harness::start(small(), &["--stop-s", "0.1"]).await;
        harness.cloud.control("foreign?zone=us-central1-a&count=1").await;
        // Instances of nodes that no longer exist.
        for name in ["running", "stopped"] {
            let request = harness.launcher.consumer.submit_labels(&["small"]).await;
            let node = harness.launcher.consumer.fulfilled_nodes(&request).await.remove(0);
            harness.launcher.release(&request).await;
            harness.launcher.wait_until_gone(&node).await;
            create(&harness.cloud, ZONES[0], name, marks(node.as_str(), "lost")).await;
        }
        harness.cloud.control("stop?instance=stopped").await;
        // The foreign one stays.
        wait::until("the end of the leaks", TIMEOUT, async || harness.instances().await == 1).await;
        harness.wait_for_counter("nodepool.provider.iowa.leaked.instances", 2.0).await;
    });
}

#[test]
fn an_instance_that_was_removed_by_hand_ends_its_deletion_at_once() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let harness = Harness::start(small(), &[]).await;
        let request = harness.launcher.consumer.submit_labels(&["small"]).await;
        let node = harness.launcher.consumer.fulfilled_nodes(&request).await.remove(0);
        harness.cloud.control(&format!("remove?instance=np{node}")).await;
        harness.launcher.release(&request).await;
        harness.launcher.wait_until_gone(&node).await;
    });
}

#[test]
fn a_ready_node_whose_spot_instance_was_stopped_is_not_handed_out() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let labels = [("small", "provisioning-model: spot"), ("plain", "")];
        let config = configuration("", "", &labels);
        let config = config.replacen("{name: small}", "{name: small, min-ready: 1}", 1);
        let harness = Harness::start(config, &["--stop-s", "0.1"]).await;
        let consumer = &harness.launcher.consumer;
        wait::until("a ready node", TIMEOUT, async || consumer.ready_nodes().await == 1).await;
        let ready = consumer.nodes().await.remove(0).0;
        harness.cloud.control(&format!("preempt?instance=np{ready}")).await;
        // The next listing shows the end: here that of a launch.
        harness.launcher.served("plain").await;
        harness.launcher.wait_until_gone(&ready).await;
        assert_ne!(harness.launcher.served("small").await, ready);
    });
}
