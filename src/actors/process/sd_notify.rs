//! What a service manager is told: that we are ready, that we stop, and that our actors still answer.

use std::collections::BTreeSet;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::context::StopRequest;
use crate::actors::runtime::dump;
use crate::actors::runtime::messages::Dump;
use crate::actors::runtime::registry::NoAnswer;
use nodepool_zk::SessionState;

/// Of the time after which we are taken for dead: two pulses may be lost.
const PULSES: u32 = 3;

const WAITING: &str = "waiting for ZooKeeper";
const SERVING: &str = "serving";

/// Speaks for the process as long as it lives. Without a service manager that listens, or with one that does not want to hear of
/// us any more, nothing is said.
pub async fn keep(
    registry: dump::Registry,
    mut ready: watch::Receiver<bool>,
    mut shutdown: watch::Receiver<Option<StopRequest>>,
) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    tell(&[NotifyState::Status(WAITING)]);
    let pulses = pulse(&registry, sd_notify::watchdog_enabled().map(|limit| limit / PULSES));
    tokio::pin!(pulses);
    tokio::select! {
        () = &mut pulses => {}
        was_ready = ready.wait_for(|ready| *ready) => {
            if was_ready.is_ok() {
                tell(&[NotifyState::Ready, NotifyState::Status(SERVING)]);
            }
        }
        _ = shutdown.wait_for(Option::is_some) => {}
    }
    // What is under way at the end may take its time, and is watched until then.
    pulses.await;
}

/// Says so when ZooKeeper goes away and comes back, once we were ready.
pub async fn follow(mut session: watch::Receiver<SessionState>, ready: watch::Receiver<bool>) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    loop {
        let is_connected = *session.borrow_and_update() == SessionState::Connected;
        if *ready.borrow() {
            tell(&[NotifyState::Status(if is_connected { SERVING } else { WAITING })]);
        }
        if session.changed().await.is_err() {
            return;
        }
    }
}

/// To be said before anybody else hears of it: the process may be gone a moment later.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Never ends.
async fn pulse(registry: &dump::Registry, every: Option<Duration>) {
    let Some(every) = every else { return std::future::pending().await };
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        let answers = registry.ask_all(Dump, every).await;
        // One that has stopped is on its way out, one that does not answer blocks all on its thread.
        let blocked: BTreeSet<String> = answers
            .into_iter()
            .filter(|(_, answer)| matches!(answer, Err(NoAnswer::Deadline)))
            .map(|(asked, _)| format!("{} {}", asked.actor, asked.name))
            .collect();
        if blocked.is_empty() {
            tell(&[NotifyState::Watchdog]);
        } else {
            warn!(?blocked, "no answer, so the service manager is not told that all is well");
        }
    }
}

/// Does nothing where nobody listens.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!(%error, "the service manager cannot be told");
    }
}
