//! CleanupWorker: imperative shell of `CleanupPlanner`. Performs repairs and keeps static hosts registered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};
use tracing::{debug, info, warn};

use super::deletions::{Deletions, obstacles};
use super::label_status_log;
use crate::actors::provider::jobs::{JobId, JobUpdate, ProviderHandle, Submit, update_facts};
use crate::actors::runtime::actor_tasks::ActorTasks;
use crate::actors::runtime::log_context::LogContext;
use crate::actors::runtime::messages::{Dump, Shutdown};
use crate::actors::runtime::panics::PanicGuard;
use crate::actors::runtime::reconcile::{Reconcile, SHORT_DEBOUNCE, Triggers, cooldown_after};
use crate::actors::runtime::registry::Registration;
use crate::actors::runtime::snapshot_feed::SnapshotFeed;
use crate::actors::runtime::{clock, invariant_guard, profile};
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::job::{Job, JobEvent};
use nodepool_model::config::Config;
use nodepool_model::records::ids::{NodeId, ProviderName};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::static_host::HostIdentity;
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::{NodeChange, WriteError};
use nodepool_policy::cleanup::planner::{CleanupPlanner, Effect, Event};
use nodepool_policy::cleanup::rules::Repair;
use nodepool_policy::invariants::nodes::check_usage_totals;
use nodepool_zk::txn::store::Store;

pub struct CleanupWorkerDeps {
    /// Receives the deletions that are held up, for the page.
    pub feed: SnapshotFeed,
    /// Unique among launchers.
    pub name: String,
    pub config: Arc<Config>,
    pub providers: BTreeMap<ProviderName, ProviderHandle>,
    pub store: Store,
    /// Interval of the slow rules.
    pub sweep_interval: Duration,
    /// Interval of the event-driven rules, as a safety net for missed events.
    pub tick_interval: Duration,
    /// Age at which the lock directory of a deleted request is removed.
    pub lock_age: Seconds,
    pub guard: PanicGuard,
    pub dumps: crate::actors::runtime::dump::DumpRegistry,
}

pub struct CleanupWorker {
    pub(crate) deps: CleanupWorkerDeps,
    planner: CleanupPlanner,
    triggers: Triggers,
    facts: BTreeMap<ProviderName, Arc<ProviderFacts>>,
    checks: BTreeMap<JobId, (ProviderName, Option<HostIdentity>)>,
    pub(crate) deletions: Deletions,
    pub(crate) actor_tasks: ActorTasks<Self>,
    last_job_id: u64,
    registration: Option<Registration>,
}

/// The configuration changed, and possibly the providers with it.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ReconfigureCleanupWorker {
    pub config: Arc<Config>,
    pub providers: BTreeMap<ProviderName, ProviderHandle>,
}

impl CleanupWorker {
    pub fn new(deps: CleanupWorkerDeps) -> Self {
        let mut triggers = Triggers::new(deps.store.mirror().clone());
        triggers.watch_facts(deps.providers.values().map(|provider| provider.facts.clone()).collect());
        Self {
            planner: CleanupPlanner::new(deps.lock_age)
                .with_deletion_backoff(Seconds(deps.tick_interval.as_secs_f64()))
                .with_name(&deps.name),
            triggers,
            facts: BTreeMap::new(),
            checks: BTreeMap::new(),
            deletions: Deletions::new(),
            actor_tasks: ActorTasks::default(),
            last_job_id: 0,
            registration: None,
            deps,
        }
    }

    fn handle_event(&mut self, event: Event, ctx: &mut Context<Self>) {
        let snapshot = match event {
            Event::Wake | Event::Sweep => self.triggers.snapshot(),
            // An answer does not lead to a decision, so no new snapshot is published for it.
            Event::Repaired(..) | Event::Registered(..) | Event::Inspected(..) | Event::Refreshed(_) => {
                self.triggers.latest()
            }
        };
        if matches!(event, Event::Sweep) {
            // Wrong usage totals are reported here; the next session computes them from scratch.
            let _ = invariant_guard::enforce(check_usage_totals(&snapshot));
        }
        if let Some(before) = update_facts(&mut self.facts, &self.deps.providers) {
            label_status_log::log_changes(&before, &self.facts);
        }
        let inputs = clock::inputs(&self.deps.config, &snapshot, &self.facts);
        for effect in self.planner.step(event, &inputs) {
            self.perform(effect, ctx);
        }
        // Nodes reach their maximum age without any event.
        self.triggers.requeue_at(self.planner.due());
    }

    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        let store = self.deps.store.clone();
        match effect {
            Effect::Repair(repair) => {
                let (key, log_context) = (repair.key(), self.log_context(&repair));
                if let Repair::Delete { node, provider, external_id } = repair {
                    return self.delete(key, log_context, *node, provider, external_id, ctx);
                }
                let returned = self.returned_node(&repair);
                let writing = async move { repair_with(&store, repair).await };
                self.actor_tasks.spawn(ctx, writing, move |result, act, ctx| {
                    if let (Some(provider), Ok(())) = (&returned, &result) {
                        let (event_id, node_request_id, node_id) =
                            (log_context.event_id(), log_context.request_id(), log_context.node_id());
                        info!(target: "nodepool.driver.static", %provider, event_id, node_request_id, node_id, "returned");
                    }
                    act.on_repaired(key, &log_context, result, ctx);
                });
            }
            Effect::Update { node, version, record } => {
                let key = format!("node {node}");
                let log_context = LogContext::node(&node, Some(&record), &self.triggers.latest());
                let change = NodeChange { id: node, record: *record, version };
                let writing = async move { store.save(change).await };
                self.actor_tasks
                    .spawn(ctx, writing, move |result, act, ctx| act.on_repaired(key, &log_context, result, ctx));
            }
            Effect::Register { key, node } => {
                let writing = async move { store.register(*node).await };
                self.actor_tasks.spawn(ctx, writing, move |result, act, ctx| {
                    match &result {
                        Ok(id) => info!(target: "nodepool.driver.static", node_id = %id, slot = key, "registered"),
                        Err(error) => warn!(target: "nodepool.driver.static", slot = key, %error, "cannot register"),
                    }
                    let was_done = result.is_ok();
                    act.handle_event(Event::Registered(key, result), ctx);
                    if was_done {
                        act.triggers.requeue_now();
                    }
                });
            }
            Effect::Inspect { provider, host } => self.check(provider, Some(host), ctx),
            Effect::Refresh(provider) => self.check(provider, None, ctx),
            Effect::Undeletable { provider, nodes } => log_undeletable(&provider, &nodes),
        }
    }

    /// The provider of a used node without an instance, such as one of a static host: the repair makes it available
    /// again.
    fn returned_node(&self, repair: &Repair) -> Option<ProviderName> {
        let Repair::Retire { node, .. } = repair else { return None };
        let snapshot = self.triggers.latest();
        let record = &snapshot.node(node).filter(|stored| stored.record.state == NodeState::Used)?.record;
        record.provider.clone()
    }

    /// Submits a check of one host, or of all hosts of the provider.
    fn check(&mut self, provider: ProviderName, host: Option<HostIdentity>, ctx: &mut Context<Self>) {
        let Some(handle) = self.deps.providers.get(&provider).cloned() else {
            self.on_checked(provider, host, ctx);
            return;
        };
        let job_id = self.next_job_id();
        let job = host.clone().map_or(Job::Refresh, Job::Inspect);
        self.checks.insert(job_id, (provider, host));
        // Bounded: one check per host at a time. A stopped provider answers by dropping the job.
        handle.submit.do_send(Submit::new(job_id, job, ctx.address().recipient()));
    }

    pub(crate) fn next_job_id(&mut self) -> JobId {
        self.last_job_id += 1;
        JobId(self.last_job_id)
    }

    fn on_checked(&mut self, provider: ProviderName, host: Option<HostIdentity>, ctx: &mut Context<Self>) {
        let event = match host {
            Some(host) => Event::Inspected(provider, host),
            None => Event::Refreshed(provider),
        };
        self.handle_event(event, ctx);
    }

    /// Log context of a repair. For a node, it includes the request to which the node was allocated.
    fn log_context(&self, repair: &Repair) -> LogContext {
        let snapshot = self.triggers.latest();
        let node = |id| LogContext::node(id, snapshot.node(id).map(|known| &*known.record), &snapshot);
        match repair {
            Repair::Retire { node: id, .. } | Repair::RemoveEmpty(id) => node(id),
            Repair::Delete { node: change, .. } => node(&change.id),
            Repair::Release { request, node: change } => {
                LogContext { request: Some(request.clone()), ..node(&change.id) }
            }
            Repair::Reset { request, .. } => LogContext::request(&request.id, request.record.event_id.as_deref()),
            Repair::RemoveRequestLock { request, .. } => LogContext::request(request, None),
        }
    }

    pub(crate) fn on_repaired(
        &mut self,
        key: String,
        log_context: &LogContext,
        result: Result<(), WriteError>,
        ctx: &mut Context<Self>,
    ) {
        let (event_id, node_request_id, node_id) =
            (log_context.event_id(), log_context.request_id(), log_context.node_id());
        match &result {
            Ok(()) => {
                debug!(target: "nodepool.CleanupWorker", event_id, node_request_id, node_id, repair = key, "done")
            }
            Err(WriteError::Conflict | WriteError::Contended) => {
                debug!(target: "nodepool.CleanupWorker", event_id, node_request_id, node_id, repair = key, "lost a race: the record changed since the snapshot");
            }
            Err(error) => {
                warn!(target: "nodepool.CleanupWorker", event_id, node_request_id, node_id, repair = key, %error, "cannot repair");
            }
        }
        let refused = result.is_err();
        self.handle_event(Event::Repaired(key, result), ctx);
        // After a failure no run is queued: the planner retries the repair on a newer snapshot or at the next tick.
        if !refused {
            self.triggers.requeue_now();
        }
    }
}

impl Reconcile for CleanupWorker {
    fn triggers(&mut self) -> &mut Triggers {
        &mut self.triggers
    }

    fn reconcile(&mut self, ctx: &mut Context<Self>) {
        self.handle_event(Event::Wake, ctx);
    }

    fn cooldown(took: Duration) -> Option<Duration> {
        Some(cooldown_after(took).unwrap_or(SHORT_DEBOUNCE))
    }
}

fn log_undeletable(provider: &ProviderName, nodes: &[NodeId]) {
    let nodes = nodes.iter().map(|id| id.as_str()).collect::<Vec<_>>().join(" ");
    warn!(
        target: "nodepool.CleanupWorker", %provider, nodes,
        "cannot delete these nodes: another driver created their servers; configure that driver under this provider name \
         again to delete the used ones",
    );
}

async fn repair_with(store: &Store, repair: Repair) -> Result<(), WriteError> {
    match repair {
        Repair::Retire { node, version } => store.remove_node(&node, version).await,
        Repair::Delete { .. } => unreachable!("a deletion is performed by the provider"),
        Repair::Release { request, node } => store.release(&request, *node).await,
        Repair::Reset { request, nodes } => store.reset(*request, nodes).await,
        Repair::RemoveEmpty(node) => store.remove_empty_node(&node).await,
        Repair::RemoveRequestLock { request, before_ms } => store.remove_request_lock(&request, before_ms).await,
    }
}

impl Actor for CleanupWorker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.registration = Some(self.deps.dumps.register("CleanupWorker", "", ctx.address().downgrade().recipient()));
        Self::start_reconciler(ctx);
        self.handle_event(Event::Sweep, ctx);
        self.actor_tasks.spawn_interval(ctx, self.deps.sweep_interval, |act, ctx| act.handle_event(Event::Sweep, ctx));
        self.actor_tasks.spawn_interval(ctx, self.deps.tick_interval, |act, ctx| {
            act.abandon_overdue_deletions(ctx);
            act.handle_event(Event::Wake, ctx);
        });
    }
}

impl Handler<JobUpdate> for CleanupWorker {
    type Result = ();

    fn handle(&mut self, message: JobUpdate, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("JobUpdate");
        if self.on_deletion_update(&message, ctx) {
            return;
        }
        let JobEvent::Finished(result) = message.event else { return };
        let Some((provider, host)) = self.checks.remove(&message.job_id) else { return };
        if let Err(error) = &result {
            warn!(target: "nodepool.driver.static", %provider, ?host, %error, "Couldn't sync static node");
        }
        self.on_checked(provider, host, ctx);
    }
}

impl Handler<ReconfigureCleanupWorker> for CleanupWorker {
    type Result = ();

    fn handle(&mut self, message: ReconfigureCleanupWorker, _: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Reconfigure");
        self.deps.config = message.config;
        self.deps.providers = message.providers;
        self.triggers.watch_facts(self.deps.providers.values().map(|provider| provider.facts.clone()).collect());
    }
}

impl Handler<Shutdown> for CleanupWorker {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Shutdown");
        ctx.stop();
    }
}

impl Handler<Dump> for CleanupWorker {
    type Result = Option<serde_json::Value>;

    fn handle(&mut self, _: Dump, _: &mut Context<Self>) -> Option<serde_json::Value> {
        let _measured = profile::time_handler::<Self>("Dump");
        let mut dump = serde_json::to_value(self.planner.view(clock::monotonic_now())).ok()?;
        dump["obstacles"] = obstacles(&self.deletions).into();
        Some(dump)
    }
}
