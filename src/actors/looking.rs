//! Actors that look when something has changed, or when the first of what waits is due.

use std::time::Duration;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, SpawnHandle, WrapFuture};

use super::clock;
use super::look::{Changes, UNHURRIED};
use super::profile;
use crate::model::time::Timestamp;

pub trait Looking: Actor<Context = Context<Self>> {
    fn changes(&mut self) -> &mut Changes;

    fn look(&mut self, ctx: &mut Context<Self>);

    /// Looks at each change from now on, at those that come closely after each other once.
    fn look_on(&mut self, ctx: &mut Context<Self>) {
        let waiting = self.changes().clone().next();
        ctx.spawn(waiting.into_actor(self).map(|(), act, ctx| {
            act.changes().mark_seen();
            let _measured = profile::handling::<Self>("(change)");
            act.look(ctx);
            ctx.run_later(UNHURRIED, |act, ctx| act.look_on(ctx));
        }));
    }
}

/// Looks when something is due, in place of what an earlier timer was for.
pub fn look_at<A: Looking>(
    due: Option<Timestamp>,
    before: Option<SpawnHandle>,
    ctx: &mut Context<A>,
) -> Option<SpawnHandle> {
    if let Some(timer) = before {
        ctx.cancel_future(timer);
    }
    let wait = (due? - clock::now()).to_duration().max(Duration::from_millis(1));
    Some(ctx.run_later(wait, |act: &mut A, _| act.changes().nudge()))
}
