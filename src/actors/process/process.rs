//! Process lifecycle of both daemons: start-up, one actor tree per ZooKeeper session, and shutdown.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix_rt::{Arbiter, System};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tracing::{error, info, warn};

use super::config_files::{LoadError, LoadedConfig};
use super::config_status::ConfigStatus;
use super::config_watch::ConfigWatch;
use super::context::{
    ArbiterHandles, ExplainRegistry, LauncherOptions, ProcessContext, SessionEnd, StopRequest, VERSION,
};
use super::daemon::{self, DaemonError, Detached};
use super::identity::Identity;
use super::logger_names::NODEPOOL;
use super::pidfile::{self, PidFile, PidFileError};
use super::signals::ShutdownMode;
use super::{sd_notify, signals};
use crate::actors::builder::builder::{self, BuilderOptions, BuilderSetup};
use crate::actors::launcher::launcher;
use crate::actors::provider::providers::ExtraDrivers;
use crate::actors::runtime::panics::{PanicCounter, Recovery};
use crate::actors::runtime::snapshot_feed::SnapshotFeed;
use crate::actors::runtime::{clock, dump};
use crate::actors::telemetry::metrics_registry::MetricsRegistry;
use crate::actors::telemetry::samples::SampleSink;
use crate::actors::telemetry::statsd;
use crate::actors::telemetry::traces::Tracer;
use crate::actors::web;
use nodepool_drivers::common::dib::DiskImageBuilder;
use nodepool_drivers::common::image_files::ImagesDir;
use nodepool_drivers::common::process_group;
use nodepool_model::metrics::statsd_metrics::StatsdAddress;
use nodepool_zk::Zk;
use nodepool_zk::client::{
    ConnectError, ConnectOptions, RealConnection, ServerAddress, connect_until, install_crypto_provider,
};
use python_logging::config::LogConfigError;
use python_logging::{LineFormat, LogError, LogPlan, Verbosity};
use zookeeper_server::EmbeddedError;

const LAUNCHER_LOG_FILE: &str = "/var/log/nodepool/nodepool.log";
const BUILDER_LOG_FILE: &str = "/var/log/nodepool/nodepool-builder.log";

/// Daemon mode and logging options.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    pub mode: Mode,
    /// The logging file of `-l`.
    pub log_config: Option<PathBuf>,
    /// `Json` overrides the formatters of the logging file.
    pub log_format: LineFormat,
    pub verbosity: Verbosity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    Foreground,
    Background { pid_file: PathBuf },
}

/// Reason why a daemon failed to start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error(transparent)]
    PidFile(#[from] PidFileError),
    #[error(transparent)]
    LogConfig(#[from] LogConfigError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("cannot listen on {address} for the web server; change `webapp` in the configuration or give --no-webapp")]
    Web { address: String, source: io::Error },
    #[error("cannot {action}")]
    System { action: &'static str, source: io::Error },
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Coordinator(#[from] EmbeddedError),
    #[error("the coordinator stopped: {0}")]
    CoordinatorFailed(String),
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("No images-dir specified in config.")]
    NoImagesDir,
    #[error("images-dir {} must be a writable directory", path.display())]
    ImagesDir { path: PathBuf, source: io::Error },
    #[error("gave up after {0} panics in ten minutes; see the log")]
    Panics(usize),
}

/// State of a daemon before it connects to ZooKeeper.
pub struct Prepared {
    pub options: LauncherOptions,
    pub loaded: LoadedConfig,
    pub listener: Option<TcpListener>,
    /// Drivers that are not part of this crate.
    pub drivers: Option<Box<dyn ExtraDrivers>>,
}

/// Runs `nodepool-launcher` from start to exit, with the drivers of a downstream crate in addition to ours.
pub fn run_launcher(
    mut options: LauncherOptions,
    daemon: &DaemonOptions,
    drivers: Option<Box<dyn ExtraDrivers>>,
) -> ExitCode {
    options.extra_drivers = drivers.as_ref().map_or_else(Vec::new, |drivers| drivers.names());
    run_daemon(daemon, LAUNCHER_LOG_FILE, async move |ready| {
        let control = Control::install(ShutdownMode::Immediate)?;
        let prepared = Prepared { drivers, ..prepare(options).await? };
        ready.notify_ready()?;
        serve_launcher(&control, prepared).await
    })
}

/// Runs `nodepool-builder` from start to exit.
pub fn run_builder(options: LauncherOptions, builder: BuilderOptions, daemon: &DaemonOptions) -> ExitCode {
    run_daemon(daemon, BUILDER_LOG_FILE, async move |ready| {
        let control = Control::install(ShutdownMode::Graceful)?;
        let prepared = prepare(options).await?;
        let setup = builder_setup(&prepared.loaded, builder)?;
        ready.notify_ready()?;
        prepared.loaded.log_warnings();
        serve_builder(&control, prepared, setup).await
    })
}

/// Setup of a builder from its configuration; fails without `images-dir`.
pub fn builder_setup(loaded: &LoadedConfig, options: BuilderOptions) -> Result<BuilderSetup, ProcessError> {
    Ok(BuilderSetup { builder_id: builder_id(loaded)?, options, maker: Arc::new(DiskImageBuilder) })
}

/// Runs the builder from its first log line to its orderly stop. Must be called inside an actix system.
pub async fn serve_builder(control: &Control, prepared: Prepared, setup: BuilderSetup) -> Result<(), ProcessError> {
    info!(target: "nodepool.builder.NodePoolBuilder", "Nodepool builder {VERSION} starting");
    let loaded = prepared.loaded.clone();
    let running = RunningProcess::start(control, prepared, None).await?;
    let outcome = run_sessions(&running.context, loaded, &Role::Builder(setup)).await;
    if tokio::time::timeout(BUILD_SHUTDOWN_TIMEOUT, process_group::wait_until_all_ended()).await.is_err() {
        warn!(target: "nodepool.builder.NodePoolBuilder", "a build did not exit in time; not waiting for it");
    }
    outcome
}

/// Time that a stopping process waits for its builds, which unmount their file systems and are then killed. It is less
/// than `signals::STOP_TIMEOUT`, after which the process exits in any case.
const BUILD_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(9);

/// Notifies the starting process, which waits for the daemon.
struct Ready<'a>(Option<&'a Detached>);

impl Ready<'_> {
    fn notify_ready(&self) -> Result<(), DaemonError> {
        self.0.map_or(Ok(()), Detached::ready)
    }
}

fn run_daemon(
    daemon: &DaemonOptions,
    log_file: &str,
    work: impl AsyncFnOnce(Ready<'_>) -> Result<(), ProcessError>,
) -> ExitCode {
    let detached = match go_to_background(daemon) {
        Ok(detached) => detached,
        Err(error) => return ExitCode::from(exit_status(Err(error.into()))),
    };
    let run = || {
        let _pid_file = match &daemon.mode {
            Mode::Background { pid_file } => Some(PidFile::acquire(pid_file, pidfile::ACQUIRE_TIMEOUT)?),
            Mode::Foreground => None,
        };
        install_logging(daemon, log_file)?;
        // `detached` is borrowed, so that the starting process is notified of a failure only after the error was
        // reported.
        in_system(work(Ready(detached.as_ref())))?
    };
    ExitCode::from(exit_status(run()))
}

/// Id of this builder in build records.
fn builder_id(loaded: &LoadedConfig) -> Result<String, ProcessError> {
    let Some(path) = &loaded.config.images_dir else { return Err(ProcessError::NoImagesDir) };
    ImagesDir::new(path).builder_id().map_err(|source| ProcessError::ImagesDir { path: path.clone(), source })
}

/// Exit status of the process. An error with its causes is the last line on stderr.
pub fn exit_status(outcome: Result<(), ProcessError>) -> u8 {
    let Err(error) = outcome else { return 0 };
    if let ProcessError::Load(failed) = &error {
        for diagnostic in &failed.diagnostics {
            eprintln!("{diagnostic}");
        }
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        // Some errors already contain the text of their cause.
        let cause_text = inner.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        cause = inner.source();
    }
    error!(target: "nodepool.NodePool", "{text}");
    eprintln!("{text}");
    1
}

/// Signal handling, registry and metrics of the process. It is created first: from then on, a signal stops the process
/// in order, also during start-up.
pub struct Control {
    registry: dump::DumpRegistry,
    shutdown: watch::Receiver<Option<StopRequest>>,
    /// Shared by all roles of this process.
    metrics: MetricsRegistry,
    /// Thread for dumps and for notifications to the service manager.
    thread: Arbiter,
    /// Whether a role of this process already notifies the service manager.
    has_notifier: Cell<bool>,
}

impl Control {
    pub fn install(shutdown_mode: ShutdownMode) -> Result<Self, ProcessError> {
        let (registry, thread) = (dump::DumpRegistry::default(), Arbiter::new());
        let shutdown = signals::listen(&thread.handle(), registry.clone(), shutdown_mode)
            .map_err(|source| ProcessError::System { action: "install signal handlers", source })?;
        Ok(Self { registry, shutdown, metrics: MetricsRegistry::default(), thread, has_notifier: Cell::default() })
    }
}

fn go_to_background(daemon: &DaemonOptions) -> Result<Option<Detached>, DaemonError> {
    match daemon.mode {
        Mode::Foreground => Ok(None),
        Mode::Background { .. } => {
            daemon::close_inherited_files();
            daemon::detach().map(Some)
        }
    }
}

fn install_logging(daemon: &DaemonOptions, log_file: &str) -> Result<(), ProcessError> {
    let plan = match (&daemon.log_config, &daemon.mode) {
        (Some(path), _) => LogPlan::from_file(path, &NODEPOOL)?,
        (None, Mode::Foreground) => LogPlan::to_stdout(daemon.verbosity, &NODEPOOL),
        (None, Mode::Background { .. }) => LogPlan::to_file(log_file, daemon.verbosity, &NODEPOOL),
    };
    install_plan(match daemon.log_format {
        LineFormat::Text => plan,
        LineFormat::Json => plan.as_json(),
    })
}

/// Activates the logging plan of this process.
pub fn install_plan(plan: LogPlan) -> Result<(), ProcessError> {
    for notice in &plan.notices {
        eprintln!("logging configuration: {notice}");
    }
    let notices = plan.notices.clone();
    plan.install()?;
    log_panics();
    // In the background stderr is /dev/null.
    notices.iter().for_each(|notice| warn!(target: "nodepool.NodePool", "logging configuration: {notice}"));
    Ok(())
}

/// Logs panics, because in the background stderr is /dev/null.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        error!(target: "nodepool.NodePool", "{panic}\n{backtrace}");
        // If the logging file disables that logger, the panic goes to stderr.
        if !tracing::enabled!(target: "nodepool.NodePool", tracing::Level::ERROR) {
            eprintln!("{panic}\n{backtrace}");
        }
    }));
}

/// Runs `work` on a new actix system. Its thread is the arbiter of the root actors.
pub fn in_system<T>(work: impl Future<Output = T>) -> Result<T, ProcessError> {
    install_crypto_provider();
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("building a current-thread runtime with timers and I/O cannot fail")
    };
    Ok(System::with_tokio_rt(runtime).block_on(work))
}

async fn prepare(options: LauncherOptions) -> Result<Prepared, ProcessError> {
    let loaded = options.load().await?;
    // Errors of servers and certificates are reported before the daemon leaves the terminal.
    ConnectOptions::from_config(&loaded.config.zookeeper)?;
    let listener = if options.webapp { Some(bind_webapp(&loaded)?) } else { None };
    Ok(Prepared { options, loaded, listener, drivers: None })
}

/// Binds the web port of a configuration.
pub fn bind_webapp(loaded: &LoadedConfig) -> Result<TcpListener, ProcessError> {
    let webapp = &loaded.config.webapp;
    web::bind(webapp).map_err(|source| {
        let address = format!("{}:{}", webapp.listen_address, webapp.port);
        ProcessError::Web { address, source }
    })
}

/// Runs the launcher from its first log line to its orderly stop. Must be called inside an actix system.
pub async fn serve_launcher(control: &Control, mut prepared: Prepared) -> Result<(), ProcessError> {
    info!("Nodepool launcher {VERSION} starting");
    prepared.loaded.log_warnings();
    let (listener, loaded) = (prepared.listener.take(), prepared.loaded.clone());
    let webapp = listener.as_ref().map(TcpListener::local_addr).transpose();
    let webapp = webapp.map_err(|source| ProcessError::System { action: "read the web server's address", source })?;
    let running = RunningProcess::start(control, prepared, webapp).await?;
    let live_view_arbiter = Arbiter::new();
    let web = match listener {
        Some(listener) => {
            let server = web::serve(listener, running.context.clone(), &live_view_arbiter.handle())
                .map_err(|source| ProcessError::System { action: "start the web server", source })?;
            let handle = server.handle();
            actix_rt::spawn(server);
            Some(handle)
        }
        None => None,
    };
    let outcome = run_sessions(&running.context, loaded, &Role::Launcher).await;
    if let Some(web) = web {
        web.stop(false).await;
    }
    running.context.tracer.shutdown();
    outcome
}

/// Process context and its threads.
struct RunningProcess {
    context: Arc<ProcessContext>,
    _threads: [Arbiter; 2],
}

impl RunningProcess {
    async fn start(control: &Control, prepared: Prepared, web: Option<SocketAddr>) -> Result<Self, ProcessError> {
        let Prepared { options, loaded, drivers, listener: _ } = prepared;
        let (pools, clouds) = (Arbiter::new(), Arbiter::new());
        let identity = Identity::from_host();
        let runtime = runtime_of(&pools).await?;
        let ready = watch::Sender::new(false);
        // With a launcher and a builder in one process, only the first one notifies: the launcher.
        if !control.has_notifier.replace(true) {
            control.thread.spawn(sd_notify::run(control.registry.clone(), ready.subscribe(), control.shutdown.clone()));
        }
        let context = Arc::new(ProcessContext {
            options,
            registry: control.registry.clone(),
            explain_registry: ExplainRegistry::default(),
            samples: statsd_sink().with_metrics(control.metrics.clone()),
            snapshot_feed: SnapshotFeed::default(),
            tracer: Tracer::from_environment(&runtime),
            ready,
            shutdown: control.shutdown.clone(),
            panics: PanicCounter::default(),
            webapp: web.map(|address| web::advertised_address(address, &identity.hostname)),
            arbiters: ArbiterHandles {
                roots: System::current().arbiter().clone(),
                pools: pools.handle(),
                runtime: runtime.clone(),
                clouds: clouds.handle(),
            },
            identity,
            drivers,
            servers: watch::Sender::new(loaded.config.zookeeper.servers.clone()),
            active_config: Mutex::new(Some(loaded)),
        });
        Ok(Self { context, _threads: [pools, clouds] })
    }
}

async fn runtime_of(arbiter: &Arbiter) -> Result<Handle, ProcessError> {
    let (sender, runtime) = oneshot::channel();
    // The arbiter lives as long as the process, so it runs the task.
    arbiter.spawn(async move { drop(sender.send(Handle::current())) });
    runtime.await.map_err(|_| ProcessError::System {
        action: "start a thread",
        source: io::Error::other("thread exited during start-up"),
    })
}

fn statsd_sink() -> SampleSink {
    match StatsdAddress::from_environment(|name| std::env::var(name).ok()) {
        Ok(Some(address)) => statsd::start(address),
        Ok(None) => SampleSink::discard(),
        Err(error) => {
            warn!("{error}");
            SampleSink::discard()
        }
    }
}

/// Role of a process: the actor tree that each session starts.
pub enum Role {
    Launcher,
    Builder(BuilderSetup),
}

impl Role {
    fn name(&self) -> &'static str {
        match self {
            Role::Launcher => "Launcher",
            Role::Builder(_) => "Builder",
        }
    }
}

/// Pause between two sessions after ZooKeeper could not be read; doubled each time up to the maximum.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of polling the configuration without a session.
const CONFIG_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Runs one actor tree per session until the process has to stop.
pub async fn run_sessions(
    context: &Arc<ProcessContext>,
    mut loaded: LoadedConfig,
    role: &Role,
) -> Result<(), ProcessError> {
    let (mut is_first, mut delay) = (true, Duration::ZERO);
    loop {
        let connecting = async {
            tokio::time::sleep(delay).await;
            connect(context, &mut loaded, is_first).await
        };
        let connection = tokio::select! {
            biased;
            () = stopped(context.shutdown.clone()) => return Ok(()),
            connected = connecting => connected?,
        };
        is_first = false;
        let end = run_session(connection, context, loaded.clone(), role).await;
        delay = if end == SessionEnd::ReadFailed {
            (delay * 2).clamp(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL)
        } else {
            Duration::ZERO
        };
        match end {
            SessionEnd::Stopped => {
                info!("stopped");
                return Ok(());
            }
            SessionEnd::Expired | SessionEnd::ReadFailed | SessionEnd::StoreRolledBack => {
                warn!("ZooKeeper session ended; starting a new one");
            }
            SessionEnd::Panicked(actor) => {
                error!(actor, "an actor panicked; restarting");
                if context.panics.record(clock::monotonic_now()) == Recovery::Exit {
                    return Err(ProcessError::Panics(context.panics.count()));
                }
            }
        }
        loaded = newest_config(context, loaded).await;
    }
}

/// Opens a session with the servers of the current configuration, which is polled meanwhile. An invalid ZooKeeper
/// section ends the process only at its start. Later it is retried: a certificate may be in the middle of a
/// replacement.
async fn connect(
    context: &Arc<ProcessContext>,
    loaded: &mut LoadedConfig,
    mut is_first: bool,
) -> Result<Arc<RealConnection>, ConnectError> {
    let mut watch = ConfigWatch::new(ConfigStatus::new(&context.options, loaded));
    loop {
        let connecting = async {
            let options = ConnectOptions::from_config(&loaded.config.zookeeper)?;
            connect_until(options, std::future::pending()).await
        };
        let changed_config = tokio::select! {
            connected = connecting => match connected {
                Ok(connection) => return Ok(connection.expect("the connection attempt is never cancelled")),
                Err(error) if is_first => return Err(error),
                Err(error) => {
                    warn!(%error, "cannot connect to ZooKeeper, retrying");
                    None
                }
            },
            changed = watch.next() => Some(changed),
        };
        match changed_config {
            Some(changed) => {
                context.set_active_config(changed.clone());
                (*loaded, is_first) = (changed, false);
            }
            None => {
                tokio::time::sleep(MAX_RETRY_INTERVAL).await;
                *loaded = newest_config(context, loaded.clone()).await;
                watch = ConfigWatch::new(ConfigStatus::new(&context.options, loaded));
            }
        }
    }
}

async fn run_session(
    connection: Arc<RealConnection>,
    context: &Arc<ProcessContext>,
    loaded: LoadedConfig,
    role: &Role,
) -> SessionEnd {
    let server_updates = actix_rt::spawn(follow_servers(connection.clone(), context.servers.subscribe()));
    let zk: Zk = connection.clone();
    let session_status = actix_rt::spawn(sd_notify::follow_session(zk.session(), context.ready.subscribe()));
    // The session runs on its own task, so that a panic of the root actor has the same effect as a panic of any other
    // actor.
    let running = match role {
        Role::Launcher => actix_rt::spawn(launcher::run_session(zk, context.clone(), loaded)),
        Role::Builder(setup) => actix_rt::spawn(builder::run_session(zk, context.clone(), setup.clone(), loaded)),
    };
    let end = running.await.unwrap_or_else(|_| SessionEnd::Panicked(role.name().to_owned()));
    server_updates.abort();
    session_status.abort();
    // The session is closed explicitly: clones of the connection may exist, but must not own anything in ZooKeeper from
    // here on.
    connection.close().await;
    end
}

async fn follow_servers(
    connection: Arc<RealConnection>,
    mut servers: watch::Receiver<Vec<nodepool_model::config::ZooKeeperServer>>,
) {
    while servers.changed().await.is_ok() {
        let moved = servers.borrow_and_update().clone();
        connection.set_servers(
            moved
                .into_iter()
                .map(|server| ServerAddress {
                    host: server.host.trim_matches(['[', ']']).to_owned(),
                    port: server.port,
                })
                .collect(),
        );
    }
}

/// The configuration of the current files; or the last active one, if the files are broken or are being written: half
/// of a file may be a valid configuration. The configuration watch of the next session loads them later.
pub async fn newest_config(context: &ProcessContext, last: LoadedConfig) -> LoadedConfig {
    let stamp_of = |outcome: &Result<LoadedConfig, LoadError>| match outcome {
        Ok(loaded) => loaded.stamp.clone(),
        Err(error) => error.stamp.clone(),
    };
    let last = context.active_config().unwrap_or(last);
    let stamp = stamp_of(&context.options.load_again().await);
    if stamp == last.stamp {
        return last;
    }
    tokio::time::sleep(CONFIG_POLL_INTERVAL).await;
    match context.options.load_again().await {
        outcome if stamp_of(&outcome) != stamp => last,
        Ok(loaded) => {
            loaded.log_warnings();
            context.set_active_config(loaded.clone());
            loaded
        }
        Err(error) => {
            error.log();
            last
        }
    }
}

async fn stopped(mut shutdown: watch::Receiver<Option<StopRequest>>) {
    // A dropped sender counts as a stop request: no other one can follow.
    let _ = shutdown.wait_for(Option::is_some).await;
}
