//! Starts a TaskManager for a provider section and hands out the way to it.

use std::collections::BTreeMap;

use super::jobs::ProviderHandle;
use super::task_manager::{TaskManager, TaskManagerDeps};
use nodepool_driver::driver::Driver;
use nodepool_drivers::OpenDriver;
use nodepool_model::config::{Config, ProviderConfig};
use nodepool_model::records::ids::ProviderName;
use python_yaml::diagnostics::Diagnostic;

/// Drivers that are not part of this crate. They are tried first, so that one of them may replace a driver of ours.
pub trait ExtraDrivers: Send + Sync {
    /// Values of a provider's `driver` that it opens. Of a section whose driver Nodepool 11 does not know, everything that is not
    /// common to all drivers is left to `open`: which keys there are, and what they mean.
    fn names(&self) -> Vec<&'static str>;
    /// Opens its driver for the section and ends with `start.with(driver)`.
    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>>;
}

/// Providers whose section is as before: those of which the driver has read something else that changed, and those that could
/// not be started, which may be possible by now.
pub fn providers_to_reopen(
    before: &Config,
    now: &Config,
    running: &BTreeMap<ProviderName, ProviderHandle>,
) -> Vec<ProviderName> {
    let same = now.providers.iter().filter(|(name, section)| before.providers.get(*name) == Some(*section));
    let needs_reopen = |name: &ProviderName| match running.get(name) {
        Some(handle) => handle.needs_reopen.as_ref().is_some_and(|hook| (hook.0)()),
        None => true,
    };
    same.map(|(name, _)| name).filter(|name| needs_reopen(name)).cloned().collect()
}

/// Makes a running provider of an opened driver.
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

/// A provider that cannot be opened is out of service; the problems say why.
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
