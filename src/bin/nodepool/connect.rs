//! Connection of a command: finds the configuration and opens a ZooKeeper session, with retries.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use nodepool::actors::process::config_files;
use nodepool::actors::process::context::BUILT_IN_DRIVERS;
use nodepool::actors::process::files::ConfigFileSource;
use nodepool_model::config::Config;
use nodepool_zk::Connection;
use nodepool_zk::client::{self, ConnectOptions, RealConnection};
use python_yaml::diagnostics::Severity;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::args::Global;
use crate::output::Output;

const SYSTEM_CONFIG: &str = "/etc/nodepool/nodepool.yaml";
/// Configuration that `nodepool standalone` writes into its working directory.
const STANDALONE_CONFIG: &str = "./nodepool-data/nodepool.yaml";

/// Interval of the reports that ZooKeeper is unreachable.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);
/// Pause between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

const LOGGER: &str = "nodepool.zk.ZooKeeperClient";

/// The configuration file to use: the one named, the system's, or the one of a standalone server started here.
pub fn config_path(global: &Global, output: &mut Output<'_>) -> anyhow::Result<PathBuf> {
    if let Some(path) = &global.config {
        return Ok(path.clone());
    }
    if Path::new(SYSTEM_CONFIG).exists() {
        return Ok(PathBuf::from(SYSTEM_CONFIG));
    }
    if !Path::new(STANDALONE_CONFIG).exists() {
        bail!(
            "there is neither {SYSTEM_CONFIG} nor {STANDALONE_CONFIG}; name a configuration with -c, or start \
             \"nodepool standalone\" in this directory"
        );
    }
    output.note(format_args!("using {STANDALONE_CONFIG}"))?;
    Ok(PathBuf::from(STANDALONE_CONFIG))
}

/// Loads the configuration, with a warning per problem that does not prevent its use.
pub async fn config(global: &Global, output: &mut Output<'_>) -> anyhow::Result<Arc<Config>> {
    let path = config_path(global, output)?;
    match config_files::load(&ConfigFileSource::OnDisk, &path, global.secure.as_deref(), BUILT_IN_DRIVERS).await {
        Ok(loaded) => {
            debug!(target: "nodepool.NodePool", "configuration {} loaded", path.display());
            for diagnostic in loaded.diagnostics.iter().filter(|problem| problem.severity >= Severity::Warning) {
                warn!(target: "nodepool.NodePool", "{diagnostic}");
            }
            Ok(loaded.config)
        }
        Err(error) => {
            // The error itself contains a single diagnostic.
            for diagnostic in error.diagnostics.iter().filter(|_| error.diagnostics.len() > 1) {
                output.note(diagnostic)?;
            }
            Err(error.into())
        }
    }
}

/// Opens a session. Without a limit, attempts are repeated forever, and the reason of their failure is logged every ten
/// seconds.
pub async fn session(config: &Config, limit: Option<Duration>) -> anyhow::Result<Arc<RealConnection>> {
    let options = ConnectOptions::from_config(&config.zookeeper)?;
    debug!(target: LOGGER, "connecting to ZooKeeper at {}", options.connect_string());
    let started = Instant::now();
    let mut last_warning: Option<Instant> = None;
    let mut reason = "no server has answered yet".to_owned();
    loop {
        let attempt = client::connect(options.clone());
        let outcome = match limit {
            Some(limit) => tokio::time::timeout_at(started + limit, attempt).await,
            None => Ok(attempt.await),
        };
        match outcome {
            Ok(Ok(connection)) => {
                debug!(target: LOGGER, "connected, session {:#x}", connection.session_id());
                return Ok(connection);
            }
            Ok(Err(error)) if error.is_final() => return Err(error.into()),
            Ok(Err(error)) => reason = error.to_string(),
            Err(_) => {}
        }
        if let Some(limit) = limit
            && started.elapsed() + RETRY_INTERVAL >= limit
        {
            bail!("cannot connect to ZooKeeper within {} s: {reason}", limit.as_secs_f64());
        }
        if last_warning.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            warn!(target: LOGGER, "{reason}; retrying");
            last_warning = Some(Instant::now());
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}
