//! The compound writes, each one transaction that carries its own conditions: versions, and the proof that a lock has
//! no contender.
//!
//! ZooKeeper has no "has no children" check. A transaction proves that a lock directory is empty by deleting and
//! re-creating it, or, if it does not exist, by creating it.

use std::sync::Arc;

use bytes::Bytes;

use super::chunked_writes::{self, Writes};
use super::decline_batch::DeclineBatcher;
use super::{delete_tree, launch};
use crate::locks::lock::{self, Lock};
use crate::mirror::mirror::Mirror;
use crate::mirror::records::versioned;
use crate::{Zk, paths};
use nodepool_model::records::component::ComponentKind;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::Node;
use nodepool_model::records::request::NodeRequest;
use nodepool_model::snapshot::{LockState, NodeChange, RequestChange, WriteError};
use zookeeper_server::types::{CreateMode, Op, OpReply, Stat, ZkError};

/// Handle for writes: the session and its mirror. The mirror applies each write before the writer receives the result.
#[derive(Clone)]
pub struct Store {
    zk: Zk,
    mirror: Arc<Mirror>,
    decline_batcher: Arc<DeclineBatcher>,
}

/// Proof that a lock is free: its directory has no contender when the transaction runs.
pub(crate) struct UnlockedProof {
    pub(crate) directory: String,
    lock_state: LockState,
    action: LockDirAction,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum LockDirAction {
    /// The directory exists afterwards, so that its next user need not create it.
    Keep,
    /// The directory is as before: if it did not exist, it does not exist afterwards.
    Restore,
    /// The directory is deleted together with its record.
    Remove,
}

impl Store {
    pub fn new(zk: Zk, mirror: Arc<Mirror>) -> Self {
        Self { zk, mirror, decline_batcher: Arc::default() }
    }

    pub fn zk(&self) -> &Zk {
        &self.zk
    }

    pub fn mirror(&self) -> &Arc<Mirror> {
        &self.mirror
    }

    /// Fulfils a request with ready nodes. One transaction allocates the nodes and writes the request, so no reader
    /// observes a partial result.
    pub async fn fulfill(&self, request: RequestChange, nodes: Vec<NodeChange>) -> Result<(), WriteError> {
        let nodes = chunked_writes::changes(nodes);
        if self.is_too_large(chunked_writes::size(&nodes)) {
            return chunked_writes::fulfill(self, request, nodes).await;
        }
        self.write_all(&[], Some(request), nodes).await
    }

    /// Adds the pool to `declined_by`, or fails the request.
    pub async fn decline(&self, request: RequestChange) -> Result<(), WriteError> {
        let write = |request: RequestChange| async { self.write_all(&[], Some(request), Vec::new()).await };
        self.decline_batcher.decline(request, write).await
    }

    /// Resets a lost request and the nodes that were allocated to it.
    pub async fn reset(&self, request: RequestChange, nodes: Vec<NodeChange>) -> Result<(), WriteError> {
        let nodes = chunked_writes::changes(nodes);
        if self.is_too_large(chunked_writes::size(&nodes)) {
            return chunked_writes::reset(self, request, nodes).await;
        }
        self.write_all(&[], Some(request), nodes).await
    }

    /// Writes a node that is not locked.
    pub async fn save(&self, node: NodeChange) -> Result<(), WriteError> {
        self.write_all(&[], None, chunked_writes::changes(vec![node])).await
    }

    /// Writes a node whose request is deleted. The request's existence is checked in ZooKeeper, not in the mirror.
    /// Request ids are never reused, so a deleted request stays deleted.
    pub async fn release(&self, request: &RequestId, node: NodeChange) -> Result<(), WriteError> {
        match self.zk.exists(&paths::request(request)).await {
            Ok(None) => self.save(node).await,
            Ok(Some(_)) => Err(WriteError::Conflict),
            Err(error) => Err(write_error_of(&error)),
        }
    }

    /// Deletes a finished node with its lock directory.
    pub async fn remove_node(&self, id: &NodeId, version: i32) -> Result<(), WriteError> {
        let path = paths::node(id);
        // The version check comes first: if the decision was made on an old record, no lock is touched.
        let mut ops = vec![Op::check(&*path, version)];
        ops.extend(self.node_unlocked_proof(id, LockDirAction::Remove).ops());
        ops.push(Op::delete(&*path, version));
        match self.zk.multi(ops).await {
            Ok(_) => {}
            // The record has a child that the mirror does not track or has not observed yet.
            Err(ZkError::Multi { index, .. }) if index > 0 => {
                self.remove_node_locked(id, version).await?;
            }
            Err(error) => return Err(write_error_of(&error)),
        }
        self.mirror.apply_own_write(|update| update.remove(&path));
        Ok(())
    }

    /// The slow path: under the lock, deletes the record with everything below it.
    async fn remove_node_locked(&self, id: &NodeId, version: i32) -> Result<(), WriteError> {
        let lock = match lock::try_lock(&self.zk, &paths::node_lock(id), "").await {
            Ok(Some(lock)) => lock,
            Ok(None) => return Err(WriteError::Contended),
            Err(error) => return Err(write_error_of(&error)),
        };
        let conditions = [lock.fence(), Op::check(paths::node(id), version)];
        match delete_tree::delete_tree_after(&*self.zk, &paths::node(id), &conditions).await {
            Ok(()) => {
                lock.mark_released();
                Ok(())
            }
            Err(error) => {
                release(lock).await;
                Err(write_error_of(&error))
            }
        }
    }

    /// Creates the record of a node that is not launched: it is ready at once.
    pub async fn register(&self, node: Node) -> Result<NodeId, WriteError> {
        let data = Bytes::from(json::to_bytes(&node));
        let created = self.zk.create(&paths::node_prefix(), data, CreateMode::PersistentSequential).await;
        let (path, stat) = created.map_err(|error| write_error_of(&error))?;
        let id = NodeId::from(paths::name(&path));
        self.mirror.apply_own_write(|update| {
            update.add_node(id.clone(), versioned(node, &stat));
        });
        Ok(id)
    }

    /// Creates a request of this launcher itself. It is ephemeral and ends with the session.
    pub async fn submit_own_request(&self, priority: &str, request: NodeRequest) -> Result<RequestId, WriteError> {
        let data = Bytes::from(json::to_bytes(&request));
        let prefix = paths::request_prefix(priority);
        let created = self.zk.create(&prefix, data, CreateMode::EphemeralSequential).await;
        let (path, stat) = created.map_err(|error| write_error_of(&error))?;
        let id = RequestId::from(paths::name(&path));
        self.mirror.apply_own_write(|update| {
            update.add_request(id.clone(), versioned(request, &stat));
        });
        Ok(id)
    }

    pub async fn remove_request(&self, request: &RequestId) -> Result<(), WriteError> {
        match self.zk.delete(&paths::request(request), -1).await {
            Ok(()) | Err(ZkError::NoNode) => {
                self.mirror.apply_own_write(|update| update.remove(&paths::request(request)));
                Ok(())
            }
            Err(error) => Err(write_error_of(&error)),
        }
    }

    /// Deletes the znode of a node without data, locked or not: it has no record that a lock could protect.
    pub async fn remove_empty_node(&self, id: &NodeId) -> Result<(), WriteError> {
        let path = paths::node(id);
        match self.zk.get(&path).await {
            Ok((data, stat)) if data.is_empty() => {
                // A write of data in the meantime changes the version.
                let unchanged = [Op::check(&*path, stat.version)];
                delete_tree::delete_tree_after(&*self.zk, &path, &unchanged)
                    .await
                    .map_err(|error| write_error_of(&error))?;
                self.mirror.apply_own_write(|update| update.remove(&path));
                Ok(())
            }
            Ok(_) => Err(WriteError::Conflict),
            Err(ZkError::NoNode) => {
                self.mirror.apply_own_write(|update| update.remove(&path));
                Ok(())
            }
            Err(error) => Err(write_error_of(&error)),
        }
    }

    /// Deletes the lock directory of a deleted request, with or without contenders, if it has not changed since
    /// `before_ms` (milliseconds since the epoch, by the server's clock).
    pub async fn remove_request_lock(&self, request: &RequestId, before_ms: i64) -> Result<(), WriteError> {
        let path = paths::request_lock(request);
        let (directory, owner) = (self.zk.exists(&path), self.zk.exists(&paths::request(request)));
        let (directory, owner) = futures::try_join!(directory, owner).map_err(|error| write_error_of(&error))?;
        match directory {
            Some(stat) if owner.is_none() && stat.mtime < before_ms => {
                delete_tree::delete_tree(&*self.zk, &path).await.map_err(|error| write_error_of(&error))?;
            }
            Some(stat) => {
                self.mirror.apply_own_write(|update| {
                    let mut lock_state = update.snapshot_mut().request_lock(request).clone();
                    lock_state.mtime_ms = stat.mtime;
                    update.snapshot_mut().set_request_lock(request.clone(), lock_state);
                });
                return Ok(());
            }
            None => {}
        }
        self.mirror.apply_own_write(|update| update.remove(&path));
        Ok(())
    }

    /// Registers a component; returns its znode, which is ephemeral. `is_retry`: an earlier attempt may have created
    /// it, and its reply was lost.
    pub async fn register_component(
        &self,
        kind: ComponentKind,
        hostname: &str,
        record: Vec<u8>,
        is_retry: bool,
    ) -> Result<String, WriteError> {
        if is_retry && let Some(path) = self.own_component(kind, hostname, id_of(&record).as_deref()).await? {
            self.update_component(&path, record).await?;
            return Ok(path);
        }
        let prefix = paths::component_prefix(kind, hostname);
        let created = self.zk.create(&prefix, Bytes::from(record), CreateMode::EphemeralSequential).await;
        created.map(|(path, _)| path).map_err(|error| write_error_of(&error))
    }

    /// The znode of this session whose record has this `id`. Launchers and builders have no `id` and only one znode.
    async fn own_component(
        &self,
        kind: ComponentKind,
        hostname: &str,
        id: Option<&str>,
    ) -> Result<Option<String>, WriteError> {
        let root = paths::components(kind);
        let names = match self.zk.children(&root).await {
            Err(ZkError::NoNode) => return Ok(None),
            names => names.map_err(|error| write_error_of(&error))?.0,
        };
        for name in names.iter().filter(|name| name.starts_with(hostname)) {
            let path = format!("{root}/{name}");
            match self.zk.get(&path).await {
                Ok((data, stat)) if stat.ephemeral_owner == self.zk.session_id() && id_of(&data).as_deref() == id => {
                    return Ok(Some(path));
                }
                Ok(_) | Err(ZkError::NoNode) => {}
                Err(error) => return Err(write_error_of(&error)),
            }
        }
        Ok(None)
    }

    pub async fn update_component(&self, path: &str, record: Vec<u8>) -> Result<(), WriteError> {
        self.zk.set(path, Bytes::from(record), -1).await.map(drop).map_err(|error| write_error_of(&error))
    }

    /// As `remove_component`, for a caller that does not know whether its registration succeeded.
    pub async fn remove_own_component(&self, kind: ComponentKind, hostname: &str, id: &str) -> Result<(), WriteError> {
        match self.own_component(kind, hostname, Some(id)).await? {
            Some(path) => self.remove_component(&path).await,
            None => Ok(()),
        }
    }

    pub async fn remove_component(&self, path: &str) -> Result<(), WriteError> {
        match self.zk.delete(path, -1).await {
            Ok(()) | Err(ZkError::NoNode) => Ok(()),
            Err(error) => Err(write_error_of(&error)),
        }
    }

    /// Writes a request and nodes if their locks are free and the conditions hold, and applies the replies to the
    /// mirror.
    pub(crate) async fn write_all(
        &self,
        conditions: &[Op],
        request: Option<RequestChange>,
        nodes: Writes<NodeChange>,
    ) -> Result<(), WriteError> {
        let (mut ops, nodes): (Vec<Op>, Vec<NodeChange>) = nodes.into_iter().unzip();
        let mut proofs: Vec<UnlockedProof> =
            request.iter().map(|request| self.request_unlocked_proof(&request.id, LockDirAction::Restore)).collect();
        proofs.extend(self.node_unlocked_proofs(&nodes));
        if let Some(request) = &request {
            ops.push(Op::set(paths::request(&request.id), json::to_bytes(&request.record), request.version));
        }
        let own_write = self.mirror.begin_write(ops.iter().map(|op| op.path().to_owned()).collect());
        ops.extend_from_slice(conditions);
        let replies = self.commit(proofs, ops).await?;
        let mut stats = replies.into_iter().filter_map(|reply| match reply {
            OpReply::Set(stat) => Some(stat),
            _ => None,
        });
        self.mirror.apply_own_write(|update| {
            for (node, stat) in nodes.into_iter().zip(&mut stats) {
                update.change_node(node.id, versioned(node.record, &stat));
            }
            if let (Some(request), Some(stat)) = (request, stats.next()) {
                update.change_request(request.id, versioned(request.record, &stat));
            }
        });
        own_write.done();
        Ok(())
    }

    /// Runs the operations if the locks of `proofs` are free; returns the replies to the operations only.
    pub(crate) async fn commit(&self, proofs: Vec<UnlockedProof>, ops: Vec<Op>) -> Result<Vec<OpReply>, WriteError> {
        // The writes come first: if one was decided on an old record, no lock is touched.
        let mut all = ops.clone();
        all.extend(proofs.iter().flat_map(UnlockedProof::ops));
        match self.zk.multi(all).await {
            Ok(mut replies) => {
                replies.truncate(ops.len());
                Ok(replies)
            }
            Err(ZkError::Multi { index, .. }) if index >= ops.len() => self.commit_locked(proofs, ops).await,
            Err(error) => Err(write_error_of(&error)),
        }
    }

    /// The slow path, for lock directories that differ from the mirror: takes the locks as peers do.
    async fn commit_locked(&self, proofs: Vec<UnlockedProof>, ops: Vec<Op>) -> Result<Vec<OpReply>, WriteError> {
        let mut locks: Vec<Lock> = Vec::with_capacity(proofs.len());
        for proof in &proofs {
            match lock::try_lock(&self.zk, &proof.directory, "").await {
                Ok(Some(lock)) => locks.push(lock),
                taken => {
                    for lock in locks {
                        release(lock).await;
                    }
                    return Err(taken.map_or_else(|error| write_error_of(&error), |_| WriteError::Contended));
                }
            }
        }
        // The same transaction releases the locks, so no reader observes a fulfilled request whose nodes are still
        // locked. If a lock was lost, its deletion fails, and the transaction with it.
        let mut all: Vec<Op> = locks.iter().map(Lock::release_op).collect();
        let before = all.len();
        all.extend(ops);
        match self.zk.multi(all).await {
            Ok(mut replies) => {
                locks.into_iter().for_each(Lock::mark_released);
                Ok(replies.split_off(before))
            }
            Err(error) => {
                for lock in locks {
                    release(lock).await;
                }
                Err(write_error_of(&error))
            }
        }
    }

    pub(crate) fn node_unlocked_proof(&self, id: &NodeId, action: LockDirAction) -> UnlockedProof {
        UnlockedProof { directory: paths::node_lock(id), lock_state: self.mirror.node_lock(id), action }
    }

    /// Proofs for nodes that continue to exist and will be locked again.
    pub(crate) fn node_unlocked_proofs(&self, nodes: &[NodeChange]) -> Vec<UnlockedProof> {
        nodes.iter().map(|node| self.node_unlocked_proof(&node.id, LockDirAction::Keep)).collect()
    }

    pub(crate) fn request_unlocked_proof(&self, id: &RequestId, action: LockDirAction) -> UnlockedProof {
        UnlockedProof { directory: paths::request_lock(id), lock_state: self.mirror.request_lock(id), action }
    }
}

impl UnlockedProof {
    pub(crate) fn ops(&self) -> Vec<Op> {
        let create = || Op::create(&*self.directory, Bytes::new(), CreateMode::Persistent);
        let delete = || Op::delete(&*self.directory, -1);
        match (self.lock_state.exists, self.action) {
            (true, LockDirAction::Keep | LockDirAction::Restore) => vec![delete(), create()],
            (true, LockDirAction::Remove) => vec![delete()],
            (false, LockDirAction::Keep) => vec![create()],
            (false, LockDirAction::Restore) => vec![create(), delete()],
            // Deleting the record itself proves that it has no children.
            (false, LockDirAction::Remove) => Vec::new(),
        }
    }
}

/// Releases a lock. After a failure the release is retried in the background; the lock ends with the session at the
/// latest.
pub(crate) async fn release(lock: Lock) {
    if let Err(error) = lock.release().await {
        tracing::warn!(%error, "cannot release a lock");
    }
}

/// The paths that these operations delete.
pub(crate) fn deleted_paths<'a>(ops: impl IntoIterator<Item = &'a Op>) -> Vec<String> {
    let deletes = ops.into_iter().filter(|op| matches!(op, Op::Delete { .. }));
    deletes.map(|op| op.path().to_owned()).collect()
}

pub(crate) fn unexpected_reply() -> WriteError {
    WriteError::Failed("unexpected reply to a ZooKeeper transaction".to_owned())
}

/// The `id` of a component's record.
fn id_of(record: &[u8]) -> Option<String> {
    let record: serde_json::Value = serde_json::from_slice(record).ok()?;
    record.get("id")?.as_str().map(str::to_owned)
}

/// The meaning of a failure for the component that decided on the write.
pub(crate) fn write_error_of(error: &ZkError) -> WriteError {
    match error.root() {
        ZkError::BadVersion | ZkError::NoNode | ZkError::NotEmpty | ZkError::NodeExists => WriteError::Conflict,
        ZkError::SessionExpired => WriteError::SessionOver,
        other => WriteError::Failed(other.to_string()),
    }
}

/// A step of a chunked write.
impl Store {
    pub(crate) async fn set_request(
        &self,
        lock: &Lock,
        conditions: &[Op],
        request: RequestChange,
    ) -> Result<Stat, WriteError> {
        let data = json::to_bytes(&request.record);
        let set = Op::set(paths::request(&request.id), data, request.version);
        match self.zk.multi([&[lock.fence()], conditions, &[set]].concat()).await.as_deref() {
            Ok([.., OpReply::Set(stat)]) => {
                let stat = *stat;
                self.mirror.apply_own_write(|update| {
                    // Both in one update: otherwise the rule for lost requests would find a request that is pending and
                    // unlocked.
                    launch::apply_contender(update, lock.path(), true);
                    update.change_request(request.id, versioned(request.record, &stat));
                });
                Ok(stat)
            }
            Ok(_) => Err(unexpected_reply()),
            Err(error) => Err(write_error_of(error)),
        }
    }
}
