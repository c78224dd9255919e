//! BuildWorker: actor that leases the first image build that is due and runs it, one build at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};
use serde_json::json;
use tokio::sync::watch;
use tracing::{Instrument, info_span, warn};

use super::build_job::{self, BuildEnvironment, BuildOutcome, BuildSpec};
use super::work_queue::{WorkItem, WorkLease, WorkQueue};
use crate::actors::runtime::actor_tasks::ActorTasks;
use crate::actors::runtime::messages::{Dump, Shutdown};
use crate::actors::runtime::panics::PanicGuard;
use crate::actors::runtime::reconcile::{Reconcile, Triggers};
use crate::actors::runtime::registry::Registration;
use crate::actors::runtime::{clock, profile};
use nodepool_driver::facts::ProviderFacts;
use nodepool_drivers::common::image_files::ImagesDir;
use nodepool_model::config::Config;
use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::time::{Seconds, Timestamp};
use nodepool_policy::images::build_schedule::{self, BuildOrder};
use nodepool_zk::txn::store::Store;

/// Back-off of an image whose lock another builder has.
const CONTENDED_BACKOFF: Seconds = Seconds(0.5);

pub type FactsReceivers = BTreeMap<ProviderName, watch::Receiver<Arc<ProviderFacts>>>;

pub struct BuildWorkerDeps {
    /// Counted from 0, for logs and dumps.
    pub number: usize,
    pub config: Arc<Config>,
    pub facts: FactsReceivers,
    pub store: Store,
    pub work_queue: WorkQueue,
    pub build_env: BuildEnvironment,
    /// Overrides `dib-cmd` of every image.
    pub dib_cmd: Option<String>,
    /// Back-off after a failed build, and interval of the periodic reconcile run that complements the events.
    pub interval: Seconds,
    pub guard: PanicGuard,
    pub dumps: crate::actors::runtime::dump::DumpRegistry,
}

pub struct BuildWorker {
    deps: BuildWorkerDeps,
    triggers: Triggers,
    actor_tasks: ActorTasks<Self>,
    building: Option<(BuildOrder, Timestamp)>,
    /// Images whose name cannot be built, with the reason; each is logged once.
    unbuildable: BTreeMap<String, &'static str>,
    registration: Option<Registration>,
}

/// The configuration and possibly the providers changed.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct ReconfigureBuildWorker {
    pub config: Arc<Config>,
    pub facts: FactsReceivers,
}

impl BuildWorker {
    pub fn new(deps: BuildWorkerDeps) -> Self {
        let mut triggers = Triggers::new(deps.store.mirror().clone());
        triggers.watch_facts(deps.facts.values().cloned().collect());
        Self {
            deps,
            triggers,
            actor_tasks: ActorTasks::default(),
            building: None,
            unbuildable: BTreeMap::new(),
            registration: None,
        }
    }

    fn is_unbuildable(&mut self, order: &BuildOrder) -> bool {
        let reason = build_schedule::name_problem(&order.image);
        if let Some(reason) = reason
            && self.unbuildable.insert(order.image.to_string(), reason).is_none()
        {
            warn!(
                target: "nodepool.builder.BuildWorker",
                worker = self.deps.number, image = %order.image, reason, "image name cannot be built; rename the image"
            );
        }
        reason.is_some()
    }

    fn start_build(&mut self, order: BuildOrder, lease: WorkLease, ctx: &mut Context<Self>) {
        let config = &self.deps.config;
        let mut image = config.diskimages[&order.image].clone();
        if let Some(command) = &self.deps.dib_cmd {
            Arc::make_mut(&mut image).dib_cmd = command.clone();
        }
        let spec = BuildSpec {
            config: config.clone(),
            image,
            elements_dir: config.elements_dir.clone(),
            log_dir: config.log_dir_of_builds(),
            log_retention: config.build_log_retention,
        };
        self.building = Some((order.clone(), clock::now()));
        // The worker's number in the span selects its logger (`nodepool.builder.BuildWorker.N`).
        let span = info_span!("build", worker = self.deps.number, image = %order.image);
        let (store, build_env) = (self.deps.store.clone(), self.deps.build_env.clone());
        let building = async move { (build_job::build(store, build_env, order, spec, &lease).await, lease) };
        self.actor_tasks.spawn(ctx, building.instrument(span), |(outcome, lease), act, ctx| {
            act.on_build_finished(outcome, lease, ctx)
        });
    }

    fn on_build_finished(&mut self, outcome: BuildOutcome, lease: WorkLease, ctx: &mut Context<Self>) {
        match outcome {
            BuildOutcome::Failed => lease.failed(self.deps.interval),
            // The record that the other builder writes triggers the next run. While the snapshot is stale, the back-off
            // prevents a loop of attempts.
            BuildOutcome::Skipped => lease.back_off(CONTENDED_BACKOFF),
            BuildOutcome::Ready => lease.succeeded(),
        }
        drop(lease);
        self.building = None;
        self.reconcile(ctx);
    }
}

impl Reconcile for BuildWorker {
    fn triggers(&mut self) -> &mut Triggers {
        &mut self.triggers
    }

    fn reconcile(&mut self, ctx: &mut Context<Self>) {
        if self.building.is_some() {
            return;
        }
        let snapshot = self.triggers.snapshot();
        let facts = self.deps.facts.iter().map(|(name, facts)| (name.clone(), facts.borrow().clone())).collect();
        let config = self.deps.config.clone();
        let inputs = clock::inputs(&config, &snapshot, &facts);
        if snapshot.connected {
            let due = build_schedule::due(&inputs).into_iter().filter(|order| !self.is_unbuildable(order));
            let due: Vec<_> = due.map(|order| (WorkItem::Build(order.image.clone()), order)).collect();
            if let Some((order, lease)) = self.deps.work_queue.lease_first(due) {
                return self.start_build(order, lease, ctx);
            }
        }
        let retry_at = self.deps.work_queue.next_due().map(|delay| inputs.monotonic_now + delay);
        let due = build_schedule::next_due(&inputs).into_iter().chain(retry_at).min();
        self.triggers.requeue_at(due);
    }
}

impl Actor for BuildWorker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let number = self.deps.number.to_string();
        self.registration =
            Some(self.deps.dumps.register("BuildWorker", number, ctx.address().downgrade().recipient()));
        self.reconcile(ctx);
        Self::start_reconciler(ctx);
        self.actor_tasks.spawn_interval(ctx, self.deps.interval.to_duration(), |act, ctx| act.reconcile(ctx));
    }
}

impl Handler<ReconfigureBuildWorker> for BuildWorker {
    type Result = ();

    fn handle(&mut self, message: ReconfigureBuildWorker, _: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Reconfigure");
        self.triggers.watch_facts(message.facts.values().cloned().collect());
        if let Some(images) = &message.config.images_dir {
            self.deps.build_env.images = ImagesDir::new(images);
        }
        (self.deps.config, self.deps.facts) = (message.config, message.facts);
    }
}

impl Handler<Shutdown> for BuildWorker {
    type Result = ();

    /// Stopping the worker cancels its build and kills all processes of it.
    fn handle(&mut self, _: Shutdown, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Shutdown");
        ctx.stop();
    }
}

impl Handler<Dump> for BuildWorker {
    type Result = Option<serde_json::Value>;

    fn handle(&mut self, _: Dump, _: &mut Context<Self>) -> Option<serde_json::Value> {
        let _measured = profile::time_handler::<Self>("Dump");
        let building = self.building.as_ref().map(
            |(order, since)| json!({"image": order.image, "reason": order.reason, "for_s": (clock::now() - *since).0}),
        );
        Some(json!({"actor": "BuildWorker", "name": self.deps.number.to_string(), "building": building}))
    }
}
