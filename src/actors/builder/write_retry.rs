//! Writes that have to be made however long ZooKeeper is away, as long as the session lives.

use std::time::Duration;

use tracing::warn;

use nodepool_model::snapshot::WriteError;
use nodepool_zk::SessionState;
use nodepool_zk::txn::store::Store;

/// Between two attempts to record an end that ZooKeeper has not taken.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// So many in a row are no accident.
const MAX_FAILURES: u32 = 60;

/// Over lost connections: with the session go its locks, and then what was to be recorded is nobody's.
pub async fn write_with_retry(
    store: &Store,
    what: &str,
    mut write: impl AsyncFnMut() -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let mut session = store.zk().session();
    let mut failures = 0;
    loop {
        match write().await {
            Err(WriteError::Failed(error)) => {
                warn!(target: "nodepool.builder", what, error, "cannot be recorded; trying again");
                // With a connection it is not the connection that is missing.
                failures = if *session.borrow() == SessionState::Connected { failures + 1 } else { 0 };
                if failures >= MAX_FAILURES {
                    return Err(WriteError::Failed(error));
                }
                match session.wait_for(|state| *state != SessionState::Suspended).await {
                    Ok(state) if *state == SessionState::Connected => {}
                    _ => return Err(WriteError::SessionOver),
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            ended => return ended,
        }
    }
}
