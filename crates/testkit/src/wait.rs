//! Waiting for a condition with a deadline, so that tests need no sleep of a fixed length.

use std::time::Duration;

/// Pause between two polls of a condition: short compared with the times that tests measure, long compared with the
/// cost of a poll.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Returns as soon as `condition` holds. Panics at the deadline and names `what` it waited for.
pub async fn until(what: &str, deadline: Duration, mut condition: impl AsyncFnMut() -> bool) {
    until_some(what, deadline, async || condition().await.then_some(())).await;
}

/// The first value that `poll` returns. Panics at the deadline and names `what` it waited for.
pub async fn until_some<T>(what: &str, deadline: Duration, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let polling = async {
        loop {
            if let Some(found) = poll().await {
                return found;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    // The timeout also ends a poll that hangs.
    tokio::time::timeout(deadline, polling)
        .await
        .unwrap_or_else(|_| panic!("timed out after {deadline:?} waiting for {what}"))
}
