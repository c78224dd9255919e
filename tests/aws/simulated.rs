//! The driver aws on the simulated EC2, which verifies signatures: delays, full places, reclaimed instances, hosts with
//! a minimum time, and many instances at once.

use std::collections::BTreeSet;

use nodepool::actors::provider::providers;
use nodepool::actors::runtime::dump;
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, JobEvent, Outcome};
use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::node::NodeState;
use serde_json::{Value, json};
use testkit::clouds::simulated_ec2::{IMAGE, KEY_NAME, REGION, SECURITY_GROUP, SUBNETS, SimulatedEc2};
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::{ProviderHarness, launched, provider_section};
use testkit::wait;

use crate::driver::order;
use crate::launcher_harness::{LauncherHarness, TIMEOUT};

/// The public image of macOS for `mac1.metal`.
const MAC_IMAGE: &str = "ami-00000000000000004";
pub const MAC: &str = "cloud-image: mac, instance-type: mac1.metal, dedicated-host: true";

/// A configuration with these keys of the provider and the pool, and these labels.
pub fn configuration(provider: &str, pool: &str, labels: &[(&str, &str)]) -> String {
    let comma = |keys: &str| if keys.is_empty() { String::new() } else { format!(", {keys}") };
    let rate = if provider.contains("rate") { "" } else { ", rate: 1000" };
    let place = match pool {
        pool if pool.contains("subnet") || pool.contains("zone") => String::new(),
        _ => format!(", subnet-id: {}", SUBNETS[0]),
    };
    let label = |(name, keys): &(&str, &str)| {
        let usual = if keys.contains("image") { "" } else { ", cloud-image: base, instance-type: t3.medium" };
        format!("{{name: {name}, key-name: {KEY_NAME}{usual}{}}}", comma(keys))
    };
    let names: Vec<String> = labels.iter().map(|(name, _)| format!("{{name: {name}}}")).collect();
    let labels: Vec<String> = labels.iter().map(label).collect();
    format!(
        "zookeeper-servers: [{{host: localhost}}]\nlabels: [{}]\nproviders:\n  - {{name: west, driver: aws, region-name: \
         {REGION}{rate}, cloud-images: [{{name: base, image-id: {IMAGE}, username: worker}}, {{name: mac, image-id: \
         {MAC_IMAGE}, username: worker}}]{}, pools: [{{name: main, security-group-id: {SECURITY_GROUP}, \
         host-key-checking: false{place}{}, labels: [{}]}}]}}\n",
        names.join(", "),
        comma(provider),
        comma(pool),
        labels.join(", "),
    )
}

/// A provider with one label `small` on a simulated EC2.
struct Harness {
    cloud: SimulatedEc2,
    provider: ProviderHarness,
}

fn provider(cloud: &SimulatedEc2, provider: &str, pool: &str, label: &str) -> ProviderHarness {
    let section = provider_section(&configuration(provider, pool, &[("small", label)]));
    ProviderHarness::new(|deps| providers::start(&section, deps, Some(&cloud.driver())).unwrap())
}

impl Harness {
    async fn start(flags: &[&str], pool: &str, label: &str) -> Self {
        let cloud = SimulatedEc2::start(flags).await;
        let provider = provider(&cloud, "", pool, label);
        provider.wait_for_refresh().await;
        Self { provider, cloud }
    }

    async fn launch(&mut self, node: &str) -> Instance {
        launched(self.provider.run(order(node, 1)).await).unwrap()
    }

    /// Launches so many nodes at once.
    async fn launch_many(&mut self, number: u64) -> Vec<Instance> {
        for number in 0..number {
            self.provider.submit(number, order(&format!("{number:010}"), 1));
        }
        let mut nodes = Vec::new();
        for _ in 0..number {
            nodes.push(launched(self.provider.wait_for_end().await.1).unwrap());
        }
        nodes
    }
}

/// The seconds between the first and the last of these calls.
fn duration_s(calls: &[Value]) -> f64 {
    let at = |call: Option<&Value>| call.and_then(|call| call["at_ms"].as_f64()).expect("a call has its time");
    (at(calls.last()) - at(calls.first())) / 1000.0
}

fn statuses(calls: &[Value]) -> Vec<u64> {
    calls.iter().filter_map(|call| call["status"].as_u64()).collect()
}

#[test]
fn an_instance_that_listings_show_late_is_launched_once() {
    on_real_time(async {
        let mut harness = Harness::start(&["--boot-s", "0.1", "--visibility-delay-s", "3"], "", "").await;
        let node = harness.launch("0000000001").await;
        assert_eq!(node.zone.as_deref(), Some("us-west-2a"));
        let launches = harness.cloud.calls("RunInstances").await;
        assert_eq!(statuses(&launches), [200]);
        let last_listing = harness.cloud.calls("DescribeInstances").await.pop().unwrap();
        assert!(duration_s(&[launches[0].clone(), last_listing]) >= 3.0);
        assert_eq!(harness.cloud.state().await["counters"]["unauthorized"], 0);
    });
}

#[test]
fn instances_that_boot_at_once_share_their_listings() {
    on_real_time(async {
        let mut harness = Harness::start(&["--boot-s", "5"], "", "").await;
        let before = harness.cloud.calls("DescribeInstances").await.len();
        let nodes = harness.launch_many(500).await;
        let ids: BTreeSet<String> = nodes.iter().map(|node| node.external_id.to_string()).collect();
        assert_eq!((ids.len(), harness.cloud.calls("RunInstances").await.len()), (500, 500));
        let listings = harness.cloud.calls("DescribeInstances").await.split_off(before);
        // One listing a second, and one when the first instance exists.
        assert!(listings.len() as f64 <= duration_s(&listings) + 2.0, "{listings:?}");
    });
}

#[test]
fn many_instances_are_deleted_in_batches() {
    on_real_time(async {
        let mut harness = Harness::start(&["--boot-s", "0.1", "--terminate-s", "0.1"], "", "").await;
        let nodes = harness.launch_many(120).await;
        harness.provider = provider(&harness.cloud, "rate: 2", "", "");
        harness.provider.wait_for_refresh().await;
        for (number, node) in (0..).zip(nodes) {
            harness.provider.submit(number, Job::Delete(node.external_id));
        }
        for _ in 0..120 {
            assert_eq!(harness.provider.wait_for_end().await.1, Ok(Outcome::Deleted));
        }
        // The first ones are sent at once, and the others in batches of fifty.
        let terminations = statuses(&harness.cloud.calls("TerminateInstances").await);
        assert!(terminations.len() <= 4 && terminations.iter().all(|status| *status == 200), "{terminations:?}");
        assert_eq!(harness.cloud.state().await["regions"][REGION]["instances"], json!({"terminated": 120}));
    });
}

#[test]
fn a_full_place_is_tried_once_by_all_launches() {
    on_real_time(async {
        let pool = format!("subnet-ids: [{}, {}]", SUBNETS[0], SUBNETS[1]);
        let flags = ["--boot-s", "0.1", "--full-place", "t3.medium us-west-2a"];
        let mut harness = Harness::start(&flags, &pool, "").await;
        let mut nodes = vec![harness.launch("9999999999").await];
        nodes.extend(harness.launch_many(5).await);
        assert!(nodes.iter().all(|node| node.zone.as_deref() == Some("us-west-2b")), "{nodes:?}");
        let calls = harness.cloud.calls("RunInstances").await;
        assert_eq!(statuses(&calls), [500, 200, 200, 200, 200, 200, 200]);
        assert_eq!(calls[0]["code"], "InsufficientInstanceCapacity");
    });
}

#[test]
fn a_host_in_its_minimum_time_is_the_obstacle_of_its_deletion() {
    on_real_time(async {
        let pool = format!("availability-zone: {REGION}a");
        let mut harness = Harness::start(&["--boot-s", "0.1", "--terminate-s", "0.1"], &pool, MAC).await;
        let node = harness.launch("0000000001").await;
        harness.provider.submit(1, Job::Delete(node.external_id.clone()));
        let obstacle = loop {
            match harness.provider.next().await.1 {
                JobEvent::Waiting(Some(obstacle)) => break obstacle,
                JobEvent::Finished(result) => panic!("{result:?}"),
                _ => {}
            }
        };
        assert!(obstacle.contains("Client.HostMinAllocationPeriodUnexpired: Unable to release"), "{obstacle}");
        assert_eq!(harness.cloud.state().await["regions"][REGION]["hosts"], json!({"available": 1}));
        harness.provider.abandon(1);
        // A day later.
        harness.cloud.knobs(json!({"host_minimum_s": 0})).await;
        harness.provider = provider(&harness.cloud, "", &pool, MAC);
        assert_eq!(harness.provider.run(Job::Delete(node.external_id)).await, Ok(Outcome::Deleted));
        assert_eq!(harness.cloud.state().await["regions"][REGION]["hosts"], json!({"released": 1}));
    });
}

#[test]
fn a_reclaimed_spot_instance_is_deleted_instead_of_handed_out() {
    on_real_time(async {
        let labels = [("spot", "use-spot: true"), ("plain", "")];
        let config = configuration("", "", &labels).replacen("{name: spot}", "{name: spot, min-ready: 1}", 1);
        let harness = LauncherHarness::start(config, &[]).await;
        wait::until("an idle node", TIMEOUT, async || harness.consumer.ready_nodes().await == 1).await;
        let idle = harness.consumer.nodes().await.remove(0).0;
        let instance = harness.instance(&idle).await;
        harness.cloud.reclaim(&instance).await;
        // The next listing shows the end: here that of a launch.
        harness.served("plain").await;
        harness.wait_until_gone(&idle).await;
        let served = harness.served("spot").await;
        assert_ne!(harness.instance(&served).await, instance);
        let history = harness.cloud.history().await;
        let instances = history["instances"].as_array().unwrap();
        let reclaimed = instances.iter().find(|one| one["id"] == instance).unwrap();
        assert_eq!(reclaimed["reason"], "Server.SpotInstanceTermination");
    });
}

#[test]
fn the_record_of_a_host_in_its_minimum_time_stays() {
    on_real_time(async {
        let config = configuration("", &format!("availability-zone: {REGION}a"), &[("mac", MAC)]);
        let mut harness = LauncherHarness::start(config, &[]).await;
        let request = harness.consumer.submit_labels(&["mac"]).await;
        let node = harness.consumer.fulfilled_nodes(&request).await.remove(0);
        let nodes = harness.consumer.accept(&request).await;
        harness.consumer.use_and_release(nodes).await;
        wait::until("a refused release", TIMEOUT, async || !harness.cloud.calls("ReleaseHosts").await.is_empty()).await;
        wait::until("an obstacle", TIMEOUT, async || {
            let dump = dump::collect(&harness.process.shared.registry).await;
            json!(dump).to_string().contains("HostMinAllocationPeriodUnexpired")
        })
        .await;
        assert_eq!(harness.consumer.node_state(&node).await, Some(NodeState::Deleting));
        // `nodepool info` shows it.
        let slow = harness.process.shared.snapshot_feed.slow_deletions();
        let [(_, text)] = &slow[&ProviderName::from("west")][..] else { panic!("{slow:?}") };
        assert!(text.starts_with(&format!("the deletion of node {node} waits: the host cannot be released")), "{text}");
        harness.cloud.knobs(json!({"host_minimum_s": 0})).await;
        harness.restart();
        harness.wait_until_gone(&node).await;
        assert_eq!(harness.cloud.state().await["regions"][REGION]["hosts"], json!({"released": 1}));
    });
}
