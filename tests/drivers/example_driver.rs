//! Example driver: a VM of its cloud serves a request and is deleted after use.
//!
//! The launcher and the provider run in the test's process, in memory and on paused time.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodepool::actors::telemetry::samples::SampleSink;
use nodepool_driver::job::{Job, JobEvent, Outcome};
use nodepool_model::metrics::statsd_metrics::SampleKind;
use nodepool_model::records::request::RequestState;
use nodepool_model::records::time::Seconds;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, until, zookeeper};
use testkit::provider_harness::{ProviderHarness, launch};

const YAML: &str = "zookeeper-servers: [{host: localhost}]
labels: [{name: small}]
providers:
  - name: lab
    driver: example
    region: north
    project: ci
    cloud-images: [{name: debian, username: zuul}]
    pools:
      - name: main
        use-internal-ip: true
        labels: [{name: small, cloud-image: debian, instance-type: large}]
";

#[test]
fn a_request_is_served_by_a_vm_that_is_deleted_after_use() {
    on_paused_time(async {
        let (sink, mut samples) = SampleSink::channel();
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let mut process = InProcessDaemon::new(YAML);
        Arc::get_mut(&mut process.shared).unwrap().samples = sink;
        process.run(&zookeeper);
        until("the pool to be registered", async || consumer.count("/nodepool/components/pool").await == 1).await;
        let id = consumer.submit_labels(&["small", "small"]).await;
        let request = consumer.wait_for_end(&id).await;
        assert_eq!((request.state, request.nodes.len()), (RequestState::Fulfilled, 2));
        let node = consumer.node(&request.nodes[0]).await.unwrap();
        assert_eq!((node.region.as_deref(), node.az.as_deref()), (Some("north"), Some("az")));
        let addresses = [&node.interface_ip, &node.public_ipv4, &node.public_ipv6, &node.private_ipv4];
        assert_eq!(addresses.map(Option::as_deref), [Some("fake"); 4]);
        assert_eq!((node.username.as_deref(), node.host_keys.len()), (Some("zuul"), 1));
        assert_eq!(*node.external_id, format!("np{}", request.nodes[0]), "the hostname is the id");

        let nodes = consumer.accept(&id).await;
        consumer.use_and_release(nodes).await;
        until("the nodes to be deleted", async || consumer.nodes().await.is_empty()).await;
        let mut calls = BTreeMap::new();
        while let Ok(sample) = samples.try_recv() {
            if sample.kind == SampleKind::Counter {
                *calls.entry(sample.name).or_insert(0.0) += sample.value;
            }
        }
        let made = |call: &str| calls.get(&format!("nodepool.task.lab.vm.{call}")).copied();
        assert_eq!((made("create"), made("delete")), (Some(2.0), Some(2.0)), "{calls:?}");
    });
}

#[test]
fn a_vm_id_is_known_before_creation_and_unlisted_after_deletion() {
    testkit::provider_harness::on_paused_time(async {
        let mut provider = ProviderHarness::of_config(YAML);
        provider.submit(1, launch("np0000000001"));
        let (_, JobEvent::InstanceKnown(id)) = provider.next().await else { panic!("the id is reported first") };
        assert_eq!(id.to_string(), "np0000000001");
        assert!(matches!(provider.wait_for_end().await.1, Ok(Outcome::Launched(_))));
        assert_eq!(provider.run(Job::Delete(id)).await, Ok(Outcome::Deleted));
        let Ok(Outcome::Listed(inventory)) = provider.run(Job::List).await else { panic!("the listing failed") };
        assert!(inventory.instances().is_empty());
    });
}

#[test]
fn omitted_keys_have_the_defaults_of_nodepool_11() {
    testkit::provider_harness::on_paused_time(async {
        let facts = ProviderHarness::of_config(YAML).facts();
        let launch_config = facts.launch_config.as_ref().unwrap();
        assert_eq!((launch_config.attempts, launch_config.boot_timeout), (3, Seconds(60.0)));
        let began = tokio::time::Instant::now();
        let mut provider = ProviderHarness::of_config(YAML);
        for _ in 0..3 {
            provider.run(Job::List).await.unwrap();
        }
        assert!(began.elapsed().as_secs() >= 2, "the provider starts one call per second");
    });
}

#[test]
fn missing_keys_are_reported_with_position_and_remedy() {
    let lacking = YAML
        .replace("    project: ci\n", "")
        .replace("    region: north\n", "    rate-limit: 0\n")
        .replace("cloud-image: debian", "cloud-image: ubuntu");
    let root = python_yaml::parse::parse(&lacking, &mut Vec::new()).unwrap();
    let schema = nodepool_model::config::schema::check::check(&root, nodepool_drivers::BUILT_IN_DRIVERS);
    assert_eq!(schema.len(), 2, "region and project: {schema:?}");
    let section =
        testkit::provider_harness::provider_section(&YAML.replace("    project: ci\n", "    rate-limit: 0\n"));
    let found: Vec<_> =
        nodepool_drivers::diagnostics(&section).iter().map(|problem| (problem.at.line, problem.help.clone())).collect();
    assert_eq!(
        found,
        [
            (4, "an example provider needs `project`".to_owned()),
            (7, "it is 0, expected calls per second, more than 0".to_owned())
        ]
    );
}
