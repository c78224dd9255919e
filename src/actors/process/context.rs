//! What lives as long as the process, whatever happens to its ZooKeeper sessions.

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

/// What we call ourselves in records, logs and on the command line.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Pool workers that can be asked what they decided about a request.
pub type ExplainRegistry = ActorRegistry<ExplainRequest>;

pub struct ProcessContext {
    pub options: LauncherOptions,
    pub registry: dump::DumpRegistry,
    pub explain_registry: ExplainRegistry,
    pub samples: SampleSink,
    /// What is seen of ZooKeeper, for those who only look.
    pub snapshot_feed: SnapshotFeed,
    pub tracer: Tracer,
    /// What `/ready` says: set after the first complete pass.
    pub ready: watch::Sender<bool>,
    /// Set by the signals that stop the process.
    pub shutdown: watch::Receiver<Option<StopRequest>>,
    pub panics: PanicCounter,
    /// `host:port` at which other machines find the web server; `None` without one.
    pub webapp: Option<String>,
    pub arbiters: ArbiterHandles,
    pub identity: Identity,
    /// Drivers of a downstream crate, tried before ours.
    pub drivers: Option<Box<dyn ExtraDrivers>>,
    /// ZooKeeper servers of a newly loaded configuration, for the session to move to.
    pub servers: watch::Sender<Vec<ZooKeeperServer>>,
    /// What the running tree works by; the next one begins with it where the files are broken then.
    pub active_config: Mutex<Option<LoadedConfig>>,
}

impl ProcessContext {
    pub fn set_active_config(&self, loaded: LoadedConfig) {
        *self.active_config.lock().unwrap_or_else(PoisonError::into_inner) = Some(loaded);
    }

    pub fn active_config(&self) -> Option<LoadedConfig> {
        self.active_config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The session moves to the servers of this configuration; it does not end.
    pub fn update_servers(&self, config: &Config) {
        self.servers.send_replace(config.zookeeper.servers.clone());
    }
}

/// Threads are a constant. Roots run on the system's own arbiter, signals and dumps on one that nobody else can block.
#[derive(Clone)]
pub struct ArbiterHandles {
    /// The system's own.
    pub roots: ArbiterHandle,
    /// Pool workers and cleanup.
    pub pools: ArbiterHandle,
    /// The runtime of `pools`. The mirror is kept up to date there: a change that it hears of is decided on without
    /// waking another thread.
    pub runtime: Handle,
    /// Everything that speaks to a cloud or to hosts.
    pub clouds: ArbiterHandle,
}

impl ArbiterHandles {
    /// With what they are called.
    pub fn all(&self) -> [(&'static str, &ArbiterHandle); 3] {
        [("roots", &self.roots), ("pools", &self.pools), ("clouds", &self.clouds)]
    }
}

/// Flags and tunables of the launcher.
#[derive(Clone, Debug)]
pub struct LauncherOptions {
    /// Where these two are.
    pub files: ConfigFileSource,
    pub config: PathBuf,
    pub secure: Option<PathBuf>,
    pub webapp: bool,
    /// Interval of the tick that catches what events missed.
    pub watermark_sleep: Seconds,
    /// How often the files are looked at; each second as the reference does, but where time is simulated.
    pub config_check: Seconds,
    /// Before a provider that could not be started is tried again.
    pub provider_retry: Seconds,
    pub cleanup_interval: Seconds,
    pub delete_interval: Seconds,
    /// Age at which the lock directory of a request that is gone is removed.
    pub lock_cleanup: Seconds,
    /// Calls in flight per provider, where the driver allows several.
    pub api_concurrency: usize,
    /// Between looks for an image that is missing in a cloud.
    pub image_check_timeout: Seconds,
    /// Drivers of a downstream crate, beside our own.
    pub extra_drivers: Vec<&'static str>,
    /// Used instead of what the files say about ZooKeeper: the coordinator inside this process.
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

    /// Loads the files; every load of a launcher goes through here.
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

    /// For a load while the process runs: a file that names no usable ZooKeeper is as broken as one that is no YAML.
    pub async fn load_again(&self) -> Result<LoadedConfig, LoadError> {
        let loaded = self.load().await?;
        match ConnectOptions::from_config(&loaded.config.zookeeper) {
            Ok(_) => Ok(loaded),
            Err(error) => {
                let diagnostic = Diagnostic::error(Position::default(), error.to_string());
                let diagnostics = vec![diagnostic.in_file(&self.config.display().to_string())];
                Err(LoadError { file: self.config.clone(), problems: diagnostics, stamp: loaded.stamp })
            }
        }
    }
}

/// Why the process stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopRequest {
    pub signal: &'static str,
    /// What takes hours may be finished first.
    pub is_graceful: bool,
}

/// How the tree of one ZooKeeper session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    Expired,
    /// It was over before it had begun: what is in ZooKeeper could not be read.
    ReadFailed,
    /// ZooKeeper was restored from a copy.
    StoreRolledBack,
    /// The actor that panicked.
    Panicked(String),
    /// In order, after `Shared::shutdown` was set.
    Stopped,
}
