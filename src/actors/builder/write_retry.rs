//! Writes that are retried until they succeed or the ZooKeeper session ends, however long ZooKeeper is unavailable.

use std::time::Duration;

use tracing::warn;

use nodepool_model::snapshot::WriteError;
use nodepool_zk::SessionState;
use nodepool_zk::txn::store::Store;

/// Pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Number of consecutive failures while connected after which the write is abandoned.
const MAX_FAILURES: u32 = 60;

/// Retries across lost connections. When the session ends, its locks are released, and the write is no longer valid.
pub async fn write_with_retry(
    store: &Store,
    record: &str,
    mut write: impl AsyncFnMut() -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let mut session = store.zk().session();
    let mut failures = 0;
    loop {
        match write().await {
            Err(WriteError::Failed(error)) => {
                warn!(target: "nodepool.builder", record, error, "cannot write a record; retrying");
                // Only failures while connected count, because a lost connection is not their cause.
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
            result => return result,
        }
    }
}
