//! Start of providers: opens the driver of a section and starts its TaskManager.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::jobs::ProviderHandle;
use super::task_manager::{TaskManager, TaskManagerDeps};
use crate::actors::process::config_status::DriverFiles;
use nodepool_driver::driver::Driver;
use nodepool_drivers::OpenDriver;
use nodepool_drivers::metastatic::{self, Slots};
use nodepool_model::config::{Config, ProviderConfig};
use nodepool_model::records::ids::ProviderName;
use python_yaml::diagnostics::Diagnostic;

/// Drivers that are not part of this crate. They are tried first, so that one of them may replace a built-in driver.
pub trait ExtraDrivers: Send + Sync {
    /// Values of a provider's `driver` that this implementation opens. If Nodepool 11 does not know the driver of a
    /// section, `open` defines the keys that are not common to all drivers, and their meaning.
    fn names(&self) -> Vec<&'static str>;
    /// Opens the driver for the section and ends with `start.with(driver)`.
    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>>;
}

/// Providers with an unchanged section that are to be opened again: their drivers have read other files that changed,
/// or they failed to start before and may start now.
pub fn providers_to_reopen(
    before: &Config,
    now: &Config,
    running: &BTreeMap<ProviderName, ProviderHandle>,
) -> Vec<ProviderName> {
    let same = now.providers.iter().filter(|(name, section)| before.providers.get(*name) == Some(*section));
    let needs_reopen = |name: &ProviderName| match running.get(name) {
        Some(handle) => handle.needs_reopen.as_ref().is_some_and(|hook| (hook.check)()),
        None => true,
    };
    same.map(|(name, _)| name).filter(|name| needs_reopen(name)).cloned().collect()
}

/// Files that the drivers of these providers read besides their sections.
pub fn driver_files(config: &Config, running: &BTreeMap<ProviderName, ProviderHandle>) -> DriverFiles {
    let failed = config.providers.iter().filter(|(name, _)| !running.contains_key(*name));
    DriverFiles {
        running: running.values().filter_map(|handle| handle.needs_reopen.clone()).collect(),
        failed: failed.flat_map(|(_, section)| nodepool_drivers::files(section)).collect(),
    }
}

/// Starts the TaskManager of an opened driver.
pub struct StartProvider {
    provider: ProviderName,
    deps: TaskManagerDeps,
}

impl OpenDriver for StartProvider {
    type Out = ProviderHandle;

    fn with<D: Driver>(self, driver: D) -> ProviderHandle {
        TaskManager::launch(self.provider, driver, self.deps)
    }
}

/// Starts a provider. A provider that cannot be opened is out of service; the diagnostics contain the reason.
pub fn start(
    section: &ProviderConfig,
    deps: TaskManagerDeps,
    extra: Option<&dyn ExtraDrivers>,
) -> Result<ProviderHandle, Vec<Diagnostic>> {
    let start = StartProvider { provider: section.name.clone(), deps };
    match extra.filter(|extra| extra.names().contains(&section.driver.as_str())) {
        Some(extra) => extra.open(section, start),
        None => nodepool_drivers::open(section, start),
    }
}

/// Whether `start_metastatic` starts the provider.
pub fn is_metastatic(section: &ProviderConfig, extra: Option<&dyn ExtraDrivers>) -> bool {
    section.driver == "metastatic" && extra.is_none_or(|extra| !extra.names().contains(&"metastatic"))
}

/// Starts a metastatic provider of a launcher.
pub fn start_metastatic<S: Slots>(
    section: &ProviderConfig,
    deps: TaskManagerDeps,
    slots: Arc<S>,
) -> Result<ProviderHandle, Vec<Diagnostic>> {
    let driver = metastatic::open(section, slots)?;
    Ok(StartProvider { provider: section.name.clone(), deps }.with(driver))
}
