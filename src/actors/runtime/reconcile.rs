//! When to look: after a change of the snapshot or the facts, but never so often that looking is all there is to do.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use actix::fut::ActorFuture;
use actix::{Actor, AsyncContext, Context};
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{clock, profile};
use nodepool_driver::facts::ProviderFacts;
use nodepool_model::records::time::MonotonicTime;
use nodepool_model::snapshot::Snapshot;
use nodepool_policy::scheduler::shared_pools::SharedPoolState;
use nodepool_zk::mirror::mirror::{Mirror, Subscription};
use nodepool_zk::mirror::wake_signal::WakeSignal;

/// After a look that took some time, so many times that time belongs to others: under load changes gather, and one look
/// takes in all of them.
const COOLDOWN_FACTOR: u32 = 3;

/// Timers end on whole milliseconds: a shorter rest would become ten times as long, and delay whoever asks next.
const MIN_COOLDOWN: Duration = Duration::from_micros(500);

/// Timers are no finer.
const TIMER_RESOLUTION: Duration = Duration::from_millis(1);

/// The rest of an actor whose work nobody waits for by the millisecond, but for which many changes come together.
pub const SHORT_DEBOUNCE: Duration = Duration::from_millis(1);

/// The least rest of an actor for which nobody waits: the first change is looked at when it comes, those that follow
/// it closely are looked at together, or each of them would wake a thread.
pub const DEBOUNCE: Duration = Duration::from_millis(20);

/// The changes that an actor looks at.
pub struct Triggers {
    mirror: Arc<Mirror>,
    snapshots: Subscription,
    facts: Vec<watch::Receiver<Arc<ProviderFacts>>>,
    /// What the pools show each other, for those who mind.
    shared_pools: Option<watch::Receiver<SharedPoolState>>,
    /// Rung by each publication, and by whoever nudges.
    wake_signal: Arc<WakeSignal>,
    /// End when one of the facts or the board has changed.
    sources: FuturesUnordered<LocalBoxFuture<'static, Option<TriggerSource>>>,
    is_requeued: bool,
    /// The next moment to look at.
    timer: Option<Pin<Box<Sleep>>>,
}

/// What changes rarely, of which each one is listened to until it has ended.
enum TriggerSource {
    Facts(watch::Receiver<Arc<ProviderFacts>>),
    SharedPools(watch::Receiver<SharedPoolState>),
}

impl TriggerSource {
    /// Itself once it has changed.
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
        let wake_signal = Arc::new(WakeSignal::default());
        mirror.wake_on_publish(&wake_signal);
        Self {
            snapshots: mirror.subscribe(),
            mirror,
            facts: Vec::new(),
            shared_pools: None,
            wake_signal,
            sources: FuturesUnordered::new(),
            is_requeued: false,
            timer: None,
        }
    }

    /// Looks at these facts from now on, and at once.
    pub fn watch_facts(&mut self, facts: Vec<watch::Receiver<Arc<ProviderFacts>>>) {
        self.facts = facts;
        self.resubscribe();
        self.requeue_now();
    }

    /// Looks at what the pools show each other, too, and at what is there already.
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

    /// What the pools show each other, if that changed since this was last asked.
    pub fn changed_shared_pools(&mut self) -> Option<watch::Ref<'_, SharedPoolState>> {
        let shared_pools =
            self.shared_pools.as_mut().filter(|shared_pools| shared_pools.has_changed().unwrap_or(false))?;
        Some(shared_pools.borrow_and_update())
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.mirror.snapshot()
    }

    /// As it is, without telling anybody else that there is something new.
    pub fn latest(&self) -> Arc<Snapshot> {
        self.snapshots.latest()
    }

    /// What is there now is about to be looked at; only what comes later is a change.
    fn mark_observed(&mut self) {
        // What was folded in since the last publication is part of what is looked at.
        self.mirror.snapshot();
        self.is_requeued = false;
        self.snapshots.mark_seen();
        for facts in &mut self.facts {
            facts.mark_unchanged();
        }
    }

    /// An answer came, which may have freed something.
    pub fn requeue_now(&mut self) {
        self.is_requeued = true;
        self.wake_signal.wake();
    }

    /// There will be something to look at then, whatever there was to be before.
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
        self.wake_signal.wake();
    }

    /// Ready when there is something to look at that was not marked as seen. A source that has ended is silent.
    fn poll(&mut self, task: &mut TaskContext<'_>) -> Poll<()> {
        // First, or what comes between would be heard by nobody.
        self.wake_signal.register(task.waker());
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

/// An actor that looks when something has changed, or when the first of what waits is due.
pub trait Reconcile: Actor<Context = Context<Self>> {
    fn triggers(&mut self) -> &mut Triggers;

    /// Takes in all that has changed.
    fn reconcile(&mut self, ctx: &mut Context<Self>);

    /// How long to rest after a look that took so long. Changes that follow each other closely are looked at once.
    fn cooldown(_took: Duration) -> Option<Duration> {
        Some(DEBOUNCE)
    }

    /// Looks at each change from now on, and at once when there has been one.
    fn start_reconciler(ctx: &mut Context<Self>) {
        ctx.spawn(Reconciler { cooldown_until: None, cooldown: None });
    }
}

/// Looks, rests, and waits for the next change, as long as the actor lives.
struct Reconciler {
    /// What comes until then is looked at then. Where nothing comes nobody is woken for it.
    cooldown_until: Option<Instant>,
    /// Something has come, and is looked at when this has ended.
    cooldown: Option<Pin<Box<Sleep>>>,
}

impl Reconciler {
    /// Ready when the actor may look.
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
        let (began, measured) = (Instant::now(), profile::time_handler::<A>("(change)"));
        act.reconcile(ctx);
        drop(measured);
        let ended = Instant::now();
        self.cooldown_until = A::cooldown(ended - began).map(|cooldown| ended + cooldown);
        if act.triggers().poll(task).is_ready() {
            // After whatever else there is for this actor.
            task.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// How long to rest after a look that took so long; `None` where that is not worth a timer.
pub fn cooldown_after(took: Duration) -> Option<Duration> {
    Some(took * COOLDOWN_FACTOR).filter(|cooldown| *cooldown >= MIN_COOLDOWN)
}
