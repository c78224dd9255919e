//! Process context: handles with the lifetime of the process, independent of its ZooKeeper sessions; and the launcher's
//! options.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use actix::ArbiterHandle;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::config_files::{self, LoadError, LoadedConfig};
use super::files::ConfigFileSource;
use super::identity::Identity;
use crate::actors::provider::providers::ExtraDrivers;
use crate::actors::runtime::dump;
use crate::actors::runtime::messages::ExplainRequest;
use crate::actors::runtime::panics::PanicCounter;
use crate::actors::runtime::registry::ActorRegistry;
use crate::actors::runtime::snapshot_feed::SnapshotFeed;
use crate::actors::telemetry::samples::SampleSink;
use crate::actors::telemetry::traces::Tracer;
pub use nodepool_drivers::BUILT_IN_DRIVERS;
use nodepool_model::config::{Config, ZooKeeperConfig, ZooKeeperServer};
use nodepool_model::records::time::Seconds;
use nodepool_zk::client::ConnectOptions;
use python_yaml::diagnostics::Diagnostic;
use python_yaml::tree::Position;

/// Version in records, logs and on the command line.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Actors that answer `ExplainRequest`: their last verdict about a request.
pub type ExplainRegistry = ActorRegistry<ExplainRequest>;

pub struct ProcessContext {
    pub options: LauncherOptions,
    pub registry: dump::DumpRegistry,
    pub explain_registry: ExplainRegistry,
    pub samples: SampleSink,
    /// Newest snapshot of ZooKeeper, for readers.
    pub snapshot_feed: SnapshotFeed,
    pub tracer: Tracer,
    /// State of `/ready`: set once the actor tree of the first session has started.
    pub ready: watch::Sender<bool>,
    /// Set by the signals that stop the process.
    pub shutdown: watch::Receiver<Option<StopRequest>>,
    pub panics: PanicCounter,
    /// `host:port` of the web server for other machines; `None` without one.
    pub webapp: Option<String>,
    pub arbiters: ArbiterHandles,
    pub identity: Identity,
    /// Drivers of a downstream crate, tried before ours.
    pub drivers: Option<Box<dyn ExtraDrivers>>,
    /// ZooKeeper servers of the newest configuration, to which the session moves.
    pub servers: watch::Sender<Vec<ZooKeeperServer>>,
    /// Configuration of the running actor tree. The next tree starts with it if the files are broken then.
    pub active_config: Mutex<Option<LoadedConfig>>,
}

impl ProcessContext {
    pub fn set_active_config(&self, loaded: LoadedConfig) {
        *self.active_config.lock().unwrap_or_else(PoisonError::into_inner) = Some(loaded);
    }

    pub fn active_config(&self) -> Option<LoadedConfig> {
        self.active_config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Moves the session to the servers of this configuration without ending it.
    pub fn update_servers(&self, config: &Config) {
        self.servers.send_replace(config.zookeeper.servers.clone());
    }
}

/// Threads of the process; their number is constant. Root actors run on the arbiter of the actix system. Dumps and
/// notifications to the service manager have a thread of their own, and so do file events, and signals that stop the
/// process: no other actor can block them.
#[derive(Clone)]
pub struct ArbiterHandles {
    /// Arbiter of the actix system.
    pub roots: ArbiterHandle,
    /// Arbiter of PoolWorkers and clean-up.
    pub pools: ArbiterHandle,
    /// Runtime of `pools`. The mirror runs there too, so that a change is decided on without waking another thread.
    pub runtime: Handle,
    /// Arbiter of actors that call clouds or hosts.
    pub clouds: ArbiterHandle,
}

impl ArbiterHandles {
    /// All arbiters with their names.
    pub fn all(&self) -> [(&'static str, &ArbiterHandle); 3] {
        [("roots", &self.roots), ("pools", &self.pools), ("clouds", &self.clouds)]
    }
}

/// Flags and tunables of the launcher.
#[derive(Clone, Debug)]
pub struct LauncherOptions {
    /// Source of the two files below.
    pub files: ConfigFileSource,
    pub config: PathBuf,
    pub secure: Option<PathBuf>,
    pub webapp: bool,
    /// Interval of the periodic reconcile run, in case an event was missed.
    pub watermark_sleep: Seconds,
    /// Interval of polling the files, in case events were missed: one second as in Nodepool 11, except in simulations.
    pub config_check: Seconds,
    /// Retry interval for providers that failed to start.
    pub provider_retry: Seconds,
    pub cleanup_interval: Seconds,
    pub delete_interval: Seconds,
    /// Age at which the lock directory of a deleted request is removed.
    pub lock_cleanup: Seconds,
    /// Calls in flight per provider, where the driver allows several.
    pub api_concurrency: usize,
    /// Interval of checks for a missing cloud image.
    pub image_check_timeout: Seconds,
    /// Drivers of a downstream crate, in addition to ours.
    pub extra_drivers: Vec<&'static str>,
    /// Overrides the ZooKeeper sections of the files: the coordinator in this process.
    pub coordinator: Option<ZooKeeperConfig>,
}

impl LauncherOptions {
    pub fn new(config: impl Into<PathBuf>) -> Self {
        Self {
            files: ConfigFileSource::OnDisk,
            config: config.into(),
            secure: None,
            webapp: true,
            watermark_sleep: Seconds(10.0),
            config_check: Seconds(1.0),
            provider_retry: Seconds(30.0),
            cleanup_interval: Seconds(60.0),
            delete_interval: Seconds(5.0),
            lock_cleanup: Seconds(28_800.0),
            api_concurrency: 10,
            image_check_timeout: Seconds(300.0),
            extra_drivers: Vec::new(),
            coordinator: None,
        }
    }

    /// Loads the files. Every load of a launcher uses this function.
    pub async fn load(&self) -> Result<LoadedConfig, LoadError> {
        let built: Vec<&str> = BUILT_IN_DRIVERS.iter().chain(&self.extra_drivers).copied().collect();
        let mut loaded = config_files::load(&self.files, &self.config, self.secure.as_deref(), &built).await?;
        if let Some(coordinator) = &self.coordinator {
            let mut config = Config::clone(&loaded.config);
            config.zookeeper = coordinator.clone();
            loaded.config = Arc::new(config);
        }
        Ok(loaded)
    }

    /// Loads the files of a running process. A file without a usable ZooKeeper section is treated as broken.
    pub async fn load_again(&self) -> Result<LoadedConfig, LoadError> {
        let loaded = self.load().await?;
        match ConnectOptions::from_config(&loaded.config.zookeeper) {
            Ok(_) => Ok(loaded),
            Err(error) => {
                let diagnostic = Diagnostic::error(Position::default(), error.to_string());
                let diagnostics = vec![diagnostic.in_file(&self.config.display().to_string())];
                Err(LoadError { file: self.config.clone(), diagnostics, stamp: loaded.stamp })
            }
        }
    }
}

/// A request to stop the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopRequest {
    pub signal: &'static str,
    /// Whether running builds may finish first.
    pub is_graceful: bool,
}

/// Reason why the actor tree of one ZooKeeper session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    Expired,
    /// ZooKeeper could not be read, so no tree was started.
    ReadFailed,
    /// ZooKeeper was restored to an older state.
    StoreRolledBack,
    /// The actor that panicked.
    Panicked(String),
    /// Orderly stop after `ProcessContext::shutdown` was set.
    Stopped,
}
