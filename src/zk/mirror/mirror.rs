//! Cache of nodes, requests, locks, components and images as one `Snapshot`: read once, then kept up to date by a
//! persistent watch. The counterpart in client-go is the Reflector with its Store.
//!
//! Events of one session arrive in the order of the transactions, but a read that was sent before an event may be
//! answered after it. Every read therefore has a generation, and a deletion invalidates it.

use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::Bytes;
use futures::future::try_join_all;
use futures::task::AtomicWaker;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tracing::info;

use super::bulk;
use super::follower::{FollowUp, Follower};
use super::own_writes::{OwnWriteTracker, PendingWrite};
use crate::Zk;
use crate::paths::{self, ZnodePath};
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::image_build::BuildKey;
use nodepool_model::records::node::Node;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::snapshot::images::UploadLockKey;
use nodepool_model::snapshot::transition::Transition;
use nodepool_model::snapshot::{LockState, Snapshot, Versioned};
use zookeeper_server::types::{CreateMode, ZkError};

/// The roots that the mirror caches, in the order in which they are read at the start.
pub const ROOTS: [&str; 5] = [paths::NODES, paths::REQUESTS, paths::REQUEST_LOCKS, paths::COMPONENTS, paths::IMAGES];

/// The snapshot as the session observes it, published whenever it changes.
pub struct Mirror {
    state: Arc<Mutex<State>>,
    /// Notified when an own write was applied that is not published yet, or a deletion of a failed one.
    own_write_applied: Arc<Notify>,
    rolled_back: Arc<Notify>,
    follower: JoinHandle<()>,
}

/// Notifies of new snapshots and provides the newest one at any time, even after the mirror is dropped.
#[derive(Clone)]
pub struct Subscription {
    state: Arc<Mutex<State>>,
    revisions: watch::Receiver<u64>,
}

/// The mirror is dropped: there will be no other snapshot.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("ZooKeeper mirror stopped")]
pub struct MirrorStopped;

impl Subscription {
    /// Waits for an unseen snapshot; several changes are coalesced.
    pub async fn changed(&mut self) -> Result<(), MirrorStopped> {
        self.revisions.changed().await.map_err(|_| MirrorStopped)
    }

    pub fn has_changed(&self) -> bool {
        self.revisions.has_changed().unwrap_or(false)
    }

    /// The newest snapshot, which counts as seen from now on.
    pub fn latest_and_mark_seen(&mut self) -> Arc<Snapshot> {
        self.mark_seen();
        self.latest()
    }

    pub fn mark_seen(&mut self) {
        self.revisions.mark_unchanged();
    }

    pub fn latest(&self) -> Arc<Snapshot> {
        lock(&self.state).snapshot.clone()
    }

    /// Waits for a snapshot that meets the condition.
    pub async fn wait_for(&mut self, is_wanted: impl Fn(&Snapshot) -> bool) -> Result<Arc<Snapshot>, MirrorStopped> {
        loop {
            let snapshot = self.latest_and_mark_seen();
            if is_wanted(&snapshot) {
                return Ok(snapshot);
            }
            drop(snapshot);
            self.changed().await?;
        }
    }
}

pub(super) struct State {
    /// Changed in place unless a reader holds it; a reader keeps the version that it holds.
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) reads: FxHashMap<String, PendingRead>,
    pub(super) next_generation: u64,
    pub(super) tombstones: Tombstones,
    pub(super) own_writes: OwnWriteTracker,
    /// Reads for the follower to send, at most one per record of a write that just ended.
    pub(super) due_reads: mpsc::UnboundedSender<FollowUp>,
    /// Revision of the published snapshot; `None` when the mirror is dropped.
    pub(super) revisions: Option<watch::Sender<u64>>,
    /// Woken at each publication, as long as their owners exist.
    pub(super) wakers: Vec<Weak<AtomicWaker>>,
    pub(super) transition_stream: Option<TransitionStream>,
    /// Whether the snapshot differs from the published one.
    pub(super) is_dirty: bool,
}

/// A published snapshot, with every transition since the previous one.
pub struct TransitionBatch {
    pub snapshot: Arc<Snapshot>,
    /// `None` if the transitions are unknown: at the start, and after lost batches.
    pub transitions: Option<Vec<Transition>>,
}

/// Sends every transition to one receiver. If the receiver is too slow, transitions are lost and memory stays bounded.
pub(super) struct TransitionStream {
    batches: mpsc::Sender<TransitionBatch>,
    has_gap: bool,
}

impl TransitionStream {
    /// Returns whether the receiver still exists.
    fn send(&mut self, snapshot: &Arc<Snapshot>, transitions: Option<Vec<Transition>>) -> bool {
        let transitions = transitions.filter(|_| !self.has_gap);
        match self.batches.try_send(TransitionBatch { snapshot: snapshot.clone(), transitions }) {
            Ok(()) => self.has_gap = false,
            Err(mpsc::error::TrySendError::Full(_)) => self.has_gap = true,
            Err(mpsc::error::TrySendError::Closed(_)) => return false,
        }
        true
    }
}

/// Recently deleted records. Their ids are never reused, but the reply to a write may arrive late.
#[derive(Default)]
pub(super) struct Tombstones {
    paths: FxHashSet<String>,
    order: VecDeque<String>,
}

impl Tombstones {
    /// Far more deletions than occur while a reply is in flight.
    const MAX_PATHS: usize = 2000;

    fn insert(&mut self, path: &str) {
        if self.paths.insert(path.to_owned()) {
            self.order.push_back(path.to_owned());
        }
        if self.order.len() > Self::MAX_PATHS
            && let Some(oldest) = self.order.pop_front()
        {
            self.paths.remove(&oldest);
        }
    }

    fn contains(&self, path: &str) -> bool {
        self.paths.contains(path)
    }
}

/// An own write that sets records: while it is in flight, their events do not count as foreign. A write that is dropped
/// without `done` counts as failed.
pub struct OwnWrite {
    state: Arc<Mutex<State>>,
    own_write_applied: Arc<Notify>,
    pending: Option<PendingWrite>,
    deletions: Vec<String>,
}

impl OwnWrite {
    /// Must be called before the write is sent, if it also deletes znodes. Their events may arrive before the reply;
    /// without this they would become visible before the other changes of the transaction.
    pub fn with_deletions(mut self, paths: Vec<String>) -> Self {
        lock(&self.state).own_writes.begin_deletions(&paths);
        self.deletions = paths;
        self
    }

    /// The write succeeded, and its records have been applied to the snapshot.
    pub fn done(mut self) {
        self.end(OwnWriteTracker::done);
    }

    fn end(&mut self, count: impl FnOnce(&mut OwnWriteTracker, PendingWrite) -> Vec<String>) {
        let Some(pending) = self.pending.take() else { return };
        let mut state = lock(&self.state);
        let foreign_writes = count(&mut state.own_writes, pending);
        state.request_reads(foreign_writes);
        // After the reads have begun: a deleted lock counts as held until its node is read.
        for path in state.own_writes.end_deletions(std::mem::take(&mut self.deletions)) {
            state.on_deleted(&path);
            self.own_write_applied.notify_one();
        }
    }
}

impl Drop for OwnWrite {
    fn drop(&mut self) {
        self.end(OwnWriteTracker::failed);
    }
}

/// A read in flight, and whether its path changed again since it was sent.
pub(super) struct PendingRead {
    pub(super) generation: u64,
    pub(super) needs_reread: bool,
    /// Contenders of a node that were deleted since.
    pub(super) unlocks: Vec<String>,
}

impl Mirror {
    /// Sets the watch first, then reads everything. Returns with the first complete snapshot, which is kept up to date
    /// on the given runtime.
    pub async fn start(zk: Zk, runtime: &Handle) -> Result<Self, ZkError> {
        ensure_roots(&zk).await?;
        // One watch for all roots: with several, a change below one root could be observed before an earlier one below
        // another.
        let installation = installation(&zk).await?;
        Self::follow(zk, runtime, paths::ROOT, &ROOTS, installation).await
    }

    /// Starts a mirror of images alone, which builders need.
    pub async fn start_images_only(zk: Zk, runtime: &Handle) -> Result<Self, ZkError> {
        ensure_roots(&zk).await?;
        Self::follow(zk, runtime, paths::IMAGES, &[paths::IMAGES], Arc::default()).await
    }

    /// Starts a mirror for read-only clients, which creates no znodes.
    pub async fn start_read_only(zk: Zk, runtime: &Handle) -> Result<Self, ZkError> {
        Self::follow(zk, runtime, paths::ROOT, &ROOTS, Arc::default()).await
    }

    async fn follow(
        zk: Zk,
        runtime: &Handle,
        watched: &str,
        roots: &'static [&'static str],
        installation: Arc<str>,
    ) -> Result<Self, ZkError> {
        let events = zk.watch(watched).await?;
        let mut snapshot = Snapshot::default();
        (snapshot.connected, snapshot.installation) = (true, installation);
        for subtree in try_join_all(roots.iter().map(|root| bulk::read(&zk, root))).await? {
            subtree.replace_in(&mut snapshot);
        }
        report_unreadable(&snapshot);
        let (due_reads, to_read) = mpsc::unbounded_channel();
        let state = Arc::new(Mutex::new(State {
            snapshot: Arc::new(snapshot),
            reads: FxHashMap::default(),
            next_generation: 0,
            tombstones: Tombstones::default(),
            own_writes: OwnWriteTracker::default(),
            due_reads,
            revisions: Some(watch::Sender::new(0)),
            wakers: Vec::new(),
            transition_stream: None,
            is_dirty: false,
        }));
        let session = zk.session();
        let own_write_applied = Arc::new(Notify::new());
        let rolled_back = Arc::new(Notify::new());
        let follower = Follower::new(zk, roots, state.clone(), to_read, own_write_applied.clone(), rolled_back.clone());
        let follower = runtime.spawn(follower.run(events, session));
        Ok(Self { state, own_write_applied, rolled_back, follower })
    }

    /// Resolves for one waiter when ZooKeeper was rolled back to an older state. The mirror stops then: a process that
    /// knows the newer state can only start over with another session.
    pub async fn store_rolled_back(&self) {
        self.rolled_back.notified().await;
    }

    /// The current snapshot, with all own writes applied.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        let mut state = lock(&self.state);
        state.publish();
        state.snapshot.clone()
    }

    /// The current snapshot, and the nodes that have changed since. Of a foreign transaction, a part may be visible
    /// first; the rest of it is among these nodes.
    pub fn snapshot_and_unread_nodes(&self) -> (Arc<Snapshot>, BTreeSet<NodeId>) {
        let mut state = lock(&self.state);
        state.publish();
        let unread = state.reads.keys().filter_map(|path| match paths::parse(path) {
            ZnodePath::Node(id) => Some(id),
            _ => None,
        });
        (state.snapshot.clone(), unread.collect())
    }

    /// Reads the current snapshot without publishing it, as no other reader needs it. The mirror processes no events
    /// meanwhile, so the closure must be short.
    pub fn with_snapshot<T>(&self, read: impl FnOnce(&Snapshot) -> T) -> T {
        read(&lock(&self.state).snapshot)
    }

    pub fn node_lock(&self, id: &NodeId) -> LockState {
        lock(&self.state).snapshot.node_lock(id).clone()
    }

    pub fn request_lock(&self, id: &RequestId) -> LockState {
        lock(&self.state).snapshot.request_lock(id).clone()
    }

    /// Notifies of changes a little later than `snapshot` shows them; several changes are coalesced.
    pub fn subscribe(&self) -> Subscription {
        let revisions = lock(&self.state).revisions.as_ref().map(watch::Sender::subscribe);
        Subscription {
            state: self.state.clone(),
            revisions: revisions.expect("a mirror publishes as long as it exists"),
        }
    }

    /// Wakes a task at each publication, which is cheaper than a channel when many tasks wait.
    pub fn wake_on_publish(&self, waker: &Arc<AtomicWaker>) {
        lock(&self.state).wakers.push(Arc::downgrade(waker));
    }

    /// From now on each published snapshot is also sent to `batches`, with the transitions that led to it.
    pub fn stream_transitions(&self, batches: mpsc::Sender<TransitionBatch>) {
        let mut state = lock(&self.state);
        state.publish();
        let mut stream = TransitionStream { batches, has_gap: false };
        if stream.send(&state.snapshot, None) {
            state.snapshot_mut().transitions = Some(Vec::new());
            state.transition_stream = Some(stream);
        }
    }

    /// Must be called before a write is sent that sets the data of these records.
    pub fn begin_write(&self, paths: Vec<String>) -> OwnWrite {
        let pending = Some(lock(&self.state).own_writes.begin_write(paths));
        OwnWrite {
            state: self.state.clone(),
            own_write_applied: self.own_write_applied.clone(),
            pending,
            deletions: Vec::new(),
        }
    }

    /// Applies an own write to the snapshot, before the writer receives the result, so that a pool that has just begun
    /// three nodes counts three. All changes of one transaction belong in one call, because readers observe the result
    /// of each call.
    pub fn apply_own_write(&self, change: impl FnOnce(&mut SnapshotUpdate<'_>)) {
        let mut state = lock(&self.state);
        change(&mut SnapshotUpdate { state: &mut state });
        drop(state);
        self.own_write_applied.notify_one();
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.follower.abort();
        lock(&self.state).revisions = None;
    }
}

/// The changes of the snapshot by an own write.
pub struct SnapshotUpdate<'a> {
    state: &'a mut State,
}

impl SnapshotUpdate<'_> {
    pub fn snapshot_mut(&mut self) -> &mut Snapshot {
        self.state.snapshot_mut()
    }

    /// Changes a node that existed before the write. If the node is missing, its deletion was observed before the
    /// reply.
    pub fn change_node(&mut self, id: NodeId, stored: Versioned<Node>) {
        if self.state.snapshot.node(&id).is_some() {
            self.state.snapshot_mut().put_node(id, stored);
        }
    }

    /// As `change_node`.
    pub fn change_request(&mut self, id: RequestId, stored: Versioned<NodeRequest>) {
        if self.state.snapshot.request(&id).is_some() {
            self.state.snapshot_mut().put_request(id, stored);
        }
    }

    /// Adds a new node, unless it is already deleted again.
    pub fn add_node(&mut self, id: NodeId, stored: Versioned<Node>) {
        if !self.state.tombstones.contains(&paths::node(&id)) {
            self.state.snapshot_mut().put_node(id, stored);
        }
    }

    /// As `add_node`.
    pub fn add_request(&mut self, id: RequestId, stored: Versioned<NodeRequest>) {
        if !self.state.tombstones.contains(&paths::request(&id)) {
            self.state.snapshot_mut().put_request(id, stored);
        }
    }

    pub fn remove(&mut self, path: &str) {
        self.state.remove(path);
    }
}

impl State {
    /// The snapshot for a change, after which it has to be published.
    pub(super) fn snapshot_mut(&mut self) -> &mut Snapshot {
        self.is_dirty = true;
        Arc::make_mut(&mut self.snapshot)
    }

    pub(super) fn publish(&mut self) {
        if !std::mem::take(&mut self.is_dirty) {
            return;
        }
        let snapshot = Arc::make_mut(&mut self.snapshot);
        snapshot.revision += 1;
        let transitions = snapshot.transitions.as_mut().map(std::mem::take);
        let revision = snapshot.revision;
        if self.transition_stream.as_mut().is_some_and(|stream| !stream.send(&self.snapshot, transitions)) {
            self.transition_stream = None;
            Arc::make_mut(&mut self.snapshot).transitions = None;
        }
        if let Some(revisions) = &self.revisions {
            revisions.send_replace(revision);
        }
        self.wakers.retain(|waker| waker.upgrade().inspect(|waker| waker.wake()).is_some());
    }

    fn request_reads(&mut self, paths: Vec<String>) {
        for path in paths {
            if let Some(read) = self.begin_read(&path, &paths::parse(&path)) {
                // Sending fails only without a follower, and then the snapshot has no readers.
                let _ = self.due_reads.send(read);
            }
        }
    }

    /// Removes a deleted znode; the reply to an earlier read of it must not restore it.
    pub(super) fn remove(&mut self, path: &str) {
        self.remove_parsed(path, paths::parse(path));
    }

    pub(super) fn remove_parsed(&mut self, path: &str, parsed: ZnodePath) {
        self.reads.remove(path);
        self.own_writes.forget(path);
        if matches!(parsed, ZnodePath::Node(_) | ZnodePath::Request(_)) {
            self.tombstones.insert(path);
        }
        if self.snapshot.is_unreadable(path) {
            self.snapshot_mut().clear_unreadable(path);
        }
        // The event of an own deletion arrives after the deletion was applied, and must not publish the same snapshot
        // again.
        if !self.snapshot_contains(&parsed) {
            return;
        }
        match parsed {
            ZnodePath::Node(id) => self.snapshot_mut().remove_node(&id),
            ZnodePath::NodeLock(id) => self.snapshot_mut().set_node_lock(id, LockState::default()),
            ZnodePath::NodeContender(id, name) => {
                self.change_node_lock(id, |lock_state| lock_state.contenders.remove(&name))
            }
            ZnodePath::Request(id) => {
                log_withdrawal(&self.snapshot, &id, "withdrawn");
                self.snapshot_mut().remove_request(&id);
            }
            ZnodePath::RequestLock(id) => self.snapshot_mut().remove_request_lock(&id),
            ZnodePath::RequestContender(id, name) => {
                self.change_request_lock(id, |lock_state| lock_state.contenders.remove(&name))
            }
            ZnodePath::Component { kind, name } => self.snapshot_mut().remove_component(kind, &name),
            parsed => self.remove_image_znode(parsed),
        }
    }

    /// Whether the snapshot still contains a deleted object.
    fn snapshot_contains(&self, parsed: &ZnodePath) -> bool {
        let snapshot = &self.snapshot;
        match parsed {
            ZnodePath::Node(id) => snapshot.has_node(id),
            ZnodePath::NodeLock(id) => snapshot.node_lock(id) != LockState::absent(),
            ZnodePath::NodeContender(id, name) => snapshot.node_lock(id).contenders.contains(name),
            ZnodePath::Request(id) => snapshot.has_request(id),
            ZnodePath::RequestLock(id) => snapshot.has_request_lock(id),
            ZnodePath::RequestContender(id, name) => snapshot.request_lock(id).contenders.contains(name),
            // Other objects are rarely deleted, so publishing the same snapshot again costs little.
            _ => true,
        }
    }

    fn remove_image_znode(&mut self, parsed: ZnodePath) {
        let images = &mut self.snapshot_mut().images;
        match parsed {
            ZnodePath::Image(name) => images.remove_image(&name),
            ZnodePath::ImagePause(name) => images.set_paused(&name, false),
            ZnodePath::ImageBuildRequest(name) => images.set_requested(&name, None),
            ZnodePath::ImageBuildsLock(name) => images.set_lock(&name, LockState::default()),
            ZnodePath::ImageBuildsContender(name, contender) => images.set_contender(&name, &contender, false),
            ZnodePath::ImageBuild(image, build) => images.remove_build(&BuildKey { image, build }),
            ZnodePath::ImageUploadsLock(image, build, provider) => {
                let key = UploadLockKey { build: BuildKey { image, build }, provider };
                images.set_upload_lock(key, LockState::default());
            }
            ZnodePath::ImageUploadsContender(image, build, provider, contender) => {
                let key = UploadLockKey { build: BuildKey { image, build }, provider };
                images.set_upload_contender(key, &contender, false);
            }
            ZnodePath::ImageUpload(key) => images.remove_upload(&key),
            _ => {}
        }
    }

    pub(super) fn change_node_lock(&mut self, id: NodeId, change: impl FnOnce(&mut LockState) -> bool) {
        let mut lock_state = self.snapshot.node_lock(&id).clone();
        if change(&mut lock_state) {
            self.snapshot_mut().set_node_lock(id, lock_state);
        }
    }

    pub(super) fn change_request_lock(&mut self, id: RequestId, change: impl FnOnce(&mut LockState) -> bool) {
        let mut lock_state = self.snapshot.request_lock(&id).clone();
        if change(&mut lock_state) {
            self.snapshot_mut().set_request_lock(id, lock_state);
        }
    }
}

pub(super) fn report_unreadable(snapshot: &Snapshot) {
    for (path, reason) in snapshot.unreadable() {
        tracing::warn!(
            target: "nodepool.zk.ZooKeeper",
            %path,
            %reason,
            "cannot read a record; skipping it, its znode is left unchanged"
        );
    }
}

/// Creates the containers that all clients expect. Checking first costs one round trip if they exist; an attempt to
/// create them would cost a transaction each.
async fn ensure_roots(zk: &Zk) -> Result<(), ZkError> {
    let components = ["pool", "launcher", "builder"].map(|kind| format!("/nodepool/components/{kind}"));
    // Builders create the images root when they build an image.
    let roots = ROOTS.into_iter().filter(|root| *root != paths::IMAGES).map(str::to_owned);
    let containers = std::iter::once("/nodepool".to_owned()).chain(roots).chain(components);
    let containers: Vec<String> = containers.collect();
    let found = try_join_all(containers.iter().map(|path| zk.exists(path))).await?;
    for (path, _) in containers.into_iter().zip(found).filter(|(_, found)| found.is_none()) {
        match zk.create(&path, Bytes::new(), CreateMode::Persistent).await {
            Ok(_) | Err(ZkError::NodeExists) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The random name of the installation; the first process creates it.
async fn installation(zk: &Zk) -> Result<Arc<str>, ZkError> {
    loop {
        match zk.get(paths::INSTALLATION).await {
            Ok((name, _)) => return Ok(String::from_utf8_lossy(&name).into()),
            Err(ZkError::NoNode) => {}
            Err(error) => return Err(error),
        }
        let name = nodepool_rng::uuid().simple().to_string();
        match zk.create(paths::INSTALLATION, name.into(), CreateMode::Persistent).await {
            Ok(_) | Err(ZkError::NodeExists) => {}
            Err(error) => return Err(error),
        }
    }
}

pub(super) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("nothing panics while it holds the mirror's state")
}

/// Logs that an open request is deleted.
pub(super) fn log_withdrawal(snapshot: &Snapshot, id: &RequestId, text: &str) {
    let Some(record) = snapshot.request(id).map(|stored| &stored.record) else { return };
    if matches!(record.state, RequestState::Requested | RequestState::Pending) {
        let event_id = record.event_id.as_deref();
        info!(target: "nodepool.zk.ZooKeeper", node_request_id = %id, event_id, "{text}");
    }
}
