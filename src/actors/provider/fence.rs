//! What changes something at a cloud passes here last: a process that stood still may have lost its session without knowing, and
//! others go on with what was its own.

use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;

use nodepool_driver::call_guard::CallGuard;
use nodepool_zk::{SessionState, Zk, paths};

/// A call is on its way for a while; so long the session has to live.
const MIN_SESSION_REMAINING: Duration = Duration::from_millis(100);
/// Between two questions, where nobody answers.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Clone)]
pub struct Fence(Zk);

impl Fence {
    pub fn new(zk: Zk) -> Self {
        Self(zk)
    }

    /// Resolves when the session is known to live; never, where it is over. Asks nobody where a leader answered lately.
    pub async fn wait_for_session(&self) {
        while !self.is_session_confirmed() {
            let answered = self.0.sync(paths::ROOT).await.is_ok();
            if *self.0.session().borrow() == SessionState::Expired {
                return futures::future::pending().await;
            }
            // We may have stood still since it was asked, so it is looked at once more.
            if !answered {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }

    /// For drivers, which know nothing of sessions.
    pub fn call_guard(&self) -> CallGuard {
        let fence = self.clone();
        CallGuard::new(move || {
            let fence = fence.clone();
            async move { fence.wait_for_session().await }.boxed()
        })
    }

    /// It asks nobody.
    pub fn is_session_confirmed(&self) -> bool {
        self.0.session_valid_until().is_some_and(|until| Instant::now() + MIN_SESSION_REMAINING < until)
    }
}
