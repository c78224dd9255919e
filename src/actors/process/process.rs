//! What the daemons share: starting, one tree of actors per ZooKeeper session, stopping.

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
use super::config_watch::ConfigWatch;
use super::context::{
    ArbiterHandles, ExplainRegistry, LauncherOptions, ProcessContext, SessionEnd, StopRequest, VERSION,
};
use super::daemon::{self, DaemonError, Detached};
use super::identity::Identity;
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

/// How a daemon is started, apart from its work.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    pub mode: Mode,
    /// The logging file of `-l`.
    pub log_config: Option<PathBuf>,
    /// JSON wins over the formatters of the logging file.
    pub log_format: LineFormat,
    pub verbosity: Verbosity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    Foreground,
    Background { pid_file: PathBuf },
}

/// Why a daemon did not start or cannot go on.
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
    #[error("images-dir {} has to be a folder that this program may write to", path.display())]
    ImagesDir { path: PathBuf, source: io::Error },
    #[error("gave up after {0} panics in ten minutes; the log tells where they happened")]
    Panics(usize),
}

/// A launcher with everything in hand that it needs before it connects.
pub struct Prepared {
    pub options: LauncherOptions,
    pub loaded: LoadedConfig,
    pub listener: Option<TcpListener>,
    /// Drivers that are not part of this crate.
    pub drivers: Option<Box<dyn ExtraDrivers>>,
}

/// The whole life of `nodepool-launcher`, with the drivers of a downstream crate beside our own.
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

/// The whole life of `nodepool-builder`.
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

/// What a builder is by its configuration; one without a place for images is none.
pub fn builder_setup(loaded: &LoadedConfig, options: BuilderOptions) -> Result<BuilderSetup, ProcessError> {
    Ok(BuilderSetup { builder_id: builder_id(loaded)?, options, maker: Arc::new(DiskImageBuilder) })
}

/// The builder from its first log line to its orderly end; to be called inside a system.
pub async fn serve_builder(control: &Control, prepared: Prepared, setup: BuilderSetup) -> Result<(), ProcessError> {
    info!(target: "nodepool.builder.NodePoolBuilder", "Nodepool builder {VERSION} starting");
    let loaded = prepared.loaded.clone();
    let running = RunningProcess::start(control, prepared, None).await?;
    let outcome = run_sessions(&running.context, loaded, &Role::Builder(setup)).await;
    if tokio::time::timeout(BUILD_SHUTDOWN_TIMEOUT, process_group::wait_until_all_ended()).await.is_err() {
        warn!(target: "nodepool.builder.NodePoolBuilder", "a build does not end; leaving it");
    }
    outcome
}

/// A process that ends leaves its builds so long: to take down what they have mounted, and then to be ended by force. Less than the time
/// after which the process ends in any case.
const BUILD_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(9);

/// Whoever started a daemon waits until this is told.
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
        // Lent only: who started us waits on it, and goes on only when all is said.
        in_system(work(Ready(detached.as_ref())))?
    };
    ExitCode::from(exit_status(run()))
}

/// What tells this builder from others.
fn builder_id(loaded: &LoadedConfig) -> Result<String, ProcessError> {
    let Some(path) = &loaded.config.images_dir else { return Err(ProcessError::NoImagesDir) };
    ImagesDir::new(path).builder_id().map_err(|source| ProcessError::ImagesDir { path: path.clone(), source })
}

/// The exit status. What went wrong is the last line on stderr, after all its causes were told.
pub fn exit_status(outcome: Result<(), ProcessError>) -> u8 {
    let Err(error) = outcome else { return 0 };
    if let ProcessError::Load(failed) = &error {
        for problem in &failed.problems {
            eprintln!("{problem}");
        }
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        // Some errors tell their cause themselves.
        let told = inner.to_string();
        if !text.contains(&told) {
            text = format!("{text}: {told}");
        }
        cause = inner.source();
    }
    error!(target: "nodepool.NodePool", "{text}");
    eprintln!("{text}");
    1
}

/// Taken before anything else is begun: from then on a signal ends us in order, however far we have come.
pub struct Control {
    registry: dump::DumpRegistry,
    shutdown: watch::Receiver<Option<StopRequest>>,
    /// One for all that runs in this process.
    metrics: MetricsRegistry,
    /// Signals and dumps have a thread of their own.
    thread: Arbiter,
    /// Somebody of this process speaks to the service manager.
    has_notifier: Cell<bool>,
}

impl Control {
    pub fn install(shutdown_mode: ShutdownMode) -> Result<Self, ProcessError> {
        let (registry, thread) = (dump::DumpRegistry::default(), Arbiter::new());
        let shutdown = signals::listen(&thread.handle(), registry.clone(), shutdown_mode)
            .map_err(|source| ProcessError::System { action: "take over signals", source })?;
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
        (Some(path), _) => LogPlan::from_file(path)?,
        (None, Mode::Foreground) => LogPlan::to_stdout(daemon.verbosity),
        (None, Mode::Background { .. }) => LogPlan::to_file(log_file, daemon.verbosity),
    };
    install_plan(match daemon.log_format {
        LineFormat::Text => plan,
        LineFormat::Json => plan.as_json(),
    })
}

/// Makes a plan the logging of this process.
pub fn install_plan(plan: LogPlan) -> Result<(), ProcessError> {
    for notice in &plan.notices {
        eprintln!("logging configuration: {notice}");
    }
    let notices = plan.notices.clone();
    plan.install()?;
    log_panics();
    // In the background nobody reads stderr.
    notices.iter().for_each(|notice| warn!(target: "nodepool.NodePool", "logging configuration: {notice}"));
    Ok(())
}

/// In the background nobody reads stderr, so panics go where everything else goes.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        error!(target: "nodepool.NodePool", "{panic}\n{backtrace}");
        // A logging file may silence that logger; a panic is to be seen somewhere.
        if !tracing::enabled!(target: "nodepool.NodePool", tracing::Level::ERROR) {
            eprintln!("{panic}\n{backtrace}");
        }
    }));
}

/// Runs on a new actix system whose own thread is the arbiter of the roots.
pub fn in_system<T>(work: impl Future<Output = T>) -> Result<T, ProcessError> {
    install_crypto_provider();
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime can be built where threads and timers are to be had")
    };
    Ok(System::with_tokio_rt(runtime).block_on(work))
}

async fn prepare(options: LauncherOptions) -> Result<Prepared, ProcessError> {
    let loaded = options.load().await?;
    // What is wrong with the servers or the certificates is better said now than after the terminal has gone.
    ConnectOptions::from_config(&loaded.config.zookeeper)?;
    let listener = if options.webapp { Some(bind_webapp(&loaded)?) } else { None };
    Ok(Prepared { options, loaded, listener, drivers: None })
}

/// Binds the web port of a configuration.
pub fn bind_webapp(loaded: &LoadedConfig) -> Result<TcpListener, ProcessError> {
    let place = &loaded.config.webapp;
    web::bind(place).map_err(|source| {
        let address = format!("{}:{}", place.listen_address, place.port);
        ProcessError::Web { address, source }
    })
}

/// The launcher from its first log line to its orderly end; to be called inside a system.
pub async fn serve_launcher(control: &Control, mut prepared: Prepared) -> Result<(), ProcessError> {
    info!("Nodepool launcher {VERSION} starting");
    prepared.loaded.log_warnings();
    let (listener, loaded) = (prepared.listener.take(), prepared.loaded.clone());
    let webapp = listener.as_ref().map(TcpListener::local_addr).transpose();
    let webapp =
        webapp.map_err(|source| ProcessError::System { action: "ask for the web server's address", source })?;
    let running = RunningProcess::start(control, prepared, webapp).await?;
    let viewers = Arbiter::new();
    let web = match listener {
        Some(listener) => {
            let server = web::serve(listener, running.context.clone(), &viewers.handle())
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

/// What lives as long as the process, with its threads.
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
        // Of a launcher and a builder in one process the first, which is the launcher.
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
    let (answer, runtime) = oneshot::channel();
    // It lives as long as the process, so it takes the task and carries it out.
    arbiter.spawn(async move { drop(answer.send(Handle::current())) });
    runtime.await.map_err(|_| ProcessError::System {
        action: "start a thread",
        source: io::Error::other("it ended before it had begun"),
    })
}

fn statsd_sink() -> SampleSink {
    match StatsdAddress::from_environment(|name| std::env::var(name).ok()) {
        Ok(Some(address)) => statsd::start(address),
        Ok(None) => SampleSink::discard(),
        Err(problem) => {
            warn!("{problem}");
            SampleSink::discard()
        }
    }
}

/// What is grown anew with each session.
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

/// Between two sessions, where what is in ZooKeeper could not be read.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Between two looks at the configuration while there is no session.
const CONFIG_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// One tree of actors per session, until we are told to stop.
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
                warn!("the ZooKeeper session is over, starting anew");
            }
            SessionEnd::Panicked(actor) => {
                error!(actor, "an actor panicked, starting anew");
                if context.panics.record(clock::monotonic_now()) == Recovery::Exit {
                    return Err(ProcessError::Panics(context.panics.count()));
                }
            }
        }
        loaded = newest_config(context, loaded).await;
    }
}

/// A session, with the servers that the configuration names by then: they may have moved. At first what cannot be right ends us; later it
/// was right once, and is about to be so again: a certificate that is being replaced, say.
async fn connect(
    context: &Arc<ProcessContext>,
    loaded: &mut LoadedConfig,
    mut is_first: bool,
) -> Result<Arc<RealConnection>, ConnectError> {
    let mut watch = ConfigWatch::new(loaded);
    loop {
        let connecting = async {
            let options = ConnectOptions::from_config(&loaded.config.zookeeper)?;
            connect_until(options, std::future::pending()).await
        };
        let changed = async {
            loop {
                tokio::time::sleep(CONFIG_POLL_INTERVAL).await;
                if let Some(poll) = watch.poll(&context.options)
                    && let Some(changed) = watch.complete_poll(poll.await)
                {
                    return changed;
                }
            }
        };
        let changed_config = tokio::select! {
            connected = connecting => match connected {
                Ok(connection) => return Ok(connection.expect("nobody cancels this")),
                Err(error) if is_first => return Err(error),
                Err(error) => {
                    warn!(%error, "no connection to ZooKeeper, trying again");
                    None
                }
            },
            changed = changed => Some(changed),
        };
        match changed_config {
            Some(changed) => {
                context.set_active_config(changed.clone());
                (*loaded, is_first) = (changed, false);
            }
            None => {
                tokio::time::sleep(MAX_RETRY_INTERVAL).await;
                *loaded = newest_config(context, loaded.clone()).await;
                // A look that was under way has been left.
                watch = ConfigWatch::new(loaded);
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
    // A task of its own, so that a panic in the root itself ends no more than one in any other actor.
    let running = match role {
        Role::Launcher => actix_rt::spawn(launcher::run_session(zk, context.clone(), loaded)),
        Role::Builder(setup) => actix_rt::spawn(builder::run_session(zk, context.clone(), setup.clone(), loaded)),
    };
    let end = running.await.unwrap_or_else(|_| SessionEnd::Panicked(role.name().to_owned()));
    server_updates.abort();
    session_status.abort();
    // Whatever still holds on to the session: from here on it owns nothing in ZooKeeper any more.
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

/// The files as they are now; what was last in force, where they are broken at the moment, or somebody is just writing them: half of a
/// configuration may be one all the same. Whoever watches them sees what they are then.
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
    // A sender that is gone means that nobody can stop us in order any more, so we stop.
    let _ = shutdown.wait_for(Option::is_some).await;
}
