//! A cloud in memory with the configuration of an OpenStack provider, for experiments, and as a template for new
//! drivers.
//!
//! `cloud.rs` is the cloud; a real driver has an API client there. `config.rs` reads the keys that only this driver
//! has.

use std::cell::RefCell;

use crate::common::server_section::{self, PORTS, Section};
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::cloud_resource::{CloudResource, UnusedResources};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::{LaunchConfig, Unavailable};
use nodepool_driver::instance::Instance;
use nodepool_driver::job::LaunchOrder;
use nodepool_driver::simple_adapter::{Creation, Keys, Operation, Simple, SimpleAdapter};
use nodepool_driver::state_machine::{InFlightLimit, REFRESH_INTERVAL, RateLimits, Spacing};
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::upload_config::{StoredImage, UploadConfig, UploadOrder};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use python_yaml::diagnostics::Diagnostic;

mod cloud;
pub mod config;

use crate::fake::cloud::{FakeCloud, ServerOrder};
use crate::fake::config::Knobs;

/// The fake cloud responds faster than a real one, so it is polled more often.
const OBSERVE_INTERVAL: Seconds = Seconds(0.05);

pub struct Fake {
    section: Section,
    knobs: Knobs,
    cloud: RefCell<FakeCloud>,
}

pub fn open(section: &ProviderConfig) -> Result<Simple<Fake>, Vec<Diagnostic>> {
    let (parsed, knobs, mut diagnostics) = read(section);
    diagnostics.items.retain(Diagnostic::is_error);
    if !diagnostics.items.is_empty() {
        return Err(diagnostics.items);
    }
    let cloud = RefCell::new(FakeCloud::new(knobs.clone()));
    Ok(Simple::new(section.name.clone(), Fake { section: parsed, knobs, cloud }))
}

/// Errors and warnings of a section.
pub fn diagnostics(section: &ProviderConfig) -> Vec<Diagnostic> {
    read(section).2.items
}

fn read(section: &ProviderConfig) -> (Section, Knobs, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    let parsed = server_section::section(section, &mut diagnostics);
    let knobs = config::knobs(section, &mut diagnostics);
    for label in parsed.labels() {
        if let Err(Unavailable::Permanent(why) | Unavailable::Temporary(why)) = config::need(label, &knobs) {
            diagnostics.warning(label.at, why, "no node of this label can be launched");
        }
    }
    (parsed, knobs, diagnostics)
}

impl Fake {
    /// Delays a response by the latency, and throttles the call if configured.
    async fn respond<T>(
        &self,
        operation: impl FnOnce(&mut FakeCloud) -> Result<T, CloudError>,
    ) -> Result<T, CloudError> {
        let latency = self.cloud.borrow().latency();
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let mut cloud = self.cloud.borrow_mut();
        cloud.throttle()?;
        operation(&mut cloud)
    }
}

impl SimpleAdapter for Fake {
    const KEYS: Keys = Keys {
        create: "compute.POST.servers",
        delete: "compute.DELETE.servers",
        list: "compute.GET.servers",
        limits: "compute.GET.limits",
        list_unused: "network.GET.ports",
        delete_unused: "network.DELETE.ports",
        console: "compute.POST.servers.action",
        upload: "image.POST.images",
        delete_image: "image.DELETE.images",
        list_images: "image.GET.images",
        ..Keys::DEFAULT
    };

    async fn create_instance(&self, order: &LaunchOrder, _: &CallGuard) -> Result<Creation, CloudError> {
        let label = self.section.label(&order.pool, &order.label);
        let label =
            label.ok_or_else(|| CloudError::Denied(format!("pool {} has no label {}", order.pool, order.label)))?;
        let order = ServerOrder {
            name: order.hostname.clone(),
            zone: order.zone.clone(),
            networks: label.networks.clone(),
            metadata: order.metadata.clone(),
            amounts: config::need(label, &self.knobs)
                .map_err(|unavailable| CloudError::Denied(unavailable.reason().to_owned()))?,
        };
        self.respond(|cloud| cloud.create(order)).await.map(Creation::from)
    }

    async fn delete_instance(&self, id: &ExternalId, _: &CallGuard) -> Result<Option<Operation>, CloudError> {
        self.respond(|cloud| cloud.delete(id)).await.map(|()| None)
    }

    async fn list_instances(&self) -> Result<Vec<Instance>, CloudError> {
        self.respond(|cloud| Ok(cloud.list())).await
    }

    async fn quota_limits(&self) -> Result<Resources, CloudError> {
        self.respond(|cloud| Ok(cloud.limits())).await
    }

    async fn unused_resources(&self, kinds: &[&'static str]) -> Result<UnusedResources, CloudError> {
        let ports = if kinds.contains(&PORTS) { self.respond(|cloud| Ok(cloud.unused_ports())).await? } else { vec![] };
        let found = ports.into_iter().map(|port| CloudResource::new(PORTS, port)).collect();
        Ok(UnusedResources { found, ..UnusedResources::default() })
    }

    async fn delete_unused(&self, resource: &CloudResource) -> Result<(), CloudError> {
        self.respond(|cloud| cloud.delete_port(&resource.id.to_string())).await
    }

    async fn console(&self, id: &ExternalId) -> Result<Option<String>, CloudError> {
        self.respond(|cloud| cloud.console(id)).await
    }

    async fn upload_image(&self, order: &UploadOrder) -> Result<ExternalId, CloudError> {
        let size = std::fs::metadata(&order.file).map(|metadata| metadata.len());
        let size = size.map_err(|error| cloud::failed(format!("cannot read {}: {error}", order.file.display())))?;
        tokio::time::sleep(self.knobs.upload_time.to_duration()).await;
        order.progress.set(size);
        self.respond(|cloud| cloud.upload(order)).await
    }

    async fn delete_image(&self, id: &ExternalId) -> Result<(), CloudError> {
        self.respond(|cloud| cloud.delete_image(id)).await
    }

    async fn list_images(&self) -> Result<Vec<StoredImage>, CloudError> {
        self.respond(|cloud| Ok(cloud.list_images())).await
    }

    fn launching(&self) -> LaunchConfig {
        let launching = self.section.launching(|_, _, label| config::need(label, &self.knobs));
        LaunchConfig { zones: self.knobs.zones.clone(), ..launching }
    }

    fn uploading(&self) -> Option<UploadConfig> {
        Some(self.section.uploading(&self.knobs.image_format))
    }

    fn rate_limits(&self) -> RateLimits {
        RateLimits {
            spacing: Spacing::Shared(self.section.spacing),
            in_flight: InFlightLimit::Configurable,
            listing_delay: OBSERVE_INTERVAL,
            refresh: Some(REFRESH_INTERVAL),
        }
    }
}
