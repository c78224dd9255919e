//! Fake cloud: networks, images, volumes and consoles of its servers, and its injected faults.
//!
//! Launchers and providers run in the test's process, with a ZooKeeper in memory and on paused time. The scan of host
//! keys makes real connections, so its test runs in real time.

use std::sync::Arc;
use std::time::Duration;

use nodepool::actors::runtime::messages::ExplainRequest;
use nodepool::actors::telemetry::samples::SampleSink;
use nodepool_driver::error::CloudError;
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, LaunchOrder, Outcome};
use nodepool_model::records::node::Node;
use nodepool_model::records::request::RequestState;
use testkit::in_process_launcher::fake_cloud::small_label_configuration;
use testkit::in_process_launcher::{
    Consumer, InProcessDaemon, on_paused_time, on_real_time, started, started_as, until,
};
use testkit::provider_harness::{ProviderHarness, launch};

/// Submits a request for one node and returns the node.
async fn got(consumer: &Consumer, label: &str) -> Node {
    let id = consumer.submit_labels(&[label]).await;
    let request = consumer.wait_for_end(&id).await;
    assert_eq!(request.state, RequestState::Fulfilled, "{label}");
    consumer.node(&request.nodes[0]).await.unwrap()
}

async fn launched(provider: &mut ProviderHarness, hostname: &str) -> Result<Instance, CloudError> {
    match provider.run(launch(hostname)).await {
        Ok(Outcome::Launched(instance)) => Ok(*instance),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    }
}

async fn listed(provider: &mut ProviderHarness) -> Vec<Instance> {
    let Ok(Outcome::Listed(inventory)) = provider.run(Job::List).await else { panic!("the listing failed") };
    inventory.instances().to_vec()
}

#[test]
fn addresses_are_those_of_the_networks() {
    let cases = [
        ("fake-public-network-name", ["fake", "", "fake", "fake", "fake"]),
        ("fake-private-network-name", ["fake", "", "fake", "fake", "fake"]),
        ("unknown-network", ["fake", "", "fake", "fake", "fake"]),
        ("no-auto-ip-network-name", ["", "", "fake", "fake", "fake"]),
        ("fake-ipv6-network-name", ["fake", "fake_v6", "fake", "fake_v6", "fake_host_id"]),
        ("no-auto-ip-network-name, fake-ipv6-network-name", ["fake", "fake_v6", "fake", "fake_v6", "fake_host_id"]),
    ];
    for (networks, expected) in cases {
        on_paused_time(async move {
            let (consumer, _process) =
                started(&small_label_configuration("", &format!("        networks: [{networks}]\n"), "")).await;
            let Node { public_ipv4, public_ipv6, private_ipv4, interface_ip, host_id, .. } =
                got(&consumer, "small").await;
            let shown = [public_ipv4, public_ipv6, private_ipv4, interface_ip, host_id].map(Option::unwrap_or_default);
            assert_eq!(shown, expected, "{networks}");
        });
    }
}

#[test]
fn the_networks_of_a_label_replace_those_of_its_pool() {
    on_paused_time(async {
        let networks = "        networks: [fake-ipv6-network-name]\n";
        let own =
            "          - {name: other, cloud-image: image, min-ram: 8192, networks: [fake-public-network-name]}\n";
        let (consumer, _process) = started(&(small_label_configuration("", networks, "") + own)).await;
        assert_eq!(got(&consumer, "small").await.interface_ip.as_deref(), Some("fake_v6"));
        assert_eq!(got(&consumer, "other").await.interface_ip.as_deref(), Some("fake"));
    });
}

#[test]
fn a_label_with_a_missing_image_is_declined_with_a_reason() {
    on_paused_time(async {
        let missing = "          - {name: other, cloud-image: missing, min-ram: 8192}\n";
        let (consumer, process) = started(&(small_label_configuration("", "", "") + missing)).await;
        got(&consumer, "small").await;
        let id = consumer.submit_labels(&["other"]).await;
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Failed);
        let replies = process.shared.explain_registry.request_all(ExplainRequest(id), Duration::from_secs(5)).await;
        let why = replies.into_iter().find_map(|(_, why)| why.ok().flatten()).unwrap().reason;
        assert!(why.contains("Unable to find image missing: the fake cloud has Fake Precise"), "{why}");
    });
    // An image id is used without a lookup, and the fake cloud may be configured with other images.
    for (knobs, label) in [("", "by-id"), ("    fake: {images: [missing]}\n", "missing")] {
        on_paused_time(async move {
            let other = format!("          - {{name: other, cloud-image: {label}, min-ram: 8192}}\n");
            let (consumer, _process) = started(&(small_label_configuration(knobs, "", "") + &other)).await;
            got(&consumer, "other").await;
        });
    }
}

#[test]
fn a_server_that_boots_from_a_volume_takes_it_from_the_limits() {
    on_paused_time(async {
        let yaml =
            small_label_configuration("    fake: {max-volumes: 1}\n", "", ", boot-from-volume: true, volume-size: 9");
        let (consumer, _process) = started(&yaml).await;
        let node = got(&consumer, "small").await;
        let resources = serde_json::json!({"cores": 4, "instances": 1, "ram": 8192, "volumes": 1, "volume-gb": 9});
        assert_eq!(serde_json::json!(node.resources.unwrap()), resources);
        let two = consumer.submit_labels(&["small", "small"]).await;
        assert_eq!(consumer.wait_for_end(&two).await.state, RequestState::Failed, "the cloud has one volume");
    });
}

#[test]
fn a_server_whose_create_reply_was_lost_is_found() {
    testkit::provider_harness::on_paused_time(async {
        let mut provider =
            ProviderHarness::of_config(&small_label_configuration("    fake: {create-answer-lost-every: 1}\n", "", ""));
        assert!(matches!(launched(&mut provider, "np1").await, Err(CloudError::Failed { .. })));
        let created = listed(&mut provider).await;
        assert_eq!(created.len(), 1);
        let Job::Launch(order) = launch("np1") else { unreachable!("launch makes a launch") };
        let again = LaunchOrder { may_exist: true, ..Arc::unwrap_or_clone(order) };
        let found = provider.run(Job::Launch(Arc::new(again))).await;
        assert!(
            matches!(&found, Ok(Outcome::Launched(found)) if found.external_id == created[0].external_id),
            "{found:?}"
        );
        assert_eq!(listed(&mut provider).await.len(), 1);
    });
    on_paused_time(async {
        let (consumer, _process) =
            started(&small_label_configuration("    fake: {create-answer-lost-every: 2}\n", "", "")).await;
        for _ in 0..4 {
            got(&consumer, "small").await;
        }
    });
}

// The fake cloud reports the fault as an error whose text mentions a quota.
#[test]
fn a_server_failing_on_quota_is_reported_as_a_quota_error() {
    testkit::provider_harness::on_paused_time(async {
        let mut provider =
            ProviderHarness::of_config(&small_label_configuration("    fake: {boot-quota-every: 2}\n", "", ""));
        assert!(launched(&mut provider, "np1").await.is_ok());
        assert!(matches!(launched(&mut provider, "np2").await, Err(CloudError::Quota(_))));
    });
}

// The fault is a creation that never finishes.
#[test]
fn a_server_that_never_boots_ends_with_its_attempt() {
    on_paused_time(async {
        let knobs = "    launch-timeout: 5\n    fake: {boot-hangs-every: 2}\n";
        let (consumer, _process) = started(&small_label_configuration(knobs, "", "")).await;
        for _ in 0..3 {
            got(&consumer, "small").await;
        }
    });
    on_paused_time(async {
        let knobs = "    launch-timeout: 5\n    launch-retries: 2\n    fake: {boot-hangs-every: 1}\n";
        let (consumer, _process) = started(&small_label_configuration(knobs, "", "")).await;
        let id = consumer.submit_labels(&["small"]).await;
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Failed);
        until("the failed node to be deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

#[test]
fn consoles_and_addresses_are_as_configured() {
    testkit::provider_harness::on_paused_time(async {
        let knobs = "    fake: {address: 127.0.0.2, console: no network}\n";
        let mut provider = ProviderHarness::of_config(&small_label_configuration(knobs, "", ""));
        let instance = launched(&mut provider, "np1").await.unwrap();
        assert_eq!(instance.interface_ip.as_deref(), Some("127.0.0.2"));
        let console = provider.run(Job::Console(instance.external_id.clone())).await;
        assert_eq!(console, Ok(Outcome::Console(Some("no network".to_owned()))));
        provider.run(Job::Delete(instance.external_id.clone())).await.unwrap();
        assert_eq!(
            provider.run(Job::Console(instance.external_id)).await,
            Err(CloudError::not_found("no such object"))
        );
    });
}

#[test]
fn the_console_is_fetched_if_host_keys_cannot_be_read() {
    on_real_time(async {
        let knobs = "    boot-timeout: 1\n    launch-retries: 1\n    fake: {address: 127.0.0.1, console: no network}\n";
        let yaml = small_label_configuration(knobs, "", ", console-log: true")
            .replace("Precise}", "Precise, connection-port: 1}");
        let (sink, mut samples) = SampleSink::channel();
        let mut process = InProcessDaemon::new(&yaml);
        Arc::get_mut(&mut process.shared).unwrap().samples = sink;
        let (consumer, _process) = started_as(process).await;
        let id = consumer.submit_labels(&["small"]).await;
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Failed);
        let mut calls = Vec::new();
        while let Ok(sample) = samples.try_recv() {
            calls.push(sample.name);
        }
        assert!(calls.iter().any(|name| name == "nodepool.task.lab.compute.POST.servers.action"), "{calls:?}");
    });
}

#[test]
fn fractional_fault_counts_and_port_0_are_out_of_range() {
    let yaml = small_label_configuration("    fake: {create-fails-every: 2.5, boot-fails-every: 2.0}\n", "", "");
    let config = testkit::provider_harness::config(&yaml.replace("Precise}", "Precise, connection-port: 0}"));
    let problems = nodepool_drivers::diagnostics(config.providers.values().next().unwrap());
    let mut help: Vec<&str> = problems.iter().map(|problem| problem.help.as_str()).collect();
    help.sort_unstable();
    assert_eq!(help, ["it is 0, expected 1 to 65535", "it is 2.5, expected a whole number, 0 for never"]);
}

#[test]
fn missing_and_unknown_keys_are_reported_with_position() {
    let config = testkit::provider_harness::config(
        &small_label_configuration("    fake: {boot-time: 1}\n", "", "")
            .replace("cloud-image: image", "cloud-image: missing"),
    );
    let problems = nodepool_drivers::diagnostics(config.providers.values().next().unwrap());
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].to_string().contains("Unable to find image missing"), "{}", problems[0]);
    let mut parsing = Vec::new();
    let yaml = small_label_configuration("    fake: {boot-hangs-evry: 1}\n", "", "");
    let root = python_yaml::parse::parse(&yaml, &mut parsing).unwrap();
    let problems = nodepool_model::config::schema::check::check(&root, nodepool_drivers::BUILT_IN_DRIVERS);
    assert_eq!(problems.len(), 1, "{problems:?}");
    let (at, help) = (problems[0].at, &problems[0].help);
    assert_eq!((at.line, at.column), (7, 12), "{problems:?}");
    assert!(help.contains("did you mean boot-hangs-every?"), "{help}");
}
