//! PoolWorker: imperative shell of `Pool`. Feeds events to it and performs its effects.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix::{Actor, ActorContext, ArbiterHandle, AsyncContext, Context, Handler, Message, SpawnHandle};
use tokio::sync::watch;
use tracing::{debug, info, info_span, warn};

use super::pool_launches::HeldLocks;
use super::pool_registration::ComponentState;
use super::request_lease::RequestLease;
use crate::actors::provider::jobs::{JobId, JobUpdate, ProviderHandle, Submit};
use crate::actors::runtime::actor_tasks::ActorTasks;
use crate::actors::runtime::log_context::LogContext;
use crate::actors::runtime::messages::{Dump, ExplainRequest, Shutdown};
use crate::actors::runtime::panics::PanicGuard;
use crate::actors::runtime::reconcile::{Reconcile, Triggers, cooldown_after};
use crate::actors::runtime::registry::Registration;
use crate::actors::runtime::{clock, invariant_guard, profile};
use crate::actors::telemetry::samples::SampleSink;
use crate::actors::telemetry::traces::{Tracer, Traces};
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::job::{Job, JobEvent, Outcome};
use nodepool_model::config::Config;
use nodepool_model::records::ids::{LauncherId, NodeId, PoolId, ProviderName, RequestId};
use nodepool_model::records::static_host::{HostCheck, HostIdentity};
use nodepool_model::records::time::MonotonicTime;
use nodepool_model::report::status::PoolVerdict;
use nodepool_model::snapshot::{RequestChange, Snapshot, WriteError};
use nodepool_policy::invariants::nodes::check_fulfilled;
use nodepool_policy::pool::{Effect, Event, LivenessResult, Pool};
use nodepool_policy::request::handler::ImmediateFulfillment;
use nodepool_policy::scheduler::shared_pools::SharedPoolState;
use nodepool_policy::scheduler::tenant_usage::{PendingTenantUsage, TenantReservations};
use nodepool_zk::txn::store::Store;

/// Constructor dependencies of a PoolWorker.
pub struct PoolWorkerDeps {
    pub id: PoolId,
    pub launcher: LauncherId,
    pub hostname: String,
    pub version: &'static str,
    /// `host:port` of this process's web server.
    pub webapp: Option<String>,
    pub config: Arc<Config>,
    pub provider: ProviderHandle,
    /// Number of requests that all pools of the provider currently handle.
    pub busy: Arc<AtomicUsize>,
    /// State shared by the pools of this process.
    pub shared_pools: watch::Sender<SharedPoolState>,
    pub store: Store,
    pub tick_interval: Duration,
    pub guard: PanicGuard,
    pub samples: SampleSink,
    pub tracer: Tracer,
    /// Arbiter on which scans for host keys run.
    pub cloud_arbiter: ArbiterHandle,
    pub dumps: crate::actors::runtime::dump::DumpRegistry,
    pub explain_registry: crate::actors::process::context::ExplainRegistry,
}

pub struct PoolWorker {
    pub(crate) deps: PoolWorkerDeps,
    pub(super) pool: Pool,
    pub(crate) triggers: Triggers,
    pub(crate) held_locks: HeldLocks,
    pub(crate) actor_tasks: ActorTasks<Self>,
    pub(crate) traces: Traces,
    /// Fires at the earliest time that a launch waits for.
    timer: Option<(MonotonicTime, SpawnHandle)>,
    facts: BTreeMap<ProviderName, Arc<ProviderFacts>>,
    pub(super) component: ComponentState,
    probes: BTreeMap<JobId, (RequestId, NodeId)>,
    last_job_id: u64,
    registrations: Vec<Registration>,
}

/// The actor tree stops together with its session: no work can be completed any more.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Abort;

/// The configuration changed; the provider's TaskManager may have been replaced.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ReconfigurePoolWorker {
    pub config: Arc<Config>,
    pub provider: ProviderHandle,
}

impl PoolWorker {
    pub fn new(deps: PoolWorkerDeps) -> Self {
        let mut triggers = Triggers::new(deps.store.mirror().clone());
        triggers.watch_facts(vec![deps.provider.facts.clone()]);
        triggers.watch_shared_pools(deps.shared_pools.subscribe());
        Self {
            pool: Pool::new(deps.id.clone(), deps.launcher.clone()),
            triggers,
            held_locks: HeldLocks::default(),
            actor_tasks: ActorTasks::default(),
            traces: deps.tracer.traces(),
            timer: None,
            facts: BTreeMap::new(),
            component: ComponentState::default(),
            probes: BTreeMap::new(),
            last_job_id: 0,
            registrations: Vec::new(),
            deps,
        }
    }

    pub(crate) fn handle_event(&mut self, event: Event, ctx: &mut Context<Self>) {
        let snapshot = self.triggers.snapshot();
        self.read_shared_pools();
        self.pool.update_leases(&self.deps.shared_pools.borrow());
        let effects = self.decide(&snapshot, event);
        self.log_waiting(&snapshot);
        self.perform_all(effects, ctx);
        self.update_paused(ctx);
        self.publish_pending_usage();
        self.publish_line();
        if let Some(reservations) = self.pool.tenant_reservations() {
            let was_changed = self
                .deps
                .shared_pools
                .send_if_modified(|shared_pools| shared_pools.publish_reservations(&self.deps.launcher, reservations));
            if was_changed {
                // The pool's own change triggers no further pass. Changes of other pools are read together with it.
                self.read_shared_pools();
            }
        }
    }

    fn log_waiting(&mut self, snapshot: &Snapshot) {
        let reports = self.pool.take_reports();
        let (pool, launcher) = (&self.deps.id, &self.deps.launcher);
        for (id, reason) in reports {
            let _pool = info_span!("pool", %pool).entered();
            let event = snapshot.request(&id).and_then(|stored| stored.record.event_id.clone());
            let log_context = LogContext::request(&id, event.as_deref());
            let (event_id, node_request_id) = (log_context.event_id(), log_context.request_id());
            info!(target: "nodepool.driver.NodeRequestHandler", %launcher, node_request_id, event_id, "waits, because {reason}");
        }
    }

    /// Publishes the pending tenant usage. A decrease wakes the other pools: capacity that they lacked may be free now.
    fn publish_pending_usage(&self) {
        let (launcher, pending_usage) = (&self.deps.launcher, self.pool.pending_usage());
        self.deps
            .shared_pools
            .send_if_modified(|shared_pools| shared_pools.publish_pending_usage(launcher, pending_usage));
    }

    /// Publishes the pool's part in the lines of its provider, which wakes the provider's other pools.
    fn publish_line(&self) {
        let (provider, launcher) = (&self.deps.id.provider, &self.deps.launcher);
        self.deps
            .shared_pools
            .send_if_modified(|shared_pools| shared_pools.publish_line(provider, launcher, self.pool.line()));
    }

    fn read_shared_pools(&mut self) {
        if let Some(shared_pools) = self.triggers.changed_shared_pools() {
            self.pool.update_shared_state(&shared_pools);
        }
    }

    /// Decides an event of one launch on the current snapshot, without copying it: with thousands of launches, the
    /// copies would be most of the work.
    pub(crate) fn handle_event_on_latest(&mut self, event: Event, ctx: &mut Context<Self>) {
        let mirror = self.deps.store.mirror().clone();
        let effects = mirror.with_snapshot(|snapshot| self.decide(snapshot, event));
        self.perform_all(effects, ctx);
        self.publish_pending_usage();
    }

    fn decide(&mut self, snapshot: &Snapshot, event: Event) -> Vec<Effect> {
        self.facts.insert(self.deps.id.provider.clone(), self.deps.provider.facts.borrow().clone());
        let inputs = clock::inputs(&self.deps.config, snapshot, &self.facts);
        let own = self.pool.busy();
        self.pool.set_other_pools_busy(self.deps.busy.load(Ordering::Relaxed).saturating_sub(own));
        let effects = self.pool.step(event, &inputs);
        // All pools run on one thread, so no other pool changes the counter in between.
        self.deps.busy.fetch_add(self.pool.busy().wrapping_sub(own), Ordering::Relaxed);
        for effect in &effects {
            if let Effect::Finish { request, finish } = effect {
                self.check_invariants(request, finish, snapshot);
            }
        }
        effects
    }

    fn perform_all(&mut self, effects: Vec<Effect>, ctx: &mut Context<Self>) {
        for effect in effects {
            self.perform(effect, ctx);
        }
        if self.pool.has_more() {
            self.triggers.requeue_now();
        }
        self.set_timer(ctx);
    }

    fn set_timer(&mut self, ctx: &mut Context<Self>) {
        let due = self.pool.due();
        if self.timer.as_ref().map(|(time, _)| *time) == due {
            return;
        }
        if let Some((_, timer)) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        self.timer = due.map(|due| {
            let wait = (due - clock::monotonic_now()).to_duration().max(Duration::from_millis(1));
            let timer = ctx.run_later(wait, |act, ctx| {
                act.timer = None;
                act.handle_event(Event::Clock, ctx);
            });
            (due, timer)
        });
    }

    pub(crate) fn next_job_id(&mut self) -> JobId {
        self.last_job_id += 1;
        JobId(self.last_job_id)
    }

    /// Handles the answer to a write. The write may have freed nodes, so the pool reconciles again, together with other
    /// changes.
    pub(crate) fn handle_write_result(&mut self, event: Event, ctx: &mut Context<Self>) {
        self.handle_event_on_latest(event, ctx);
        self.triggers.requeue_now();
    }

    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        let store = self.deps.store.clone();
        match effect {
            Effect::Fulfill(plan) => self.fulfill(*plan, ctx),
            Effect::Decline { request, reasons } => self.decline(*request, reasons, ctx),
            Effect::Probe { request, node, host } => self.probe(request, node, host, ctx),
            Effect::Claim(claim) => self.claim(*claim, ctx),
            Effect::Adopt(adoption) => self.adopt(*adoption, ctx),
            Effect::Extend { request, reuse, create } => self.extend(request, reuse, create, ctx),
            Effect::Release(nodes) => self.release(nodes, ctx),
            Effect::Begin { request, nodes } => self.begin(request, nodes, ctx),
            Effect::Save(change) => self.save(*change, ctx),
            Effect::Finish { request, finish } => self.finish(request, *finish, ctx),
            Effect::Submit { node, job } => self.submit(node, job, ctx),
            Effect::Abandon { node } => self.abandon(&node, ctx),
            Effect::ShowConsole { node, external_id, text } => {
                let provider = &self.deps.id.provider;
                let _span = self.held_locks.log_context(&node).span().entered();
                info!(target: "nodepool.StateMachineNodeLauncher", %provider, "Console log from external id {external_id}:");
                for line in text.lines() {
                    info!(target: "nodepool.StateMachineNodeLauncher", %provider, "{line}");
                }
            }
            Effect::Scan { node, target } => self.scan(node, target, ctx),
            Effect::Refresh => self.refresh(ctx),
            Effect::Report { node, result, took, zone } => self.report_launch(&node, result, took, zone),
            Effect::Evict(change) => {
                let node = change.id.clone();
                let writing = async move { store.save(*change).await };
                self.actor_tasks.spawn(ctx, writing, move |result, act, ctx| {
                    let pool = &act.deps.id;
                    info!(target: "nodepool.PoolWorker", %pool, node_id = %node, ?result, "deleting an idle node to free capacity");
                    act.handle_write_result(Event::Evicted(result), ctx);
                });
            }
            Effect::Retire { node, version } => {
                let id = node.clone();
                let writing = async move { store.remove_node(&id, version).await };
                self.actor_tasks.spawn(ctx, writing, move |result, act, ctx| {
                    log_retired(&node, &result);
                    act.handle_write_result(Event::Retired(node, result), ctx);
                });
            }
        }
    }

    fn fulfill(&mut self, plan: ImmediateFulfillment, ctx: &mut Context<Self>) {
        let (id, nodes) = (plan.request.id.clone(), plan.request.record.nodes.clone());
        let record = self.traces.clone_if_traced(&plan.request.record);
        let log_context = LogContext::request(&id, plan.request.record.event_id.as_deref());
        let (store, created) = (self.deps.store.clone(), plan.request.record.created_time);
        let assigned = |id: &NodeId| plan.nodes.iter().find(|node| node.id == *id).map(|node| &node.record);
        let checked = invariant_guard::enforce(check_fulfilled(&id, &plan.request.record, assigned));
        let writing = async move {
            checked?;
            store.fulfill(plan.request, plan.nodes).await
        };
        let lease = RequestLease::acquire(&self.deps.shared_pools, &self.deps.id, &id);
        self.actor_tasks.spawn(ctx, writing, move |result, act, ctx| {
            lease.release(result.is_ok());
            if result.is_ok() {
                act.notify_reused(&nodes);
                act.record_fulfilled(created);
                act.traces.request_accepted(&id, record.as_ref(), &act.deps.id);
                act.traces.request_ended(&id, "fulfilled");
            }
            act.log_write("fulfill", &log_context, format_args!("{nodes:?}"), &result);
            act.handle_write_result(Event::Fulfilled(id, result), ctx);
        });
    }

    fn decline(&mut self, request: RequestChange, reasons: Vec<String>, ctx: &mut Context<Self>) {
        let (id, record) = (request.id.clone(), self.traces.clone_if_traced(&request.record));
        let log_context = LogContext::request(&id, request.record.event_id.as_deref());
        let store = self.deps.store.clone();
        let writing = async move { store.decline(request).await };
        self.actor_tasks.spawn(ctx, writing, move |result, act, ctx| {
            if result.is_ok() {
                act.traces.request_declined(&id, record.as_ref(), &act.deps.id, &reasons);
            }
            act.log_write("decline", &log_context, format_args!("{}", reasons.join("; ")), &result);
            act.handle_write_result(Event::Declined(id, result), ctx);
        });
    }

    fn probe(&mut self, request: RequestId, node: NodeId, host: HostIdentity, ctx: &mut Context<Self>) {
        let job_id = self.next_job_id();
        let event = self.triggers.latest().request(&request).and_then(|known| known.record.event_id.clone());
        let log_context = LogContext { event, request: Some(request.clone()), node: Some(node.clone()) };
        self.probes.insert(job_id, (request, node));
        let submit = Submit::new(job_id, Job::Probe(host), ctx.address().recipient()).with_log_context(log_context);
        // Bounded by the idle nodes of the pool. A stopped provider answers by dropping the job.
        self.deps.provider.submit.do_send(submit);
    }

    pub(crate) fn log_write(
        &self,
        what: &str,
        log_context: &LogContext,
        detail: fmt::Arguments<'_>,
        result: &Result<(), WriteError>,
    ) {
        let (pool, launcher) = (&self.deps.id, &self.deps.launcher);
        let (event_id, node_request_id) = (log_context.event_id(), log_context.request_id());
        // This field is for JSON logs, where the pool is otherwise only a part of the logger's name.
        let _pool = info_span!("pool", %pool).entered();
        match result {
            Ok(()) => {
                info!(target: "nodepool.driver.NodeRequestHandler", %launcher, node_request_id, event_id, %detail, "{what}")
            }
            Err(WriteError::Conflict | WriteError::Contended) => {
                debug!(target: "nodepool.driver.NodeRequestHandler", %launcher, node_request_id, event_id, %detail, "{what}: lost a race: the record changed since the snapshot");
            }
            Err(error) => {
                warn!(target: "nodepool.driver.NodeRequestHandler", %launcher, node_request_id, event_id, %detail, %error, "{what} failed");
            }
        }
    }

    /// Releases the reservations of requests that wait in this pool, for use by other pools.
    fn release_reservations(&self) {
        let launcher = &self.deps.launcher;
        self.deps.shared_pools.send_if_modified(|shared_pools| {
            let has_released = shared_pools.publish_reservations(launcher, &TenantReservations::new());
            shared_pools.publish_pending_usage(launcher, &PendingTenantUsage::new()) || has_released
        });
    }

    fn stop_when_idle(&mut self, ctx: &mut Context<Self>) {
        if self.pool.is_idle() && self.component.is_unregistered {
            ctx.stop();
        } else {
            ctx.run_later(Duration::from_millis(20), Self::stop_when_idle);
        }
    }
}

fn log_retired(node: &NodeId, result: &Result<(), WriteError>) {
    match result {
        Ok(()) => {
            warn!(target: "nodepool.driver.static", node_id = %node, "host is down, node deregistered until it responds")
        }
        Err(WriteError::Conflict | WriteError::Contended) => {
            info!(target: "nodepool.driver.static", node_id = %node, "host is down; its node was deregistered or changed meanwhile");
        }
        Err(error) => {
            warn!(target: "nodepool.driver.static", node_id = %node, %error, "host is down, but its node cannot be deregistered");
        }
    }
}

impl Reconcile for PoolWorker {
    fn triggers(&mut self) -> &mut Triggers {
        &mut self.triggers
    }

    fn reconcile(&mut self, ctx: &mut Context<Self>) {
        self.handle_event(Event::Wake, ctx);
    }

    /// Proportional to the duration of the run, if that is worth a timer.
    fn cooldown(took: Duration) -> Option<Duration> {
        cooldown_after(took)
    }
}

impl Actor for PoolWorker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let name = format!("{}/{}", self.deps.id.provider, self.deps.id.pool);
        let dumps = self.deps.dumps.register("PoolWorker", name.clone(), ctx.address().downgrade().recipient());
        let explain_registry =
            self.deps.explain_registry.register("PoolWorker", name, ctx.address().downgrade().recipient());
        self.registrations = vec![dumps, explain_registry];
        self.register(ctx);
        Self::start_reconciler(ctx);
        self.actor_tasks.spawn_interval(ctx, self.deps.tick_interval, |act, ctx| {
            act.register(ctx);
            act.handle_event(Event::Tick, ctx);
        });
    }
}

impl Drop for PoolWorker {
    fn drop(&mut self) {
        self.deps.busy.fetch_sub(self.pool.busy(), Ordering::Relaxed);
        self.release_reservations();
    }
}

impl Handler<JobUpdate> for PoolWorker {
    type Result = ();

    fn handle(&mut self, message: JobUpdate, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("JobUpdate");
        if self.on_launch_update(&message, ctx) {
            return;
        }
        let JobEvent::Finished(result) = message.event else { return };
        let Some((request, node)) = self.probes.remove(&message.job_id) else { return };
        let found = match result {
            Ok(Outcome::Inspected(_, HostCheck::Failed { reason, .. })) => LivenessResult::Dead(reason),
            Ok(_) => LivenessResult::Alive,
            Err(error) => LivenessResult::NotChecked(error.to_string()),
        };
        self.handle_event(Event::Probed(request, node, found), ctx);
        self.triggers.requeue_now();
    }
}

impl Handler<ReconfigurePoolWorker> for PoolWorker {
    type Result = ();

    fn handle(&mut self, message: ReconfigurePoolWorker, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Reconfigure");
        self.deps.config = message.config;
        self.triggers.watch_facts(vec![message.provider.facts.clone()]);
        self.deps.provider = message.provider;
        self.register(ctx);
    }
}

impl Handler<Shutdown> for PoolWorker {
    type Result = ();

    /// The pool was removed from the configuration: work in progress is completed, nothing new is started.
    fn handle(&mut self, _: Shutdown, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Shutdown");
        self.handle_event(Event::Draining, ctx);
        self.release_reservations();
        self.unregister(ctx);
        self.stop_when_idle(ctx);
    }
}

impl Handler<Abort> for PoolWorker {
    type Result = ();

    fn handle(&mut self, _: Abort, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Abort");
        ctx.stop();
    }
}

impl Handler<ExplainRequest> for PoolWorker {
    type Result = Option<PoolVerdict>;

    fn handle(&mut self, message: ExplainRequest, _: &mut Context<Self>) -> Option<PoolVerdict> {
        let _measured = profile::time_handler::<Self>("ExplainRequest");
        self.pool.last_verdict(&message.0, &self.triggers.latest())
    }
}

impl Handler<Dump> for PoolWorker {
    type Result = Option<serde_json::Value>;

    fn handle(&mut self, _: Dump, _: &mut Context<Self>) -> Option<serde_json::Value> {
        let _measured = profile::time_handler::<Self>("Dump");
        serde_json::to_value(self.pool.view(clock::now(), clock::monotonic_now())).ok()
    }
}
