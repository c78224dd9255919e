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
const PINGS_PER_TIMEOUT: u32 = 3;

const STATUS_WAITING: &str = "waiting for ZooKeeper";
const STATUS_SERVING: &str = "serving";

/// Speaks for the process as long as it lives. Without a service manager that listens, or with one that does not want to hear of
/// us any more, nothing is said.
pub async fn run(
    registry: dump::DumpRegistry,
    mut ready: watch::Receiver<bool>,
    mut shutdown: watch::Receiver<Option<StopRequest>>,
) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    notify(&[NotifyState::Status(STATUS_WAITING)]);
    let pings = ping_watchdog(&registry, sd_notify::watchdog_enabled().map(|limit| limit / PINGS_PER_TIMEOUT));
    tokio::pin!(pings);
    tokio::select! {
        () = &mut pings => {}
        was_ready = ready.wait_for(|ready| *ready) => {
            if was_ready.is_ok() {
                notify(&[NotifyState::Ready, NotifyState::Status(STATUS_SERVING)]);
            }
        }
        _ = shutdown.wait_for(Option::is_some) => {}
    }
    // What is under way at the end may take its time, and is watched until then.
    pings.await;
}

/// Says so when ZooKeeper goes away and comes back, once we were ready.
pub async fn follow_session(mut session: watch::Receiver<SessionState>, ready: watch::Receiver<bool>) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    loop {
        let is_connected = *session.borrow_and_update() == SessionState::Connected;
        if *ready.borrow() {
            notify(&[NotifyState::Status(if is_connected { STATUS_SERVING } else { STATUS_WAITING })]);
        }
        if session.changed().await.is_err() {
            return;
        }
    }
}

/// To be said before anybody else hears of it: the process may be gone a moment later.
pub fn notify_stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Never ends.
async fn ping_watchdog(registry: &dump::DumpRegistry, every: Option<Duration>) {
    let Some(every) = every else { return std::future::pending().await };
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        let answers = registry.request_all(Dump, every).await;
        // One that has stopped is on its way out, one that does not answer blocks all on its thread.
        let blocked: BTreeSet<String> = answers
            .into_iter()
            .filter(|(_, answer)| matches!(answer, Err(NoAnswer::Deadline)))
            .map(|(actor_id, _)| format!("{} {}", actor_id.actor, actor_id.name))
            .collect();
        if blocked.is_empty() {
            notify(&[NotifyState::Watchdog]);
        } else {
            warn!(?blocked, "no answer, so the service manager is not told that all is well");
        }
    }
}

/// Does nothing where nobody listens.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!(%error, "the service manager cannot be told");
    }
}
