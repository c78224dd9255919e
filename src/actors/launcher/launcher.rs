//! Launcher: root of the actor tree of one ZooKeeper session; owns configuration, children, min-ready and its record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt, ActorStreamExt, Addr, AsyncContext, Context, Handler, Recipient, WrapFuture, WrapStream,
};
use tokio::sync::watch;
use tracing::{info, warn};

use super::backing_worker::{BackingProvider, BackingWorker, BackingWorkerDeps, SetBackingProviders};
use super::cleanup_worker::{self, CleanupWorker, CleanupWorkerDeps};
use super::leak_worker::{LeakWorker, LeakWorkerDeps};
use super::pool_worker::{self, PoolWorker, PoolWorkerDeps};
use super::slot_board::SlotBoard;
use super::stats_worker::{self, StatsWorker};
use crate::actors::process::config_files::LoadedConfig;
use crate::actors::process::config_status::ConfigStatus;
use crate::actors::process::config_watch::ConfigWatch;
use crate::actors::process::context::{ProcessContext, SessionEnd};
use crate::actors::process::registration;
use crate::actors::provider::failed_providers::FailedProviders;
use crate::actors::provider::jobs::{Drain, ProviderHandle, update_facts};
use crate::actors::provider::providers;
use crate::actors::provider::task_manager::{Fence, RefreshMode, TaskManagerDeps};
use crate::actors::runtime::messages::{Dump, ExplainRequest, Shutdown};
use crate::actors::runtime::panics::{PanicGuard, PanicWatch};
use crate::actors::runtime::reconcile::{DEBOUNCE, Reconcile, Triggers, cooldown_after};
use crate::actors::runtime::registry::Registration;
use crate::actors::runtime::{clock, profile};
use nodepool_driver::facts::ProviderFacts;
use nodepool_model::config::Config;
use nodepool_model::records::component::ComponentKind;
use nodepool_model::records::ids::{LabelName, PoolId, ProviderName, RequestId};
use nodepool_model::records::request::MIN_READY_PRIORITY;
use nodepool_model::report::status::PoolVerdict;
use nodepool_model::snapshot::WriteError;
use nodepool_policy::reload::{self, Change};
use nodepool_policy::scheduler::min_ready::{self, MinReady, MinReadyAction};
use nodepool_policy::scheduler::shared_pools::SharedPoolState;
use nodepool_zk::mirror::mirror::Mirror;
use nodepool_zk::txn::store::Store;
use nodepool_zk::{SessionState, Zk};

/// Interval between two attempts to register.
pub const REGISTER_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the actor tree, waits for the end of the session and stops the tree.
pub async fn run_session(zk: Zk, context: Arc<ProcessContext>, loaded: LoadedConfig) -> SessionEnd {
    let mirror = match Mirror::start(zk.clone(), &context.arbiters.runtime).await {
        Ok(mirror) => Arc::new(mirror),
        Err(error) => {
            warn!(target: "nodepool.zk.ZooKeeper", %error, "cannot read ZooKeeper; reconnecting");
            return SessionEnd::ReadFailed;
        }
    };
    context.snapshot_feed.attach_session(&mirror);
    let panics = PanicWatch::new();
    let store = Store::new(zk.clone(), mirror.clone());
    let launcher = Launcher::new(context.clone(), store, loaded, panics.clone()).start();
    let (mut session, mut shutdown) = (zk.session(), context.shutdown.clone());
    let end = tokio::select! {
        biased;
        actor = panics.panicked() => SessionEnd::Panicked(actor),
        _ = session.wait_for(|state| *state == SessionState::Expired) => SessionEnd::Expired,
        () = mirror.store_rolled_back() => SessionEnd::StoreRolledBack,
        _ = shutdown.wait_for(Option::is_some) => SessionEnd::Stopped,
    };
    // The tree stops for every reason, because none of its actors may act on the next session.
    if launcher.send(Shutdown).await.is_err() {
        warn!(target: "nodepool.NodePool", "launcher actor had already stopped");
    }
    end
}

pub struct Launcher {
    context: Arc<ProcessContext>,
    store: Store,
    config: Arc<Config>,
    config_status: ConfigStatus,
    panics: PanicWatch,
    providers: BTreeMap<ProviderName, ProviderHandle>,
    /// Replaced providers with calls in flight, which end with the session at the latest.
    draining_providers: Vec<Recipient<Shutdown>>,
    failed_providers: FailedProviders,
    pools: BTreeMap<PoolId, Addr<PoolWorker>>,
    /// Pools that were removed from the configuration and complete their work.
    draining_pools: Vec<Addr<PoolWorker>>,
    facts: BTreeMap<ProviderName, Arc<ProviderFacts>>,
    /// Requests being handled, per provider over all its pools.
    busy: BTreeMap<ProviderName, Arc<AtomicUsize>>,
    /// State shared by the pools, such as reservations of tenant limits.
    shared_pools: watch::Sender<SharedPoolState>,
    /// Slots of the metastatic providers. They outlive the drivers, and launches outlive a provider that is removed.
    slot_boards: BTreeMap<ProviderName, Arc<SlotBoard>>,
    backing: Option<Addr<BackingWorker>>,
    cleanup: Option<Addr<CleanupWorker>>,
    leaks: Option<Addr<LeakWorker>>,
    /// Exists only if statsd is configured.
    stats: Option<Addr<StatsWorker>>,
    min_ready: MinReady,
    triggers: Triggers,
    registration: Option<Registration>,
    explain_registration: Option<Registration>,
    _guard: PanicGuard,
}

impl Launcher {
    fn new(context: Arc<ProcessContext>, store: Store, loaded: LoadedConfig, panics: PanicWatch) -> Self {
        Self {
            triggers: Triggers::new(store.mirror().clone()),
            config_status: ConfigStatus::new(&context.options, &loaded),
            context,
            store,
            config: loaded.config,
            providers: BTreeMap::new(),
            draining_providers: Vec::new(),
            failed_providers: FailedProviders::default(),
            pools: BTreeMap::new(),
            draining_pools: Vec::new(),
            facts: BTreeMap::new(),
            busy: BTreeMap::new(),
            shared_pools: watch::Sender::default(),
            slot_boards: BTreeMap::new(),
            backing: None,
            cleanup: None,
            leaks: None,
            stats: None,
            min_ready: MinReady::default(),
            registration: None,
            explain_registration: None,
            _guard: panics.guard("Launcher"),
            panics,
        }
    }

    fn task_manager_deps(&self) -> TaskManagerDeps {
        TaskManagerDeps {
            registry: self.context.registry.clone(),
            panics: self.panics.clone(),
            samples: self.context.samples.clone(),
            api_concurrency: self.context.options.api_concurrency,
            image_check: self.context.options.image_check_timeout,
            arbiter: self.context.arbiters.clouds.clone(),
            refresh_mode: RefreshMode::Periodic,
            fence: Some(Fence::new(self.store.zk().clone())),
        }
    }

    fn start_provider(&mut self, name: &ProviderName) {
        let (section, deps) = (self.config.providers[name].clone(), self.task_manager_deps());
        let started = if self.is_metastatic(name) {
            let new_board = || Arc::new(SlotBoard::new(self.store.clone()));
            let board = self.slot_boards.entry(name.clone()).or_insert_with(new_board).clone();
            providers::start_metastatic(&section, deps, board)
        } else {
            providers::start(&section, deps, self.context.drivers.as_deref())
        };
        match started {
            Ok(handle) => {
                info!(target: "nodepool.ProviderManager", provider = %name, "provider started");
                self.failed_providers.remove(name);
                self.providers.insert(name.clone(), handle);
            }
            Err(diagnostics) => {
                // The pools of this provider are neither started nor registered, so other launchers serve requests for
                // its labels.
                self.failed_providers.record_failure(name, &diagnostics);
            }
        }
    }

    /// Retries failed providers: files that a driver reads besides its section, such as clouds.yaml, may be written
    /// later.
    fn start_missing_providers(&mut self, ctx: &mut Context<Self>) {
        let (config, running) = (self.config.clone(), self.providers.len());
        let missing: Vec<_> = config.providers.keys().filter(|name| !self.providers.contains_key(*name)).collect();
        missing.into_iter().for_each(|name| self.start_provider(name));
        if self.providers.len() > running {
            self.follow_driver_files();
            self.sync_children(ctx);
        }
    }

    fn log_out_of_service(&self) {
        for (name, reason) in &self.config.out_of_service {
            warn!(target: "nodepool.ProviderManager", provider = %name, reason, "provider is out of service");
        }
    }

    fn drain_provider(&mut self, name: &ProviderName) {
        self.failed_providers.remove(name);
        if let Some(handle) = self.providers.remove(name) {
            handle.drain.do_send(Drain);
            self.draining_providers.retain(Recipient::connected);
            self.draining_providers.push(handle.stop);
        }
    }

    /// Starts all missing pools of the running providers. All are registered in the shared state before the first one
    /// starts, so that none declines a request that another one will serve.
    fn start_missing_pools(&mut self) {
        let is_missing = |id: &PoolId| self.providers.contains_key(&id.provider) && !self.pools.contains_key(id);
        let missing: Vec<PoolId> = self.config.pools().filter(is_missing).collect();
        self.shared_pools.send_modify(|shared_pools| {
            missing.iter().for_each(|id| shared_pools.register(self.context.identity.launcher_id(id)));
        });
        for id in &missing {
            self.start_pool(id, self.providers[&id.provider].clone());
        }
    }

    fn start_pool(&mut self, id: &PoolId, provider: ProviderHandle) {
        let deps = PoolWorkerDeps {
            id: id.clone(),
            launcher: self.context.identity.launcher_id(id),
            hostname: self.context.identity.hostname.clone(),
            version: env!("CARGO_PKG_VERSION"),
            webapp: self.context.webapp.clone(),
            config: self.config.clone(),
            provider,
            busy: self.busy.entry(id.provider.clone()).or_default().clone(),
            shared_pools: self.shared_pools.clone(),
            store: self.store.clone(),
            tick_interval: self.context.options.watermark_sleep.to_duration(),
            guard: self.panics.guard(format!("PoolWorker {id}")),
            samples: self.context.samples.clone(),
            tracer: self.context.tracer.clone(),
            cloud_arbiter: self.context.arbiters.clouds.clone(),
            dumps: self.context.registry.clone(),
            explain_registry: self.context.explain_registry.clone(),
        };
        let worker = PoolWorker::start_in_arbiter(&self.context.arbiters.pools, move |_| PoolWorker::new(deps));
        self.pools.insert(id.clone(), worker);
    }

    fn start_cleanup(&mut self) {
        let (options, identity) = (&self.context.options, &self.context.identity);
        let pool = self.config.pools().next();
        let deps = CleanupWorkerDeps {
            feed: self.context.snapshot_feed.clone(),
            // Launchers on one host share the host name, but the ids of their pools differ.
            name: pool.map_or_else(|| identity.fqdn.clone(), |pool| identity.launcher_id(&pool).to_string()),
            config: self.config.clone(),
            providers: self.providers.clone(),
            store: self.store.clone(),
            sweep_interval: options.cleanup_interval.to_duration(),
            tick_interval: options.delete_interval.to_duration(),
            lock_age: options.lock_cleanup,
            guard: self.panics.guard("CleanupWorker"),
            dumps: self.context.registry.clone(),
        };
        self.cleanup =
            Some(CleanupWorker::start_in_arbiter(&self.context.arbiters.pools, move |_| CleanupWorker::new(deps)));
    }

    fn start_leak_worker(&mut self) {
        let deps = LeakWorkerDeps {
            config: self.config.clone(),
            providers: self.providers.clone(),
            store: self.store.clone(),
            sweep_interval: self.context.options.cleanup_interval.to_duration(),
            samples: self.context.samples.clone(),
            guard: self.panics.guard("LeakWorker"),
            dumps: self.context.registry.clone(),
        };
        self.leaks = Some(LeakWorker::start_in_arbiter(&self.context.arbiters.pools, move |_| LeakWorker::new(deps)));
    }

    fn start_backing_worker(&mut self) {
        let deps = BackingWorkerDeps {
            store: self.store.clone(),
            guard: self.panics.guard("BackingWorker"),
            feed: self.context.snapshot_feed.clone(),
            dumps: self.context.registry.clone(),
        };
        let start = |_: &mut Context<BackingWorker>| BackingWorker::new(deps);
        self.backing = Some(BackingWorker::start_in_arbiter(&self.context.arbiters.pools, start));
        self.set_backing_providers();
    }

    /// Whether the launcher itself keeps the instances of a configured provider, in slots of backing nodes.
    fn is_metastatic(&self, name: &ProviderName) -> bool {
        let drivers = self.context.drivers.as_deref();
        self.config.providers.get(name).is_some_and(|section| providers::is_metastatic(section, drivers))
    }

    fn set_backing_providers(&self) {
        let Some(backing) = &self.backing else { return };
        let provider = |(name, board): (&ProviderName, &Arc<SlotBoard>)| {
            let handle = self.providers.get(name).filter(|_| self.is_metastatic(name))?.clone();
            Some((name.clone(), BackingProvider { handle, board: board.clone() }))
        };
        backing.do_send(SetBackingProviders(self.slot_boards.iter().filter_map(provider).collect()));
    }

    fn start_stats_worker(&mut self) {
        self.stats = StatsWorker::start_if_configured(
            self.store.zk().clone(),
            self.context.clone(),
            self.store.mirror().subscribe(),
            self.config.clone(),
            &self.panics,
        );
    }

    fn register(&self, ctx: &mut Context<Self>) {
        let record = self.context.identity.component(ComponentKind::Launcher, self.context.webapp.clone());
        let registering = registration::register(self.store.clone(), record, REGISTER_RETRY_INTERVAL);
        ctx.spawn(registering.into_actor(self));
    }

    fn watch_config(&mut self, ctx: &mut Context<Self>) {
        self.follow_driver_files();
        let loaded = ConfigWatch::new(self.config_status.clone()).into_stream().into_actor(self);
        ctx.spawn(loaded.map(|loaded, act, ctx| act.reconfigure(loaded, ctx)).finish());
    }

    fn follow_driver_files(&self) {
        self.config_status.set_driver_files(providers::driver_files(&self.config, &self.providers));
    }

    fn reconfigure(&mut self, loaded: LoadedConfig, ctx: &mut Context<Self>) {
        let mut changes = reload::diff(&self.config, &loaded.config);
        let to_reopen = providers::providers_to_reopen(&self.config, &loaded.config, &self.providers);
        changes.extend(to_reopen.into_iter().map(Change::ProviderChanged));
        self.context.set_active_config(loaded.clone());
        self.config = loaded.config;
        let texts: Vec<String> = changes.iter().map(Change::to_string).collect();
        let summary = if texts.is_empty() { "no relevant change".to_owned() } else { texts.join(", ") };
        info!(target: "nodepool.NodePool", "configuration loaded: {summary}");
        self.log_out_of_service();
        for change in &changes {
            self.apply(change);
        }
        if !changes.is_empty() {
            self.sync_children(ctx);
        }
        self.follow_driver_files();
    }

    /// Starts, stops and reconfigures child actors to match the configuration and the running providers.
    fn sync_children(&mut self, ctx: &mut Context<Self>) {
        self.stop_pools_without_provider();
        self.start_missing_pools();
        self.reconfigure_children();
        self.reconcile(ctx);
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::ProviderAdded(name) => self.start_provider(name),
            Change::ProviderChanged(name) => {
                self.drain_provider(name);
                self.start_provider(name);
            }
            Change::ProviderRemoved(name) => self.drain_provider(name),
            Change::PoolRemoved(id) => self.stop_pool(id),
            // `sync_children` sends the whole configuration to the running pools and starts the missing ones.
            Change::PoolAdded(_) | Change::PoolChanged(_) | Change::LabelsChanged | Change::LimitsChanged => {}
            Change::ServersChanged => self.context.update_servers(&self.config),
            Change::NeedsRestart(key) => {
                warn!(target: "nodepool.NodePool", key, "changed in the file; a restart applies it, or the next ZooKeeper session");
            }
        }
    }

    /// Stops the pools of providers that failed to start: a pool that cannot serve must not advertise its labels.
    fn stop_pools_without_provider(&mut self) {
        let ended: Vec<PoolId> =
            self.pools.keys().filter(|id| !self.providers.contains_key(&id.provider)).cloned().collect();
        ended.iter().for_each(|id| self.stop_pool(id));
    }

    fn stop_pool(&mut self, id: &PoolId) {
        if let Some(worker) = self.pools.remove(id) {
            worker.do_send(Shutdown);
            self.draining_pools.retain(Addr::connected);
            self.draining_pools.push(worker);
            self.shared_pools
                .send_modify(|shared_pools| shared_pools.unregister(&self.context.identity.launcher_id(id)));
        }
        self.context.identity.forget(id);
    }

    fn reconfigure_children(&mut self) {
        for (id, worker) in &self.pools {
            if let Some(provider) = self.providers.get(&id.provider).cloned() {
                worker.do_send(pool_worker::ReconfigurePoolWorker { config: self.config.clone(), provider });
            }
        }
        if let Some(cleanup) = &self.cleanup {
            cleanup.do_send(cleanup_worker::ReconfigureCleanupWorker {
                config: self.config.clone(),
                providers: self.providers.clone(),
            });
        }
        self.set_backing_providers();
        if let Some(leaks) = &self.leaks {
            leaks.do_send(cleanup_worker::ReconfigureCleanupWorker {
                config: self.config.clone(),
                providers: self.providers.clone(),
            });
        }
        if let Some(stats) = &self.stats {
            stats.do_send(stats_worker::ReconfigureStatsWorker(self.config.clone()));
        }
        self.follow_facts();
    }

    fn follow_facts(&mut self) {
        self.triggers.watch_facts(self.providers.values().map(|provider| provider.facts.clone()).collect());
        let facts = self.providers.iter().map(|(name, provider)| (name.clone(), provider.facts.clone()));
        self.context.snapshot_feed.set_facts(facts.collect());
    }

    fn submit_min_ready(&mut self, label: LabelName, ctx: &mut Context<Self>) {
        let event = nodepool_rng::uuid().simple().to_string();
        let request = min_ready::request(&label, event.clone(), clock::now());
        let store = self.store.clone();
        let submitting = async move { store.submit_own_request(MIN_READY_PRIORITY, request).await };
        ctx.spawn(submitting.into_actor(self).map(move |result: Result<RequestId, WriteError>, act, _| {
            match &result {
                Ok(id) => {
                    info!(target: "nodepool.NodePool", node_request_id = %id, %label, "requested a min-ready node")
                }
                Err(error) => warn!(target: "nodepool.NodePool", %label, %error, "cannot request a min-ready node"),
            }
            if result.is_err() {
                // The request may exist nevertheless, and the snapshot may contain it already.
                act.triggers.requeue_now();
            }
            act.min_ready.submitted(&label, &event, result.ok(), clock::monotonic_now());
        }));
    }
}

impl Reconcile for Launcher {
    fn triggers(&mut self) -> &mut Triggers {
        &mut self.triggers
    }

    /// Min-ready is the only decision of the root about nodes.
    fn reconcile(&mut self, ctx: &mut Context<Self>) {
        let snapshot = self.triggers.snapshot();
        update_facts(&mut self.facts, &self.providers);
        let inputs = clock::inputs(&self.config, &snapshot, &self.facts);
        let now = inputs.monotonic_now;
        let actions = self.min_ready.plan(self.shared_pools.borrow().started_pools(), &inputs);
        for action in actions {
            match action {
                MinReadyAction::Submit(label) => self.submit_min_ready(label, ctx),
                MinReadyAction::Finish { request, nodes } => {
                    let (store, id) = (self.store.clone(), request.clone());
                    let finishing = async move { store.finish_min_ready(&id, nodes).await };
                    ctx.spawn(finishing.into_actor(self).map(move |result, act, _| {
                        act.min_ready.finished(&request, result.is_ok());
                        act.triggers.requeue_now();
                    }));
                }
            }
        }
        // Relative to the time of the plan, so that an action that became due since then is not missed.
        self.triggers.requeue_at(self.min_ready.due(now));
    }

    fn cooldown(took: Duration) -> Option<Duration> {
        Some(cooldown_after(took).unwrap_or_default().max(DEBOUNCE))
    }
}

impl Actor for Launcher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.registration = Some(self.context.registry.register("Launcher", "", ctx.address().downgrade().recipient()));
        self.explain_registration =
            Some(self.context.explain_registry.register("Launcher", "", ctx.address().downgrade().recipient()));
        self.register(ctx);
        self.log_out_of_service();
        let config = self.config.clone();
        config.providers.keys().for_each(|name| self.start_provider(name));
        self.start_missing_pools();
        self.start_cleanup();
        self.start_leak_worker();
        self.start_backing_worker();
        self.start_stats_worker();
        self.follow_facts();
        self.reconcile(ctx);
        Self::start_reconciler(ctx);
        self.context.ready.send_replace(true);
        self.watch_config(ctx);
        let retry = self.context.options.provider_retry.to_duration();
        ctx.run_interval(retry, |act, ctx| act.start_missing_providers(ctx));
        ctx.run_interval(self.context.options.watermark_sleep.to_duration(), |act, _| act.triggers.requeue_now());
    }
}

impl Handler<Shutdown> for Launcher {
    type Result = ();

    /// The session is over or about to be closed: all actors stop at once.
    fn handle(&mut self, _: Shutdown, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Shutdown");
        let workers = std::mem::take(&mut self.pools).into_values();
        for worker in workers.chain(std::mem::take(&mut self.draining_pools)) {
            worker.do_send(pool_worker::Abort);
        }
        if let Some(cleanup) = self.cleanup.take() {
            cleanup.do_send(Shutdown);
        }
        if let Some(leaks) = self.leaks.take() {
            leaks.do_send(Shutdown);
        }
        if let Some(backing) = self.backing.take() {
            backing.do_send(Shutdown);
        }
        if let Some(stats) = self.stats.take() {
            stats.do_send(Shutdown);
        }
        let providers = std::mem::take(&mut self.providers).into_values().map(|provider| provider.stop);
        providers.chain(self.draining_providers.drain(..)).for_each(|provider| provider.do_send(Shutdown));
        actix::ActorContext::stop(ctx);
    }
}

/// Answers for pools whose provider failed to start.
impl Handler<ExplainRequest> for Launcher {
    type Result = Option<PoolVerdict>;

    fn handle(&mut self, message: ExplainRequest, _: &mut Context<Self>) -> Option<PoolVerdict> {
        let _measured = profile::time_handler::<Self>("ExplainRequest");
        let snapshot = self.triggers.snapshot();
        let request = snapshot.request(&message.0)?;
        self.failed_providers.verdict_for(&request.record, &self.config, |id| self.context.identity.launcher_id(id))
    }
}

impl Handler<Dump> for Launcher {
    type Result = Option<serde_json::Value>;

    fn handle(&mut self, _: Dump, _: &mut Context<Self>) -> Option<serde_json::Value> {
        let _measured = profile::time_handler::<Self>("Dump");
        Some(serde_json::json!({
            "actor": "Launcher",
            "providers": self.providers.keys().collect::<Vec<_>>(),
            "out_of_service": self.config.out_of_service,
            "failed_providers": self.failed_providers.view(),
            "pools": self.pools.keys().map(ToString::to_string).collect::<Vec<_>>(),
            "min_ready": self.min_ready.open_requests(),
            "connected": self.triggers.snapshot().connected,
            "nodes": self.triggers.snapshot().node_count(),
            "config_broken": self.config_status.is_broken(),
        }))
    }
}
