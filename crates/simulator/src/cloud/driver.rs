//! The simulated clouds as a driver of production launchers and builders.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::{CloudConnection, Clouds, MAX_SERVERS, server_resources};
use crate::step_budget::StepBudget;
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::LaunchConfig;
use nodepool_driver::instance::Instance;
use nodepool_driver::job::LaunchOrder;
use nodepool_driver::simple_adapter::{Creation, Operation, Simple, SimpleAdapter};
use nodepool_driver::state_machine::{InFlightLimit, REFRESH_INTERVAL, RateLimits, Spacing};
use nodepool_drivers::OpenDriver;
use nodepool_drivers::common::server_section::{self, Section};
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::upload_config::{StoredImage, UploadConfig, UploadOrder};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use python_yaml::diagnostics::Diagnostic;

pub(super) struct SimDrivers {
    pub(super) process: &'static str,
    pub(super) clouds: Clouds,
    pub(super) budget: StepBudget,
}

impl ExtraDrivers for SimDrivers {
    fn names(&self) -> Vec<&'static str> {
        vec!["fake"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        let mut diagnostics = Diagnostics::default();
        let parts = server_section::section(section, &mut diagnostics);
        assert!(diagnostics.items.is_empty(), "{:?}", diagnostics.items);
        let connection = self.clouds.connect(self.process, section.name.clone(), &self.budget);
        let adapter = Adapter { connection, parts, sent: RefCell::default() };
        Ok(start.with(Simple::new(section.name.clone(), adapter)))
    }
}

/// Adapter of the production driver to one cloud.
struct Adapter {
    connection: CloudConnection,
    parts: Section,
    /// Creations that were sent, by host name and attempt: a repetition is the same request, which creates no more.
    sent: RefCell<BTreeSet<(String, u32)>>,
}

impl SimpleAdapter for Adapter {
    async fn create_instance(&self, order: &LaunchOrder, _: &CallGuard) -> Result<Creation, CloudError> {
        let is_first = self.sent.borrow_mut().insert((order.hostname.clone(), order.attempt));
        let order = LaunchOrder { may_exist: order.may_exist || !is_first, ..order.clone() };
        self.connection.create(&order).await.map(Creation::from)
    }

    async fn delete_instance(&self, id: &ExternalId, _: &CallGuard) -> Result<Option<Operation>, CloudError> {
        self.connection.delete(id).await.map(|()| None)
    }

    async fn list_instances(&self) -> Result<Vec<Instance>, CloudError> {
        self.connection.list().await
    }

    async fn quota_limits(&self) -> Result<Resources, CloudError> {
        self.connection.call(|_| Ok(Resources::unlimited().with("instances", MAX_SERVERS as f64))).await
    }

    async fn upload_image(&self, order: &UploadOrder) -> Result<ExternalId, CloudError> {
        self.connection.upload(order).await
    }

    async fn delete_image(&self, id: &ExternalId) -> Result<(), CloudError> {
        self.connection.delete_image(id).await
    }

    async fn list_images(&self) -> Result<Vec<StoredImage>, CloudError> {
        self.connection.call(|state| Ok(state.list_images(&self.connection.provider))).await
    }

    fn launching(&self) -> LaunchConfig {
        self.parts.launching(|_, _, _| Ok(server_resources()))
    }

    fn uploading(&self) -> Option<UploadConfig> {
        Some(self.parts.uploading("qcow2"))
    }

    fn rate_limits(&self) -> RateLimits {
        RateLimits {
            spacing: Spacing::NONE,
            in_flight: InFlightLimit::Configurable,
            listing_delay: Seconds(5.0),
            refresh: Some(REFRESH_INTERVAL),
        }
    }
}
