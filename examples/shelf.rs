//! A minimal out-of-tree driver, whose cloud is a map in memory. doc/devguide.md quotes this file completely.
//!
//! `shelf CONFIG` runs a launcher in the foreground.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;

use nodepool::actors::process::context::LauncherOptions;
use nodepool::actors::process::process::{DaemonOptions, Mode, run_launcher};
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::{LabelImage, LaunchConfig, LaunchLabel, Login};
use nodepool_driver::instance::Instance;
use nodepool_driver::job::LaunchOrder;
use nodepool_driver::simple_adapter::{Creation, Operation, Simple, SimpleAdapter};
use nodepool_drivers::OpenDriver;
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use python_logging::{LineFormat, Verbosity};
use python_yaml::diagnostics::Diagnostic;

struct Shelf {
    address: String,
    /// Metadata of each instance, by name.
    instances: Mutex<BTreeMap<String, BTreeMap<String, String>>>,
    launching: LaunchConfig,
}

fn need() -> Resources {
    Resources::none().with("instances", 1.0).with("cores", 2.0).with("ram", 4096.0)
}

impl SimpleAdapter for Shelf {
    async fn create_instance(&self, order: &LaunchOrder, _: &CallGuard) -> Result<Creation, CloudError> {
        self.instances.lock().unwrap().insert(order.hostname.clone(), order.metadata.clone());
        Ok(ExternalId::text(&order.hostname).into())
    }

    async fn delete_instance(&self, id: &ExternalId, _: &CallGuard) -> Result<Option<Operation>, CloudError> {
        let deleted = self.instances.lock().unwrap().remove(&id.to_string());
        deleted.map(|_| None).ok_or_else(|| CloudError::not_found("no such instance"))
    }

    async fn list_instances(&self) -> Result<Vec<Instance>, CloudError> {
        let instance = |(name, metadata): (&String, &BTreeMap<String, String>)| Instance {
            interface_ip: Some(self.address.clone()),
            metadata: metadata.clone(),
            resources: need(),
            ..Instance::new(ExternalId::text(name))
        };
        Ok(self.instances.lock().unwrap().iter().map(instance).collect())
    }

    fn launching(&self) -> LaunchConfig {
        self.launching.clone()
    }
}

pub struct ShelfDriver;

impl ExtraDrivers for ShelfDriver {
    fn names(&self) -> Vec<&'static str> {
        vec!["shelf"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        let mut diagnostics = Diagnostics::default();
        let address = diagnostics.required(&section.section, "address", "a provider of the driver shelf");
        let Some(address) = address.filter(|_| diagnostics.items.is_empty()) else { return Err(diagnostics.items) };
        let label = LaunchLabel {
            need: Some(need()),
            image: Some(LabelImage::Cloud("debian-12".to_owned())),
            login: Login { connection_type: Some("ssh".to_owned()), connection_port: 22, ..Login::default() },
            host_key_checking: false,
            console_log: false,
            unavailable: None,
            backing: None,
        };
        let pools = section
            .pools
            .iter()
            .map(|(name, pool)| (name.clone(), pool.labels.iter().map(|name| (name.clone(), label.clone())).collect()));
        let launching = LaunchConfig {
            attempts: 3,
            timeout: Seconds(3600.0),
            boot_timeout: Seconds(60.0),
            zones: Vec::new(),
            resource_kinds: Vec::new(),
            labels: pools.collect(),
        };
        Ok(start.with(Simple::new(section.name.clone(), Shelf { address, instances: Mutex::default(), launching })))
    }
}

fn main() -> ExitCode {
    let config = std::env::args().nth(1).unwrap_or_else(|| "/etc/nodepool/nodepool.yaml".to_owned());
    let daemon = DaemonOptions {
        mode: Mode::Foreground,
        log_config: None,
        log_format: LineFormat::Text,
        verbosity: Verbosity::Normal,
    };
    run_launcher(LauncherOptions::new(config), &daemon, Some(Box::new(ShelfDriver)))
}
