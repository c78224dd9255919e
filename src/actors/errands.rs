//! Errands: what an actor has under way, of which it hears when it has ended.
//!
//! A context polls everything that was spawned in it whenever anything in it wakes; with hundreds of writes under way that is most of
//! the work. Here only what woke is polled, and all ends with the actor as it would there.

use std::future::Future;
use std::task::Poll;

use actix::fut::wrap_stream;
use actix::{Actor, ActorStreamExt, AsyncContext, Context};
use futures::FutureExt;
use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, poll_fn};
use tokio::sync::mpsc;

use super::profile;

type Then<A> = Box<dyn FnOnce(&mut A, &mut <A as Actor>::Context)>;
type Errand<A> = LocalBoxFuture<'static, Then<A>>;

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
        let errand = work.map(|output| -> Then<A> { Box::new(move |act, ctx| then(output, act, ctx)) });
        // Only an actor that is about to end does not take it any more.
        let _ = self.begun.get_or_insert_with(|| begin(ctx)).send(errand.boxed_local());
    }
}

fn begin<A: Actor<Context = Context<A>>>(ctx: &mut Context<A>) -> mpsc::UnboundedSender<Errand<A>> {
    let (sender, mut new) = mpsc::unbounded_channel();
    let mut running = FuturesUnordered::new();
    let ended = poll_fn(move |task| {
        while let Poll::Ready(Some(errand)) = new.poll_recv(task) {
            running.push(errand);
        }
        match running.poll_next_unpin(task) {
            Poll::Ready(Some(then)) => Poll::Ready(Some(then)),
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
