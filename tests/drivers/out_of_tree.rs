//! Out-of-tree drivers: the example `shelf` in a launcher.
//!
//! The launcher runs in the test's process and in real time, with a ZooKeeper in memory.

#[allow(dead_code)] // `main` of the example
#[path = "../../examples/shelf.rs"]
mod shelf;

use std::sync::Arc;

use nodepool::actors::process::config_files;
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_drivers::BUILT_IN_DRIVERS;
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::request::RequestState;
use python_yaml::diagnostics::Diagnostic;
use serde_json::json;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_real_time, until, zookeeper};

const CONFIG: &str = "zookeeper-servers: [{host: localhost}]
labels: [{name: a}]
providers:
  - name: attic
    driver: shelf
    address: 192.0.2.7
    pools: [{name: main, labels: [{name: a}]}]
";

/// A launcher with this driver, and a consumer of its nodes.
async fn start(config: &str, driver: &'static str, drivers: Box<dyn ExtraDrivers>) -> (InProcessDaemon, Consumer) {
    let mut process = InProcessDaemon::with(config, |options| options.extra_drivers = vec![driver]);
    Arc::get_mut(&mut process.shared).unwrap().drivers = Some(drivers);
    let zookeeper = zookeeper();
    let consumer = Consumer::of(&zookeeper);
    process.run(&zookeeper);
    until("the pool to be registered", async || consumer.count("/nodepool/components/pool").await == 1).await;
    (process, consumer)
}

#[test]
fn an_out_of_tree_driver_adds_its_name_and_keys() {
    on_real_time(async {
        let (process, consumer) = start(CONFIG, "shelf", Box::new(shelf::ShelfDriver)).await;
        assert_eq!(process.shared.options.load().await.unwrap().diagnostics, []);
        let id = consumer.submit_labels(&["a", "a"]).await;
        let request = consumer.wait_for_end(&id).await;
        assert_eq!((request.state, request.nodes.len()), (RequestState::Fulfilled, 2));
        for id in &request.nodes {
            let node = consumer.node(id).await.unwrap();
            assert_eq!(*node.external_id, json!(format!("np{id}")));
            assert_eq!(node.interface_ip.as_deref(), Some("192.0.2.7"));
            assert_eq!((node.username, node.host_keys.len()), (None, 0));
        }
        let nodes = consumer.accept(&id).await;
        consumer.use_and_release(nodes).await;
        until("all nodes to be deleted", async || consumer.nodes().await.is_empty()).await;

        // A program without the driver rejects its name; a program with only that driver rejects unknown names.
        for (known, driver, help) in
            [(BUILT_IN_DRIVERS, "shelf", "the drivers are aws, "), (&["shelf"], "shelv", "did you mean shelf?")]
        {
            std::fs::write(&process.file, CONFIG.replace("shelf", driver)).unwrap();
            let problems = config_files::validate(&process.file, known).await;
            let unknown = problems.iter().find(|problem| problem.message == format!("{driver}: unknown driver"));
            assert!(unknown.is_some_and(|problem| problem.is_error() && problem.help.contains(help)), "{problems:?}");
        }
        process.stop();
    });
}

/// The same driver under the name of a built-in one.
struct Replacement;

impl ExtraDrivers for Replacement {
    fn names(&self) -> Vec<&'static str> {
        vec!["example"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        shelf::ShelfDriver.open(section, start)
    }
}

#[test]
fn an_out_of_tree_driver_replaces_a_built_in_one() {
    on_real_time(async {
        let config = CONFIG.replace("driver: shelf", "driver: example\n    project: p\n    region: r");
        let config = config
            .replace("{name: a}]}]", "{name: a, instance-type: big, cloud-image: i}]}]\n    cloud-images: [{name: i}]");
        let (process, consumer) = start(&config, "example", Box::new(Replacement)).await;
        let id = consumer.submit_labels(&["a"]).await;
        let request = consumer.wait_for_end(&id).await;
        assert_eq!(request.state, RequestState::Fulfilled);
        let node = consumer.node(&request.nodes[0]).await.unwrap();
        assert_eq!(node.interface_ip.as_deref(), Some("192.0.2.7"));
        process.stop();
    });
}

#[test]
fn the_developer_guide_contains_the_whole_shelf_driver() {
    let guide = include_str!("../../doc/devguide.md");
    assert!(
        guide.contains(include_str!("../../examples/shelf.rs")),
        "examples/shelf.rs and its copy in doc/devguide.md differ: update the guide"
    );
}
