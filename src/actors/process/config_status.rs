//! Configuration status: state of the configuration files as of the last poll. The configuration watch updates it;
//! dumps read it, and so do jobs that must not begin with an outdated configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::config_files::{self, ConfigStamp, LoadedConfig};
use super::context::LauncherOptions;
use super::files::{MetadataStamp, run_on_blocking_pool};
use nodepool_driver::driver::NeedsReopen;
use nodepool_model::config::Config;

/// Time after which jobs begin although the files differ in each check, so that files that never stop changing do not
/// block them.
const MAX_HOLD: Duration = Duration::from_secs(10);
/// Checks that are further apart than this are not the same hold. A job that is held back is tried again sooner.
const HOLD_GAP: Duration = Duration::from_secs(5);

/// Shared by all clones.
#[derive(Clone)]
pub struct ConfigStatus {
    pub options: LauncherOptions,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    drivers_changed: Notify,
}

struct State {
    /// The newest usable configuration, and its files.
    config: Arc<Config>,
    active: ConfigStamp,
    /// State of files that could not be loaded, so that their errors are logged once and not at each poll.
    broken: Option<ConfigStamp>,
    drivers: DriverFiles,
    /// Driver files as of the last check whether a driver must be opened again.
    checked: DriverStamps,
    /// First and last check of a series that held a job back.
    held: Option<(Instant, Instant)>,
}

/// Files that drivers read besides their sections.
#[derive(Clone, Default)]
pub struct DriverFiles {
    /// Checks of the running providers.
    pub running: Vec<NeedsReopen>,
    /// Files of providers that failed to start. A change of one is a reason for another attempt.
    pub failed: Vec<PathBuf>,
}

impl DriverFiles {
    /// Most providers share their files.
    fn paths(&self) -> BTreeSet<&PathBuf> {
        self.running.iter().flat_map(|provider| &provider.files).chain(&self.failed).collect()
    }
}

type DriverStamps = BTreeMap<PathBuf, Option<MetadataStamp>>;

/// State of all files at one time.
#[derive(Clone, PartialEq)]
pub struct WatchedStamp {
    pub config: ConfigStamp,
    pub drivers: DriverStamps,
}

impl ConfigStatus {
    pub fn new(options: &LauncherOptions, loaded: &LoadedConfig) -> Self {
        let state = State {
            config: loaded.config.clone(),
            active: loaded.stamp.clone(),
            broken: None,
            drivers: DriverFiles::default(),
            checked: DriverStamps::new(),
            held: None,
        };
        let shared = Shared { state: Mutex::new(state), drivers_changed: Notify::new() };
        Self { options: options.clone(), shared: Arc::new(shared) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_broken(&self) -> bool {
        self.lock().broken.is_some()
    }

    /// Sets the files that drivers have read, after providers were started or stopped.
    pub fn set_driver_files(&self, drivers: DriverFiles) {
        let mut state = self.lock();
        let paths = drivers.paths();
        state.checked.retain(|path, _| paths.contains(path));
        let has_new = paths.len() > state.checked.len();
        state.drivers = drivers;
        drop(state);
        if has_new {
            self.shared.drivers_changed.notify_one();
        }
    }

    /// Resolves when drivers have read further files.
    pub async fn drivers_changed(&self) {
        self.shared.drivers_changed.notified().await;
    }

    /// All files whose changes matter.
    pub fn paths(&self) -> Vec<PathBuf> {
        let state = self.lock();
        let options = &self.options;
        std::iter::once(&options.config).chain(&options.secure).chain(state.drivers.paths()).cloned().collect()
    }

    /// Reads the state of all files.
    pub async fn read(&self) -> WatchedStamp {
        let paths = self.lock().drivers.paths().into_iter().cloned().collect();
        let drivers = driver_stamps(paths).await;
        WatchedStamp { config: config_files::stamp_of(&self.options).await, drivers }
    }

    /// Whether the files are neither those of the active configuration nor those that failed to load.
    pub fn is_unknown(&self, stamp: &ConfigStamp) -> bool {
        let state = self.lock();
        *stamp != state.active && Some(stamp) != state.broken.as_ref()
    }

    /// Whether a driver must be opened again, or a provider that failed may start now. Files of drivers are applied
    /// with the active configuration only.
    pub async fn needs_reopen(&self, seen: &WatchedStamp) -> bool {
        let checks = {
            let state = self.lock();
            if seen.config != state.active || seen.drivers == state.checked {
                return false;
            }
            let is_changed = |path: &PathBuf| match (state.checked.get(path), seen.drivers.get(path)) {
                (Some(before), Some(now)) => now != before,
                // The file may have appeared since the provider failed to start.
                (None, Some(now)) => now.is_some(),
                _ => false,
            };
            if state.drivers.failed.iter().any(is_changed) {
                return true;
            }
            state.drivers.running.clone()
        };
        run_on_blocking_pool(move || checks.iter().any(|provider| (provider.check)())).await
    }

    /// Records a state of the files that needs no action.
    pub fn confirm(&self, seen: WatchedStamp) {
        let mut state = self.lock();
        // While the files are broken, the files of drivers are not checked.
        if seen.config == state.active {
            (state.broken, state.checked) = (None, seen.drivers);
        }
    }

    pub fn record_loaded(&self, loaded: &LoadedConfig, seen: WatchedStamp) {
        let mut state = self.lock();
        (state.config, state.active, state.broken) = (loaded.config.clone(), seen.config, None);
        state.checked = seen.drivers;
    }

    pub fn record_broken(&self, seen: WatchedStamp) {
        self.lock().broken = Some(seen.config);
    }

    /// Whether a job may begin that was decided with `config`: no file has changed since. Otherwise the next
    /// configuration decides anew. Files that were seen and rejected hold nothing back.
    pub async fn may_begin(&self, config: &Arc<Config>) -> bool {
        let paths = self.lock().checked.keys().cloned().collect();
        let drivers = driver_stamps(paths).await;
        let stamp = config_files::stamp_of(&self.options).await;
        let mut state = self.lock();
        let is_same = |(path, now): (&PathBuf, _)| state.checked.get(path).is_none_or(|before| before == now);
        let is_active = stamp == state.active && drivers.iter().all(is_same);
        let is_broken = Some(&stamp) == state.broken.as_ref();
        if Arc::ptr_eq(config, &state.config) && (is_active || is_broken) {
            state.held = None;
            return true;
        }
        let now = Instant::now();
        let first = state.held.filter(|(_, last)| now - *last < HOLD_GAP).map_or(now, |(first, _)| first);
        state.held = Some((first, now));
        now - first > MAX_HOLD
    }
}

async fn driver_stamps(paths: Vec<PathBuf>) -> DriverStamps {
    // Simulated drivers read no files, and a simulation must not use other threads.
    if paths.is_empty() {
        return DriverStamps::new();
    }
    run_on_blocking_pool(move || {
        paths
            .into_iter()
            .map(|path| {
                let stamp = MetadataStamp::read(&path);
                (path, stamp)
            })
            .collect()
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ConfigStatus {
        pub fn config(&self) -> Arc<Config> {
            self.lock().config.clone()
        }

        /// Whether a file that a driver read was not checked yet.
        pub fn is_unchecked(&self) -> bool {
            let state = self.lock();
            state.drivers.paths().len() > state.checked.len()
        }
    }
}
