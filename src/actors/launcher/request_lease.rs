//! Trying: a request that a pool is writing about. As long as that lasts the other pools of the process leave it alone, instead of
//! writing the same and being refused by ZooKeeper.

use tokio::sync::watch;

use nodepool_model::records::ids::{PoolId, RequestId};
use nodepool_policy::scheduler::shared_pools::SharedPoolState;

/// Ends when it is dropped, with the write or with the actor that wanted it.
pub struct RequestLease {
    shared_pools: watch::Sender<SharedPoolState>,
    pool: PoolId,
    request: RequestId,
    succeeded: bool,
}

impl RequestLease {
    /// Nobody is woken for it: whoever looks sees it.
    pub fn acquire(shared_pools: &watch::Sender<SharedPoolState>, pool: &PoolId, request: &RequestId) -> Self {
        shared_pools.send_if_modified(|shared_pools| {
            shared_pools.begin_lease(pool, request);
            false
        });
        Self { shared_pools: shared_pools.clone(), pool: pool.clone(), request: request.clone(), succeeded: false }
    }

    /// What was written wakes the others. Where nothing was, they are told here.
    pub fn release(mut self, succeeded: bool) {
        self.succeeded = succeeded;
    }
}

impl Drop for RequestLease {
    fn drop(&mut self) {
        self.shared_pools.send_if_modified(|shared_pools| {
            shared_pools.end_lease(&self.pool, &self.request);
            !self.succeeded
        });
    }
}
