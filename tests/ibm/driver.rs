//! Launches and deletions: floating IPs, failed instances, lost answers, throttling, other people's instances.

use std::sync::Arc;

use nodepool::actors::provider::providers;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, LaunchOrder, Outcome};
use nodepool_model::records::ids::ExternalId;
use serde_json::{Value, json};
use testkit::clouds::simulated_ibm::{REGION, SimulatedIbm, ZONES};
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::{ProviderHarness, launch_order, launched, provider_section};

use crate::api::Api;

pub const QUICK: [&str; 10] = [
    "--boot-s",
    "0.1",
    "--delete-s",
    "0.1",
    "--floating-ip-s",
    "0.1",
    "--floating-ip-delete-s",
    "0.1",
    "--fail-s",
    "0.1",
];

/// A configuration with these labels, and more keys of the provider and the pool.
pub fn configuration(provider: &str, pool: &str, labels: &[(&str, &str)]) -> String {
    let comma = |keys: &str| if keys.is_empty() { String::new() } else { format!(", {keys}") };
    let given = |key: &str, value: &str| {
        let is_given = provider.contains(&format!("{key}:"));
        if is_given { String::new() } else { format!(", {key}: {value}") }
    };
    let label = |(name, keys): &(&str, &str)| {
        let image = if keys.contains("image:") { "" } else { ", cloud-image: debian" };
        let profile = if keys.contains("profile") { "" } else { ", profile: cx2-2x4" };
        format!("{{name: {name}{image}{profile}{}}}", comma(keys))
    };
    let names: Vec<String> = labels.iter().map(|(name, _)| format!("{{name: {name}}}")).collect();
    let labels: Vec<String> = labels.iter().map(label).collect();
    format!(
        "zookeeper-servers: [{{host: localhost}}]\nlabels: [{}]\ndiskimages: [{{name: built, username: me}}]\nproviders:\n  \
         - {{name: dallas, driver: ibmvpc, region: {REGION}{}{}{}{}, cloud-images: [{{name: debian, image-filter: \
         {{operating-system: {{name: debian-12-amd64}}}}, username: zuul, keys: [nodepool]}}, {{name: missing, image-name: \
         none, username: zuul}}]{}, pools: [{{name: main, max-servers: 1000, host-key-checking: false{}, labels: [{}]}}]}}\n",
        names.join(", "),
        given("vpc", "nodepool"),
        given("zone", ZONES[0]),
        given("subnet", "nodepool-1"),
        given("rate", "1000"),
        comma(provider),
        comma(pool),
        labels.join(", "),
    )
}

/// A provider with one label `small` on an IBM VPC.
pub struct Harness {
    pub cloud: SimulatedIbm,
    pub provider: ProviderHarness,
    pub facts: Arc<ProviderFacts>,
}

pub fn provider(cloud: &SimulatedIbm, provider: &str, pool: &str, label: &str) -> ProviderHarness {
    let section = provider_section(&configuration(provider, pool, &[("small", label)]));
    ProviderHarness::new(|deps| providers::start(&section, deps, Some(&cloud.driver())).unwrap())
}

impl Harness {
    pub async fn start(flags: &[&str], keys: &str, pool: &str, label: &str) -> Self {
        Self::on(SimulatedIbm::start(&[&QUICK, flags].concat()).await, keys, pool, label).await
    }

    pub async fn on(cloud: SimulatedIbm, keys: &str, pool: &str, label: &str) -> Self {
        let provider = provider(&cloud, keys, pool, label);
        let facts = provider.wait_for_refresh().await;
        Self { cloud, provider, facts }
    }

    pub async fn launch(&mut self, node: &str) -> Result<Instance, CloudError> {
        self.launch_as(launch_order("dallas", node, 1)).await
    }

    pub async fn launch_as(&mut self, order: LaunchOrder) -> Result<Instance, CloudError> {
        launched(self.provider.run(Job::Launch(Arc::new(order))).await)
    }

    pub async fn delete(&mut self, name: &str) -> Result<Outcome, CloudError> {
        self.provider.run(Job::Delete(ExternalId::text(name))).await
    }

    async fn creations(&self) -> Vec<Value> {
        self.cloud.calls("create_instance").await
    }

    /// The number of instances, floating IPs and unattached volumes.
    async fn left(&self) -> (u64, u64, u64) {
        let state = self.cloud.state().await;
        let volumes = state["volumes"]["unattached"].as_u64().unwrap_or_default();
        (self.cloud.count("instances").await, self.cloud.count("floating_ips").await, volumes)
    }

    /// The state of the harness' cloud after an instance of another installation with the same names is created, and
    /// two launches, one of which finds the recorded name, have not used it.
    async fn meet_foreign(&mut self, node: &str) {
        self.create(&format!("np{node}"), "np_dallas_main").await;
        let prior_instance = Some(ExternalId::text(format!("np{node}")));
        let prior = LaunchOrder { prior_instance, ..launch_order("dallas", node, 1) };
        for order in [launch_order("dallas", node, 1), prior] {
            let error = self.launch_as(order).await.unwrap_err();
            assert!(error.to_string().contains("another owner"), "{error}");
        }
    }

    /// Creates an instance as others do, in this resource group.
    async fn create(&self, name: &str, group: &str) {
        let api = Api::new(&self.cloud);
        api.instance(name, &api.group(group).await, &format!("{name}-boot")).await;
    }
}

#[test]
fn an_instance_is_launched_and_deleted() {
    on_real_time(async {
        let quota = "quota: {instances: 10, cores: 20, ram: 40960}";
        let mut harness = Harness::start(&[], quota, "", "user-data: hello").await;
        let limits = &harness.facts.limits;
        assert_eq!(["instances", "cores", "ram"].map(|name| limits.get(name)), [10.0, 20.0, 40960.0]);
        let node = harness.launch("0000000001").await.unwrap();
        assert_eq!(node.external_id, ExternalId::text("np0000000001"));
        let texts = [&node.cloud, &node.region, &node.zone].map(|text| text.as_deref().unwrap_or_default());
        assert_eq!(texts, ["IBM", REGION, ZONES[0]]);
        assert!(node.private_ipv4.is_some() && node.interface_ip == node.private_ipv4 && node.public_ipv4.is_none());
        assert_eq!((node.resources.get("cores"), node.resources.get("ram")), (2.0, 4096.0));
        let metadata = &node.metadata;
        assert_eq!((&*metadata["nodepool_pool_name"], &*metadata["nodepool_node_id"]), ("main", "0000000001"));

        let creations = harness.creations().await;
        let [creation] = &creations[..] else { panic!("{creations:?}") };
        assert_eq!(creation["body"]["user_data"], "hello");
        assert_eq!(creation["body"]["keys"].as_array().map(Vec::len), Some(1));
        let query = creation["query"].as_str().unwrap();
        assert!(query.contains("version=2025-06-03") && query.contains("generation=2"), "{query}");
        assert_eq!(harness.cloud.calls("create_floating_ip").await.len(), 0);

        let listings = harness.cloud.calls("list_instances").await.len();
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.left().await, (0, 0, 0));
        // The listing of the boot has shown it, so one without it is enough.
        assert_eq!(harness.cloud.calls("list_instances").await.len(), listings + 1);
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
    });
}

#[test]
fn a_floating_ip_is_attached_where_the_pool_asks_for_it() {
    on_real_time(async {
        for (pool, is_public) in [("public-ipv4: true", true), ("public-ipv4: true, use-internal-ip: true", false)] {
            let mut harness = Harness::start(&["--attach-s", "0.3"], "", pool, "").await;
            let node = harness.launch("0000000001").await.unwrap();
            assert!(node.public_ipv4.is_some() && node.private_ipv4.is_some());
            assert_eq!(node.interface_ip, if is_public { node.public_ipv4 } else { node.private_ipv4 });
            assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
            assert_eq!(harness.left().await, (0, 0, 0));
        }
    });
}

#[test]
fn a_floating_ip_that_fails_is_a_failed_attempt_and_is_deleted() {
    on_real_time(async {
        let mut harness = Harness::start(&["--floating-ips-fail-every", "1"], "", "public-ipv4: true", "").await;
        let failed = harness.launch("0000000001").await.unwrap_err();
        assert!(failed.to_string().contains("floating IP has failed"), "{failed}");
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.left().await, (0, 0, 0));
    });
}

#[test]
fn an_instance_that_does_not_start_ends_the_launch_with_its_reason() {
    on_real_time(async {
        let mut harness = Harness::start(&["--launch-fault", "cannot_start_capacity times=1"], "", "", "").await;
        match harness.launch("0000000001").await {
            Err(CloudError::Capacity(text)) => assert!(text.contains("cannot_start_capacity"), "{text}"),
            other => panic!("{other:?}"),
        }
        harness.cloud.knobs(json!({"launch_faults": ["cannot_start_storage times=1", "cannot_start_compute times=1 status=stopped"]})).await;
        match harness.launch("0000000002").await {
            Err(CloudError::Failed { kind: FailureKind::Status, detail }) => {
                assert!(detail.contains("cannot_start_storage"), "{detail}");
            }
            other => panic!("{other:?}"),
        }
        for node in ["0000000001", "0000000002"] {
            assert_eq!(harness.delete(&format!("np{node}")).await, Ok(Outcome::Deleted));
        }
        assert_eq!(harness.left().await, (0, 0, 0));
    });
}

#[test]
fn a_stopped_instance_without_capacity_is_no_slow_one() {
    on_real_time(async {
        let fault = ["--launch-fault", "cannot_start_compute times=1 status=stopped"];
        let mut harness = Harness::start(&fault, "", "", "").await;
        assert_eq!(harness.launch("0000000001").await.unwrap_err().kind(), "capacity");
    });
}

#[test]
fn lost_answers_make_nothing_twice() {
    on_real_time(async {
        let faults = json!({"faults": ["lost-answer action=create_instance times=1",
            "lost-answer action=create_floating_ip times=1", "lost-answer action=create_resource_group times=1",
            "lost-answer action=delete_floating_ip times=1", "lost-answer action=delete_instance times=1"]});
        let mut harness = Harness::start(&[], "", "public-ipv4: true", "").await;
        harness.cloud.knobs(faults).await;
        let node = harness.launch("0000000001").await.unwrap();
        assert!(node.public_ipv4.is_some());
        assert_eq!((harness.creations().await.len(), harness.left().await), (1, (1, 1, 0)));

        // A process that has lost its memory finds the instance of an earlier one.
        harness.provider = provider(&harness.cloud, "", "public-ipv4: true", "");
        harness.provider.wait_for_refresh().await;
        let order = LaunchOrder { may_exist: true, may_appear: true, ..launch_order("dallas", "0000000001", 1) };
        assert_eq!(harness.launch_as(order).await.unwrap().public_ipv4, node.public_ipv4);
        assert_eq!((harness.creations().await.len(), harness.left().await), (1, (1, 1, 0)));
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.left().await, (0, 0, 0));
    });
}

#[test]
fn an_instance_of_the_same_name_belongs_to_its_owner() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.create("np0000000001", "Default").await;
        match harness.launch("0000000001").await {
            Err(CloudError::Failed { detail, .. }) => assert!(detail.contains("another owner"), "{detail}"),
            other => panic!("{other:?}"),
        }
        // It is in no group of this provider, so it is not deleted.
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.cloud.count("instances").await, 1);

        // One of another installation with the same names.
        harness.create("np0000000002", "np_dallas_main").await;
        for may_exist in [false, true] {
            let order = LaunchOrder { may_exist, ..launch_order("dallas", "0000000002", 1) };
            match harness.launch_as(order).await {
                Err(CloudError::Failed { detail, .. }) => assert!(detail.contains("another owner"), "{detail}"),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_recorded_name_is_no_proof_of_ownership() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        // The first launch creates the group.
        harness.launch("0000000001").await.unwrap();
        harness.meet_foreign("0000000002").await;
        // It does not look like a leak.
        match harness.provider.run(Job::List).await.unwrap() {
            Outcome::Listed(inventory) => {
                let foreign = inventory.find(&ExternalId::text("np0000000002")).unwrap();
                assert!(foreign.metadata.is_empty(), "{foreign:?}");
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn an_instance_that_vanishes_while_it_boots_ends_its_launch() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.cloud.knobs(json!({"boot_s": 600})).await;
        harness.provider.submit(1, Job::Launch(Arc::new(launch_order("dallas", "0000000001", 1))));
        testkit::wait::until("listings of the instance", std::time::Duration::from_secs(60), async || {
            let created = harness.creations().await.len() == 1;
            created && harness.cloud.calls("list_instances").await.len() > 4
        })
        .await;
        harness.cloud.control("remove?name=np0000000001").await;
        let error = launched(harness.provider.wait_for_end().await.1).unwrap_err();
        assert_eq!(error.kind(), "not-found", "{error}");
    });
}

#[test]
fn an_address_that_cannot_be_deleted_does_not_keep_its_instance() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "public-ipv4: true", "").await;
        harness.launch("0000000001").await.unwrap();
        harness.cloud.knobs(json!({"faults": ["403 action=delete_floating_ip times=1"]})).await;
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.left().await, (0, 0, 0));
    });
}

#[test]
fn refusals_say_what_they_mean_for_the_launch() {
    on_real_time(async {
        for (fault, kind) in [
            ("over_quota", "quota"),
            ("insufficient_capacity", "capacity"),
            ("403", "denied"),
            ("bad_field", "denied"),
            ("404", "denied"),
        ] {
            let fault = format!("{fault} action=create_instance times=1");
            let mut harness = Harness::start(&["--fault", &fault], "", "", "").await;
            assert_eq!(harness.launch("0000000001").await.unwrap_err().kind(), kind, "{fault}");
            assert_eq!(harness.creations().await.len(), 1);
        }
        let faults = ["503 action=create_instance times=2", "429 action=create_instance times=1 after=2"];
        let mut harness = Harness::start(&["--fault", faults[0], "--fault", faults[1]], "", "", "").await;
        harness.launch("0000000001").await.unwrap();
        assert_eq!(harness.cloud.count("instances").await, 1);
    });
}

#[test]
fn a_resource_group_that_was_deleted_is_created_again() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.launch("0000000001").await.unwrap();
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        Api::new(&harness.cloud).delete_group("np_dallas_main").await;
        harness.launch("0000000002").await.unwrap();
        assert_eq!(harness.cloud.count("instances").await, 1);
    });
}

#[test]
fn a_deletion_waits_until_the_state_allows_it() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "public-ipv4: true", "").await;
        harness.cloud.knobs(json!({"floating_ip_s": 3})).await;
        let order = Arc::new(launch_order("dallas", "0000000001", 1));
        harness.provider.submit(1, Job::Launch(order));
        testkit::wait::until("the floating IP", std::time::Duration::from_secs(60), async || {
            harness.cloud.count("floating_ips").await == 1
        })
        .await;
        harness.provider.abandon(1);
        harness.provider.wait_for_end().await.1.unwrap_err();
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
        assert_eq!(harness.left().await, (0, 0, 0));
    });
}

#[test]
fn what_a_label_needs_is_checked_before_launches() {
    on_real_time(async {
        let reason = async |keys: &str, label: &str| {
            let harness = Harness::start(&[], keys, "", label).await;
            let label = harness.facts.launch_label(&"main".into(), &"small".into()).cloned().unwrap();
            label.unavailable.map(|unavailable| unavailable.reason().to_owned()).unwrap_or_default()
        };
        assert_eq!(reason("", "").await, "");
        assert_eq!(reason("", "profile: cx9-giant").await, "there is no profile cx9-giant");
        assert_eq!(reason("", "cloud-image: missing").await, "there is no image none");
        assert_eq!(reason("vpc: none", "").await, "there is no VPC none");
        assert_eq!(reason("subnet: other-1", "").await, "VPC nodepool has no subnet other-1");
        let wrong_zone = "subnet nodepool-2 is in zone us-south-2, which is not the pool's zone us-south-1";
        assert_eq!(reason("subnet: nodepool-2", "").await, wrong_zone);
    });
}

#[test]
fn instances_of_others_are_counted_on_all_pages() {
    on_real_time(async {
        let cloud = SimulatedIbm::start(&QUICK).await;
        cloud.control("foreign?kind=instance&zone=us-south-1&count=230&profile=bx2-2x8&group=team").await;
        let mut harness = Harness::on(cloud, "", "", "").await;
        let unmanaged = &harness.facts.unmanaged;
        assert_eq!((unmanaged.get("instances"), unmanaged.get("cores")), (230.0, 460.0));
        assert_eq!(unmanaged.get("ram"), 230.0 * 8192.0);
        // A group of others that appears later stops nothing.
        harness.cloud.control("foreign?kind=instance&zone=us-south-1&count=240&profile=bx2-2x8&group=later").await;
        harness.launch("0000000001").await.unwrap();
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
    });
}

#[test]
fn instances_that_boot_at_once_share_their_listings() {
    on_real_time(async {
        let mut harness = Harness::start(&[], "", "", "").await;
        harness.cloud.knobs(json!({"boot_s": "1-4"})).await;
        let before = harness.cloud.calls("list_instances").await.len();
        for number in 0..100 {
            let order = launch_order("dallas", &format!("{number:010}"), 1);
            harness.provider.submit(number, Job::Launch(Arc::new(order)));
        }
        for _ in 0..100 {
            launched(harness.provider.wait_for_end().await.1).unwrap();
        }
        let listings = harness.cloud.calls("list_instances").await.len() - before;
        assert!(listings < 40, "{listings} listings");
        // One group serves them all.
        assert_eq!(harness.creations().await.len(), 100);
        assert_eq!(harness.cloud.state().await["resource_groups"].as_array().map_or(0, Vec::len), 2);
    });
}

#[test]
fn an_expired_token_is_renewed_during_a_launch() {
    on_real_time(async {
        let cloud = SimulatedIbm::start_with_tokens(&QUICK).await;
        let mut harness = Harness::on(cloud, "", "", "").await;
        harness.cloud.knobs(json!({"boot_s": 3})).await;
        harness.provider.submit(1, Job::Launch(Arc::new(launch_order("dallas", "0000000001", 1))));
        testkit::wait::until("the creation", std::time::Duration::from_secs(60), async || {
            harness.cloud.count("instances").await == 1
        })
        .await;
        harness.cloud.control("revoke-tokens").await;
        launched(harness.provider.wait_for_end().await.1).unwrap();
        let state = harness.cloud.state().await;
        assert_eq!(state["tokens_issued"], 2, "{state}");
        assert_eq!(harness.delete("np0000000001").await, Ok(Outcome::Deleted));
    });
}
