//! Instant driver: a cloud in memory whose instances run at once, and which records its notifications.

use std::sync::{Arc, Mutex};

use crate::fixtures::launch_config;
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::LaunchConfig;
use nodepool_driver::instance::{Instance, InstanceState};
use nodepool_driver::job::{LaunchOrder, Notification};
use nodepool_driver::simple_adapter::{Creation, Operation, Simple, SimpleAdapter};
use nodepool_drivers::OpenDriver;
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::ids::ExternalId;
use python_yaml::diagnostics::Diagnostic;

pub const YAML: &str = "zookeeper-servers: [{host: localhost}]\nlabels: [{name: a}]\nproviders:\n  - name: lab\n    driver: fake\n    cloud: \
    fake\n    cloud-images: [{name: image, image-name: Fake Precise, username: zuul}]\n    pools:\n      - name: main\n        labels: [{name: a, \
    cloud-image: image, flavor-name: Fake Flavor}]\n";

pub type Notifications = Arc<Mutex<Vec<Notification>>>;

/// A cloud whose instances are running at once.
struct InstantCloud {
    instances: Mutex<Vec<Instance>>,
    notifications: Notifications,
}

impl SimpleAdapter for InstantCloud {
    const WANTS_NOTIFICATIONS: bool = true;

    async fn create_instance(&self, order: &LaunchOrder, _: &CallGuard) -> Result<Creation, CloudError> {
        let id = ExternalId::text(order.hostname.clone());
        let mut instance = Instance::new(id.clone());
        (instance.state, instance.metadata) = (InstanceState::Running, order.metadata.clone());
        self.instances.lock().unwrap().push(instance);
        Ok(id.into())
    }

    async fn delete_instance(&self, id: &ExternalId, _: &CallGuard) -> Result<Option<Operation>, CloudError> {
        self.instances.lock().unwrap().retain(|instance| instance.external_id != *id);
        Ok(None)
    }

    async fn list_instances(&self) -> Result<Vec<Instance>, CloudError> {
        Ok(self.instances.lock().unwrap().clone())
    }

    fn launching(&self) -> LaunchConfig {
        launch_config(&["a"])
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
