//! Errands: what an actor has under way, of which it hears when it has ended.
//!
//! A context polls everything that was spawned in it whenever anything in it wakes; with hundreds of writes under way that is most of
//! the work. Here only what woke is polled, and all ends with the actor as it would there.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use actix::fut::wrap_stream;
use actix::{Actor, ActorStreamExt, AsyncContext, Context};
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, poll_fn};
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::profile;

type OnComplete<A> = Box<dyn FnOnce(&mut A, &mut <A as Actor>::Context)>;
type ActorTask<A> = LocalBoxFuture<'static, TaskResult<A>>;

/// What an errand has come to: whom to tell, and how it goes on, if it does.
struct TaskResult<A: Actor> {
    on_complete: OnComplete<A>,
    next: Option<ActorTask<A>>,
}

pub struct ActorTasks<A: Actor> {
    /// `None` until there is a first one.
    sender: Option<mpsc::UnboundedSender<ActorTask<A>>>,
}

impl<A: Actor> Default for ActorTasks<A> {
    fn default() -> Self {
        Self { sender: None }
    }
}

impl<A: Actor<Context = Context<A>>> ActorTasks<A> {
    /// Has `work` done, and `then` told what came of it.
    pub fn spawn<F: Future + 'static>(
        &mut self,
        ctx: &mut Context<A>,
        work: F,
        then: impl FnOnce(F::Output, &mut A, &mut Context<A>) + 'static,
    ) {
        let actor_task = work.map(|output| TaskResult {
            on_complete: Box::new(move |act: &mut A, ctx: &mut Context<A>| then(output, act, ctx)),
            next: None,
        });
        self.submit(ctx, actor_task.boxed_local());
    }

    /// Has `then` told again and again, for the first time after this period.
    pub fn spawn_interval(
        &mut self,
        ctx: &mut Context<A>,
        period: Duration,
        then: impl Fn(&mut A, &mut Context<A>) + Clone + 'static,
    ) {
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.submit(ctx, interval_task(ticks, then));
    }

    fn submit(&mut self, ctx: &mut Context<A>, actor_task: ActorTask<A>) {
        // Only an actor that is about to end does not take it any more.
        let _ = self.sender.get_or_insert_with(|| start_runner(ctx)).send(actor_task);
    }
}

fn interval_task<A: Actor<Context = Context<A>>>(
    mut ticks: Interval,
    then: impl Fn(&mut A, &mut Context<A>) + Clone + 'static,
) -> ActorTask<A> {
    let tick = async move {
        ticks.tick().await;
        TaskResult { on_complete: Box::new(then.clone()), next: Some(interval_task(ticks, then)) }
    };
    tick.boxed_local()
}

fn start_runner<A: Actor<Context = Context<A>>>(ctx: &mut Context<A>) -> mpsc::UnboundedSender<ActorTask<A>> {
    let (sender, mut incoming) = mpsc::unbounded_channel();
    let mut running = FuturesUnordered::new();
    let ended = poll_fn(move |task| {
        while let Poll::Ready(Some(actor_task)) = incoming.poll_recv(task) {
            running.push(actor_task);
        }
        match running.poll_next_unpin(task) {
            Poll::Ready(Some(TaskResult { on_complete: then, next })) => {
                running.extend(next);
                Poll::Ready(Some(then))
            }
            // None is left, and the next one wakes us.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    });
    let completions = wrap_stream(ended).map(|then: OnComplete<A>, act: &mut A, ctx| {
        let _measured = profile::time_handler::<A>("(end of an errand)");
        then(act, ctx);
    });
    ctx.spawn(completions.finish());
    sender
}
