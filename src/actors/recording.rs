//! Writes that have to be made however long ZooKeeper is away, as long as the session lives.

use std::time::Duration;

use tracing::warn;

use crate::model::snapshot::WriteError;
use crate::zk::SessionState;
use crate::zk::txn::Store;

/// Between two attempts to record an end that ZooKeeper has not taken.
const AGAIN: Duration = Duration::from_millis(500);

/// Over lost connections: with the session go its locks, and then what was to be recorded is nobody's.
pub async fn record(
    store: &Store,
    what: &str,
    mut write: impl AsyncFnMut() -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let mut session = store.zk().session();
    loop {
        match write().await {
            Err(WriteError::Failed(error)) => {
                warn!(target: "nodepool.builder", what, error, "ZooKeeper suspended. Waiting");
                match session.wait_for(|state| *state != SessionState::Suspended).await {
                    Ok(state) if *state == SessionState::Connected => {}
                    _ => return Err(WriteError::SessionOver),
                }
                tokio::time::sleep(AGAIN).await;
            }
            ended => return ended,
        }
    }
}
