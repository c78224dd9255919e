//! Registers this process in ZooKeeper, so that others know of it.

use std::time::Duration;

use tracing::warn;

use nodepool_model::records::component::Component;
use nodepool_model::records::json;
use nodepool_zk::txn::store::Store;

/// Tries until it is there; the session takes it along when it ends.
pub async fn register(store: Store, record: Component, retry_interval: Duration) {
    let mut again = false;
    while let Err(error) = store.register_component(record.kind, &record.hostname, json::to_bytes(&record), again).await
    {
        again = true;
        warn!(target: "nodepool.Component", %error, "cannot register; trying again");
        tokio::time::sleep(retry_interval).await;
    }
}
