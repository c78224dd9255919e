//! TaskManager: performs the API calls of one provider, spaced and bounded; the only way to a cloud.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, ArbiterHandle, AsyncContext, Context, Handler, SpawnHandle};
use serde::Serialize;
use tokio::sync::watch;
use tracing::{Instrument, debug, info_span};

pub use super::fence::Fence;
use super::jobs::{Abandon, Drain, Notify, ProviderHandle, SetLeakedUsage, Submit};
use super::tasks::Tasks;
use super::tasks_view;
use crate::actors::runtime::actor_tasks::ActorTasks;
use crate::actors::runtime::messages::{Dump, Shutdown};
use crate::actors::runtime::panics::{PanicGuard, PanicWatch};
use crate::actors::runtime::registry::Registration;
use crate::actors::runtime::{dump, profile};
use crate::actors::telemetry::samples::SampleSink;
use crate::actors::telemetry::statsd;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::driver::{ApiCall, Driver};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::state_machine::InFlightLimit;
use nodepool_model::metrics::{prometheus_metrics, statsd_metrics};
use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::time::Seconds;
use nodepool_policy::provider::health::ProviderHealth;
use nodepool_policy::provider::refresh_schedule::RefreshSchedule;
use nodepool_policy::provider::task_queue::{CallId, QueueStep, TaskQueue};

/// Whether the facts of a provider are refreshed periodically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefreshMode {
    /// At the intervals of its driver.
    Periodic,
    /// For builders: uploads of images need no provider facts.
    Never,
}

/// Constructor dependencies of a TaskManager, besides its driver.
#[derive(Clone)]
pub struct TaskManagerDeps {
    pub registry: dump::DumpRegistry,
    pub panics: PanicWatch,
    pub samples: SampleSink,
    /// Maximum number of calls in flight, for drivers that leave it to the operator.
    pub api_concurrency: usize,
    /// Interval between checks for an image that is missing in the cloud.
    pub image_check: Seconds,
    /// Arbiter on which the TaskManager runs.
    pub arbiter: ArbiterHandle,
    pub refresh_mode: RefreshMode,
    /// Fence for mutating calls, if they depend on a session.
    pub fence: Option<Fence>,
}

pub struct TaskManager<D: Driver> {
    provider: ProviderName,
    driver: Rc<D>,
    /// Receives the samples that the driver itself collects.
    own_samples: SampleSink,
    deps: TaskManagerDeps,
    tasks: Tasks<D>,
    actor_tasks: ActorTasks<Self>,
    /// Delay between the first demand for an inventory and the listing.
    listing_delay: Duration,
    /// Fires when the rate limit allows the next call.
    timer: Option<SpawnHandle>,
    /// Timer of the next refresh, with its time.
    refresh_timer: Option<(Seconds, SpawnHandle)>,
    /// Timer of the next change of the cloud's health, with its time.
    health_timer: Option<(Seconds, SpawnHandle)>,
    /// Fires when the watch is to be opened again.
    watch_timer: Option<SpawnHandle>,
    lifecycle: Lifecycle,
    /// Fires when a drained provider has to check for remaining handles.
    drain_timer: Option<SpawnHandle>,
    registration_and_guard: Option<(Registration, PanicGuard)>,
}

/// Interval between checks whether a drained provider may stop.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Lifecycle {
    Serving,
    Draining,
}

impl<D: Driver> TaskManager<D> {
    /// Starts the TaskManager on its arbiter.
    pub fn launch(provider: ProviderName, driver: D, deps: TaskManagerDeps) -> ProviderHandle {
        let (sender, facts) = watch::channel(Arc::new(driver.facts()));
        let needs_reopen = driver.needs_reopen();
        let (name, arbiter) = (provider.clone(), deps.arbiter.clone());
        let address = Self::start_in_arbiter(&arbiter, move |_| Self::new(name, driver, deps, sender));
        ProviderHandle {
            provider,
            submit: address.clone().recipient(),
            abandon: address.clone().recipient(),
            drain: address.clone().recipient(),
            set_leaked_usage: address.clone().recipient(),
            notify: D::WANTS_NOTIFICATIONS.then(|| address.clone().recipient()),
            stop: address.recipient(),
            facts,
            needs_reopen,
            scanner: Arc::default(),
        }
    }

    fn new(provider: ProviderName, driver: D, deps: TaskManagerDeps, facts: watch::Sender<Arc<ProviderFacts>>) -> Self {
        let rate_limits = driver.rate_limits();
        let in_flight = match rate_limits.in_flight {
            InFlightLimit::Fixed(number) => number,
            InFlightLimit::Configurable => deps.api_concurrency,
        };
        let queue = TaskQueue::new(rate_limits.spacing, in_flight.max(1));
        let refresh_schedule = RefreshSchedule::new(rate_limits.refresh, deps.image_check);
        let health = (deps.refresh_mode == RefreshMode::Periodic).then(ProviderHealth::default);
        let own_samples = driver.statsd_address().map_or_else(|| deps.samples.clone(), statsd::start);
        let driver = Rc::new(driver);
        Self {
            own_samples,
            tasks: Tasks::new(provider.clone(), driver.clone(), queue, refresh_schedule, facts, health),
            actor_tasks: ActorTasks::default(),
            provider,
            driver,
            deps,
            listing_delay: rate_limits.listing_delay.to_duration(),
            timer: None,
            refresh_timer: None,
            health_timer: None,
            watch_timer: None,
            lifecycle: Lifecycle::Serving,
            drain_timer: None,
            registration_and_guard: None,
        }
    }

    /// Starts everything that is due. Every handler that changes the tasks ends with this call.
    fn schedule(&mut self, ctx: &mut Context<Self>) {
        let needs_refresh = self.lifecycle == Lifecycle::Serving || self.tasks.awaits_refresh();
        if needs_refresh && self.deps.refresh_mode == RefreshMode::Periodic {
            self.refresh_when_due(ctx);
        }
        self.advance_health_when_due(ctx);
        self.watch_when_due(ctx);
        if self.tasks.take_due_listing() {
            ctx.run_later(self.listing_delay, |act, ctx| {
                act.tasks.list();
                act.schedule(ctx);
            });
        }
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        loop {
            match self.tasks.next_step() {
                QueueStep::Start(id) => self.start_call(id, ctx),
                QueueStep::WaitUntil(time) => {
                    let wait = self.duration_until(time);
                    self.timer = Some(ctx.run_later(wait, |act, ctx| act.schedule(ctx)));
                    break;
                }
                QueueStep::WaitForEnd | QueueStep::Empty => break,
            }
        }
        if self.lifecycle == Lifecycle::Draining && self.tasks.is_empty() {
            self.stop_when_unused(ctx);
        }
    }

    /// Requests that started before the provider was drained complete with it, so it stops only when no handle is left.
    fn stop_when_unused(&mut self, ctx: &mut Context<Self>) {
        if !self.tasks.has_watchers() {
            ctx.stop();
        } else if self.drain_timer.is_none() {
            self.drain_timer = Some(ctx.run_later(DRAIN_POLL_INTERVAL, |act, ctx| {
                act.drain_timer = None;
                act.schedule(ctx);
            }));
        }
    }

    fn duration_until(&self, time: Seconds) -> Duration {
        Seconds(time.0 - self.tasks.now().0).to_duration().max(Duration::from_millis(1))
    }

    fn refresh_when_due(&mut self, ctx: &mut Context<Self>) {
        let Some(due) = self.tasks.refresh_due() else { return };
        if due <= self.tasks.now() {
            return self.tasks.start_refresh();
        }
        if let Some((at, timer)) = self.refresh_timer {
            if at == due {
                return;
            }
            ctx.cancel_future(timer);
        }
        let timer = ctx.run_later(self.duration_until(due), |act, ctx| {
            act.refresh_timer = None;
            act.schedule(ctx);
        });
        self.refresh_timer = Some((due, timer));
    }

    fn advance_health_when_due(&mut self, ctx: &mut Context<Self>) {
        if self.tasks.health_due().is_some_and(|due| due <= self.tasks.now()) {
            self.tasks.advance_health();
        }
        let due = self.tasks.health_due();
        if self.health_timer.map(|(at, _)| at) == due {
            return;
        }
        if let Some((_, timer)) = self.health_timer.take() {
            ctx.cancel_future(timer);
        }
        self.health_timer = due.map(|due| {
            let timer = ctx.run_later(self.duration_until(due), |act, ctx| {
                act.health_timer = None;
                act.schedule(ctx);
            });
            (due, timer)
        });
    }

    /// Opens the driver's watch when it is due, and follows it once it is open.
    fn watch_when_due(&mut self, ctx: &mut Context<Self>) {
        if self.tasks.take_opened_watch() {
            self.follow_watch(ctx);
        }
        let is_wanted = self.lifecycle == Lifecycle::Serving && self.deps.refresh_mode == RefreshMode::Periodic;
        let Some(due) = self.tasks.watch_due().filter(|_| is_wanted) else { return };
        if due <= self.tasks.now() {
            self.tasks.start_watch();
        } else if self.watch_timer.is_none() {
            self.watch_timer = Some(ctx.run_later(self.duration_until(due), |act, ctx| {
                act.watch_timer = None;
                act.schedule(ctx);
            }));
        }
    }

    fn follow_watch(&mut self, ctx: &mut Context<Self>) {
        let driver = self.driver.clone();
        let next = async move { driver.next_inventory().await };
        self.actor_tasks.spawn(ctx, next, |result, act, ctx| {
            let goes_on = result.is_ok();
            act.tasks.watched(result);
            if goes_on {
                act.follow_watch(ctx);
            }
            act.schedule(ctx);
        });
    }

    /// Starts a call of the driver, in the same way for all drivers: with deadline, trace span and completion in
    /// `call_ended`.
    fn start_call(&mut self, id: CallId, ctx: &mut Context<Self>) {
        let request = self.tasks.started(id);
        let limit = request.deadline().to_duration();
        let log_context = self.tasks.log_context(id).cloned().unwrap_or_default();
        let (event_id, node_request_id, node_id) =
            (log_context.event_id(), log_context.request_id(), log_context.node_id());
        let (provider, call) = (&self.provider, request.key());
        debug!(%provider, event_id, node_request_id, node_id, call, "API call");
        let span = info_span!("api_call", %provider, event_id, node_request_id, node_id, call);
        let driver = self.driver.clone();
        let fence = self.deps.fence.clone().filter(|_| request.is_mutating());
        let calling = async move {
            let guard = fence.as_ref().map_or_else(CallGuard::none, Fence::call_guard);
            if let Some(fence) = fence {
                // A token from before a long wait may have expired meanwhile.
                loop {
                    with_deadline(limit, driver.prepare(&request)).await?;
                    if fence.is_session_confirmed() {
                        break;
                    }
                    fence.wait_for_session().await;
                }
            }
            with_deadline(limit, driver.call(request, &guard)).await
        };
        self.actor_tasks.spawn(ctx, calling.instrument(span), move |result, act, ctx| act.call_ended(id, result, ctx));
    }

    fn log_end(&self, id: CallId, result: &Result<D::Reply, CloudError>) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let Some((call, took_ms)) = self.tasks.timing(id) else { return };
        let log_context = self.tasks.log_context(id).cloned().unwrap_or_default();
        let (event_id, node_request_id, node_id) =
            (log_context.event_id(), log_context.request_id(), log_context.node_id());
        let (provider, took_ms) = (&self.provider, took_ms.round() as u64);
        match result {
            Ok(_) => debug!(%provider, event_id, node_request_id, node_id, call, took_ms, "API call ended"),
            Err(error) => {
                debug!(%provider, event_id, node_request_id, node_id, call, took_ms, %error, "API call failed")
            }
        }
    }

    fn call_ended(&mut self, id: CallId, result: Result<D::Reply, CloudError>, ctx: &mut Context<Self>) {
        self.log_end(id, &result);
        let samples = &self.deps.samples;
        if samples.is_enabled()
            && let Some((key, milliseconds)) = self.tasks.timing(id)
        {
            statsd_metrics::call_samples(&self.provider, key, milliseconds)
                .into_iter()
                .for_each(|sample| samples.send(sample));
            if let Err(error) = &result {
                let labels = [self.provider.as_str(), key, error.kind()];
                samples.record(&prometheus_metrics::TASK_FAILED, labels.map(str::to_owned).into(), 1.0);
            }
        }
        self.driver.take_samples().into_iter().for_each(|sample| self.own_samples.send(sample));
        self.tasks.call_ended(id, result);
        self.schedule(ctx);
    }
}

async fn with_deadline<T>(limit: Duration, work: impl Future<Output = Result<T, CloudError>>) -> Result<T, CloudError> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(CloudError::Deadline))
}

impl<D: Driver> Actor for TaskManager<D> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let name = self.provider.to_string();
        let registration = self.deps.registry.register("TaskManager", name.clone(), ctx.address());
        self.registration_and_guard = Some((registration, self.deps.panics.guard(format!("TaskManager {name}"))));
        self.schedule(ctx);
    }
}

impl<D: Driver> Handler<Submit> for TaskManager<D> {
    type Result = ();

    fn handle(&mut self, submit: Submit, ctx: &mut Self::Context) {
        let _measured = profile::time_handler::<Self>("Submit");
        self.tasks.submit(submit.job, submit.responder);
        self.schedule(ctx);
    }
}

impl<D: Driver> Handler<Abandon> for TaskManager<D> {
    type Result = ();

    fn handle(&mut self, abandon: Abandon, ctx: &mut Self::Context) {
        let _measured = profile::time_handler::<Self>("Abandon");
        self.tasks.abandon(&abandon);
        self.schedule(ctx);
    }
}

impl<D: Driver> Handler<SetLeakedUsage> for TaskManager<D> {
    type Result = ();

    fn handle(&mut self, message: SetLeakedUsage, _: &mut Self::Context) {
        let _measured = profile::time_handler::<Self>("SetLeakedUsage");
        self.tasks.set_leaked_usage(message.0);
    }
}

impl<D: Driver> Handler<Notify> for TaskManager<D> {
    type Result = ();

    fn handle(&mut self, notify: Notify, _: &mut Self::Context) {
        let _measured = profile::time_handler::<Self>("Notify");
        self.driver.on_notification(&notify.0);
    }
}

impl<D: Driver> Handler<Drain> for TaskManager<D> {
    type Result = ();

    fn handle(&mut self, _: Drain, ctx: &mut Self::Context) {
        let _measured = profile::time_handler::<Self>("Drain");
        self.lifecycle = Lifecycle::Draining;
        self.tasks.drain();
        self.schedule(ctx);
    }
}

impl<D: Driver> Handler<Shutdown> for TaskManager<D> {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Self::Context) {
        let _measured = profile::time_handler::<Self>("Shutdown");
        ctx.stop();
    }
}

impl<D: Driver> Handler<Dump> for TaskManager<D> {
    type Result = Option<serde_json::Value>;

    fn handle(&mut self, _: Dump, _: &mut Self::Context) -> Self::Result {
        let _measured = profile::time_handler::<Self>("Dump");
        serde_json::to_value(TaskManagerView { lifecycle: self.lifecycle, tasks: self.tasks.view() }).ok()
    }
}

/// The state of a TaskManager in a dump.
#[derive(Serialize)]
struct TaskManagerView {
    lifecycle: Lifecycle,
    #[serde(flatten)]
    tasks: tasks_view::TasksView,
}
