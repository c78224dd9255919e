//! Bulk reads of whole subtrees in pipelined batches, for the start of the mirror and after a reconnect.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt, TryStreamExt};

use super::bulk_images::{self, ImagesSubtree};
use super::mirror::log_withdrawal;
use super::records::{Decoded, decode_versioned};
use crate::paths::{self, ZnodePath};
use crate::{Connection, Zk};
use nodepool_model::records::component::{Component, ComponentKind, PoolComponent};
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::image_build::BuildKey;
use nodepool_model::records::node::Node;
use nodepool_model::records::request::NodeRequest;
use nodepool_model::snapshot::images::Images;
use nodepool_model::snapshot::{LockChange, LockState, Snapshot, Versioned};
use zookeeper_server::types::{Stat, ZkError};

/// Znodes per request. Records are small; with records of the maximum size (1 MB) a reply has 64 MB.
pub const BATCH: usize = 64;
/// Requests in flight. More do not make ZooKeeper faster, fewer leave it idle.
pub const WINDOW: usize = 16;

/// The path of a znode and the reply to its read.
pub(crate) type ReadReply = (String, Result<(Bytes, Stat), ZkError>);

/// Reads these znodes, many per request; the replies are in the order of the paths.
pub fn read_all<'a>(
    zk: &'a dyn Connection,
    paths: Vec<String>,
) -> impl Stream<Item = Result<Vec<ReadReply>, ZkError>> + 'a {
    let batches: Vec<Vec<String>> = paths.chunks(BATCH).map(<[String]>::to_vec).collect();
    stream::iter(batches).map(|paths| read_batch(zk, paths)).buffered(WINDOW)
}

/// As `read_all`, in one list.
pub(crate) async fn read_list(zk: &dyn Connection, paths: Vec<String>) -> Result<Vec<ReadReply>, ZkError> {
    read_all(zk, paths).try_concat().await
}

/// Reads the paths together, or one by one if the reply would exceed the embedded coordinator's limit because some of
/// the records are huge.
pub(crate) fn read_batch(
    zk: &dyn Connection,
    paths: Vec<String>,
) -> impl Future<Output = Result<Vec<ReadReply>, ZkError>> + '_ {
    let reply = zk.get_many(&paths);
    async move {
        match reply.await {
            Ok(answers) => Ok(paths.into_iter().zip(answers).collect()),
            Err(ZkError::BadArguments(_)) if paths.len() > 1 => {
                let mut answers = Vec::new();
                for path in paths {
                    let answer = zk.get(&path).await;
                    answers.push((path, answer));
                }
                Ok(answers)
            }
            Err(error) => Err(error),
        }
    }
}

/// Records and locks below one root, as read.
#[derive(Default)]
pub struct Subtree {
    root: String,
    /// Newest transaction that had created or deleted a child of the root when the root was listed.
    listed_at: i64,
    nodes: BTreeMap<NodeId, Versioned<Node>>,
    empty_nodes: BTreeSet<NodeId>,
    node_locks: BTreeMap<NodeId, LockState>,
    requests: BTreeMap<RequestId, Versioned<NodeRequest>>,
    request_locks: BTreeMap<RequestId, LockState>,
    pools: BTreeMap<String, Versioned<PoolComponent>>,
    components: BTreeMap<(ComponentKind, String), Versioned<Component>>,
    images: ImagesSubtree,
    unreadable: BTreeMap<String, String>,
    /// Paths that were listed, but deleted before they were read.
    deleted_while_reading: BTreeSet<String>,
    /// Nodes that this process has created since the read began.
    created_by_us: BTreeSet<NodeId>,
}

/// Reads everything below one of the mirror's roots.
pub async fn read(zk: &Zk, root: &str) -> Result<Subtree, ZkError> {
    let mut subtree = Subtree { root: root.to_owned(), ..Subtree::default() };
    match root {
        paths::IMAGES => (subtree.images, subtree.unreadable) = bulk_images::read(zk).await?,
        paths::REQUEST_LOCKS => read_lock_directories(zk, root, &mut subtree).await?,
        paths::COMPONENTS => {
            for kind in ComponentKind::ALL {
                read_records(zk, &paths::components(kind), &mut subtree).await?;
            }
        }
        _ => read_records(zk, root, &mut subtree).await?,
    }
    Ok(subtree)
}

async fn read_records(zk: &Zk, parent: &str, subtree: &mut Subtree) -> Result<(), ZkError> {
    let listed = none_if_missing(zk.children(parent).await)?;
    subtree.listed_at = listed.as_ref().map_or(i64::MAX, |(_, stat)| stat.pzxid);
    let (names, _) = listed.unwrap_or_default();
    let records = names.iter().map(|name| format!("{parent}/{name}")).collect();
    let mut reads = pin!(read_all(zk.as_ref(), records));
    let mut with_children = Vec::new();
    while let Some(batch) = reads.next().await {
        for (path, answer) in batch? {
            let (data, stat) = match answer {
                Ok(read) => read,
                Err(ZkError::NoNode) => {
                    subtree.deleted_while_reading.insert(path);
                    continue;
                }
                // A record without read permission does not fail the whole read.
                Err(ZkError::NotPermitted(reason)) => {
                    subtree.insert_unreadable(&path, reason);
                    continue;
                }
                Err(error) => return Err(error),
            };
            subtree.insert(&path, &data, &stat);
            if stat.num_children > 0
                && let ZnodePath::Node(id) = paths::parse(&path)
            {
                with_children.push(paths::node_lock(&id));
            }
        }
    }
    for (path, lock_state) in read_locks(zk, with_children).await? {
        if let ZnodePath::NodeLock(id) = paths::parse(&path) {
            subtree.node_locks.insert(id, lock_state);
        }
    }
    Ok(())
}

async fn read_lock_directories(zk: &Zk, parent: &str, subtree: &mut Subtree) -> Result<(), ZkError> {
    let (names, _) = none_if_missing(zk.children(parent).await)?.unwrap_or_default();
    let directories = names.into_iter().map(|name| paths::request_lock(&RequestId::from(name))).collect();
    for (path, lock_state) in read_locks(zk, directories).await? {
        if let ZnodePath::RequestLock(id) = paths::parse(&path) {
            subtree.request_locks.insert(id, lock_state);
        }
    }
    Ok(())
}

/// The contenders of these locks; missing directories are left out. Most directories are empty, which their stat shows.
pub(crate) async fn read_locks(zk: &Zk, directories: Vec<String>) -> Result<Vec<(String, LockState)>, ZkError> {
    let mut lock_states = Vec::new();
    let mut occupied = Vec::new();
    let mut reads = pin!(read_all(zk.as_ref(), directories));
    while let Some(batch) = reads.next().await {
        for (path, answer) in batch? {
            match none_if_missing(answer)? {
                Some((_, stat)) if stat.num_children == 0 => lock_states.push((path, lock_state(Vec::new(), &stat))),
                Some(_) => occupied.push(path),
                None => {}
            }
        }
    }
    let mut reads = stream::iter(occupied)
        .map(|path| {
            let reply = zk.children(&path);
            async move { (path, reply.await) }
        })
        .buffer_unordered(WINDOW * BATCH);
    while let Some((path, answer)) = reads.next().await {
        if let Some((names, stat)) = none_if_missing(answer)? {
            lock_states.push((path, lock_state(names, &stat)));
        }
    }
    Ok(lock_states)
}

fn lock_state(names: Vec<String>, stat: &Stat) -> LockState {
    let contenders = names.into_iter().filter(|name| paths::is_contender(name)).collect();
    LockState { exists: true, contenders, mtime_ms: stat.mtime }
}

/// A znode that was deleted between its listing and its read counts as missing.
pub(crate) fn none_if_missing<T>(answer: Result<T, ZkError>) -> Result<Option<T>, ZkError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(ZkError::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Subtree {
    /// Adds one znode by its path.
    pub fn insert(&mut self, path: &str, data: &Bytes, stat: &Stat) {
        match paths::parse(path) {
            ZnodePath::Node(id) => match decode_versioned::<Node>(data, stat) {
                Decoded::Record(stored) => drop(self.nodes.insert(id, stored)),
                Decoded::Empty => drop(self.empty_nodes.insert(id)),
                Decoded::Unreadable(reason) => drop(self.unreadable.insert(path.to_owned(), reason)),
            },
            ZnodePath::Request(id) => match decode_versioned::<NodeRequest>(data, stat) {
                Decoded::Record(stored) => drop(self.requests.insert(id, stored)),
                Decoded::Empty => drop(self.unreadable.insert(path.to_owned(), "no data".to_owned())),
                Decoded::Unreadable(reason) => drop(self.unreadable.insert(path.to_owned(), reason)),
            },
            ZnodePath::Component { kind, name } => self.insert_component(path, kind, name, data, stat),
            _ => {
                if let Some(reason) = self.images.insert(path, data, stat) {
                    self.unreadable.insert(path.to_owned(), reason);
                }
            }
        }
    }

    fn insert_component(&mut self, path: &str, kind: ComponentKind, name: String, data: &Bytes, stat: &Stat) {
        if kind == ComponentKind::Pool {
            match decode_versioned::<PoolComponent>(data, stat) {
                Decoded::Record(stored) => drop(self.pools.insert(name.clone(), stored)),
                Decoded::Empty => drop(self.unreadable.insert(path.to_owned(), "no data".to_owned())),
                Decoded::Unreadable(reason) => drop(self.unreadable.insert(path.to_owned(), reason)),
            }
        }
        if let Decoded::Record(stored) = decode_versioned::<Component>(data, stat) {
            self.components.insert((kind, name), stored);
        }
    }

    /// A znode that cannot be read, and why.
    pub fn insert_unreadable(&mut self, path: &str, reason: String) {
        self.unreadable.insert(path.to_owned(), reason);
    }

    /// Whether an unlisted record was written after the listing, by this process during the read. A record that was
    /// deleted before the listing is older: it was written before its deletion, and the listing includes the deletion.
    fn is_newer_than_listing(&self, written: i64) -> bool {
        written > self.listed_at
    }

    /// Whether the subtree is older than the snapshot before the read, because ZooKeeper was restored from a backup.
    /// Backups also contain sessions, so the session of this process may continue on an older state.
    pub fn is_older_than(&self, known: &Snapshot) -> bool {
        // Without a rollback, a missing record was deleted before the listing, which includes the deletion.
        let disappeared_unlisted = |path: String, known: i64| {
            self.is_newer_than_listing(known)
                && !self.deleted_while_reading.contains(&path)
                && !self.unreadable.contains_key(&path)
        };
        match self.root.as_str() {
            paths::NODES => known.nodes().any(|(id, known)| match self.nodes.get(id) {
                Some(read) => read.mzxid < known.mzxid,
                None => !self.empty_nodes.contains(id) && disappeared_unlisted(paths::node(id), known.mzxid),
            }),
            paths::REQUESTS => known.requests().any(|(id, known)| match self.requests.get(id) {
                Some(read) => read.mzxid < known.mzxid,
                None => disappeared_unlisted(paths::request(id), known.mzxid),
            }),
            _ => false,
        }
    }

    /// Adds the subtree to a snapshot; returns the records that are newly unreadable.
    pub fn merge_into(self, snapshot: &mut Snapshot) -> Vec<(String, String)> {
        for (id, lock_state) in self.node_locks {
            snapshot.set_node_lock(id, lock_state);
        }
        for (id, stored) in self.nodes {
            snapshot.put_node(id, stored);
        }
        for id in self.empty_nodes {
            snapshot.put_empty_node(id);
        }
        for (id, lock_state) in self.request_locks {
            snapshot.set_request_lock(id, lock_state);
        }
        for (id, stored) in self.requests {
            snapshot.put_request(id, stored);
        }
        for (name, stored) in self.pools {
            snapshot.put_pool(name, stored);
        }
        for ((kind, name), stored) in self.components {
            snapshot.put_component(kind, name, stored);
        }
        self.images.merge_into(&mut snapshot.images);
        let mut newly_unreadable = Vec::new();
        for (path, reason) in self.unreadable {
            // The last readable content of the record is outdated.
            match paths::parse(&path) {
                ZnodePath::Node(id) => snapshot.drop_node_record(&id),
                ZnodePath::Request(id) => snapshot.set_request_unreadable(&id),
                ZnodePath::Component { kind, name } => snapshot.remove_component(kind, &name),
                ZnodePath::ImageBuild(image, build) => snapshot.images.remove_build(&BuildKey { image, build }),
                ZnodePath::ImageUpload(key) => snapshot.images.remove_upload(&key),
                _ => {}
            }
            if snapshot.put_unreadable(&path, reason.clone()) {
                newly_unreadable.push((path, reason));
            }
        }
        newly_unreadable
    }

    /// As `replace_in`, but keeps the own writes since `known`, the snapshot when the read began. Writes of other
    /// processes have events, which arrive later.
    pub fn replace_since(mut self, known: &Snapshot, snapshot: &mut Snapshot) {
        match self.root.as_str() {
            paths::NODES => {
                let created_by_us = snapshot.nodes().map(|(id, _)| id).filter(|id| known.node(id).is_none());
                self.created_by_us.extend(created_by_us.cloned());
                self.nodes.retain(|id, _| known.node(id).is_none() || snapshot.node(id).is_some());
                for lock in snapshot.node_locks_changed_since(known) {
                    merge_lock_change(&mut self.node_locks, lock);
                }
            }
            paths::REQUESTS => {
                self.requests.retain(|id, _| known.request(id).is_none() || snapshot.request(id).is_some());
            }
            paths::REQUEST_LOCKS => {
                for lock in snapshot.request_locks_changed_since(known) {
                    merge_lock_change(&mut self.request_locks, lock);
                }
            }
            _ => {}
        }
        self.replace_in(snapshot);
    }

    /// Replaces the root in the snapshot by exactly what was read: everything else below it is removed.
    pub fn replace_in(self, snapshot: &mut Snapshot) {
        self.forget_unreadable_in(snapshot);
        match self.root.as_str() {
            paths::NODES => self.replace_nodes(snapshot),
            paths::REQUESTS => {
                let known: Vec<(RequestId, i64)> =
                    snapshot.requests().map(|(id, known)| (id.clone(), known.mzxid)).collect();
                for (id, written) in known {
                    if !self.requests.contains_key(&id) && !self.is_newer_than_listing(written) {
                        log_withdrawal(snapshot, &id, "ended while ZooKeeper was not connected");
                        snapshot.remove_request(&id);
                    }
                }
            }
            paths::REQUEST_LOCKS => {
                let known: Vec<RequestId> = snapshot.request_locks().map(|(id, _)| id.clone()).collect();
                for id in known.iter().filter(|id| !self.request_locks.contains_key(*id)) {
                    snapshot.remove_request_lock(id);
                }
            }
            paths::IMAGES => {
                // There are few, and no other index depends on them.
                snapshot.images = Images::default();
            }
            _ => {
                let known: Vec<(ComponentKind, String)> = snapshot.components().map(|(key, _)| key.clone()).collect();
                let pools: Vec<String> = snapshot.pools().map(|(name, _)| name.clone()).collect();
                let pools = pools.into_iter().map(|name| (ComponentKind::Pool, name));
                for (kind, name) in known.into_iter().chain(pools) {
                    if !self.components.contains_key(&(kind, name.clone())) && !self.pools.contains_key(&name) {
                        snapshot.remove_component(kind, &name);
                    }
                }
            }
        }
        self.merge_into(snapshot);
    }

    /// An unreadable record may have been repaired or deleted since.
    fn forget_unreadable_in(&self, snapshot: &mut Snapshot) {
        let is_below = |path: &str| path.strip_prefix(&self.root).is_some_and(|rest| rest.starts_with('/'));
        let known = snapshot.unreadable().map(|(path, _)| path);
        let outdated = known.filter(|path| is_below(path) && !self.unreadable.contains_key(*path));
        for path in outdated.cloned().collect::<Vec<_>>() {
            snapshot.clear_unreadable(&path);
            if let ZnodePath::Request(id) = paths::parse(&path)
                && !self.requests.contains_key(&id)
            {
                snapshot.remove_request(&id);
            }
        }
    }

    fn replace_nodes(&self, snapshot: &mut Snapshot) {
        let records = snapshot.nodes().map(|(id, known)| (id, known.mzxid));
        let known = records.chain(snapshot.empty_nodes().map(|id| (id, 0)));
        let is_removed = |id: &NodeId, written: i64| {
            let was_read = self.nodes.contains_key(id) || self.empty_nodes.contains(id);
            !was_read && !self.is_newer_than_listing(written) && !self.created_by_us.contains(id)
        };
        let removed: Vec<NodeId> =
            known.filter(|(id, written)| is_removed(id, *written)).map(|(id, _)| id.clone()).collect();
        for id in removed {
            snapshot.remove_node(&id);
        }
        let is_free = |(id, lock_state): &(&NodeId, &LockState)| {
            *lock_state != LockState::absent() && !self.node_locks.contains_key(*id)
        };
        let free: Vec<NodeId> = snapshot.node_locks().filter(is_free).map(|(id, _)| id.clone()).collect();
        for id in free {
            snapshot.set_node_lock(id, LockState::default());
        }
    }
}

/// Applies the own changes of a lock since the read began to the lock as read.
fn merge_lock_change<I: Ord>(lock_states: &mut BTreeMap<I, LockState>, lock: LockChange<I>) {
    if !lock.after.exists {
        lock_states.remove(&lock.id);
        return;
    }
    let lock_state = lock_states.entry(lock.id).or_default();
    lock_state.exists = true;
    lock_state.mtime_ms = lock_state.mtime_ms.max(lock.after.mtime_ms);
    lock_state.contenders.retain(|name| lock.after.contenders.contains(name) || !lock.before.contenders.contains(name));
    lock_state.contenders.extend(lock.after.contenders.difference(&lock.before.contenders).cloned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locks::lock;
    use crate::memory::MemoryZooKeeper;
    use nodepool_model::records::json;
    use nodepool_model::records::node::NodeState;
    use nodepool_model::records::time::Timestamp;
    use zookeeper_server::types::{CreateMode, Stat};

    fn versioned_node(mzxid: i64) -> Versioned<Node> {
        Versioned { record: Node::new(NodeState::Building, Timestamp(1.0)).into(), version: 0, mzxid, mtime_ms: 0 }
    }

    fn held() -> LockState {
        LockState { exists: true, contenders: ["one".to_owned()].into(), mtime_ms: 0 }
    }

    // Simulation seed 6697: a pool did not observe its own new node for half a minute after a reconnect.
    #[tokio::test]
    async fn own_writes_during_a_bulk_read_survive_and_earlier_deletions_apply() {
        let zk: Zk = MemoryZooKeeper::new().connect();
        lock::make_path(&zk, paths::NODES).await.unwrap();
        let bytes = || Bytes::from(json::to_bytes(&*versioned_node(0).record));
        let create =
            async || zk.create(&paths::node_prefix(), bytes(), CreateMode::PersistentSequential).await.unwrap();
        let id = |path: &str| NodeId::from(paths::name(path));
        let (old, _) = create().await;
        let (deleted, stat) = create().await;
        let mut snapshot = Snapshot::default();
        read(&zk, paths::NODES).await.unwrap().replace_in(&mut snapshot);
        snapshot.put_node(id(&deleted), versioned_node(stat.mzxid));
        zk.delete(&deleted, -1).await.unwrap();

        let (subtree, known) = (read(&zk, paths::NODES).await.unwrap(), snapshot.clone());
        let (new, _) = create().await;
        // The reply to a transaction does not contain the zxid of a created node.
        snapshot.put_node(id(&new), versioned_node(Stat::of_new().mzxid));
        snapshot.set_node_lock(id(&new), held());
        let stat = zk.set(&old, bytes(), -1).await.unwrap();
        snapshot.put_node(id(&old), versioned_node(stat.mzxid));
        snapshot.set_node_lock(id(&old), held());
        subtree.replace_since(&known, &mut snapshot);

        let found: Vec<NodeId> = snapshot.nodes().map(|(id, _)| id.clone()).collect();
        assert_eq!(found, [id(&old), id(&new)]);
        assert!(found.iter().all(|node| snapshot.is_node_locked(node)), "own locks survive");
    }

    #[tokio::test]
    async fn own_locks_survive_a_bulk_read_and_foreign_locks_are_as_read() {
        let zk: Zk = MemoryZooKeeper::new().connect();
        let request = RequestId::from("100-0000000001");
        let directory = paths::request_lock(&request);
        lock::make_path(&zk, &format!("{directory}/theirs__lock__0000000000")).await.unwrap();
        let held_by = |names: &[&str]| {
            let contenders = names.iter().map(|name| format!("{name}__lock__0000000000")).collect();
            LockState { exists: true, contenders, mtime_ms: 0 }
        };
        let mut snapshot = Snapshot::default();
        snapshot.set_request_lock(request.clone(), held_by(&["deleted", "released"]));
        let (subtree, known) = (read(&zk, paths::REQUEST_LOCKS).await.unwrap(), snapshot.clone());
        snapshot.set_request_lock(request.clone(), held_by(&["deleted", "ours"]));
        subtree.replace_since(&known, &mut snapshot);
        let found = snapshot.request_lock(&request);
        assert_eq!(found.contenders, held_by(&["ours", "theirs"]).contenders);

        // A lock directory that this process deleted during the read stays deleted.
        let (subtree, known) = (read(&zk, paths::REQUEST_LOCKS).await.unwrap(), snapshot.clone());
        snapshot.remove_request_lock(&request);
        subtree.replace_since(&known, &mut snapshot);
        assert!(!snapshot.has_request_lock(&request));
    }

    #[tokio::test]
    async fn an_unreadable_record_is_forgotten_once_deleted() {
        let zk: Zk = MemoryZooKeeper::new().connect();
        lock::make_path(&zk, paths::REQUESTS).await.unwrap();
        let path = paths::request(&"100-0000000001".into());
        zk.create(&path, Bytes::from_static(b"{"), CreateMode::Persistent).await.unwrap();
        let mut snapshot = Snapshot::default();
        read(&zk, paths::REQUESTS).await.unwrap().replace_in(&mut snapshot);
        assert!(snapshot.is_unreadable(&path) && snapshot.has_request(&"100-0000000001".into()));
        zk.delete(&path, -1).await.unwrap();
        read(&zk, paths::REQUESTS).await.unwrap().replace_in(&mut snapshot);
        assert!(!snapshot.is_unreadable(&path) && !snapshot.has_request(&"100-0000000001".into()));
    }
}
