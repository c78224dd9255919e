//! Cloud that stores images, with injected failures. All builders of a test share it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::facts::LaunchConfig;
use nodepool_driver::instance::Instance;
use nodepool_driver::job::LaunchOrder;
use nodepool_driver::simple_adapter::{Creation, Operation, Simple, SimpleAdapter};
use nodepool_drivers::OpenDriver;
use nodepool_drivers::common::server_section::{self, Section};
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::upload_config::{StoredImage, UploadConfig, UploadOrder};
use nodepool_model::records::ids::{ExternalId, ProviderName};
use nodepool_model::records::resources::Resources;
use python_yaml::diagnostics::Diagnostic;

#[derive(Clone, Default)]
pub struct ImageCloud(Arc<Mutex<State>>);

#[derive(Default)]
pub struct State {
    pub images: BTreeMap<String, StoredImage>,
    /// All upload orders, each with its provider.
    pub orders: Vec<(ProviderName, UploadOrder)>,
    /// Number of uploads to each provider that will fail.
    pub upload_failures: BTreeMap<&'static str, usize>,
    /// Uploads to these providers never end.
    pub hanging_providers: Vec<&'static str>,
    /// Number of deletions that will fail.
    pub delete_failures: usize,
    /// Whether listing images fails.
    pub lists_fail: bool,
    pub deletions: usize,
    last_id: usize,
}

impl ImageCloud {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Puts a foreign image into the cloud.
    pub fn put(&self, id: &str, meta: &[(&str, &str)]) {
        let meta = meta.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let image = StoredImage { id: ExternalId::text(id), name: id.to_owned(), meta };
        self.state().images.insert(id.to_owned(), image);
    }

    pub fn ids(&self) -> Vec<String> {
        self.state().images.keys().cloned().collect()
    }

    pub fn orders_of(&self, provider: &str) -> Vec<UploadOrder> {
        let state = self.state();
        let orders = state.orders.iter().filter(|(name, _)| name.as_str() == provider);
        orders.map(|(_, order)| order.clone()).collect()
    }
}

impl ExtraDrivers for ImageCloud {
    fn names(&self) -> Vec<&'static str> {
        vec!["fake"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        let mut diagnostics = Diagnostics::default();
        let parts = server_section::section(section, &mut diagnostics);
        let knob = section.section.given("fake").and_then(|fake| fake.text("image-format").ok().flatten());
        let format = knob.unwrap_or_else(|| "qcow2".to_owned());
        let adapter = ImageCloudAdapter { section: parts, provider: section.name.clone(), format, cloud: self.clone() };
        Ok(start.with(Simple::new(section.name.clone(), adapter)))
    }
}

struct ImageCloudAdapter {
    section: Section,
    provider: ProviderName,
    format: String,
    cloud: ImageCloud,
}

fn failed(detail: &str) -> CloudError {
    CloudError::Failed { kind: FailureKind::Unknown, detail: detail.to_owned() }
}

impl SimpleAdapter for ImageCloudAdapter {
    async fn create_instance(&self, _: &LaunchOrder, _: &CallGuard) -> Result<Creation, CloudError> {
        Err(failed("this cloud has no servers"))
    }

    async fn delete_instance(&self, _: &ExternalId, _: &CallGuard) -> Result<Option<Operation>, CloudError> {
        Err(CloudError::not_found("no such object"))
    }

    async fn list_instances(&self) -> Result<Vec<Instance>, CloudError> {
        Ok(Vec::new())
    }

    async fn upload_image(&self, order: &UploadOrder) -> Result<ExternalId, CloudError> {
        let hangs = {
            let mut state = self.cloud.state();
            state.orders.push((self.provider.clone(), order.clone()));
            if let Some(left) = state.upload_failures.get_mut(self.provider.as_str()).filter(|left| **left > 0) {
                *left -= 1;
                return Err(failed("injected upload failure"));
            }
            state.hanging_providers.contains(&self.provider.as_str())
        };
        if hangs {
            futures::future::pending::<()>().await;
        }
        assert!(order.file.exists(), "{}", order.file.display());
        let mut state = self.cloud.state();
        if let Some(image) = state.images.values().find(|image| image.has_marks(&order.marks)) {
            return Ok(image.id.clone());
        }
        state.last_id += 1;
        let id = format!("image-{}", state.last_id);
        state.images.insert(id.clone(), order.to_stored_image(ExternalId::text(id.clone())));
        Ok(ExternalId::text(id))
    }

    async fn delete_image(&self, id: &ExternalId) -> Result<(), CloudError> {
        let mut state = self.cloud.state();
        state.deletions += 1;
        if state.delete_failures > 0 {
            state.delete_failures -= 1;
            return Err(failed("injected deletion failure"));
        }
        state.images.remove(&id.to_string()).map(drop).ok_or_else(|| CloudError::not_found("no such object"))
    }

    async fn list_images(&self) -> Result<Vec<StoredImage>, CloudError> {
        let state = self.cloud.state();
        if state.lists_fail {
            return Err(failed("injected list failure"));
        }
        Ok(state.images.values().cloned().collect())
    }

    fn launching(&self) -> LaunchConfig {
        self.section.launching(|_, _, _| Ok(Resources::none().with("instances", 1.0)))
    }

    fn uploading(&self) -> Option<UploadConfig> {
        Some(self.section.uploading(&self.format))
    }
}
