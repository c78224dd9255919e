//! Actor tasks: futures owned by an actor, with a callback into the actor at the end of each.
//!
//! An actix context polls every future that was spawned in it whenever one of them wakes; with hundreds of writes in
//! flight, that is most of the work. Here only futures that woke are polled. All end with the actor, as in a context.

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

/// End of a task: the callback, and the next task if it repeats.
struct TaskResult<A: Actor> {
    on_complete: OnComplete<A>,
    next: Option<ActorTask<A>>,
}

pub struct ActorTasks<A: Actor> {
    /// `None` until the first task.
    sender: Option<mpsc::UnboundedSender<ActorTask<A>>>,
}

impl<A: Actor> Default for ActorTasks<A> {
    fn default() -> Self {
        Self { sender: None }
    }
}

impl<A: Actor<Context = Context<A>>> ActorTasks<A> {
    /// Runs `work` and calls `then` with its output.
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

    /// Calls `then` repeatedly, for the first time after one period.
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
        // Sending fails only if the actor is about to stop.
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
            // No task is left; the next one wakes this stream.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    });
    let completions = wrap_stream(ended).map(|then: OnComplete<A>, act: &mut A, ctx| {
        let _measured = profile::time_handler::<A>("(task completed)");
        then(act, ctx);
    });
    ctx.spawn(completions.finish());
    sender
}
