//! Writes that do not fit one transaction: a request for thousands of nodes goes the old way, lock and steps.
//!
//! A process that ends in the middle leaves a pending request that nobody has locked, with some nodes allocated to it;
//! the rule for lost requests undoes that.

use super::lock::{self, Lock};
use super::paths;
use super::txn::{LARGEST_TRANSACTION, Store, refusal};
use crate::model::json;
use crate::model::request::RequestState;
use crate::model::snapshot::{NodeChange, RequestChange, WriteError};

/// Nodes per transaction, as long as they fit: records are about 1 kB, and ZooKeeper takes 1 MiB.
const STEP: usize = 200;
/// What a node's proofs and paths take beside its record. Rounded up.
const OVERHEAD: usize = 500;

/// Requested, pending, nodes allocated step by step, fulfilled.
pub async fn hand_out(store: &Store, request: RequestChange, nodes: Vec<NodeChange>) -> Result<(), WriteError> {
    let lock = take_lock(store, &request).await?;
    let result = hand_out_locked(store, &lock, request, nodes).await;
    give_up_lock(lock).await;
    result
}

async fn hand_out_locked(
    store: &Store,
    lock: &Lock,
    mut request: RequestChange,
    nodes: Vec<NodeChange>,
) -> Result<(), WriteError> {
    let mut pending = request.clone();
    pending.record.state = RequestState::Pending;
    pending.record.nodes.clear();
    let stat = store.set_request(lock, pending).await?;
    in_steps(store, nodes).await?;
    request.version = stat.version;
    store.set_request(lock, request).await.map(drop)
}

/// Nodes freed step by step, then the request: the order in which an interruption does no harm.
pub async fn reset(store: &Store, request: RequestChange, nodes: Vec<NodeChange>) -> Result<(), WriteError> {
    let lock = take_lock(store, &request).await?;
    let result = match in_steps(store, nodes).await {
        Ok(()) => store.set_request(&lock, request).await.map(drop),
        Err(error) => Err(error),
    };
    give_up_lock(lock).await;
    result
}

async fn in_steps(store: &Store, nodes: Vec<NodeChange>) -> Result<(), WriteError> {
    let (mut step, mut size) = (Vec::new(), 0);
    for node in nodes {
        let bytes = json::to_bytes(&node.record).len() + OVERHEAD;
        if step.len() == STEP || (size + bytes > LARGEST_TRANSACTION && !step.is_empty()) {
            store.write_some(std::mem::take(&mut step)).await?;
            size = 0;
        }
        step.push(node);
        size += bytes;
    }
    if step.is_empty() {
        return Ok(());
    }
    store.write_some(step).await
}

async fn take_lock(store: &Store, request: &RequestChange) -> Result<Lock, WriteError> {
    match lock::try_lock(store.zk(), &paths::request_lock(&request.id), "").await {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(WriteError::Contended),
        Err(error) => Err(refusal(&error)),
    }
}

async fn give_up_lock(lock: Lock) {
    if let Err(error) = lock.release().await {
        tracing::warn!(%error, "cannot release a request's lock");
    }
}
