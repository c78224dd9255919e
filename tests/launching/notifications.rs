//! Notifications: a driver is notified of the use and deletion of its nodes outside its own jobs.

use std::sync::{Arc, Mutex};

use crate::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, until, zookeeper};
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::{LabelImage, LaunchConfig, LaunchLabel, Login};
use nodepool_driver::instance::{Instance, InstanceState};
use nodepool_driver::job::{LaunchOrder, Notification};
use nodepool_driver::simple_adapter::{Simple, SimpleAdapter};
use nodepool_drivers::OpenDriver;
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::unused_resources::UnusedResourcePolicy;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::request::RequestState;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use nodepool_zk::paths;
use python_yaml::diagnostics::Diagnostic;

pub const YAML: &str = "zookeeper-servers: [{host: localhost}]\nlabels: [{name: a}]\nproviders:\n  - name: lab\n    driver: fake\n    cloud: \
    fake\n    cloud-images: [{name: image, image-name: Fake Precise, username: zuul}]\n    pools:\n      - name: main\n        labels: [{name: a, \
    cloud-image: image, flavor-name: Fake Flavor}]\n";

pub type Notifications = Arc<Mutex<Vec<Notification>>>;

/// The launch configuration of a pool `main` with a label `a`.
pub fn launching() -> LaunchConfig {
    let label = LaunchLabel {
        need: Some(Resources::none().with("instances", 1.0)),
        image: LabelImage::Cloud("image".to_owned()),
        login: Login::default(),
        host_key_checking: false,
        console_log: false,
        unavailable: None,
    };
    LaunchConfig {
        attempts: 1,
        timeout: Seconds(60.0),
        boot_timeout: Seconds(60.0),
        zones: Vec::new(),
        unused_resources: UnusedResourcePolicy::default(),
        labels: [("main".into(), [("a".into(), label)].into())].into(),
    }
}

/// A cloud whose instances are running at once.
struct InstantCloud {
    instances: Mutex<Vec<Instance>>,
    notifications: Notifications,
}

impl SimpleAdapter for InstantCloud {
    const WANTS_NOTIFICATIONS: bool = true;

    async fn create_instance(&self, order: &LaunchOrder) -> Result<ExternalId, CloudError> {
        let id = ExternalId::text(order.hostname.clone());
        let mut instance = Instance::new(id.clone());
        (instance.state, instance.metadata) = (InstanceState::Running, order.metadata.clone());
        self.instances.lock().unwrap().push(instance);
        Ok(id)
    }

    async fn delete_instance(&self, id: &ExternalId) -> Result<(), CloudError> {
        self.instances.lock().unwrap().retain(|instance| instance.external_id != *id);
        Ok(())
    }

    async fn list_instances(&self) -> Result<Vec<Instance>, CloudError> {
        Ok(self.instances.lock().unwrap().clone())
    }

    fn launching(&self) -> LaunchConfig {
        launching()
    }

    fn on_notification(&self, notification: &Notification) {
        self.notifications.lock().unwrap().push(notification.clone());
    }
}

pub struct InstantDriver(pub Notifications);

impl ExtraDrivers for InstantDriver {
    fn names(&self) -> Vec<&'static str> {
        vec!["fake"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        let adapter = InstantCloud { instances: Mutex::default(), notifications: self.0.clone() };
        Ok(start.with(Simple::new(section.name.clone(), adapter)))
    }
}

#[test]
fn a_driver_is_notified_of_reused_and_deleted_nodes() {
    on_paused_time(async {
        let (zookeeper, received) = (zookeeper(), Notifications::default());
        let consumer = Consumer::of(&zookeeper);
        let mut process = InProcessDaemon::new(YAML);
        Arc::get_mut(&mut process.shared).unwrap().drivers = Some(Box::new(InstantDriver(received.clone())));
        process.run(&zookeeper);
        until("its pool is registered", async || consumer.count("/nodepool/components/pool").await == 1).await;

        let first = consumer.submit_labels(&["a"]).await;
        let node = consumer.wait_for_end(&first).await.nodes[0].clone();
        consumer.zk.delete(&paths::request(&first), -1).await.unwrap();
        until("the node is idle", async || consumer.ready_nodes().await == 1).await;
        assert_eq!(*received.lock().unwrap(), []);
        let second = consumer.submit_labels(&["a"]).await;
        let request = consumer.wait_for_end(&second).await;
        assert_eq!((request.state, &request.nodes[0]), (RequestState::Fulfilled, &node));
        let used = consumer.accept(&second).await;
        consumer.use_and_release(used).await;
        let all = [Notification::NodeReused(node.clone()), Notification::NodeDeleted(node.clone())];
        until("both notifications are received", async || *received.lock().unwrap() == all).await;
    });
}
