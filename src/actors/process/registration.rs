//! Registration of this process in ZooKeeper as a component.

use std::time::Duration;

use tracing::warn;

use nodepool_model::records::component::Component;
use nodepool_model::records::json;
use nodepool_zk::txn::store::Store;

/// Registers the process; retries until the component exists. Its znode is ephemeral and is deleted with the session.
pub async fn register(store: Store, record: Component, retry_interval: Duration) {
    let mut is_retry = false;
    while let Err(error) =
        store.register_component(record.kind, &record.hostname, json::to_bytes(&record), is_retry).await
    {
        is_retry = true;
        warn!(target: "nodepool.Component", %error, "cannot register; retrying");
        tokio::time::sleep(retry_interval).await;
    }
}
