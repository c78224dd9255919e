//! Writes that do not fit one transaction: a request for thousands of nodes goes the old way, lock and steps.
//!
//! A process that ends in the middle leaves a pending request that nobody has locked, with some nodes allocated to it;
//! the rule for lost requests undoes that.

use super::launches::show;
use super::lock::{self, Lock};
use super::txn::{Store, refusal};
use super::{Op, paths};
use crate::model::ids::RequestId;
use crate::model::json;
use crate::model::node::NodeState;
use crate::model::request::RequestState;
use crate::model::snapshot::{NodeChange, RequestChange, WriteError};

/// Nodes per transaction, as long as they fit: records are about 1 kB, and ZooKeeper takes 1 MiB.
const STEP: usize = 200;
/// What a node's proofs and paths take beside its record. Rounded up.
const OVERHEAD: usize = 500;

/// Requested, pending, nodes allocated step by step, fulfilled.
pub async fn hand_out(store: &Store, request: RequestChange, nodes: Vec<NodeChange>) -> Result<(), WriteError> {
    let (lock, id) = (take_lock(store, &request).await?, request.id.clone());
    let result = hand_out_locked(store, &lock, request, nodes).await;
    give_up_lock(store, lock, &id).await;
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
    request.version = store.set_request(lock, &[], pending).await?.version;
    let written = as_written(&nodes);
    in_steps(store, lock, &request, nodes).await?;
    store.set_request(lock, &written, request).await.map(drop)
}

/// That nobody has changed those of these nodes that are ready since they were written: in steps there is time for that.
pub(super) fn as_written<'a>(nodes: impl IntoIterator<Item = &'a NodeChange>) -> Vec<Op> {
    let ready = nodes.into_iter().filter(|node| node.record.state == NodeState::Ready);
    ready.map(|node| Op::check(paths::node(&node.id), node.version + 1)).collect()
}

/// Nodes freed step by step, then the request: the order in which an interruption does no harm.
pub async fn reset(store: &Store, request: RequestChange, nodes: Vec<NodeChange>) -> Result<(), WriteError> {
    let (lock, id) = (take_lock(store, &request).await?, request.id.clone());
    let result = match in_steps(store, &lock, &request, nodes).await {
        Ok(()) => store.set_request(&lock, &[], request).await.map(drop),
        Err(error) => Err(error),
    };
    give_up_lock(store, lock, &id).await;
    result
}

/// Each step carries what was decided on: the lock is ours, and the request is as it was. A request that somebody fulfilled between
/// the decision and the lock would lose its nodes otherwise, as their records need not have changed since.
async fn in_steps(
    store: &Store,
    lock: &Lock,
    request: &RequestChange,
    nodes: Vec<NodeChange>,
) -> Result<(), WriteError> {
    let conditions = [lock.fence(), Op::check(paths::request(&request.id), request.version)];
    let most = store.zk().largest_transaction();
    let (mut step, mut size) = (Vec::new(), 0);
    for node in nodes {
        let bytes = json::to_bytes(&node.record).len() + OVERHEAD;
        if step.len() == STEP || (size + bytes > most && !step.is_empty()) {
            store.write_some(&conditions, std::mem::take(&mut step)).await?;
            size = 0;
        }
        step.push(node);
        size += bytes;
    }
    if step.is_empty() {
        return Ok(());
    }
    store.write_some(&conditions, step).await
}

async fn take_lock(store: &Store, request: &RequestChange) -> Result<Lock, WriteError> {
    match lock::try_lock(store.zk(), &paths::request_lock(&request.id), "").await {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(WriteError::Contended),
        Err(error) => Err(refusal(&error)),
    }
}

async fn give_up_lock(store: &Store, lock: Lock, id: &RequestId) {
    let path = lock.path().to_owned();
    match lock.release().await {
        // What nobody was shown makes no new picture: whoever could not write would try again on that, and again.
        Ok(()) if !store.mirror().request_lock(id).contenders.contains(paths::name(&path)) => {}
        Ok(()) => store.mirror().fold(|fold| show(fold, &path, false)),
        Err(error) => tracing::warn!(%error, "cannot release a request's lock"),
    }
}
