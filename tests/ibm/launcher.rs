//! A launcher on the IBM VPC: withdrawn requests, exhausted quotas, full zones, labels out of service, instances that
//! were removed by hand.

use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_zk::paths;
use serde_json::json;
use testkit::clouds::cloud_launcher::{CloudLauncher, TIMEOUT};
use testkit::clouds::simulated_ibm::{SimulatedIbm, ZONES};
use testkit::in_process_launcher::on_real_time;
use testkit::{real, wait};

use crate::driver::{QUICK, configuration};

struct Harness {
    cloud: SimulatedIbm,
    launcher: CloudLauncher,
}

impl Harness {
    async fn start(config: String, flags: &[&str]) -> Self {
        let cloud = SimulatedIbm::start(&[&QUICK, flags].concat()).await;
        let launcher = CloudLauncher::start(config, cloud.driver()).await;
        Self { cloud, launcher }
    }

    async fn wait_for_counter(&mut self, name: &str, value: f64) {
        let launcher = &mut self.launcher;
        wait::until(&format!("{name} {value}"), TIMEOUT, async || launcher.counter(name) >= value).await;
    }
}

fn small(pool: &str) -> String {
    configuration("", pool, &[("small", "")])
}

#[test]
fn a_withdrawn_request_leaves_neither_instance_nor_floating_ip() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        // One is withdrawn while its instance boots, the other one while its floating IP is pending. The launcher looks
        // for leaks only after an hour.
        for (knobs, action) in
            [(json!({"boot_s": 5}), "create_instance"), (json!({"floating_ip_s": 5}), "create_floating_ip")]
        {
            let cloud = SimulatedIbm::start(&QUICK).await;
            cloud.knobs(knobs).await;
            let mut launcher = CloudLauncher::prepare(small("public-ipv4: true"), cloud.driver());
            launcher.cleanup_interval(3600.0);
            launcher.run().await;
            let consumer = &launcher.consumer;
            let request = consumer.submit_labels(&["small"]).await;
            wait::until("a creation one second ago", TIMEOUT, async || {
                let (now, calls) = cloud.calls_until_now(action).await;
                calls.first().and_then(|call| call["time_ms"].as_f64()).is_some_and(|at| now - at >= 1000.0)
            })
            .await;
            let node = consumer.nodes().await.remove(0).0;
            consumer.zk.delete(&paths::request(&request), -1).await.unwrap();
            launcher.wait_until_gone(&node).await;
            assert_eq!((cloud.count("instances").await, cloud.count("floating_ips").await), (0, 0));
        }
    });
}

#[test]
fn the_record_of_a_node_has_its_place_and_addresses() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let harness = Harness::start(small("public-ipv4: true"), &[]).await;
        let node = harness.launcher.served("small").await;
        let record = harness.launcher.consumer.raw_node(&node).await;
        assert_eq!((&record["az"], &record["cloud"]), (&json!(ZONES[0]), &json!("IBM")));
        assert_eq!(record["external_id"], json!(format!("np{node}")));
        assert_eq!(record["interface_ip"], record["public_ipv4"]);
        assert_eq!(record["resources"], json!({"cores": 2, "instances": 1, "ram": 4096}));
    });
}

#[test]
fn an_exhausted_quota_aborts_the_node_and_the_request_waits() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let mut harness = Harness::start(small(""), &["--quotas", "instances=1"]).await;
        let first = harness.launcher.consumer.submit_labels(&["small"]).await;
        harness.launcher.consumer.fulfilled_nodes(&first).await;
        let second = harness.launcher.consumer.submit_labels(&["small"]).await;
        harness.launcher.wait_for_reason(&second, "over_quota").await;
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
        let fault = ["--launch-fault", "cannot_start_capacity times=1"];
        let mut harness = Harness::start(small(""), &fault).await;
        let node = harness.launcher.served("small").await;
        assert_eq!(harness.launcher.consumer.node_state(&node).await, Some(NodeState::Ready));
        assert_eq!(harness.cloud.calls("create_instance").await.len(), 2);
        harness.wait_for_counter("nodepool.launch.provider.dallas.error.capacity", 1.0).await;
        assert_eq!(harness.cloud.count("instances").await, 1);
    });
}

#[test]
fn an_unknown_profile_affects_its_label_alone() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let labels = [("small", ""), ("odd", "profile: cx9-giant")];
        let harness = Harness::start(configuration("", "", &labels), &[]).await;
        let request = harness.launcher.consumer.submit_labels(&["odd"]).await;
        let ended = harness.launcher.consumer.wait_for_end(&request).await;
        assert_eq!(ended.state, RequestState::Failed);
        harness.launcher.served("small").await;
        assert_eq!(harness.cloud.calls("create_instance").await.len(), 1);
    });
}

#[test]
fn a_list_that_cannot_be_read_at_first_delays_requests_only() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        // The quota is in the configuration; no call asks IBM for one.
        let config = configuration("quota: {instances: 2}", "", &[("small", "")]);
        for list in ["list_keys", "list_instance_profiles", "list_images"] {
            let harness = Harness::start(config.clone(), &["--fault", &format!("400 action={list} times=1")]).await;
            harness.launcher.served("small").await;
            assert_eq!(harness.cloud.calls("create_instance").await.len(), 1, "{list}");
        }
    });
}

#[test]
fn an_instance_that_was_removed_by_hand_ends_its_deletion() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let harness = Harness::start(small("public-ipv4: true"), &[]).await;
        let request = harness.launcher.consumer.submit_labels(&["small"]).await;
        let node = harness.launcher.consumer.fulfilled_nodes(&request).await.remove(0);
        harness.cloud.control(&format!("remove?name=np{node}")).await;
        harness.launcher.release(&request).await;
        harness.launcher.wait_until_gone(&node).await;
        assert_eq!((harness.cloud.count("instances").await, harness.cloud.count("floating_ips").await), (0, 0));
    });
}
