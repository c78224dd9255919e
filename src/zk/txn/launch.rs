//! Transactions of launches and deletions: they take, check and release long-held locks in the same transactions that
//! change the records.

use std::collections::BTreeMap;

use super::chunked_writes::{self, Writes};
use super::delete_tree;
use super::store::{LockDirAction, Store, UnlockedProof, deleted_paths, unexpected_reply, write_error_of};
use crate::locks::lock::{self, Lock, PlannedLock};
use crate::mirror::bulk;
use crate::mirror::mirror::SnapshotUpdate;
use crate::mirror::records::{self, Decoded, versioned};
use crate::paths;
use crate::paths::ZnodePath;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::Node;
use nodepool_model::records::request::RequestState;
use nodepool_model::snapshot::{LockState, NodeChange, RequestChange, WriteError};
use zookeeper_server::types::{Op, OpReply, Stat, ZkError};

/// Result of a claim: the lock of the request, and the nodes created for it.
#[derive(Debug)]
pub struct Claimed {
    pub lock: Lock,
    /// In the order of the records.
    pub nodes: Vec<NodeId>,
}

/// A node whose held lock is released. If there is a `change`, the same transaction writes it.
#[derive(Debug)]
pub struct HeldNode {
    pub lock: Lock,
    pub change: Option<NodeChange>,
}

/// A held node, with the operation that writes its record.
type ReleasedNode = (Option<Op>, HeldNode);

impl Store {
    /// Accepts a request: takes its lock and writes its record (pending), ready nodes (allocated) and new ones (init).
    /// A claim that fits one transaction is all or nothing. Otherwise the first transaction takes the lock; if a later
    /// chunk fails, the rule for lost requests undoes the earlier ones.
    pub async fn claim(
        &self,
        request: RequestChange,
        reuse: Vec<NodeChange>,
        nodes: Vec<Node>,
    ) -> Result<Claimed, WriteError> {
        let (reuse, nodes) = (chunked_writes::changes(reuse), chunked_writes::creations(nodes));
        if !self.is_too_large(chunked_writes::size(&reuse) + chunked_writes::size(&nodes)) {
            return self.claim_at_once(request, reuse, nodes).await;
        }
        let lock = self.claim_at_once(request, Vec::new(), Vec::new()).await?.lock;
        match self.extend_in_chunks(&lock, reuse, nodes).await {
            Ok(nodes) => Ok(Claimed { lock, nodes }),
            Err(error) => chunked_writes::release_and_back_off(lock, Err(error)).await,
        }
    }

    async fn claim_at_once(
        &self,
        request: RequestChange,
        reuse: Writes<NodeChange>,
        nodes: Writes<Node>,
    ) -> Result<Claimed, WriteError> {
        let (written, reuse): (Vec<_>, Vec<_>) = reuse.into_iter().unzip();
        let (created, nodes): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let mut ops = vec![Op::set(paths::request(&request.id), json::to_bytes(&request.record), request.version)];
        ops.extend(written);
        let own_write = self.mirror().begin_write(ops.iter().map(|op| op.path().to_owned()).collect());
        ops.extend(reuse.iter().flat_map(|node| self.node_unlocked_proof(&node.id, LockDirAction::Keep).ops()));
        ops.extend(created);
        let (mut locks, replies) =
            self.write_and_lock(ops, vec![self.request_unlocked_proof(&request.id, LockDirAction::Keep)]).await?;
        let lock = locks.pop().ok_or_else(unexpected_reply)?;
        let Some(OpReply::Set(stat)) = replies.first().cloned() else { return Err(unexpected_reply()) };
        let ids = created_ids(&replies, nodes.len())?;
        self.mirror().apply_own_write(|update| {
            apply_contender(update, lock.path(), true);
            update.change_request(request.id, versioned(request.record, &stat));
            add_nodes(update, &ids, nodes);
            change_nodes(update, reuse, replies.into_iter().skip(1));
        });
        own_write.done();
        Ok(Claimed { lock, nodes: ids })
    }

    /// Adds nodes to an accepted request: ready ones (allocated) and new ones (init). All or nothing if the write fits
    /// one transaction; otherwise the reused nodes are written first. Returns the new nodes in the order of the
    /// records.
    pub async fn extend(
        &self,
        request: &Lock,
        reuse: Vec<NodeChange>,
        nodes: Vec<Node>,
    ) -> Result<Vec<NodeId>, WriteError> {
        let (reuse, nodes) = (chunked_writes::changes(reuse), chunked_writes::creations(nodes));
        if self.is_too_large(chunked_writes::size(&reuse) + chunked_writes::size(&nodes)) {
            return self.extend_in_chunks(request, reuse, nodes).await;
        }
        self.extend_at_once(request, reuse, nodes).await
    }

    async fn extend_in_chunks(
        &self,
        request: &Lock,
        reuse: Writes<NodeChange>,
        nodes: Writes<Node>,
    ) -> Result<Vec<NodeId>, WriteError> {
        for chunk in self.chunks(reuse) {
            self.extend_at_once(request, chunk, Vec::new()).await?;
        }
        let mut created = Vec::with_capacity(nodes.len());
        for chunk in self.chunks(nodes) {
            created.extend(self.extend_at_once(request, Vec::new(), chunk).await?);
        }
        Ok(created)
    }

    async fn extend_at_once(
        &self,
        request: &Lock,
        reuse: Writes<NodeChange>,
        nodes: Writes<Node>,
    ) -> Result<Vec<NodeId>, WriteError> {
        let (mut ops, reuse): (Vec<_>, Vec<_>) = reuse.into_iter().unzip();
        let (created, nodes): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let own_write = self.mirror().begin_write(ops.iter().map(|op| op.path().to_owned()).collect());
        ops.push(request.fence());
        ops.extend(reuse.iter().flat_map(|node| self.node_unlocked_proof(&node.id, LockDirAction::Keep).ops()));
        ops.extend(created);
        let replies = self.zk().multi(ops).await.map_err(|error| write_error_of(&error))?;
        let ids = created_ids(&replies, nodes.len())?;
        self.mirror().apply_own_write(|update| {
            add_nodes(update, &ids, nodes);
            change_nodes(update, reuse, replies);
        });
        own_write.done();
        Ok(ids)
    }

    /// Adopts a resumable request with its nodes that are not ready, and takes all their locks. All or nothing if the
    /// write fits one transaction; otherwise the request's lock is taken first. Returns the locks of the nodes in their
    /// order.
    pub async fn adopt(&self, request: RequestChange, nodes: Vec<NodeChange>) -> Result<(Lock, Vec<Lock>), WriteError> {
        let nodes = chunked_writes::changes(nodes);
        if !self.is_too_large(chunked_writes::size(&nodes)) {
            return self.adopt_at_once(request, nodes).await;
        }
        let (lock, _) = self.adopt_at_once(request, Vec::new()).await?;
        match self.begin_in_chunks(nodes).await {
            Ok(locks) => Ok((lock, locks)),
            Err(error) => chunked_writes::release_and_back_off(lock, Err(error)).await,
        }
    }

    async fn adopt_at_once(
        &self,
        request: RequestChange,
        nodes: Writes<NodeChange>,
    ) -> Result<(Lock, Vec<Lock>), WriteError> {
        let (written, nodes): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let mut ops = vec![Op::set(paths::request(&request.id), json::to_bytes(&request.record), request.version)];
        ops.extend(written);
        let mut proofs = vec![self.request_unlocked_proof(&request.id, LockDirAction::Keep)];
        proofs.extend(self.node_unlocked_proofs(&nodes));
        let own_write = self.mirror().begin_write(ops.iter().map(|op| op.path().to_owned()).collect());
        let (mut locks, mut replies) = self.write_and_lock(ops, proofs).await?;
        if locks.is_empty() || replies.is_empty() {
            return Err(unexpected_reply());
        }
        let OpReply::Set(stat) = replies.remove(0) else { return Err(unexpected_reply()) };
        self.mirror().apply_own_write(|update| {
            locks.iter().for_each(|lock| apply_contender(update, lock.path(), true));
            update.change_request(request.id, versioned(request.record, &stat));
            change_nodes(update, nodes, replies);
        });
        own_write.done();
        let lock = locks.remove(0);
        Ok((lock, locks))
    }

    /// Locks nodes and writes them in the same transaction: those of a claim before their launch, or a finished node
    /// before its deletion. If they do not fit one transaction, each chunk is all or nothing. Returns the locks in the
    /// order of the nodes.
    pub async fn begin(&self, nodes: Vec<NodeChange>) -> Result<Vec<Lock>, WriteError> {
        let nodes = chunked_writes::changes(nodes);
        if self.is_too_large(chunked_writes::size(&nodes)) {
            return self.begin_in_chunks(nodes).await;
        }
        self.begin_at_once(nodes).await
    }

    async fn begin_in_chunks(&self, nodes: Writes<NodeChange>) -> Result<Vec<Lock>, WriteError> {
        // If a chunk fails, the locks of the earlier chunks are dropped, which releases them.
        let mut locks = Vec::with_capacity(nodes.len());
        for chunk in self.chunks(nodes) {
            locks.extend(self.begin_at_once(chunk).await?);
        }
        Ok(locks)
    }

    async fn begin_at_once(&self, nodes: Writes<NodeChange>) -> Result<Vec<Lock>, WriteError> {
        let (ops, nodes): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let proofs = self.node_unlocked_proofs(&nodes);
        let own_write = self.mirror().begin_write(ops.iter().map(|op| op.path().to_owned()).collect());
        let (locks, replies) = self.write_and_lock(ops, proofs).await?;
        self.mirror().apply_own_write(|update| {
            locks.iter().for_each(|lock| apply_contender(update, lock.path(), true));
            change_nodes(update, nodes, replies);
        });
        own_write.done();
        Ok(locks)
    }

    /// Writes a node whose lock is held and stays held.
    pub async fn save_held(&self, lock: &Lock, node: NodeChange) -> Result<(), WriteError> {
        let ops = vec![lock.fence(), chunked_writes::write(&node)];
        let own_write = self.mirror().begin_write(vec![paths::node(&node.id)]);
        let replies = self.zk().multi(ops).await.map_err(|error| write_error_of(&error))?;
        self.mirror().apply_own_write(|update| change_nodes(update, vec![node], replies));
        own_write.done();
        Ok(())
    }

    /// Writes the results of a request and of nodes and releases all their locks, in one transaction if they fit: no
    /// reader observes a fulfilled request whose nodes are still locked.
    pub async fn finish(
        &self,
        request: Option<(Lock, Option<RequestChange>)>,
        nodes: Vec<HeldNode>,
    ) -> Result<(), WriteError> {
        let nodes: Vec<ReleasedNode> =
            nodes.into_iter().map(|node| (node.change.as_ref().map(chunked_writes::write), node)).collect();
        let bytes = |(op, _): &ReleasedNode| op.as_ref().map_or(chunked_writes::OVERHEAD_BYTES, chunked_writes::bytes);
        if !self.is_too_large(nodes.iter().map(bytes).sum()) {
            return self.finish_at_once(&[], request, nodes).await;
        }
        // First all nodes, then the request: in this order an interruption does no harm.
        let unchanged = chunked_writes::unchanged_checks(nodes.iter().filter_map(|(_, node)| node.change.as_ref()));
        for chunk in chunked_writes::chunks(nodes, self.zk().max_transaction_bytes(), bytes) {
            self.finish_at_once(&[], None, chunk).await?;
        }
        self.finish_at_once(&unchanged, request, Vec::new()).await
    }

    async fn finish_at_once(
        &self,
        conditions: &[Op],
        request: Option<(Lock, Option<RequestChange>)>,
        nodes: Vec<ReleasedNode>,
    ) -> Result<(), WriteError> {
        let (request_lock, request) = request.unzip();
        let request = request.flatten();
        let (writes, nodes): (Vec<Option<Op>>, Vec<HeldNode>) = nodes.into_iter().unzip();
        let mut ops: Vec<Op> = writes.into_iter().flatten().collect();
        ops.extend(
            request
                .iter()
                .map(|change| Op::set(paths::request(&change.id), json::to_bytes(&change.record), change.version)),
        );
        let own_write = self.mirror().begin_write(ops.iter().map(|op| op.path().to_owned()).collect());
        let mut releases = conditions.to_vec();
        releases.extend(nodes.iter().map(|node| node.lock.release_op()));
        releases.extend(request_lock.iter().map(Lock::release_op));
        let is_requeued = request.as_ref().is_some_and(|change| change.record.state == RequestState::Requested);
        let directory = request_lock.as_ref().filter(|_| !is_requeued).map(|lock| Op::delete(lock.directory(), -1));
        let own_write = own_write.with_deletions(deleted_paths(releases.iter().chain(&directory)));
        let replies = self.release_and_write(releases, directory, ops).await.map_err(|error| write_error_of(&error))?;
        let (locks, changes): (Vec<Lock>, Vec<Option<NodeChange>>) =
            nodes.into_iter().map(|node| (node.lock, node.change)).unzip();
        let locks: Vec<Lock> = locks.into_iter().chain(request_lock).collect();
        let changes: Vec<NodeChange> = changes.into_iter().flatten().collect();
        let request_stat = match (&request, replies.last()) {
            (Some(_), Some(OpReply::Set(stat))) => Some(*stat),
            _ => None,
        };
        self.mirror().apply_own_write(|update| {
            locks.iter().for_each(|lock| apply_contender(update, lock.path(), false));
            change_nodes(update, changes, replies);
            if let (Some(request), Some(stat)) = (request, request_stat) {
                update.change_request(request.id, versioned(request.record, &stat));
            }
        });
        locks.into_iter().for_each(Lock::mark_released);
        own_write.done();
        Ok(())
    }

    /// Writes `ops` and releases the locks; returns the replies to `ops`. The `directory` of a finished request's lock
    /// is deleted as well, unless it has another contender at this moment.
    async fn release_and_write(
        &self,
        releases: Vec<Op>,
        directory: Option<Op>,
        ops: Vec<Op>,
    ) -> Result<Vec<OpReply>, ZkError> {
        let before = releases.len();
        if let Some(directory) = directory {
            match self.zk().multi([&releases[..], &[directory], &ops[..]].concat()).await {
                Err(ZkError::Multi { index, .. }) if index == before => {}
                answer => return answer.map(|mut replies| replies.split_off((before + 1).min(replies.len()))),
            }
        }
        let mut replies = self.zk().multi([releases, ops].concat()).await?;
        Ok(replies.split_off(before.min(replies.len())))
    }

    /// Finishes a min-ready request: deallocates its nodes and deletes it, in one transaction.
    pub async fn finish_min_ready(&self, request: &RequestId, nodes: Vec<NodeChange>) -> Result<(), WriteError> {
        let path = paths::request(request);
        let proofs = self.node_unlocked_proofs(&nodes);
        let mut ops: Vec<Op> = nodes.iter().map(chunked_writes::write).collect();
        let own_write = self.mirror().begin_write(ops.iter().map(|op| op.path().to_owned()).collect());
        ops.push(Op::delete(&*path, -1));
        let own_write = own_write.with_deletions(vec![path.clone()]);
        let replies = self.commit(proofs, ops).await?;
        self.mirror().apply_own_write(|update| {
            change_nodes(update, nodes, replies);
            update.remove(&path);
        });
        own_write.done();
        Ok(())
    }

    /// The records of nodes after a `sync` with ZooKeeper's leader, so all earlier writes are included; `None` for
    /// deleted nodes. Nodes with an empty or unreadable record are left out.
    pub async fn read_latest(&self, nodes: &[NodeId]) -> Result<BTreeMap<NodeId, Option<Box<Node>>>, ZkError> {
        self.zk().sync(paths::NODES).await?;
        let paths: Vec<String> = nodes.iter().map(paths::node).collect();
        let answers = bulk::read_list(self.zk().as_ref(), paths).await?;
        let mut found = BTreeMap::new();
        for (id, (_, answer)) in nodes.iter().zip(answers) {
            match answer {
                Err(ZkError::NoNode) => drop(found.insert(id.clone(), None)),
                Err(error) => return Err(error),
                Ok((data, _)) => {
                    if let Decoded::Record(node) = records::decode::<Node>(&data) {
                        found.insert(id.clone(), Some(Box::new(node)));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Number of node ids that this ZooKeeper has ever issued; every issued id is smaller. Must be called after
    /// `read_latest`.
    pub async fn issued_id_count(&self) -> Result<u64, ZkError> {
        let Some(stat) = self.zk().exists(paths::NODES).await? else { return Ok(0) };
        // ZooKeeper numbers by creations, but `cversion` counts creations and deletions together.
        let creations = (i64::from(stat.cversion) + i64::from(stat.num_children)) / 2;
        // `cversion` overflows after a billion nodes.
        Ok(u64::try_from(creations).unwrap_or(u64::MAX))
    }

    /// Deletes a node: its lock, the lock directory and its record, in one transaction.
    pub async fn remove_held(&self, lock: Lock, id: &NodeId) -> Result<(), WriteError> {
        let path = paths::node(id);
        let ops = vec![lock.release_op(), Op::delete(lock.directory(), -1), Op::delete(&*path, -1)];
        let own_write = self.mirror().begin_write(Vec::new()).with_deletions(deleted_paths(&ops));
        match self.zk().multi(ops).await {
            Ok(_) => lock.mark_released(),
            // The lock directory has other children, such as waiting contenders: all are deleted with the record.
            Err(ZkError::Multi { index, .. }) if index > 0 => {
                let conditions = [lock.fence()];
                match delete_tree::delete_tree_after(&**self.zk(), &path, &conditions).await {
                    Ok(()) => lock.mark_released(),
                    Err(error) => return Err(write_error_of(&error)),
                }
            }
            Err(error) => return Err(write_error_of(&error)),
        }
        self.mirror().apply_own_write(|update| update.remove(&path));
        own_write.done();
        Ok(())
    }

    /// Runs operations and takes the locks of `proofs`, each in a directory that is proven to be empty and is kept. If
    /// the tree differs from the mirror, the locks are taken first, as peers take them.
    async fn write_and_lock(
        &self,
        ops: Vec<Op>,
        proofs: Vec<UnlockedProof>,
    ) -> Result<(Vec<Lock>, Vec<OpReply>), WriteError> {
        let planned: Vec<PlannedLock> =
            proofs.iter().map(|proof| PlannedLock::new(self.zk(), &proof.directory)).collect();
        let mut all = ops.clone();
        all.extend(proofs.iter().flat_map(UnlockedProof::ops));
        let before = all.len();
        all.extend(planned.iter().map(PlannedLock::op));
        match self.zk().multi(all).await {
            Ok(mut replies) => {
                let contenders = replies.split_off(before.min(replies.len()));
                replies.truncate(ops.len());
                let paths = contenders.into_iter().filter_map(|reply| match reply {
                    OpReply::Created { path } => Some(path),
                    _ => None,
                });
                let locks = planned.into_iter().zip(paths).map(|(planned, path)| planned.acquired(path)).collect();
                Ok((locks, replies))
            }
            Err(ZkError::Multi { index, source }) => {
                planned.into_iter().for_each(PlannedLock::aborted);
                if index < ops.len() {
                    return Err(write_error_of(&source));
                }
                self.lock_and_write(ops, proofs).await
            }
            Err(error) => Err(write_error_of(&error)),
        }
    }

    async fn lock_and_write(
        &self,
        ops: Vec<Op>,
        proofs: Vec<UnlockedProof>,
    ) -> Result<(Vec<Lock>, Vec<OpReply>), WriteError> {
        let mut locks: Vec<Lock> = Vec::with_capacity(proofs.len());
        for proof in &proofs {
            // An early return drops the locks taken so far, which releases them.
            match lock::try_lock(self.zk(), &proof.directory, "").await {
                Ok(Some(lock)) => locks.push(lock),
                Ok(None) => return Err(WriteError::Contended),
                Err(error) => return Err(write_error_of(&error)),
            }
        }
        let mut all = ops;
        let op_count = all.len();
        all.extend(locks.iter().map(Lock::fence));
        let mut replies = self.zk().multi(all).await.map_err(|error| write_error_of(&error))?;
        replies.truncate(op_count);
        Ok((locks, replies))
    }
}

/// The ids of the nodes that a transaction created, in the order of their records.
fn created_ids(replies: &[OpReply], count: usize) -> Result<Vec<NodeId>, WriteError> {
    let created = replies.iter().filter_map(|reply| match reply {
        OpReply::Created { path } => match paths::parse(path) {
            ZnodePath::Node(id) => Some(id),
            _ => None,
        },
        _ => None,
    });
    let created: Vec<_> = created.collect();
    if created.len() == count { Ok(created) } else { Err(unexpected_reply()) }
}

fn add_nodes(update: &mut SnapshotUpdate<'_>, ids: &[NodeId], nodes: Vec<Node>) {
    for (id, node) in ids.iter().zip(nodes) {
        update.add_node(id.clone(), versioned(node, &Stat::of_new()));
    }
}

/// Updates written nodes in the snapshot; the replies to their writes are in the same order.
pub(crate) fn change_nodes(
    update: &mut SnapshotUpdate<'_>,
    nodes: Vec<NodeChange>,
    replies: impl IntoIterator<Item = OpReply>,
) {
    let stats = replies.into_iter().filter_map(|reply| match reply {
        OpReply::Set(stat) => Some(stat),
        _ => None,
    });
    for (node, stat) in nodes.into_iter().zip(stats) {
        update.change_node(node.id, versioned(node.record, &stat));
    }
}

/// Adds an own contender to the snapshot as soon as it is known, or removes it: its events may arrive later.
pub(crate) fn apply_contender(update: &mut SnapshotUpdate<'_>, path: &str, exists: bool) {
    let change = |lock_state: &mut LockState, name: String| {
        if exists {
            lock_state.exists = true;
            lock_state.contenders.insert(name);
        } else {
            lock_state.contenders.remove(&name);
        }
    };
    match paths::parse(path) {
        ZnodePath::NodeContender(id, name) => {
            let mut lock_state = update.snapshot_mut().node_lock(&id).clone();
            change(&mut lock_state, name);
            update.snapshot_mut().set_node_lock(id, lock_state);
        }
        ZnodePath::RequestContender(id, name) => {
            let mut lock_state = update.snapshot_mut().request_lock(&id).clone();
            change(&mut lock_state, name);
            update.snapshot_mut().set_request_lock(id, lock_state);
        }
        _ => {}
    }
}
