//! Launches and deletions: operations, full zones, lost answers, throttling, other people's instances, many instances.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodepool::actors::provider::providers;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::{Instance, InstanceState};
use nodepool_driver::job::{Job, JobEvent, LaunchOrder, Outcome};
use nodepool_model::records::ids::ExternalId;
use serde_json::{Value, json};
use testkit::clouds::simulated_gce::{PROJECT, REGION, SimulatedGce, ZONES};
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::{ProviderHarness, launch_order, launched, provider_section};

const QUICK: [&str; 6] = ["--boot-s", "0.1", "--delete-s", "0.1", "--operation-s", "0"];
pub const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI";

/// A configuration with these labels, and more keys of the provider and the pool.
pub fn configuration(provider: &str, pool: &str, labels: &[(&str, &str)]) -> String {
    let comma = |keys: &str| if keys.is_empty() { String::new() } else { format!(", {keys}") };
    let rate = if provider.contains("rate") { "" } else { ", rate-limit: 1000" };
    let zone = if provider.contains("zone") { String::new() } else { format!(", zone: {}", ZONES[0]) };
    let label = |(name, keys): &(&str, &str)| {
        let image = if keys.contains("cloud-image") { "" } else { ", cloud-image: debian" };
        let kind = if keys.contains("instance-type") { "" } else { ", instance-type: e2-medium" };
        format!("{{name: {name}{image}{kind}{}}}", comma(keys))
    };
    let names: Vec<String> = labels.iter().map(|(name, _)| format!("{{name: {name}}}")).collect();
    let labels: Vec<String> = labels.iter().map(label).collect();
    format!(
        "zookeeper-servers: [{{host: localhost}}]\nlabels: [{}]\nproviders:\n  - {{name: iowa, driver: gce, project: \
         {PROJECT}, region: {REGION}{zone}{rate}, cloud-images: [{{name: debian, image-project: debian-cloud, \
         image-family: debian-12, username: zuul, key: {KEY}}}, {{name: own, image-id: global/images/missing}}]{}, pools: \
         [{{name: main, host-key-checking: false{}, labels: [{}]}}]}}\n",
        names.join(", "),
        comma(provider),
        comma(pool),
        labels.join(", "),
    )
}

/// A provider with one label `small` on a Compute Engine.
struct Harness {
    cloud: SimulatedGce,
    provider: ProviderHarness,
    facts: Arc<ProviderFacts>,
}

fn provider(cloud: &SimulatedGce, provider: &str, pool: &str, label: &str) -> ProviderHarness {
    let section = provider_section(&configuration(provider, pool, &[("small", label)]));
    ProviderHarness::new(|deps| providers::start(&section, deps, Some(&cloud.driver())).unwrap())
}

impl Harness {
    async fn start(flags: &[&str], keys: &str, pool: &str, label: &str) -> Self {
        let cloud = SimulatedGce::start(&[&QUICK, flags].concat()).await;
        let provider = provider(&cloud, keys, pool, label);
        let facts = provider.wait_for_refresh().await;
        Self { cloud, provider, facts }
    }

    async fn launch(&mut self, node: &str) -> Result<Instance, CloudError> {
        self.launch_as(launch_order("iowa", node, 1)).await
    }

    async fn launch_as(&mut self, order: LaunchOrder) -> Result<Instance, CloudError> {
        launched(self.provider.run(Job::Launch(Arc::new(order))).await)
    }

    async fn delete(&mut self, name: &str) -> Result<Outcome, CloudError> {
        self.provider.run(Job::Delete(ExternalId::text(name))).await
    }

    async fn inserts(&self) -> Vec<Value> {
        self.cloud.calls("instances.insert").await
    }

    /// Names of all instances, with their zones.
    async fn instances(&self) -> BTreeSet<String> {
        let listed = self.provider_listing().await;
        listed.into_iter().map(|(zone, name)| format!("{zone}/{name}")).collect()
    }

    async fn provider_listing(&self) -> Vec<(String, String)> {
        let http = reqwest::Client::new();
        let mut found = Vec::new();
        for zone in ZONES {
            let url = format!("{}projects/{PROJECT}/zones/{zone}/instances", self.cloud.endpoint());
            let page: Value = http.get(url).send().await.unwrap().json().await.unwrap();
            let items = page["items"].as_array().cloned().unwrap_or_default();
            found.extend(items.iter().map(|item| (zone.to_owned(), item["name"].as_str().unwrap().to_owned())));
        }
        found
    }
}

/// Creates an instance as others do, with this metadata.
pub async fn create(cloud: &SimulatedGce, zone: &str, name: &str, metadata: Value) {
    let url = format!("{}projects/{PROJECT}/zones/{zone}/instances", cloud.endpoint());
    let body = json!({
        "name": name,
        "machineType": format!("zones/{zone}/machineTypes/n1-standard-2"),
        "disks": [{"boot": true, "initializeParams": {
            "sourceImage": "projects/debian-cloud/global/images/family/debian-12"}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "metadata": {"items": metadata},
    });
    let response = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    assert!(response.status().is_success(), "{}", response.text().await.unwrap());
}

/// The metadata of an instance for this node.
pub fn marks(node: &str, creation: &str) -> Value {
    json!([
        {"key": "nodepool_provider_name", "value": "iowa"},
        {"key": "nodepool_node_id", "value": node},
        {"key": "nodepool_pool_name", "value": "main"},
        {"key": "nodepool_creation", "value": creation},
    ])
}

/// The zone of a call.
fn zone_of(call: &Value) -> &str {
    let path = call["path"].as_str().expect("a call has a path");
    path.split("/zones/").nth(1).and_then(|rest| rest.split('/').next()).expect("the path names a zone")
}

fn at_ms(call: &Value) -> f64 {
    call["time_ms"].as_f64().expect("a call has its time")
}

#[test]
fn an_instance_is_launched_and_deleted() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "subnetwork: default", "volume-size: 20, tags: [ci, web]").await;
        let limits = &harness.facts.limits;
        assert!(limits.get("cores").is_finite() && limits.get("instances").is_finite(), "{limits:?}");
        let node = harness.launch("0000000001").await.unwrap();
        assert_eq!(node.external_id, ExternalId::text("np0000000001"));
        let texts = [&node.cloud, &node.region, &node.zone].map(|text| text.as_deref().unwrap_or_default());
        assert_eq!(texts, ["Google", REGION, ZONES[0]]);
        assert_eq!(node.interface_ip, node.public_ipv4);
        assert!(node.public_ipv4.is_some() && node.private_ipv4.is_some());
        assert_eq!((node.resources.get("cores"), node.resources.get("ram")), (2.0, 4096.0));

        let inserts = harness.inserts().await;
        let [insert] = &inserts[..] else { panic!("{inserts:?}") };
        let body = &insert["body"];
        assert_eq!(body["disks"][0]["initializeParams"]["diskSizeGb"], "20");
        assert_eq!(body["networkInterfaces"][0]["subnetwork"], "regions/us-central1/subnetworks/default");
        assert_eq!(body["tags"], json!({"items": ["ci", "web"]}));
        let items = body["metadata"]["items"].as_array().unwrap();
        assert!(items.contains(&json!({"key": "ssh-keys", "value": format!("zuul:{KEY}")})), "{items:?}");
        assert!(insert["query"].as_str().unwrap().starts_with("requestId="));

        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.instances().await, BTreeSet::new());
        // Nothing of this name exists any more.
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
    });
}

#[test]
fn nodes_have_their_private_address_where_the_pool_says_so() {
    on_real_time(async {
        let label = "service-account: ci@simulated.iam.gserviceaccount.com, provisioning-model: spot";
        let mut harness = Harness::start(&[], "", "use-internal-ip: true", label).await;
        let node = harness.launch("0000000001").await.unwrap();
        assert_eq!(node.interface_ip, node.private_ipv4);
        assert_ne!(node.interface_ip, node.public_ipv4);
        let body = &harness.inserts().await[0]["body"];
        assert_eq!(body["serviceAccounts"][0]["email"], "ci@simulated.iam.gserviceaccount.com");
        assert_eq!(body["scheduling"]["provisioningModel"], "SPOT");
    });
}

#[test]
fn an_operation_that_fails_ends_the_launch_at_once() {
    on_real_time(async {
        let mut harness = Harness::start(&["--full-zone", "us-central1-a * *", "--fail-s", "0.3"], "", "", "").await;
        match harness.launch("0000000001").await {
            Err(CloudError::Capacity(text)) => assert!(text.contains("ZONE_RESOURCE_POOL_EXHAUSTED"), "{text}"),
            other => panic!("{other:?}"),
        }
        let faults =
            json!(["QUOTA_EXCEEDED times=1 message=Quota 'CPUS' exceeded. Limit: 24.0 in region us-central1."]);
        harness.cloud.knobs(json!({"full_zones": [], "operation_faults": faults})).await;
        assert!(
            matches!(harness.launch("0000000002").await, Err(CloudError::Quota(text)) if text.contains("Limit: 24.0"))
        );
    });
}

#[test]
fn full_zones_are_tried_in_turn_and_then_skipped() {
    on_real_time(async {
        let zones = format!("zones: [{}]", ZONES.join(", "));
        let mut harness =
            Harness::start(&["--full-zone", "us-central1-a * *", "--fail-s", "0.1"], &zones, "", "").await;
        let first = harness.launch("0000000001").await.unwrap();
        assert_eq!(first.zone.as_deref(), Some(ZONES[1]));
        let second = harness.launch("0000000002").await.unwrap();
        assert_eq!(second.zone.as_deref(), Some(ZONES[1]));
        let inserts = harness.inserts().await;
        assert_eq!(inserts.iter().map(zone_of).collect::<Vec<_>>(), [ZONES[0], ZONES[1], ZONES[1]]);
        let ids: BTreeSet<&str> = inserts.iter().filter_map(|insert| insert["query"].as_str()).collect();
        assert_eq!(ids.len(), 3, "each attempt and zone has its own request id");
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.instances().await, BTreeSet::from([format!("{}/np0000000002", ZONES[1])]));
    });
}

#[test]
fn a_lost_answer_makes_no_second_instance() {
    on_real_time(async {
        let zones = format!("zones: [{}]", ZONES.join(", "));
        let mut harness = Harness::start(&[], &zones, "", "").await;
        let faults = json!({"faults": ["lost-answer action=instances.insert times=1"]});
        harness.cloud.knobs(faults).await;
        harness.launch("0000000001").await.unwrap();
        let inserts = harness.inserts().await;
        assert_eq!(inserts.len(), 2);
        assert_eq!(inserts[0]["query"], inserts[1]["query"]);
        assert_eq!(harness.instances().await.len(), 1);

        // A process that has lost its memory finds the instance of an earlier one, also in another zone.
        harness.provider = provider(&harness.cloud, &format!("zones: [{}, {}]", ZONES[2], ZONES[0]), "", "");
        harness.provider.wait_for_refresh().await;
        let order = LaunchOrder { may_exist: true, may_appear: true, ..launch_order("iowa", "0000000001", 1) };
        let node = harness.launch_as(order).await.unwrap();
        assert_eq!(node.zone.as_deref(), Some(ZONES[0]));
        assert_eq!(harness.inserts().await.len(), 2);

        // The section no longer has the zone of the instance.
        harness.provider = provider(&harness.cloud, &format!("zone: {}", ZONES[1]), "", "");
        harness.provider.wait_for_refresh().await;
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.instances().await, BTreeSet::new());
    });
}

#[test]
fn an_instance_of_the_same_name_belongs_to_its_owner() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        let marks = marks("0000000001", "of another installation");
        create(&harness.cloud, ZONES[0], "np0000000001", marks).await;
        for may_exist in [false, true] {
            let order = LaunchOrder { may_exist, ..launch_order("iowa", "0000000001", 1) };
            match harness.launch_as(order).await {
                Err(CloudError::Denied(detail)) => assert!(detail.contains("another owner"), "{detail}"),
                other => panic!("{other:?}"),
            }
        }
        // Without our provider's name it is not deleted either.
        create(&harness.cloud, ZONES[0], "np0000000002", json!([])).await;
        assert_eq!(harness.delete("np0000000002").await, Ok(Outcome::Deleted));
        assert_eq!(harness.instances().await.len(), 2);
    });
}

#[test]
fn the_same_name_in_another_zone_is_another_instance() {
    on_real_time(async {
        let zones = format!("zones: [{}]", ZONES.join(", "));
        let mut harness = Harness::start(&[], &zones, "", "").await;
        let marks = marks("0000000001", "of another installation");
        create(&harness.cloud, ZONES[2], "np0000000001", marks).await;
        let node = harness.launch("0000000001").await.unwrap();
        assert_eq!(node.zone.as_deref(), Some(ZONES[0]));
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.instances().await, BTreeSet::from([format!("{}/np0000000001", ZONES[2])]));
    });
}

#[test]
fn an_operation_is_awaited_again_when_the_answer_fails() {
    on_real_time(async {
        let faults =
            ["503", "closed", "truncated", "html"].map(|kind| format!("{kind} action=zoneOperations.wait times=1"));
        let flags: Vec<&str> = faults.iter().flat_map(|fault| ["--fault", fault.as_str()]).collect();
        let mut harness = Harness::start(&flags, "", "", "").await;
        harness.launch("0000000001").await.unwrap();
        assert_eq!((harness.inserts().await.len(), harness.cloud.calls("instances.delete").await.len()), (1, 0));
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
    });
}

#[test]
fn a_deletion_that_has_no_effect_is_repeated() {
    on_real_time(async {
        let not_found = "RESOURCE_NOT_FOUND times=1 operation=delete";
        for flags in [
            ["--fault", "404 action=instances.delete times=1"],
            ["--fault", "400 reason=resourceNotReady action=instances.delete times=1"],
            ["--operation-fault", not_found],
        ] {
            let mut harness = Harness::start(&flags, "", "", "").await;
            harness.launch("0000000001").await.unwrap();
            assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted), "{flags:?}");
            assert_eq!(harness.instances().await, BTreeSet::new(), "{flags:?}");
        }
    });
}

#[test]
fn an_instance_that_is_listed_late_is_deleted() {
    on_real_time(async {
        // The deletion begins while the insert is not answered by a listing yet.
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.cloud.knobs(json!({"boot_s": "1"})).await;
        harness.provider.submit(1, Job::Launch(Arc::new(launch_order("iowa", "0000000001", 1))));
        let known = JobEvent::InstanceKnown(ExternalId::text("np0000000001"));
        assert_eq!(harness.provider.next().await, (1, known));
        harness.provider.abandon(1);
        assert!(harness.provider.wait_for_end().await.1.is_err());
        harness.cloud.knobs(json!({"faults": ["404 action=instances.delete times=1"]})).await;
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.instances().await, BTreeSet::new());
    });
}

#[test]
fn throttling_is_no_quota_and_fails_no_attempt() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        let faults = json!({"faults": ["403 reason=rateLimitExceeded action=instances.insert times=2",
            "429 action=instances.list times=1"]});
        harness.cloud.knobs(faults).await;
        harness.launch("0000000001").await.unwrap();
        let inserts = harness.inserts().await;
        let reasons: Vec<&str> = inserts.iter().filter_map(|insert| insert["reason"].as_str()).collect();
        assert_eq!((inserts.len(), reasons), (3, vec!["rateLimitExceeded", "rateLimitExceeded"]));
    });
}

#[test]
fn refusals_say_what_they_mean_for_the_launch() {
    on_real_time(async {
        // The machine type or the image may have vanished, so nothing is repeated after a 404 either.
        for (fault, kind) in
            [("403 reason=quotaExceeded", "quota"), ("403 reason=forbidden", "denied"), ("404", "denied")]
        {
            let fault = format!("{fault} action=instances.insert times=1");
            let mut harness = Harness::start(&["--fault", &fault], "", "", "").await;
            assert_eq!(harness.launch("0000000001").await.unwrap_err().kind(), kind, "{fault}");
            assert_eq!(harness.inserts().await.len(), 1);
        }
        let mut harness = Harness::start(&["--fault", "503 action=instances.insert times=2"], "", "", "").await;
        harness.launch("0000000001").await.unwrap();
        assert_eq!(harness.inserts().await.len(), 3);
    });
}

#[test]
fn an_instance_that_stops_while_it_boots_is_a_status_failure() {
    on_real_time(async {
        let flags = ["--stop-s", "0.1", "--preempt-after-s", "0.2"];
        let mut harness = Harness::start(&flags, "", "", "provisioning-model: spot").await;
        harness.cloud.knobs(json!({"boot_s": "3"})).await;
        match harness.launch("0000000001").await {
            Err(CloudError::Failed { kind: FailureKind::Status, detail }) => {
                assert!(detail.contains("TERMINATED") || detail.contains("ending"), "{detail}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.instances().await, BTreeSet::new());
    });
}

#[test]
fn a_deletion_waits_until_nothing_is_left() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.launch("0000000001").await.unwrap();
        // A deletion that fails later, and one that is already running.
        let fault = json!({"operation_faults": ["RESOURCE_IN_USE_BY_ANOTHER_RESOURCE times=1 operation=delete"]});
        harness.cloud.knobs(fault).await;
        assert!(matches!(harness.delete("np0000000001").await, Err(CloudError::Failed { .. })));
        harness.cloud.knobs(json!({"delete_s": "1"})).await;
        harness.provider.submit(1, Job::Delete(ExternalId::text("np0000000001")));
        harness.provider.submit(2, Job::Delete(ExternalId::text("np0000000001")));
        for _ in 0..2 {
            assert_eq!(harness.provider.wait_for_end().await.1, Ok(Outcome::Deleted));
        }
        assert_eq!(harness.instances().await, BTreeSet::new());
    });
}

#[test]
fn instances_of_all_pages_are_counted_and_ours_are_found() {
    on_real_time(async {
        let cloud = SimulatedGce::start(&QUICK).await;
        cloud.control("foreign?zone=us-central1-a&count=1200&type=n1-standard-2").await;
        let provider = provider(&cloud, "", "", "");
        let facts = provider.wait_for_refresh().await;
        assert_eq!((facts.unmanaged.get("instances"), facts.unmanaged.get("cores")), (1200.0, 2400.0));
        assert_eq!(cloud.calls("instances.list").await.len(), 3);
        let mut harness = Harness { cloud, provider, facts };
        let node = harness.launch("0000000001").await.unwrap();
        assert_eq!(node.state, InstanceState::Running);
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
    });
}

#[test]
fn instances_that_boot_at_once_share_their_listings() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.cloud.knobs(json!({"boot_s": "1-4"})).await;
        let before = harness.cloud.calls("instances.list").await.len();
        for number in 0..200 {
            let order = launch_order("iowa", &format!("{number:010}"), 1);
            harness.provider.submit(number, Job::Launch(Arc::new(order)));
        }
        for _ in 0..200 {
            launched(harness.provider.wait_for_end().await.1).unwrap();
        }
        let listings = harness.cloud.calls("instances.list").await.split_off(before);
        let duration_s = (at_ms(listings.last().unwrap()) - at_ms(&listings[0])) / 1000.0;
        // Four looks a second at most, and not one for each instance.
        let looks = 4.0 * duration_s + 2.0;
        assert!(listings.len() as f64 <= looks && listings.len() < 50, "{} listings in {duration_s} s", listings.len());
        // Each operation is awaited with one call.
        assert_eq!(harness.cloud.calls("zoneOperations.wait").await.len(), 200);
    });
}

#[test]
fn labels_that_google_would_refuse_are_out_of_service() {
    on_real_time(async {
        let reason = async |label: &str| {
            let harness = Harness::start(&[], "", "", label).await;
            let label = harness.facts.launch_label(&"main".into(), &"small".into()).cloned().unwrap();
            label.unavailable.map(|unavailable| unavailable.reason().to_owned()).unwrap_or_default()
        };
        let unknown = "there is no machine type e9-giant in us-central1-a";
        assert_eq!(reason("instance-type: e9-giant").await, unknown);
        assert!(reason("cloud-image: own").await.starts_with("no such image: 404"));
        assert_eq!(reason("volume-size: 5").await, "its image needs 10 GB, but volume-size is 5");
        assert_eq!(reason("").await, "");
    });
}

#[test]
fn limits_that_may_not_be_read_stop_no_launches() {
    on_real_time(async {
        let faults = ["--fault", "403 reason=forbidden action=regions.get"];
        let mut harness = Harness::start(&faults, "", "", "").await;
        assert_eq!(harness.facts.refused_queries, ["limits"]);
        assert_eq!(harness.facts.limits.get("cores"), f64::INFINITY);
        harness.launch("0000000001").await.unwrap();
    });
}

#[test]
fn changes_and_reads_are_spaced_apart() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "rate-limit: 4", "", "").await;
        for number in 0..6 {
            let order = launch_order("iowa", &format!("{number:010}"), 1);
            harness.provider.submit(number, Job::Launch(Arc::new(order)));
        }
        for _ in 0..6 {
            launched(harness.provider.wait_for_end().await.1).unwrap();
        }
        let times: Vec<f64> = harness.inserts().await.iter().map(at_ms).collect();
        // The server sees starts that are 250 ms apart, with the delays of a busy machine.
        let span = times[5] - times[0];
        assert!(span >= 1200.0, "{times:?}");
    });
}
