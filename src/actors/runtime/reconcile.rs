//! Reconcile loop of actors: runs after a change of the snapshot, the provider facts or the shared pool state. It is
//! debounced, so that a burst of changes costs one run.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use actix::fut::ActorFuture;
use actix::{Actor, AsyncContext, Context};
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use futures::task::AtomicWaker;
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{clock, profile};
use nodepool_driver::facts::ProviderFacts;
use nodepool_model::records::ids::NodeId;
use nodepool_model::records::time::MonotonicTime;
use nodepool_model::snapshot::Snapshot;
use nodepool_policy::scheduler::shared_pools::SharedPoolState;
use nodepool_zk::mirror::mirror::{Mirror, Subscription};

/// After a run, the thread belongs to other actors for this multiple of the duration of the run. Under load, changes
/// accumulate, and one run handles all of them.
const COOLDOWN_FACTOR: u32 = 3;

/// Timers fire on whole milliseconds: a shorter cooldown would become ten times as long, and delay the next change.
const MIN_COOLDOWN: Duration = Duration::from_micros(500);

/// Resolution of timers.
const TIMER_RESOLUTION: Duration = Duration::from_millis(1);

/// Cooldown of an actor that receives many changes at once and whose work can wait for a millisecond.
pub const SHORT_DEBOUNCE: Duration = Duration::from_millis(1);

/// Minimum cooldown of an actor whose work is not urgent. The first change is handled at once. Changes that follow it
/// closely are handled together; otherwise each of them would wake a thread.
pub const DEBOUNCE: Duration = Duration::from_millis(20);

/// Triggers of a reconciler: the snapshot, facts, the shared pool state, a timer or a request.
pub struct Triggers {
    mirror: Arc<Mirror>,
    snapshots: Subscription,
    facts: Vec<watch::Receiver<Arc<ProviderFacts>>>,
    /// Shared pool state, for actors that depend on it.
    shared_pools: Option<watch::Receiver<SharedPoolState>>,
    /// Woken by each published snapshot, `requeue_now` and `requeue_at`.
    waker: Arc<AtomicWaker>,
    /// Each resolves when its facts or the shared pool state changed.
    sources: FuturesUnordered<LocalBoxFuture<'static, Option<TriggerSource>>>,
    is_requeued: bool,
    /// Fires at the time of the last `requeue_at`.
    timer: Option<Pin<Box<Sleep>>>,
}

/// A source of rare changes, awaited until it closes.
enum TriggerSource {
    Facts(watch::Receiver<Arc<ProviderFacts>>),
    SharedPools(watch::Receiver<SharedPoolState>),
}

impl TriggerSource {
    /// Returns the source after a change; `None` once it has closed.
    async fn changed(mut self) -> Option<Self> {
        let changed = match &mut self {
            Self::Facts(facts) => facts.changed().await,
            Self::SharedPools(shared_pools) => shared_pools.changed().await,
        };
        changed.is_ok().then_some(self)
    }
}

impl Triggers {
    pub fn new(mirror: Arc<Mirror>) -> Self {
        let waker = Arc::new(AtomicWaker::new());
        mirror.wake_on_publish(&waker);
        Self {
            snapshots: mirror.subscribe(),
            mirror,
            facts: Vec::new(),
            shared_pools: None,
            waker,
            sources: FuturesUnordered::new(),
            is_requeued: false,
            timer: None,
        }
    }

    /// Watches these facts from now on, and requests a run now.
    pub fn watch_facts(&mut self, facts: Vec<watch::Receiver<Arc<ProviderFacts>>>) {
        self.facts = facts;
        self.resubscribe();
        self.requeue_now();
    }

    /// Watches the shared pool state, too; its current value counts as a change.
    pub fn watch_shared_pools(&mut self, mut shared_pools: watch::Receiver<SharedPoolState>) {
        shared_pools.mark_changed();
        self.shared_pools = Some(shared_pools);
        self.resubscribe();
    }

    fn resubscribe(&mut self) {
        let sources = self
            .facts
            .iter()
            .cloned()
            .map(TriggerSource::Facts)
            .chain(self.shared_pools.clone().map(TriggerSource::SharedPools));
        self.sources = sources.map(|source| source.changed().boxed_local()).collect();
    }

    /// The shared pool state, if it changed since the last call.
    pub fn changed_shared_pools(&mut self) -> Option<watch::Ref<'_, SharedPoolState>> {
        let shared_pools =
            self.shared_pools.as_mut().filter(|shared_pools| shared_pools.has_changed().unwrap_or(false))?;
        Some(shared_pools.borrow_and_update())
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.mirror.snapshot()
    }

    /// As `Mirror::snapshot_and_unread_nodes`.
    pub fn snapshot_and_unread_nodes(&self) -> (Arc<Snapshot>, BTreeSet<NodeId>) {
        self.mirror.snapshot_and_unread_nodes()
    }

    /// The current snapshot, without publishing it.
    pub fn latest(&self) -> Arc<Snapshot> {
        self.snapshots.latest()
    }

    /// Marks the current state as observed, right before a run. Only later changes trigger another run.
    fn mark_observed(&mut self) {
        // Publishes own writes since the last publication, because the run observes them, too.
        self.mirror.snapshot();
        self.is_requeued = false;
        self.snapshots.mark_seen();
        for facts in &mut self.facts {
            facts.mark_unchanged();
        }
    }

    /// Requests a run now, for example after an answer that may have freed resources.
    pub fn requeue_now(&mut self) {
        self.is_requeued = true;
        self.waker.wake();
    }

    /// Requests a run at this time, instead of the time requested before.
    pub fn requeue_at(&mut self, due: Option<MonotonicTime>) {
        let Some(due) = due else {
            self.timer = None;
            return;
        };
        let wait = (due - clock::monotonic_now()).to_duration().max(TIMER_RESOLUTION);
        let at = Instant::now() + wait;
        match &mut self.timer {
            Some(timer) if at.max(timer.deadline()) - at.min(timer.deadline()) < TIMER_RESOLUTION => return,
            Some(timer) => timer.as_mut().reset(at),
            None => self.timer = Some(Box::pin(sleep_until(at))),
        }
        self.waker.wake();
    }

    /// Ready if a change was not marked as observed. A source that has closed causes no change.
    fn poll(&mut self, task: &mut TaskContext<'_>) -> Poll<()> {
        // Registered first, so that no change in between is missed.
        self.waker.register(task.waker());
        while let Poll::Ready(Some(source)) = self.sources.poll_next_unpin(task) {
            self.sources.extend(source.map(|source| source.changed().boxed_local()));
        }
        if self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(task).is_ready()) {
            self.timer = None;
            self.is_requeued = true;
        }
        let have_facts = self.facts.iter().any(|facts| facts.has_changed().unwrap_or(false));
        let has_shared_pools =
            self.shared_pools.as_ref().is_some_and(|shared_pools| shared_pools.has_changed().unwrap_or(false));
        let has_snapshot = self.snapshots.has_changed();
        if self.is_requeued || has_snapshot || have_facts || has_shared_pools { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// An actor that reconciles after a change, or when the next deadline is due.
pub trait Reconcile: Actor<Context = Context<Self>> {
    fn triggers(&mut self) -> &mut Triggers;

    /// Handles all changes since the last run.
    fn reconcile(&mut self, ctx: &mut Context<Self>);

    /// Cooldown after a run of this duration. Changes that follow each other closely are handled by one run.
    fn cooldown(_took: Duration) -> Option<Duration> {
        Some(DEBOUNCE)
    }

    /// Reconciles after each change from now on, and at once if there was a change already.
    fn start_reconciler(ctx: &mut Context<Self>) {
        ctx.spawn(Reconciler { cooldown_until: None, cooldown: None });
    }
}

/// Reconciles, cools down and waits for the next change, as long as the actor runs.
struct Reconciler {
    /// Changes before this time are handled at this time. Without changes, no timer is started.
    cooldown_until: Option<Instant>,
    /// Set after a change during the cooldown; the change is handled at its end.
    cooldown: Option<Pin<Box<Sleep>>>,
}

impl Reconciler {
    /// Ready when the actor may reconcile.
    fn poll_cooldown(&mut self, task: &mut TaskContext<'_>) -> Poll<()> {
        if let Some(until) = self.cooldown_until.take().filter(|until| *until > Instant::now()) {
            self.cooldown = Some(Box::pin(sleep_until(until)));
        }
        if let Some(cooldown) = &mut self.cooldown {
            ready!(cooldown.as_mut().poll(task));
            self.cooldown = None;
        }
        Poll::Ready(())
    }
}

impl<A: Reconcile> ActorFuture<A> for Reconciler {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, act: &mut A, ctx: &mut Context<A>, task: &mut TaskContext<'_>) -> Poll<()> {
        if self.cooldown.is_none() {
            ready!(act.triggers().poll(task));
        }
        ready!(self.poll_cooldown(task));
        act.triggers().mark_observed();
        let (began, measured) = (Instant::now(), profile::time_handler::<A>("(reconcile)"));
        act.reconcile(ctx);
        drop(measured);
        let ended = Instant::now();
        self.cooldown_until = A::cooldown(ended - began).map(|cooldown| ended + cooldown);
        if act.triggers().poll(task).is_ready() {
            // Yields to other work of this actor first.
            task.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Cooldown proportional to the duration of a run; `None` if it is not worth a timer.
pub fn cooldown_after(took: Duration) -> Option<Duration> {
    Some(took * COOLDOWN_FACTOR).filter(|cooldown| *cooldown >= MIN_COOLDOWN)
}
