//! Waiting for a condition with a deadline: the only place of the tests that sleeps.

use std::time::Duration;

/// How often a condition is looked at. Short beside anything a test measures, long beside what a look costs.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Returns as soon as `condition` holds; panics, naming `what` it waited for, when it does not by the deadline.
pub async fn until(what: &str, deadline: Duration, mut condition: impl AsyncFnMut() -> bool) {
    until_some(what, deadline, async || condition().await.then_some(())).await;
}

/// The first value that `look` returns; panics, naming `what` it waited for, when there is none by the deadline.
pub async fn until_some<T>(what: &str, deadline: Duration, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let polling = async {
        loop {
            if let Some(found) = poll().await {
                return found;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    // The deadline also ends a look that hangs, not only one that keeps saying no.
    tokio::time::timeout(deadline, polling).await.unwrap_or_else(|_| panic!("waited {deadline:?} in vain for {what}"))
}
