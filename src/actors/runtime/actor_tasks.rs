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

type Then<A> = Box<dyn FnOnce(&mut A, &mut <A as Actor>::Context)>;
type Errand<A> = LocalBoxFuture<'static, Ended<A>>;

/// What an errand has come to: whom to tell, and how it goes on, if it does.
struct Ended<A: Actor> {
    then: Then<A>,
    next: Option<Errand<A>>,
}

pub struct Errands<A: Actor> {
    /// `None` until there is a first one.
    begun: Option<mpsc::UnboundedSender<Errand<A>>>,
}

impl<A: Actor> Default for Errands<A> {
    fn default() -> Self {
        Self { begun: None }
    }
}

impl<A: Actor<Context = Context<A>>> Errands<A> {
    /// Has `work` done, and `then` told what came of it.
    pub fn run<F: Future + 'static>(
        &mut self,
        ctx: &mut Context<A>,
        work: F,
        then: impl FnOnce(F::Output, &mut A, &mut Context<A>) + 'static,
    ) {
        let errand = work.map(|output| Ended {
            then: Box::new(move |act: &mut A, ctx: &mut Context<A>| then(output, act, ctx)),
            next: None,
        });
        self.begin(ctx, errand.boxed_local());
    }

    /// Has `then` told again and again, for the first time after this period.
    pub fn every(
        &mut self,
        ctx: &mut Context<A>,
        period: Duration,
        then: impl Fn(&mut A, &mut Context<A>) + Clone + 'static,
    ) {
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.begin(ctx, again(ticks, then));
    }

    fn begin(&mut self, ctx: &mut Context<A>, errand: Errand<A>) {
        // Only an actor that is about to end does not take it any more.
        let _ = self.begun.get_or_insert_with(|| begin(ctx)).send(errand);
    }
}

fn again<A: Actor<Context = Context<A>>>(
    mut ticks: Interval,
    then: impl Fn(&mut A, &mut Context<A>) + Clone + 'static,
) -> Errand<A> {
    let tick = async move {
        ticks.tick().await;
        Ended { then: Box::new(then.clone()), next: Some(again(ticks, then)) }
    };
    tick.boxed_local()
}

fn begin<A: Actor<Context = Context<A>>>(ctx: &mut Context<A>) -> mpsc::UnboundedSender<Errand<A>> {
    let (sender, mut new) = mpsc::unbounded_channel();
    let mut running = FuturesUnordered::new();
    let ended = poll_fn(move |task| {
        while let Poll::Ready(Some(errand)) = new.poll_recv(task) {
            running.push(errand);
        }
        match running.poll_next_unpin(task) {
            Poll::Ready(Some(Ended { then, next })) => {
                running.extend(next);
                Poll::Ready(Some(then))
            }
            // None is left, and the next one wakes us.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    });
    let carried_out = wrap_stream(ended).map(|then: Then<A>, act: &mut A, ctx| {
        let _measured = profile::handling::<A>("(end of an errand)");
        then(act, ctx);
    });
    ctx.spawn(carried_out.finish());
    sender
}
