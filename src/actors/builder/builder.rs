//! Builder: root actor of the builder's actor tree of one ZooKeeper session. It owns configuration, providers and
//! workers, and registers the builder.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix::{
    Actor, ActorContext, ActorStreamExt, Addr, AsyncContext, Context, Handler, Recipient, WrapFuture, WrapStream,
};
use tracing::{info, warn};

use super::build_job::BuildEnvironment;
use super::build_worker::{self, BuildWorker, BuildWorkerDeps, FactsReceivers};
use super::fake_dib;
use super::image_cleanup_worker::{ImageCleanupDeps, ImageCleanupWorker};
use super::upload_worker::{self, UploadWorker, UploadWorkerDeps};
use super::work_queue::WorkQueue;
use crate::actors::launcher::launcher::REGISTER_RETRY_INTERVAL;
use crate::actors::process::config_files::LoadedConfig;
use crate::actors::process::config_status::ConfigStatus;
use crate::actors::process::config_watch::ConfigWatch;
use crate::actors::process::context::{ProcessContext, SessionEnd, StopRequest};
use crate::actors::process::registration;
use crate::actors::provider::failed_providers::FailedProviders;
use crate::actors::provider::jobs::{Drain, ProviderHandle};
use crate::actors::provider::providers;
use crate::actors::provider::task_manager::{Fence, RefreshMode, TaskManagerDeps};
use crate::actors::runtime::messages::{Dump, Shutdown};
use crate::actors::runtime::panics::{PanicGuard, PanicWatch};
use crate::actors::runtime::profile;
use crate::actors::runtime::registry::Registration;
use nodepool_drivers::common::dib::ImageBuilder;
use nodepool_drivers::common::image_files::ImagesDir;
use nodepool_model::config::{Config, ProviderConfig, driver_limits};
use nodepool_model::records::component::ComponentKind;
use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::time::Seconds;
use nodepool_policy::reload::{self, Change};
use nodepool_zk::mirror::mirror::Mirror;
use nodepool_zk::txn::store::Store;
use nodepool_zk::{SessionState, Zk};

/// Flags and tunables of the builder. Those that it shares with the launcher are in `LauncherOptions`.
#[derive(Clone, Debug, PartialEq)]
pub struct BuilderOptions {
    pub build_workers: usize,
    pub upload_workers: usize,
    /// Back-off after a failed build.
    pub build_interval: Seconds,
    /// Interval of the check whether a running build is still needed.
    pub build_poll_interval: Seconds,
    /// Back-off after a failed upload.
    pub upload_interval: Seconds,
    /// Pause between two uploads of one worker.
    pub upload_pause: Seconds,
    /// Timeout of a post-upload-hook.
    pub hook_timeout: Seconds,
    /// Interval of the clean-up of builds, uploads and files; 0: never.
    pub cleanup_interval: Seconds,
    /// Overrides `dib-cmd` of every image, with a command that writes small files instead of an image.
    pub dib_cmd: Option<String>,
}

impl Default for BuilderOptions {
    fn default() -> Self {
        Self {
            build_workers: 1,
            upload_workers: 4,
            build_interval: Seconds(10.0),
            build_poll_interval: Seconds(30.0),
            upload_interval: Seconds(10.0),
            upload_pause: Seconds::ZERO,
            hook_timeout: Seconds(3600.0),
            cleanup_interval: Seconds(60.0),
            dib_cmd: None,
        }
    }
}

impl BuilderOptions {
    /// These options, with small files instead of images.
    pub fn faked(self) -> Self {
        Self { dib_cmd: Some(fake_dib::command()), ..self }
    }
}

/// Settings of a builder that stay the same over all its ZooKeeper sessions.
#[derive(Clone)]
pub struct BuilderSetup {
    pub options: BuilderOptions,
    /// Generated at the first start and stored in the images directory.
    pub builder_id: String,
    pub maker: Arc<dyn ImageBuilder>,
}

/// Starts the actor tree of one session and waits until the session ends.
pub async fn run_session(
    zk: Zk,
    context: Arc<ProcessContext>,
    setup: BuilderSetup,
    loaded: LoadedConfig,
) -> SessionEnd {
    let mirror = match Mirror::start_images_only(zk.clone(), &context.arbiters.runtime).await {
        Ok(mirror) => Arc::new(mirror),
        Err(error) => {
            warn!(target: "nodepool.zk.ZooKeeper", %error, "cannot read ZooKeeper; reconnecting");
            return SessionEnd::ReadFailed;
        }
    };
    let (panics, work_queue) = (PanicWatch::new(), WorkQueue::default());
    let store = Store::new(zk.clone(), mirror);
    let builder = Builder::new(context.clone(), setup, store, loaded, panics.clone(), work_queue.clone()).start();
    context.ready.send_replace(true);
    let (mut session, mut shutdown) = (zk.session(), context.shutdown.clone());
    let end = tokio::select! {
        biased;
        actor = panics.panicked() => SessionEnd::Panicked(actor),
        _ = session.wait_for(|state| *state == SessionState::Expired) => SessionEnd::Expired,
        () = stopped(&mut shutdown, &work_queue) => SessionEnd::Stopped,
    };
    if builder.send(Shutdown).await.is_err() {
        warn!(target: "nodepool.builder.NodePoolBuilder", "builder actor had already stopped");
    }
    end
}

/// Resolves when the process has to stop. A graceful stop waits for running builds, until a second stop that is not
/// graceful.
async fn stopped(shutdown: &mut tokio::sync::watch::Receiver<Option<StopRequest>>, work_queue: &WorkQueue) {
    let is_graceful = match shutdown.wait_for(Option::is_some).await {
        Ok(stop) => stop.as_ref().is_some_and(|stop| stop.is_graceful),
        // The sender was dropped: no graceful stop can follow.
        Err(_) => false,
    };
    if is_graceful {
        info!(target: "nodepool.builder.NodePoolBuilder", "waiting for running builds; a second signal kills them");
        tokio::select! {
            biased;
            () = work_queue.finish_builds() => {}
            _ = shutdown.wait_for(|stop| stop.as_ref().is_some_and(|stop| !stop.is_graceful)) => {}
        }
    }
}

pub struct Builder {
    context: Arc<ProcessContext>,
    setup: BuilderSetup,
    store: Store,
    config: Arc<Config>,
    config_status: ConfigStatus,
    panics: PanicWatch,
    work_queue: WorkQueue,
    providers: BTreeMap<ProviderName, ProviderHandle>,
    /// Replaced providers with calls in flight, which end with the session at the latest.
    draining_providers: Vec<Recipient<Shutdown>>,
    failed_providers: FailedProviders,
    build_workers: Vec<Addr<BuildWorker>>,
    upload_workers: Vec<Addr<UploadWorker>>,
    cleanup: Option<Addr<ImageCleanupWorker>>,
    registration: Option<Registration>,
    _guard: PanicGuard,
}

impl Builder {
    fn new(
        context: Arc<ProcessContext>,
        setup: BuilderSetup,
        store: Store,
        loaded: LoadedConfig,
        panics: PanicWatch,
        work_queue: WorkQueue,
    ) -> Self {
        Self {
            config_status: ConfigStatus::new(&context.options, &loaded),
            config: loaded.config,
            context,
            setup,
            store,
            work_queue,
            providers: BTreeMap::new(),
            draining_providers: Vec::new(),
            failed_providers: FailedProviders::default(),
            build_workers: Vec::new(),
            upload_workers: Vec::new(),
            cleanup: None,
            registration: None,
            _guard: panics.guard("Builder"),
            panics,
        }
    }

    fn start_provider(&mut self, name: &ProviderName) {
        let section = self.config.providers[name].clone();
        if !supports_images(&section) {
            return;
        }
        let deps = TaskManagerDeps {
            registry: self.context.registry.clone(),
            panics: self.panics.clone(),
            samples: self.context.samples.clone(),
            api_concurrency: self.context.options.api_concurrency,
            image_check: Seconds(f64::INFINITY),
            arbiter: self.context.arbiters.clouds.clone(),
            refresh_mode: RefreshMode::Never,
            fence: Some(Fence::new(self.store.zk().clone())),
        };
        match providers::start(&section, deps, self.context.drivers.as_deref()) {
            Ok(handle) => {
                info!(target: "nodepool.ProviderManager", provider = %name, "provider started");
                self.failed_providers.remove(name);
                self.providers.insert(name.clone(), handle);
            }
            Err(diagnostics) => {
                self.failed_providers.record_failure(name, &diagnostics);
            }
        }
    }

    /// Starts the configured providers that do not run; `true` if at least one started.
    fn start_missing_providers(&mut self) -> bool {
        let (config, running) = (self.config.clone(), self.providers.len());
        let missing: Vec<_> = config.providers.keys().filter(|name| !self.providers.contains_key(*name)).collect();
        missing.into_iter().for_each(|name| self.start_provider(name));
        self.providers.len() > running
    }

    fn drain_provider(&mut self, name: &ProviderName) {
        self.failed_providers.remove(name);
        if let Some(handle) = self.providers.remove(name) {
            handle.drain.do_send(Drain);
            self.draining_providers.retain(Recipient::connected);
            self.draining_providers.push(handle.stop);
        }
    }

    fn facts(&self) -> FactsReceivers {
        self.providers.iter().map(|(name, handle)| (name.clone(), handle.facts.clone())).collect()
    }

    fn start_workers(&mut self) {
        let Some(images) = self.config.images_dir.clone() else {
            warn!(target: "nodepool.builder.NodePoolBuilder", "images-dir was removed from the configuration: nothing is built, uploaded or deleted");
            return;
        };
        let build_env = BuildEnvironment {
            builder: self.context.identity.fqdn.clone(),
            builder_id: self.setup.builder_id.clone(),
            maker: self.setup.maker.clone(),
            images: ImagesDir::new(images),
            samples: self.context.samples.clone(),
            poll_interval: self.setup.options.build_poll_interval,
            config_status: self.config_status.clone(),
        };
        for number in 0..self.setup.options.build_workers {
            self.start_build_worker(number, build_env.clone());
        }
        for number in 0..self.setup.options.upload_workers {
            self.start_upload_worker(number, build_env.clone());
        }
        if self.setup.options.cleanup_interval > Seconds::ZERO {
            self.start_cleanup_worker(build_env);
        }
    }

    fn start_build_worker(&mut self, number: usize, build_env: BuildEnvironment) {
        let deps = BuildWorkerDeps {
            number,
            config: self.config.clone(),
            facts: self.facts(),
            store: self.store.clone(),
            work_queue: self.work_queue.clone(),
            build_env,
            dib_cmd: self.setup.options.dib_cmd.clone(),
            interval: self.setup.options.build_interval,
            guard: self.panics.guard(format!("BuildWorker {number}")),
            dumps: self.context.registry.clone(),
        };
        let worker = BuildWorker::start_in_arbiter(&self.context.arbiters.pools, move |_| BuildWorker::new(deps));
        self.build_workers.push(worker);
    }

    fn start_upload_worker(&mut self, number: usize, build_env: BuildEnvironment) {
        let deps = UploadWorkerDeps {
            number,
            config: self.config.clone(),
            providers: self.providers.clone(),
            store: self.store.clone(),
            work_queue: self.work_queue.clone(),
            build_env,
            interval: self.setup.options.upload_interval,
            pause: self.setup.options.upload_pause,
            hook_timeout: self.setup.options.hook_timeout,
            guard: self.panics.guard(format!("UploadWorker {number}")),
            dumps: self.context.registry.clone(),
        };
        let worker = UploadWorker::start_in_arbiter(&self.context.arbiters.pools, move |_| UploadWorker::new(deps));
        self.upload_workers.push(worker);
    }

    fn start_cleanup_worker(&mut self, build_env: BuildEnvironment) {
        let deps = ImageCleanupDeps {
            config: self.config.clone(),
            providers: self.providers.clone(),
            store: self.store.clone(),
            work_queue: self.work_queue.clone(),
            build_env,
            interval: self.setup.options.cleanup_interval,
            build_workers: self.setup.options.build_workers,
            upload_workers: self.setup.options.upload_workers,
            guard: self.panics.guard("CleanupWorker"),
            dumps: self.context.registry.clone(),
        };
        let worker =
            ImageCleanupWorker::start_in_arbiter(&self.context.arbiters.pools, move |_| ImageCleanupWorker::new(deps));
        self.cleanup = Some(worker);
    }

    /// Registers with the state `running`. A builder of Nodepool 11 stays `stopped`, which no program evaluates.
    fn register(&self, ctx: &mut Context<Self>) {
        let record = self.context.identity.component(ComponentKind::Builder, None);
        let registering = registration::register(self.store.clone(), record, REGISTER_RETRY_INTERVAL);
        ctx.spawn(registering.into_actor(self));
    }

    fn watch_config(&mut self, ctx: &mut Context<Self>) {
        self.follow_driver_files();
        let loaded = ConfigWatch::new(self.config_status.clone()).into_stream().into_actor(self);
        ctx.spawn(loaded.map(|loaded, act, _| act.reconfigure(loaded)).finish());
    }

    fn follow_driver_files(&self) {
        self.config_status.set_driver_files(providers::driver_files(&self.config, &self.providers));
    }

    fn reconfigure(&mut self, loaded: LoadedConfig) {
        let mut changes = reload::diff(&self.config, &loaded.config);
        let to_reopen = providers::providers_to_reopen(&self.config, &loaded.config, &self.providers);
        changes.extend(to_reopen.into_iter().map(Change::ProviderChanged));
        if self.config.images_dir != loaded.config.images_dir {
            changes.push(Change::NeedsRestart("images-dir"));
        }
        self.context.set_active_config(loaded.clone());
        self.config = loaded.config;
        info!(target: "nodepool.builder.NodePoolBuilder", "configuration loaded");
        for change in &changes {
            match change {
                // `start_missing_providers` below starts the new ones and retries those that failed.
                Change::ProviderChanged(name) | Change::ProviderRemoved(name) => self.drain_provider(name),
                Change::ServersChanged => self.context.update_servers(&self.config),
                Change::NeedsRestart(key) => {
                    warn!(target: "nodepool.builder.NodePoolBuilder", key, "changed in the configuration; restart to apply it");
                }
                // Not relevant for a builder.
                Change::ProviderAdded(_)
                | Change::PoolAdded(_)
                | Change::PoolChanged(_)
                | Change::PoolRemoved(_)
                | Change::LabelsChanged
                | Change::LimitsChanged => {}
            }
        }
        self.start_missing_providers();
        self.follow_driver_files();
        self.reconfigure_workers();
    }

    fn reconfigure_workers(&self) {
        let message = build_worker::ReconfigureBuildWorker { config: self.config.clone(), facts: self.facts() };
        self.build_workers.iter().for_each(|worker| worker.do_send(message.clone()));
        let message =
            upload_worker::ReconfigureUploadWorker { config: self.config.clone(), providers: self.providers.clone() };
        self.upload_workers.iter().for_each(|worker| worker.do_send(message.clone()));
        self.cleanup.iter().for_each(|worker| worker.do_send(message.clone()));
    }
}

/// Whether the driver of a provider supports image uploads.
fn supports_images(section: &ProviderConfig) -> bool {
    driver_limits::find(&section.driver).is_some_and(|facts| facts.manages_images)
}

impl Actor for Builder {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.registration = Some(self.context.registry.register("Builder", "", ctx.address().downgrade().recipient()));
        self.register(ctx);
        self.start_missing_providers();
        self.start_workers();
        self.watch_config(ctx);
        // Files that a driver reads besides its section, such as clouds.yaml, may appear after the configuration.
        ctx.run_interval(self.context.options.provider_retry.to_duration(), |act, _| {
            if act.start_missing_providers() {
                act.follow_driver_files();
                act.reconfigure_workers();
            }
        });
    }
}

impl Handler<Shutdown> for Builder {
    type Result = ();

    /// The session ended or is about to be closed: all workers and providers stop at once.
    fn handle(&mut self, _: Shutdown, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Shutdown");
        self.build_workers.drain(..).for_each(|worker| worker.do_send(Shutdown));
        self.upload_workers.drain(..).for_each(|worker| worker.do_send(Shutdown));
        self.cleanup.take().into_iter().for_each(|worker| worker.do_send(Shutdown));
        let providers = std::mem::take(&mut self.providers).into_values().map(|provider| provider.stop);
        providers.chain(self.draining_providers.drain(..)).for_each(|provider| provider.do_send(Shutdown));
        ctx.stop();
    }
}

impl Handler<Dump> for Builder {
    type Result = Option<serde_json::Value>;

    fn handle(&mut self, _: Dump, _: &mut Context<Self>) -> Option<serde_json::Value> {
        let _measured = profile::time_handler::<Self>("Dump");
        Some(serde_json::json!({
            "actor": "Builder",
            "builder_id": self.setup.builder_id,
            "providers": self.providers.keys().collect::<Vec<_>>(),
            "failed_providers": self.failed_providers.view(),
            "images": self.config.diskimages.keys().collect::<Vec<_>>(),
            "config_broken": self.config_status.is_broken(),
        }))
    }
}
