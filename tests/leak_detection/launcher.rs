//! A leaked server whose deletion its cloud accepts and never performs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::LaunchConfig;
use nodepool_driver::instance::{Instance, InstanceState};
use nodepool_driver::job::LaunchOrder;
use nodepool_driver::simple_adapter::{Creation, Operation, Simple, SimpleAdapter};
use nodepool_drivers::OpenDriver;
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::ids::ExternalId;
use nodepool_zk::locks::lock;
use nodepool_zk::paths;
use python_yaml::diagnostics::Diagnostic;
use testkit::fixtures::launch_config;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, until, zookeeper};
use testkit::instant_driver::YAML;
use tokio::time::sleep;
use zookeeper_server::types::CreateMode;

/// A cloud with one leaked server, which it does not delete.
#[derive(Clone)]
struct UndeletableServer {
    /// Id of the node to which the server belonged.
    node: String,
    /// Number of deletions that the cloud accepted.
    deletions: Arc<AtomicUsize>,
}

impl SimpleAdapter for UndeletableServer {
    async fn create_instance(&self, _: &LaunchOrder, _: &CallGuard) -> Result<Creation, CloudError> {
        Err(CloudError::Denied("no launch is expected".to_owned()))
    }

    async fn delete_instance(&self, _: &ExternalId, _: &CallGuard) -> Result<Option<Operation>, CloudError> {
        self.deletions.fetch_add(1, Relaxed);
        Ok(None)
    }

    async fn list_instances(&self) -> Result<Vec<Instance>, CloudError> {
        let mut instance = Instance::new(ExternalId::text("leaked"));
        let metadata = [("nodepool_provider_name", "lab"), ("nodepool_node_id", &self.node)];
        instance.metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        instance.state = InstanceState::Running;
        Ok(vec![instance])
    }

    fn launching(&self) -> LaunchConfig {
        launch_config(&["a"])
    }
}

impl ExtraDrivers for UndeletableServer {
    fn names(&self) -> Vec<&'static str> {
        vec!["fake"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        Ok(start.with(Simple::new(section.name.clone(), self.clone())))
    }
}

#[test]
fn deletion_of_a_leaked_server_times_out_and_runs_one_at_a_time() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        lock::make_path(&consumer.zk, "/nodepool/nodes").await.unwrap();
        let created =
            consumer.zk.create(&paths::node_prefix(), Bytes::from("{}"), CreateMode::PersistentSequential).await;
        let (path, _) = created.unwrap();
        consumer.zk.delete(&path, -1).await.unwrap();

        let deletions = Arc::<AtomicUsize>::default();
        let cloud = UndeletableServer { node: paths::name(&path).to_owned(), deletions: deletions.clone() };
        let mut process = InProcessDaemon::with_drivers(YAML, |_| {}, Some(Box::new(cloud)));
        process.run(&zookeeper);
        until("the deletion to be requested", async || deletions.load(Relaxed) == 1).await;
        sleep(Duration::from_secs(300)).await;
        // Each running provider holds a reference; the test and the launcher hold one more each.
        let running = || Arc::strong_count(&deletions) - 2;
        assert_eq!((deletions.load(Relaxed), running()), (1, 1));
        let changed = YAML.replace("cloud: fake\n", "cloud: other\n");
        assert_ne!(changed, YAML);
        std::fs::write(&process.file, changed).unwrap();
        sleep(Duration::from_secs(280)).await;
        assert_eq!((deletions.load(Relaxed), running()), (1, 2), "the timeout of ten minutes has not expired");
        sleep(Duration::from_secs(100)).await;
        assert_eq!(running(), 1, "the replaced provider is stopped");
        until("another deletion to be requested", async || deletions.load(Relaxed) == 2).await;
    });
}
