//! Transactions on backing nodes and their slots. The lock of a backing node is a contender that outlives the session,
//! so its holder is a name and not a `Lock`.

use bytes::Bytes;

use super::chunked_writes;
use super::launch::{apply_contender, change_nodes};
use super::store::{LockDirAction, Store, deleted_paths, unexpected_reply, write_error_of};
use crate::paths;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::snapshot::{LockedChange, NodeChange, WriteError};
use zookeeper_server::types::{CreateMode, Op, OpReply, ZkError};

impl Store {
    /// Writes nodes, each of whose locks must still have its holder.
    pub async fn save_locked(&self, changes: Vec<LockedChange>) -> Result<(), WriteError> {
        let mut ops: Vec<Op> =
            changes.iter().map(|change| Op::check(contender(&change.node.id, &change.holder), -1)).collect();
        ops.extend(changes.iter().map(|change| chunked_writes::write(&change.node)));
        let nodes: Vec<NodeChange> = changes.into_iter().map(|change| change.node).collect();
        let own_write = self.mirror().begin_write(nodes.iter().map(|node| paths::node(&node.id)).collect());
        let replies = self.zk().multi(ops).await.map_err(|error| write_error_of(&error))?;
        self.mirror().apply_own_write(|update| change_nodes(update, nodes, replies));
        own_write.done();
        Ok(())
    }

    /// Takes over the node that fulfils a request: locks it for good as `owner`, writes it, and deletes the request.
    /// Returns the name of the contender.
    pub async fn adopt_backing_node(
        &self,
        request: &RequestId,
        node: NodeChange,
        owner: &str,
    ) -> Result<String, WriteError> {
        let directory = paths::node_lock(&node.id);
        let prefix = paths::contender_prefix(&directory, &nodepool_rng::uuid().simple().to_string());
        // As other consumers do: the request is deleted, then the node is in use.
        let mut ops = vec![Op::delete(paths::request(request), -1)];
        ops.extend(self.node_unlocked_proof(&node.id, LockDirAction::Keep).ops());
        ops.push(Op::create(prefix, Bytes::copy_from_slice(owner.as_bytes()), CreateMode::PersistentSequential));
        let lock_ops = 1..ops.len();
        ops.push(chunked_writes::write(&node));
        let own_write =
            self.mirror().begin_write(vec![paths::node(&node.id)]).with_deletions(vec![paths::request(request)]);
        let replies = match self.zk().multi(ops).await {
            // The lock differs from the mirror, or another holds it.
            Err(ZkError::Multi { index, .. }) if lock_ops.contains(&index) => return Err(WriteError::Contended),
            replies => replies.map_err(|error| write_error_of(&error))?,
        };
        let created = replies.iter().rev().find_map(|reply| match reply {
            OpReply::Created { path } => Some(path.clone()),
            _ => None,
        });
        let path = created.ok_or_else(unexpected_reply)?;
        self.mirror().apply_own_write(|update| {
            apply_contender(update, &path, true);
            change_nodes(update, vec![node], replies);
            update.remove(&paths::request(request));
        });
        own_write.done();
        Ok(paths::name(&path).to_owned())
    }

    /// Gives a backing node back: writes it and deletes the contender that holds its lock.
    pub async fn release_backing_node(&self, change: LockedChange) -> Result<(), WriteError> {
        let path = contender(&change.node.id, &change.holder);
        let ops = vec![chunked_writes::write(&change.node), Op::delete(&*path, -1)];
        let own_write =
            self.mirror().begin_write(vec![paths::node(&change.node.id)]).with_deletions(deleted_paths(&ops));
        let replies = self.zk().multi(ops).await.map_err(|error| write_error_of(&error))?;
        self.mirror().apply_own_write(|update| {
            apply_contender(update, &path, false);
            change_nodes(update, vec![change.node], replies);
        });
        own_write.done();
        Ok(())
    }

    /// Data of the contender that holds the lock of a node.
    pub async fn holder_data(&self, node: &NodeId, holder: &str) -> Result<Bytes, WriteError> {
        let found = self.zk().get(&contender(node, holder)).await;
        found.map(|(data, _)| data).map_err(|error| write_error_of(&error))
    }

    /// Deletes a contender that holds the lock of a node.
    pub async fn remove_holder(&self, node: &NodeId, holder: &str) -> Result<(), WriteError> {
        let path = contender(node, holder);
        match self.zk().delete(&path, -1).await {
            Ok(()) | Err(ZkError::NoNode) => {
                self.mirror().apply_own_write(|update| apply_contender(update, &path, false));
                Ok(())
            }
            Err(error) => Err(write_error_of(&error)),
        }
    }
}

fn contender(node: &NodeId, holder: &str) -> String {
    format!("{}/{holder}", paths::node_lock(node))
}
