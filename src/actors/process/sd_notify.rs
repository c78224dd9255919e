//! Notifications to the service manager: ready, stopping, and watchdog pings while all actors respond.

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

/// Watchdog pings per timeout of the service manager, so that two pings may be lost.
const PINGS_PER_TIMEOUT: u32 = 3;

const STATUS_WAITING: &str = "waiting for ZooKeeper";
const STATUS_SERVING: &str = "serving";

/// Notifies the service manager for the lifetime of the process. Does nothing if `NOTIFY_SOCKET` is not set.
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
    // The watchdog stays active while the process shuts down, which may take time.
    pings.await;
}

/// Reports in the status text whether ZooKeeper is connected, once the process was ready.
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

/// Notifies the service manager that the process stops. Must be called before the shutdown starts: the process may exit
/// a moment later.
pub fn notify_stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Pings the watchdog while all actors respond; never returns.
async fn ping_watchdog(registry: &dump::DumpRegistry, every: Option<Duration>) {
    let Some(every) = every else { return std::future::pending().await };
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        let replies = registry.request_all(Dump, every).await;
        // A stopped actor is shutting down. An actor that does not respond blocks every actor on its thread.
        let blocked: BTreeSet<String> = replies
            .into_iter()
            .filter(|(_, reply)| matches!(reply, Err(NoAnswer::Deadline)))
            .map(|(actor_id, _)| format!("{} {}", actor_id.actor, actor_id.name))
            .collect();
        if blocked.is_empty() {
            notify(&[NotifyState::Watchdog]);
        } else {
            warn!(?blocked, "actors did not respond; watchdog ping skipped");
        }
    }
}

/// Sends states to the service manager; does nothing without one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!(%error, "cannot notify the service manager");
    }
}
