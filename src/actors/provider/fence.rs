//! Fencing for cloud calls: before a mutating call is sent, checks that the ZooKeeper session is still alive. A paused
//! process may have lost it, and another launcher may already own its nodes.

use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;

use nodepool_driver::call_guard::CallGuard;
use nodepool_zk::{SessionState, Zk, paths};

/// The session must remain valid for this long, because a call takes time to reach the cloud.
const MIN_SESSION_REMAINING: Duration = Duration::from_millis(100);
/// Interval between two queries if ZooKeeper does not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Clone)]
pub struct Fence(Zk);

impl Fence {
    pub fn new(zk: Zk) -> Self {
        Self(zk)
    }

    /// Resolves when the session is confirmed; never if it expired. Sends no request if a leader answered recently.
    pub async fn wait_for_session(&self) {
        while !self.is_session_confirmed() {
            let answered = self.0.sync(paths::ROOT).await.is_ok();
            if *self.0.session().borrow() == SessionState::Expired {
                return futures::future::pending().await;
            }
            // The process may have been paused since the query, so the condition is checked once more.
            if !answered {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }

    /// Hook for drivers, which do not know sessions.
    pub fn call_guard(&self) -> CallGuard {
        let fence = self.clone();
        CallGuard::new(move || {
            let fence = fence.clone();
            async move { fence.wait_for_session().await }.boxed()
        })
    }

    /// Sends no request.
    pub fn is_session_confirmed(&self) -> bool {
        self.0.session_valid_until().is_some_and(|until| Instant::now() + MIN_SESSION_REMAINING < until)
    }
}
