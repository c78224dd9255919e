//! `nodepool standalone`: launcher, builder, web port and embedded coordinator in one process, for one machine without
//! other services.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;

use actix_rt::Arbiter;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::config_files::{self, LoadedConfig};
use super::context::{LauncherOptions, VERSION};
use super::process::{self, Control, Prepared, ProcessError};
use super::signals::{STOP_TIMEOUT, ShutdownMode};
use crate::actors::builder::builder::{BuilderOptions, BuilderSetup};
use crate::actors::runtime::clock;
use crate::actors::web;
use nodepool_model::config::{ZooKeeperConfig, ZooKeeperServer};
use python_logging::LogPlan;
use zookeeper_server::{EmbeddedOptions, EmbeddedServer, TlsFiles};

/// ZooKeeper's standard port.
const FIRST_COORDINATOR_PORT: u16 = 2181;
const FIRST_WEB_PORT: u16 = 8005;
/// Configuration for clients, in the data directory.
const CONFIG_FILE: &str = "nodepool.yaml";

#[derive(Clone, Debug)]
pub struct StandaloneOptions {
    /// The operator's configuration; `None`: the built-in one with two slots on this machine.
    pub config: Option<PathBuf>,
    pub secure: Option<PathBuf>,
    pub data_dir: PathBuf,
    /// Whether to build and upload images.
    pub builder: bool,
    pub log: LogPlan,
    /// Whether programs read the output, which then contains nothing but log lines.
    pub is_machine_readable: bool,
}

/// Runs `nodepool standalone` from start to exit; returns the exit status.
pub fn run(options: StandaloneOptions) -> u8 {
    process::exit_status(try_run(options))
}

fn try_run(mut options: StandaloneOptions) -> Result<(), ProcessError> {
    // The paths of certificates and reloads must not depend on the working directory.
    let unusable = |source| ProcessError::System { action: "find the current directory", source };
    options.data_dir = std::path::absolute(&options.data_dir).map_err(unusable)?;
    process::install_plan(options.log.clone())?;
    process::in_system(serve(options))?
}

async fn serve(options: StandaloneOptions) -> Result<(), ProcessError> {
    let control = Control::install(ShutdownMode::Immediate)?;
    if let Some(config) = &options.config {
        // Reports errors of the configuration before a file is created or a port is opened.
        LauncherOptions { secure: options.secure.clone(), ..LauncherOptions::new(config) }.load().await?;
    }
    let thread = Arbiter::new();
    let coordinator = start_coordinator(&thread, &options.data_dir).await?;
    let prepared = match &options.config {
        Some(config) => with_own_config(config, &options, &coordinator).await?,
        None => with_built_in_config(&options, &coordinator).await?,
    };
    print_summary(&options, &coordinator, prepared.listener.as_ref());
    let failed = coordinator.failed();
    let builder = builder(&options, &prepared).unwrap_or_else(|error| {
        warn!("builder disabled: {error}");
        None
    });
    let building = async {
        match builder {
            Some((prepared, setup)) => process::serve_builder(&control, prepared, setup).await,
            None => Ok(()),
        }
    };
    let mut serving = pin!(async { tokio::try_join!(process::serve_launcher(&control, prepared), building).map(drop) });
    let outcome = tokio::select! {
        outcome = &mut serving => outcome,
        reason = failed => {
            // Stops the process with its own signal handling, so that running builds are killed.
            if kill(Pid::this(), Signal::SIGTERM).is_ok() {
                let _ = tokio::time::timeout(STOP_TIMEOUT, serving).await;
            }
            Err(ProcessError::CoordinatorFailed(reason))
        }
    };
    coordinator.stop().await;
    outcome
}

/// Setup of the builder; `None` without images to build. The images of the built-in configuration need no
/// diskimage-builder.
fn builder(options: &StandaloneOptions, launcher: &Prepared) -> Result<Option<(Prepared, BuilderSetup)>, ProcessError> {
    let config = &launcher.loaded.config;
    if !options.builder || config.diskimages.is_empty() {
        return Ok(None);
    }
    let Some(images) = &config.images_dir else {
        warn!("builder disabled: the configuration has diskimages but no images-dir");
        return Ok(None);
    };
    let mut builder_options = BuilderOptions::default();
    if options.config.is_none() {
        builder_options = builder_options.faked();
        let path = PathBuf::from(images);
        fs::create_dir_all(&path).map_err(|source| ProcessError::ImagesDir { path, source })?;
    }
    let setup = process::builder_setup(&launcher.loaded, builder_options)?;
    let prepared =
        Prepared { options: launcher.options.clone(), loaded: launcher.loaded.clone(), listener: None, drivers: None };
    Ok(Some((prepared, setup)))
}

/// Starts the coordinator on its own thread, so that a busy launcher does not let its own session expire.
async fn start_coordinator(thread: &Arbiter, data_dir: &Path) -> Result<EmbeddedServer, ProcessError> {
    let options = EmbeddedOptions {
        data_dir: data_dir.to_owned(),
        first_port: FIRST_COORDINATOR_PORT,
        now_ms: || (clock::now().0 * 1000.0) as i64,
    };
    let (outcome, started) = oneshot::channel();
    thread.spawn(async move {
        // The receiver waits below, or the process exits.
        let _ = outcome.send(EmbeddedServer::start(options).await);
    });
    match started.await {
        Ok(result) => Ok(result?),
        Err(_) => Err(ProcessError::CoordinatorFailed("thread exited during start-up".to_owned())),
    }
}

async fn with_own_config(
    config: &Path,
    options: &StandaloneOptions,
    coordinator: &EmbeddedServer,
) -> Result<Prepared, ProcessError> {
    let mut launcher = LauncherOptions { secure: options.secure.clone(), ..LauncherOptions::new(config) };
    let written = launcher.load().await?;
    let zookeeper = &written.config.zookeeper;
    if !zookeeper.servers.is_empty() || zookeeper.tls.is_some() {
        warn!(
            "zookeeper-servers and zookeeper-tls of {} are ignored: standalone uses its own coordinator",
            config.display()
        );
    }
    let sections = config_files::sections(config, &["zookeeper-servers", "zookeeper-tls"]).await?;
    write_config(&options.data_dir, &(client_config(coordinator) + &sections))?;
    launcher.coordinator = Some(own_coordinator(coordinator, &written));
    let loaded = launcher.load().await?;
    let listener = Some(process::bind_webapp(&loaded)?);
    Ok(Prepared { options: launcher, loaded, listener, drivers: None })
}

async fn with_built_in_config(
    options: &StandaloneOptions,
    coordinator: &EmbeddedServer,
) -> Result<Prepared, ProcessError> {
    let listener = web::bind_from(Ipv4Addr::LOCALHOST, FIRST_WEB_PORT)
        .map_err(|source| ProcessError::Web { address: format!("{}:{FIRST_WEB_PORT}", Ipv4Addr::LOCALHOST), source })?;
    let web_port = listener
        .local_addr()
        .map_err(|source| ProcessError::System { action: "read the web server's address", source })?;
    let images_dir = options.builder.then(|| options.data_dir.join("images"));
    let text = client_config(coordinator) + &built_in_config(web_port.port(), &user_name(), images_dir.as_deref());
    let path = write_config(&options.data_dir, &text)?;
    let mut launcher = LauncherOptions { secure: options.secure.clone(), ..LauncherOptions::new(path) };
    let written = launcher.load().await?;
    launcher.coordinator = Some(own_coordinator(coordinator, &written));
    let loaded = launcher.load().await?;
    Ok(Prepared { options: launcher, loaded, listener: Some(listener), drivers: None })
}

/// ZooKeeper section for the launcher of this process, which uses the plain port.
fn own_coordinator(coordinator: &EmbeddedServer, written: &LoadedConfig) -> ZooKeeperConfig {
    let address = coordinator.address();
    let server = ZooKeeperServer { host: address.ip().to_string(), port: address.port(), chroot: String::new() };
    ZooKeeperConfig { servers: vec![server], tls: None, ..written.config.zookeeper.clone() }
}

/// ZooKeeper sections for clients, with TLS, because the programs of Nodepool 11 support nothing else.
fn client_config(coordinator: &EmbeddedServer) -> String {
    let TlsFiles { cert, key, ca } = coordinator.tls_files();
    let address = coordinator.tls_address();
    format!(
        "# Overwritten by each start of `nodepool standalone`: changes are lost.\n\
         # To change it, copy it and start `nodepool standalone -c COPY`.\n\
         zookeeper-servers:\n  - host: {}\n    port: {}\n\
         zookeeper-tls:\n  cert: {}\n  key: {}\n  ca: {}\n",
        quoted(&address.ip().to_string()),
        address.port(),
        quoted(&cert.to_string_lossy()),
        quoted(&key.to_string_lossy()),
        quoted(&ca.to_string_lossy()),
    )
}

/// The built-in configuration: two static slots on this machine, and a fake cloud whose nodes take seconds to boot.
/// Neither needs an SSH server. With `images`, images for nodes of that cloud are built and uploaded.
fn built_in_config(web_port: u16, user: &str, images: Option<&Path>) -> String {
    let cloud_label = |name: &str, image: &str| {
        format!("          - name: {name}\n            {image}\n            flavor-name: Fake Flavor\n")
    };
    let (mut head, mut labels) = (String::new(), "labels:\n  - name: local\n  - name: cloud\n".to_owned());
    let (mut diskimages, mut pool_labels) = (String::new(), cloud_label("cloud", "cloud-image: debian"));
    if let Some(images) = images {
        head = format!(
            "images-dir: {}\nbuild-log-dir: {}\ndiskimages:\n  - name: demo\n    elements: [vm]\n",
            quoted(&images.to_string_lossy()),
            // Not below /var/log, which may not be writable; and the logs are deleted together with the data directory.
            quoted(&images.with_file_name("build-logs").to_string_lossy())
        );
        labels += "  - name: built\n";
        diskimages = "    diskimages:\n      - name: demo\n".to_owned();
        pool_labels += &cloud_label("built", "diskimage: demo");
    }
    format!(
        "webapp:\n  listen_address: 127.0.0.1\n  port: {web_port}\n{head}{labels}\
         providers:\n  - name: this-machine\n    driver: static\n    pools:\n      - name: main\n        nodes:\n\
         \x20         - name: 127.0.0.1\n\
         \x20           labels: [local]\n\
         \x20           username: {}\n\
         \x20           max-parallel-jobs: 2\n\
         \x20           host-key-checking: false\n\
         \x20 - name: fake-cloud\n    driver: fake\n    cloud: fake\n    fake: {{boot-time: 3}}\n\
         \x20   cloud-images:\n      - name: debian\n        image-name: Fake Precise\n{diskimages}\
         \x20   pools:\n      - name: main\n        max-servers: 10\n        labels:\n{pool_labels}",
        quoted(user),
    )
}

/// Quotes a text as JSON, which is valid YAML for PyYAML and for our parser.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn user_name() -> String {
    match nix::unistd::User::from_uid(nix::unistd::getuid()) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => "zuul".to_owned(),
    }
}

/// Replaces the file atomically, so that a command that reads it meanwhile gets the old one.
fn write_config(data_dir: &Path, text: &str) -> Result<PathBuf, ProcessError> {
    let path = data_dir.join(CONFIG_FILE);
    let new = data_dir.join(format!("{CONFIG_FILE}.new"));
    // The configuration may contain secrets.
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(&new).and_then(|mut file| {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())
    });
    let written = file.and_then(|()| fs::rename(&new, &path));
    match written {
        Ok(()) => Ok(path),
        Err(source) => Err(ProcessError::Write { path, source }),
    }
}

/// Prints or logs the addresses and the data directory. Programs read the configuration file instead.
fn print_summary(options: &StandaloneOptions, coordinator: &EmbeddedServer, listener: Option<&TcpListener>) {
    let (data_dir, web) = (&options.data_dir, listener.and_then(|listener| listener.local_addr().ok()));
    if options.is_machine_readable {
        let web = web.map(|address| format!("http://{address}"));
        return info!(web, data_dir = %data_dir.display(), "for this one machine only");
    }
    let web = web.map_or("no web server".to_owned(), |address| format!("web server http://{address}"));
    let mut out = io::stdout().lock();
    // Standard output may be closed; the launcher does not need it.
    let _ = writeln!(
        out,
        "Nodepool {VERSION} for this one machine only; to serve more, use an Apache ZooKeeper ensemble and \
         nodepool-launcher.\n\
         Coordinator {} (TLS {}), {web}, data and configuration in {}",
        coordinator.address(),
        coordinator.tls_address(),
        data_dir.display(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_stays_one_yaml_value() {
        for text in ["plain", "with \"quotes\" and: colon", "line\nfeed", "C:\\path", "ünïcode", "yes", "#"] {
            let yaml = format!("key: {}\n", quoted(text));
            let read: serde_yaml::Value = serde_yaml::from_str(&yaml).unwrap();
            assert_eq!(read["key"].as_str(), Some(text));
        }
    }

    #[tokio::test]
    async fn the_built_in_configuration_serves_two_slots_and_a_cloud() {
        let folder = tempfile::tempdir().unwrap();
        let images = folder.path().join("images");
        let path = write_config(folder.path(), &built_in_config(8005, "me", Some(&images))).unwrap();
        let loaded = LauncherOptions::new(path).load().await.unwrap();
        assert_eq!(loaded.diagnostics, []);
        assert!(loaded.config.out_of_service.is_empty());
        assert!(loaded.config.labels.contains_key("local"));
        assert_eq!(loaded.config.providers["this-machine"].pools["main"].labels.len(), 1);
        let labels = &loaded.config.providers["fake-cloud"].pools["main"].labels;
        assert!(labels.contains("cloud") && labels.contains("built"));
        assert_eq!(loaded.config.diskimages.len(), 1);
        let path = write_config(folder.path(), &built_in_config(8005, "me", None)).unwrap();
        let loaded = LauncherOptions::new(path).load().await.unwrap();
        assert_eq!((loaded.diagnostics.len(), loaded.config.diskimages.len()), (0, 0));
        assert_eq!(loaded.config.webapp.listen_address, "127.0.0.1");
    }
}
