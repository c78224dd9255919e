//! Launches and deletions: addresses, refusals, failed operations, throttling, tokens, limits, pages, owners.

use std::sync::Arc;

use nodepool::actors::provider::providers;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, LaunchOrder, Outcome};
use nodepool_model::records::ids::ExternalId;
use serde_json::{Value, json};
use testkit::clouds::simulated_azure::{GROUP, LOCATION, NETWORK, SimulatedAzure};
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::{ProviderHarness, launch_order, launched, provider_section};

pub const QUICK: [&str; 6] = ["--boot-s", "0.1", "--delete-s", "0.1", "--operation-s", "0.1"];

/// A configuration with the label `small`, and more keys of provider, pool and label.
pub fn configuration(provider: &str, pool: &str, label: &str) -> String {
    let comma = |keys: &str| if keys.is_empty() { String::new() } else { format!(", {keys}") };
    let rate = if provider.contains("rate") { "" } else { ", rate: 1000" };
    let size = if label.contains("vm-size") { "" } else { ", hardware-profile: {vm-size: Standard_D2s_v3}" };
    let image = "image-reference: {publisher: Debian, offer: debian-12, sku: 12-gen2, version: latest}";
    format!(
        "zookeeper-servers: [{{host: localhost}}]\nlabels: [{{name: small}}]\ndiskimages: [{{name: built, username: \
         zuul}}]\nproviders:\n  - {{name: az, driver: azure, location: {LOCATION}, resource-group: {GROUP}, \
         resource-group-location: {LOCATION}, auth-path: /nonexistent, network: {NETWORK}{rate}, cloud-images: [{{name: \
         debian, username: zuul, generate-password: true, {image}}}], diskimages: [{{name: built}}]{}, pools: [{{name: main, \
         max-servers: 1000, host-key-checking: false{}, labels: [{{name: small, cloud-image: debian{size}{}}}]}}]}}\n",
        comma(provider),
        comma(pool),
        comma(label),
    )
}

/// A text as a value of a query.
pub fn encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn start(cloud: &SimulatedAzure, config: &str) -> ProviderHarness {
    let section = provider_section(config);
    ProviderHarness::new(|deps| providers::start(&section, deps, Some(&cloud.driver())).unwrap())
}

/// A provider on an Azure.
pub struct Harness {
    pub cloud: SimulatedAzure,
    pub provider: ProviderHarness,
    pub facts: Arc<ProviderFacts>,
}

impl Harness {
    pub async fn start(flags: &[&str], keys: &str, pool: &str, label: &str) -> Self {
        Self::open(flags, configuration(keys, pool, label)).await
    }

    /// A provider whose configuration is changed first.
    pub async fn start_with(flags: &[&str], change: impl FnOnce(String) -> String) -> Self {
        Self::open(flags, change(configuration("", "", ""))).await
    }

    async fn open(flags: &[&str], config: String) -> Self {
        let cloud = SimulatedAzure::start(&[&QUICK, flags].concat()).await;
        let provider = start(&cloud, &config);
        let facts = provider.wait_for_refresh().await;
        Self { cloud, provider, facts }
    }

    /// Starts the provider again with another configuration.
    pub async fn reopen(&mut self, config: &str) {
        self.provider = start(&self.cloud, config);
        self.facts = self.provider.wait_for_refresh().await;
    }

    pub async fn launch(&mut self, node: &str) -> Result<Instance, CloudError> {
        self.launch_as(launch_order("az", node, 1)).await
    }

    pub async fn launch_as(&mut self, order: LaunchOrder) -> Result<Instance, CloudError> {
        launched(self.provider.run(Job::Launch(Arc::new(order))).await)
    }

    pub async fn delete(&mut self, name: &str) -> Result<Outcome, CloudError> {
        self.provider.run(Job::Delete(ExternalId::text(name))).await
    }

    pub async fn assert_empty(&self) {
        assert_eq!(self.cloud.resources().await, Vec::<String>::new());
    }
}

#[test]
fn a_node_has_the_resources_of_its_size_and_leaves_nothing() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "tags: {team: ci}, volume-size: 40").await;
        let node = harness.launch("0000000001").await.unwrap();
        assert_eq!((node.resources.get("cores"), node.resources.get("ram")), (2.0, 8192.0));
        assert_eq!((node.cloud.as_deref(), node.zone.as_deref()), (Some("Azure"), Some("")));
        assert!(node.public_ipv4.is_some() && node.private_ipv4.is_some());
        assert_eq!(node.interface_ip, node.public_ipv4);
        let body = &harness.cloud.calls("vm.create").await[0]["body"];
        assert_eq!(body["tags"]["team"], "ci");
        assert_eq!(body["properties"]["storageProfile"]["osDisk"]["diskSizeGB"], 40);
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        harness.assert_empty().await;
    });
}

#[test]
fn pools_choose_the_addresses_of_their_nodes() {
    on_real_time(async {
        let mut only_ipv6 = Harness::start(&[], "", "public-ipv4: false, ipv6: true", "").await;
        let node = only_ipv6.launch("0000000001").await.unwrap();
        assert_eq!((&node.private_ipv4, &node.public_ipv4, &node.public_ipv6), (&None, &None, &None));
        assert!(node.private_ipv6.is_some() && node.interface_ip == node.private_ipv6);
        let mut both = Harness::start(&["--nested-public-ip", "id"], "", "ipv6: true", "").await;
        let node = both.launch("0000000001").await.unwrap();
        assert!(node.public_ipv4.is_some() && node.private_ipv6.is_some() && node.public_ipv6.is_none());
    });
}

#[test]
fn a_creation_that_fails_later_names_its_reason() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        let message = "Operation_results_in_exceeding_approved_standardDSv3Family_Cores_quota";
        for (fault, kind) in [
            (format!("OperationNotAllowed in=operation times=1 action=vm.create message={message}"), "quota"),
            ("SkuNotAvailable in=operation times=1 action=vm.create".to_owned(), "capacity"),
        ] {
            harness.cloud.knobs(json!({"faults": [fault]})).await;
            let error = harness.launch("0000000001").await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
            harness.assert_empty().await;
        }
    });
}

#[test]
fn a_failed_creation_leaves_nothing_although_there_is_no_machine() {
    on_real_time(async {
        let flags = ["--failed-creation", "parts", "--nic-reserved-s", "4"];
        let mut harness = Harness::start(&flags, "", "", "").await;
        let fault = "AllocationFailed in=operation times=1 action=vm.create";
        harness.cloud.knobs(json!({"faults": [fault]})).await;
        let error = harness.launch("0000000001").await.unwrap_err();
        assert_eq!(error.kind(), "capacity", "{error}");
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        harness.assert_empty().await;
    });
}

#[test]
fn refusals_say_what_they_mean_for_the_launch() {
    on_real_time(async {
        for (fault, kind) in [
            ("PublicIPCountLimitReached", "quota"),
            ("ZonalAllocationFailed", "capacity"),
            ("AuthorizationFailed", "denied"),
        ] {
            // After a refusal, a provider holds back launches for a while.
            let fault = format!("{fault} action=vm.create times=1");
            let mut harness = Harness::start(&["--fault", &fault], "", "", "").await;
            let error = harness.launch("0000000001").await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            harness.assert_empty().await;
        }
    });
}

#[test]
fn throttling_fails_no_attempt_and_is_obeyed() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.cloud.control("throttle?calls=1&retry_after_s=3").await;
        let begun = tokio::time::Instant::now();
        harness.launch("0000000001").await.unwrap();
        assert!(begun.elapsed().as_secs_f64() >= 3.0);
        assert_eq!(harness.cloud.calls("vm.create").await.len(), 2);
    });
}

#[test]
fn lists_have_pages_and_others_use_the_limits() {
    on_real_time(async {
        let flags = [
            "--limits",
            "cores=10,virtualMachines=5,standardDSv3Family=8",
            "--foreign-usage",
            "cores=4",
            "--page",
            "1",
        ];
        let mut harness = Harness::start(&flags, "", "", "").await;
        assert_eq!((harness.facts.limits.get("cores"), harness.facts.unmanaged.get("cores")), (10.0, 4.0));
        assert_eq!(harness.facts.limits.get("standardDSv3Family"), 8.0);
        for node in ["0000000001", "0000000002"] {
            harness.launch(node).await.unwrap();
        }
        let (facts, _) = match harness.provider.run(Job::Refresh).await.unwrap() {
            Outcome::Refreshed(facts, inventory) => (facts, inventory),
            other => panic!("{other:?}"),
        };
        assert_eq!(facts.unmanaged.get("cores"), 4.0);
    });
}

#[test]
fn operations_of_the_style_location_are_understood() {
    on_real_time(async {
        let mut harness = Harness::start(&["--operation-style", "location"], "", "", "").await;
        let fault = "SkuNotAvailable in=operation times=1 action=vm.create";
        harness.cloud.knobs(json!({"faults": [fault]})).await;
        let error = harness.launch("0000000001").await.unwrap_err();
        assert_eq!(error.kind(), "capacity", "{error}");
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        harness.launch("0000000002").await.unwrap();
    });
}

#[test]
fn a_refused_token_leads_to_one_new_one() {
    on_real_time(async {
        let mut harness = Harness::start(&["--token-s", "61"], "", "", "").await;
        let issued = async |harness: &Harness| harness.cloud.state().await["tokens_issued"].as_u64().unwrap();
        let before = issued(&harness).await;
        // The first one is renewed 60 s before its end, which is after a second.
        harness.cloud.knobs(json!({"boot_s": "2", "token_s": 3600})).await;
        harness.launch("0000000001").await.unwrap();
        assert_eq!(issued(&harness).await, before + 1);
        harness.cloud.control("revoke-tokens").await;
        harness.launch("0000000002").await.unwrap();
        assert_eq!(issued(&harness).await, before + 2);
    });
}

#[test]
fn a_lost_answer_makes_no_second_machine_and_others_keep_theirs() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.cloud.knobs(json!({"faults": ["lost-answer action=vm.create times=1"]})).await;
        harness.launch("0000000001").await.unwrap();
        assert_eq!(harness.cloud.names("vms").await.len(), 1);
        let order = LaunchOrder { may_exist: true, ..launch_order("az", "0000000001", 1) };
        harness.launch_as(order).await.unwrap();
        let foreign = LaunchOrder {
            identity: "of another installation".to_owned(),
            may_exist: true,
            ..launch_order("az", "0000000001", 1)
        };
        match harness.launch_as(foreign).await {
            Err(CloudError::Failed { detail, .. }) => assert!(detail.contains("another owner"), "{detail}"),
            other => panic!("{other:?}"),
        }
        harness.cloud.control("create?kind=vm&count=1&prefix=np0000000009").await;
        assert!(matches!(harness.delete("np0000000009").await, Err(CloudError::NotFound(_))));
    });
}

#[test]
fn a_machine_that_fails_while_it_boots_is_a_status_failure() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.cloud.knobs(json!({"faults": ["InternalExecutionError in=operation times=1 action=vm.create"]})).await;
        match harness.launch("0000000001").await {
            Err(CloudError::Failed { kind: FailureKind::Status, .. }) => {}
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn refused_limits_and_unknown_sizes_concern_their_labels_alone() {
    on_real_time(async {
        let flags = ["--fault", "AuthorizationFailed action=usages"];
        let mut harness = Harness::start(&flags, "", "", "").await;
        assert_eq!(harness.facts.refused_queries, ["limits"]);
        harness.launch("0000000001").await.unwrap();
        let reason = async |flags: &[&str], label: &str| {
            let harness = Harness::start(flags, "", "", label).await;
            let label = harness.facts.launch_label(&"main".into(), &"small".into()).cloned().unwrap();
            label.unavailable.map(|unavailable| unavailable.reason().to_owned()).unwrap_or_default()
        };
        let giant = reason(&[], "hardware-profile: {vm-size: Standard_Giant}").await;
        assert_eq!(giant, "vm-size Standard_Giant does not exist in eastus");
        let blocked = reason(&["--blocked-sku", "Standard_D2s_v3"], "").await;
        assert!(blocked.starts_with("vm-size Standard_D2s_v3 cannot be used in eastus"), "{blocked}");
        assert_eq!(reason(&[], "hardware-profile: {vm-size: standard_d2s_V3}").await, "");
    });
}

#[test]
fn machines_that_boot_at_once_share_their_looks() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.cloud.knobs(json!({"boot_s": "2"})).await;
        let before = harness.cloud.calls("vm.list").await.len();
        for number in 0..50 {
            let order = launch_order("az", &format!("{number:010}"), 1);
            harness.provider.submit(number, Job::Launch(Arc::new(order)));
        }
        for _ in 0..50 {
            launched(harness.provider.wait_for_end().await.1).unwrap();
        }
        let calls: Vec<Value> = harness.cloud.calls("vm.list").await.split_off(before);
        assert!(calls.len() < 20, "{} looks", calls.len());
    });
}
