//! Writes beyond one transaction: a request for thousands of nodes is written in chunks, under the request's lock.
//!
//! A process that ends during a chunked write leaves an unlocked pending request with some nodes allocated to it; the
//! rule for lost requests undoes that.

use std::time::Duration;

use super::store::{Store, release, write_error_of};
use crate::locks::lock::{self, Lock};
use crate::paths;
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::RequestState;
use nodepool_model::snapshot::{NodeChange, RequestChange, WriteError};
use zookeeper_server::types::{CreateMode, Op};

/// Nodes per transaction, if they fit: records are about 1 kB, and ZooKeeper accepts 1 MiB.
const MAX_CHUNK_NODES: usize = 200;
/// Back-off between two attempts. The mirror re-reads what its snapshot lacks within a fraction of it.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Bytes per node besides its record, for its lock, the proof that the lock is free, and paths: 300, plus four times
/// the chroot.
pub(crate) const OVERHEAD_BYTES: usize = 500;

/// Records, each after the operation that writes or creates it.
pub(crate) type Writes<T> = Vec<(Op, T)>;

pub(crate) fn changes(nodes: Vec<NodeChange>) -> Writes<NodeChange> {
    nodes.into_iter().map(|node| (write(&node), node)).collect()
}

pub(crate) fn creations(nodes: Vec<Node>) -> Writes<Node> {
    let create = |node: &Node| Op::create(paths::node_prefix(), json::to_bytes(node), CreateMode::PersistentSequential);
    nodes.into_iter().map(|node| (create(&node), node)).collect()
}

pub(crate) fn write(node: &NodeChange) -> Op {
    Op::set(paths::node(&node.id), json::to_bytes(&node.record), node.version)
}

/// Writes the request as pending, allocates the nodes in chunks, then writes the request as fulfilled.
pub(crate) async fn fulfill(
    store: &Store,
    request: RequestChange,
    nodes: Writes<NodeChange>,
) -> Result<(), WriteError> {
    let lock = lock_request(store, &request).await?;
    let result = fulfill_locked(store, &lock, request, nodes).await;
    release_and_back_off(lock, result).await
}

async fn fulfill_locked(
    store: &Store,
    lock: &Lock,
    mut request: RequestChange,
    nodes: Writes<NodeChange>,
) -> Result<(), WriteError> {
    let mut pending = request.clone();
    pending.record.state = RequestState::Pending;
    pending.record.nodes.clear();
    request.version = store.set_request(lock, &[], pending).await?.version;
    let unchanged = unchanged_checks(nodes.iter().map(|(_, node)| node));
    write_in_chunks(store, lock, &request, nodes).await?;
    store.set_request(lock, &unchanged, request).await.map(drop)
}

/// Checks that the nodes that are ready for a request have not changed since they were written: between chunks another
/// process may write them. Freed nodes are not checked, because they may already be allocated to another request.
pub(crate) fn unchanged_checks<'a>(nodes: impl IntoIterator<Item = &'a NodeChange>) -> Vec<Op> {
    let ready = nodes.into_iter().filter(|node| node.record.state == NodeState::Ready);
    let ready = ready.filter(|node| node.record.allocated_to.is_some());
    ready.map(|node| Op::check(paths::node(&node.id), node.version + 1)).collect()
}

/// Frees the nodes in chunks, then resets the request: in this order an interruption does no harm.
pub(crate) async fn reset(store: &Store, request: RequestChange, nodes: Writes<NodeChange>) -> Result<(), WriteError> {
    let lock = lock_request(store, &request).await?;
    let result = match write_in_chunks(store, &lock, &request, nodes).await {
        Ok(()) => store.set_request(&lock, &[], request).await.map(drop),
        Err(error) => Err(error),
    };
    release_and_back_off(lock, result).await
}

/// Releases the lock after a chunked write. A failed write has changed the snapshot, and this change would trigger the
/// next attempt at once, over and over. So the error is returned after a back-off.
pub(crate) async fn release_and_back_off<T>(lock: Lock, result: Result<T, WriteError>) -> Result<T, WriteError> {
    release(lock).await;
    if result.is_err() {
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    result
}

/// Each chunk carries the conditions of the decision: the lock is held, and the request is unchanged. Otherwise a
/// request that was fulfilled between the decision and the lock would lose its nodes, because their records may be
/// unchanged since the decision.
async fn write_in_chunks(
    store: &Store,
    lock: &Lock,
    request: &RequestChange,
    nodes: Writes<NodeChange>,
) -> Result<(), WriteError> {
    let conditions = [lock.fence(), Op::check(paths::request(&request.id), request.version)];
    for chunk in store.chunks(nodes) {
        store.write_all(&conditions, None, chunk).await?;
    }
    Ok(())
}

impl Store {
    pub(crate) fn is_too_large(&self, bytes: usize) -> bool {
        bytes > self.zk().max_transaction_bytes()
    }

    pub(crate) fn chunks<T>(&self, writes: Writes<T>) -> Vec<Writes<T>> {
        chunks(writes, self.zk().max_transaction_bytes(), |(op, _)| bytes(op))
    }
}

/// Splits items into chunks that fit a transaction of `max_bytes`; each has at least one item.
pub(crate) fn chunks<T>(items: Vec<T>, max_bytes: usize, bytes: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let (mut chunks, mut chunk, mut size) = (Vec::new(), Vec::new(), 0);
    for item in items {
        let bytes = bytes(&item);
        if chunk.len() == MAX_CHUNK_NODES || (size + bytes > max_bytes && !chunk.is_empty()) {
            chunks.push(std::mem::take(&mut chunk));
            size = 0;
        }
        chunk.push(item);
        size += bytes;
    }
    chunks.extend((!chunk.is_empty()).then_some(chunk));
    chunks
}

/// Size of these writes in a transaction, in bytes.
pub(crate) fn size<T>(writes: &[(Op, T)]) -> usize {
    writes.iter().map(|(op, _)| bytes(op)).sum()
}

/// Size of the write of a node in a transaction, in bytes.
pub(crate) fn bytes(op: &Op) -> usize {
    OVERHEAD_BYTES + if let Op::Create { data, .. } | Op::Set { data, .. } = op { data.len() } else { 0 }
}

async fn lock_request(store: &Store, request: &RequestChange) -> Result<Lock, WriteError> {
    match lock::try_lock(store.zk(), &paths::request_lock(&request.id), "").await {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(WriteError::Contended),
        Err(error) => Err(write_error_of(&error)),
    }
}
