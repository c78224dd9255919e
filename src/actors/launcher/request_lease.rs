//! Lease on a request during a write of one pool: the other pools of the process skip the request, because ZooKeeper
//! would reject their conflicting writes.

use tokio::sync::watch;

use nodepool_model::records::ids::{PoolId, RequestId};
use nodepool_policy::scheduler::shared_pools::SharedPoolState;

/// Lease that ends when it is dropped: with the write, or with the actor that started the write.
pub struct RequestLease {
    shared_pools: watch::Sender<SharedPoolState>,
    pool: PoolId,
    request: RequestId,
    succeeded: bool,
}

impl RequestLease {
    /// Starts a lease. No pool is woken, because each one reads the leases at its next pass.
    pub fn acquire(shared_pools: &watch::Sender<SharedPoolState>, pool: &PoolId, request: &RequestId) -> Self {
        shared_pools.send_if_modified(|shared_pools| {
            shared_pools.begin_lease(pool, request);
            false
        });
        Self { shared_pools: shared_pools.clone(), pool: pool.clone(), request: request.clone(), succeeded: false }
    }

    /// Ends the lease. A successful write wakes the other pools by its snapshot; after a failed one, the end of the
    /// lease wakes them.
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
