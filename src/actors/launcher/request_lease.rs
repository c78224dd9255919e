//! Trying: a request that a pool is writing about. As long as that lasts the other pools of the process leave it alone, instead of
//! writing the same and being refused by ZooKeeper.

use tokio::sync::watch;

use nodepool_model::records::ids::{PoolId, RequestId};
use nodepool_policy::scheduler::shared_pools::Board;

/// Ends when it is dropped, with the write or with the actor that wanted it.
pub struct Trying {
    board: watch::Sender<Board>,
    pool: PoolId,
    request: RequestId,
    succeeded: bool,
}

impl Trying {
    /// Nobody is woken for it: whoever looks sees it.
    pub fn begin(board: &watch::Sender<Board>, pool: &PoolId, request: &RequestId) -> Self {
        board.send_if_modified(|board| {
            board.begin_try(pool, request);
            false
        });
        Self { board: board.clone(), pool: pool.clone(), request: request.clone(), succeeded: false }
    }

    /// What was written wakes the others. Where nothing was, they are told here.
    pub fn end(mut self, succeeded: bool) {
        self.succeeded = succeeded;
    }
}

impl Drop for Trying {
    fn drop(&mut self) {
        self.board.send_if_modified(|board| {
            board.end_try(&self.pool, &self.request);
            !self.succeeded
        });
    }
}
