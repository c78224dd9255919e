//! Keeps one `Snapshot` of nodes, requests, locks and components: first read, then kept by persistent watches.
//!
//! Events of one session arrive in the order of the transactions, but a read that was sent before an event may be
//! answered after it. Every read therefore carries a ticket, and a removal takes the ticket back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::Bytes;
use futures::future::try_join_all;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use super::bulk;
use super::follower::Follower;
use super::own_writes::{OwnWriteTracker, PendingWrite};
use super::wake_signal::WakeSignal;
use crate::Zk;
use crate::paths::{self, ZnodePath};
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::image_build::BuildKey;
use nodepool_model::records::node::Node;
use nodepool_model::records::request::NodeRequest;
use nodepool_model::snapshot::images::UploadLockKey;
use nodepool_model::snapshot::transition::Transition;
use nodepool_model::snapshot::{LockState, Snapshot, Versioned};
use zookeeper_server::types::{CreateMode, ZkError};

/// What the mirror follows; the order in which it is read at the start.
pub const ROOTS: [&str; 5] = [paths::NODES, paths::REQUESTS, paths::REQUEST_LOCKS, paths::COMPONENTS, paths::IMAGES];

/// The snapshot as the session sees it, published whenever it changes.
pub struct Mirror {
    state: Arc<Mutex<State>>,
    /// Something was folded in that nobody has looked at yet.
    own_write_applied: Arc<Notify>,
    rolled_back: Arc<Notify>,
    follower: JoinHandle<()>,
}

/// Tells of pictures, and has the newest one at any time, even when the mirror is gone.
#[derive(Clone)]
pub struct Subscription {
    state: Arc<Mutex<State>>,
    revisions: watch::Receiver<u64>,
}

/// The mirror is gone: there will be no other picture.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("nothing more is heard of ZooKeeper")]
pub struct MirrorStopped;

impl Subscription {
    /// Waits for a picture that was not seen yet; many of them together are one.
    pub async fn changed(&mut self) -> Result<(), MirrorStopped> {
        self.revisions.changed().await.map_err(|_| MirrorStopped)
    }

    pub fn has_changed(&self) -> bool {
        self.revisions.has_changed().unwrap_or(false)
    }

    /// The newest picture, which counts as seen from now on.
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

    /// Waits for a picture that is like that.
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
    /// Changed in place as long as nobody looks at it; who does keeps the one that he looks at.
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) reads: FxHashMap<String, PendingRead>,
    pub(super) next_generation: u64,
    pub(super) tombstones: Tombstones,
    pub(super) own_writes: OwnWriteTracker,
    /// Paths for the follower to read, at most one per write that just ended.
    pub(super) foreign_writes: mpsc::UnboundedSender<String>,
    /// Of what was published; none when the mirror is gone.
    pub(super) revisions: Option<watch::Sender<u64>>,
    /// Rung at each publication, as long as somebody has them.
    pub(super) wake_signals: Vec<Weak<WakeSignal>>,
    pub(super) transition_stream: Option<TransitionStream>,
    /// Whether the picture differs from the published one.
    pub(super) is_dirty: bool,
}

/// A published picture, with every step that led to it from the one before.
pub struct TransitionBatch {
    pub snapshot: Arc<Snapshot>,
    /// `None` where nobody knows the steps: at the beginning, and after frames that were lost.
    pub transitions: Option<Vec<Transition>>,
}

/// For somebody who wants to see every step. Pictures go at the pace of who looks at them, and then steps are lost, not memory.
pub(super) struct TransitionStream {
    batches: mpsc::Sender<TransitionBatch>,
    has_gap: bool,
}

impl TransitionStream {
    /// Returns whether there is still somebody who watches.
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

/// Records that went a short while ago. Their ids never come back, but the answer to a write may arrive late.
#[derive(Default)]
pub(super) struct Tombstones {
    paths: FxHashSet<String>,
    order: VecDeque<String>,
}

impl Tombstones {
    /// Far more than go while an answer is on its way.
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

/// A write of ours that sets records: while it lasts, their events are not taken for those of others. Dropped without
/// `done` it counts as failed.
pub struct OwnWrite {
    state: Arc<Mutex<State>>,
    pending: Option<PendingWrite>,
}

impl OwnWrite {
    /// It was carried out, and its records have been folded in.
    pub fn done(mut self) {
        if let Some(pending) = self.pending.take() {
            let mut state = lock(&self.state);
            let foreign_writes = state.own_writes.done(pending);
            state.request_reads(foreign_writes);
        }
    }
}

impl Drop for OwnWrite {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            let mut state = lock(&self.state);
            let foreign_writes = state.own_writes.failed(pending);
            state.request_reads(foreign_writes);
        }
    }
}

/// A read under way, and whether its path changed again since it was sent.
pub(super) struct PendingRead {
    pub(super) generation: u64,
    pub(super) needs_reread: bool,
    /// Contenders of a node that have gone since.
    pub(super) unlocks: Vec<String>,
}

impl Mirror {
    /// Watches first, then reads everything here; returns with the first complete picture, which is kept up to date on
    /// the given runtime.
    pub async fn start(zk: Zk, runtime: &Handle) -> Result<Self, ZkError> {
        ensure_roots(&zk).await?;
        // One watch for all, or a change below one root could be heard of before an earlier one below another.
        Self::follow(zk, runtime, paths::ROOT, &ROOTS).await
    }

    /// The same of images alone: what builders need.
    pub async fn start_images_only(zk: Zk, runtime: &Handle) -> Result<Self, ZkError> {
        ensure_roots(&zk).await?;
        Self::follow(zk, runtime, paths::IMAGES, &[paths::IMAGES]).await
    }

    /// The same for who only looks: creates nothing.
    pub async fn start_read_only(zk: Zk, runtime: &Handle) -> Result<Self, ZkError> {
        Self::follow(zk, runtime, paths::ROOT, &ROOTS).await
    }

    async fn follow(zk: Zk, runtime: &Handle, watched: &str, roots: &'static [&'static str]) -> Result<Self, ZkError> {
        let events = zk.watch(watched).await?;
        let mut snapshot = Snapshot::default();
        snapshot.connected = true;
        for subtree in try_join_all(roots.iter().map(|root| bulk::read(&zk, root))).await? {
            subtree.replace_in(&mut snapshot);
        }
        report_unreadable(&snapshot);
        let (foreign_writes, to_read) = mpsc::unbounded_channel();
        let state = Arc::new(Mutex::new(State {
            snapshot: Arc::new(snapshot),
            reads: FxHashMap::default(),
            next_generation: 0,
            tombstones: Tombstones::default(),
            own_writes: OwnWriteTracker::default(),
            foreign_writes,
            revisions: Some(watch::Sender::new(0)),
            wake_signals: Vec::new(),
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

    /// Resolves, for one who waits for it, when ZooKeeper shows an earlier time than before. Nothing more is followed then: who knows
    /// the future can only begin anew, with another session.
    pub async fn store_rolled_back(&self) {
        self.rolled_back.notified().await;
    }

    /// The picture as it is now, with all that was folded in.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        let mut state = lock(&self.state);
        state.publish();
        state.snapshot.clone()
    }

    /// Shows the picture as it is now, without publishing it: nobody else needs to look at it.
    /// Nothing is heard of ZooKeeper meanwhile, so this is for short looks.
    pub fn with_snapshot<T>(&self, read: impl FnOnce(&Snapshot) -> T) -> T {
        read(&lock(&self.state).snapshot)
    }

    pub fn node_lock(&self, id: &NodeId) -> LockState {
        lock(&self.state).snapshot.node_lock(id).clone()
    }

    pub fn request_lock(&self, id: &RequestId) -> LockState {
        lock(&self.state).snapshot.request_lock(id).clone()
    }

    /// Tells of changes a little later than `snapshot` shows them: many of them together are one.
    pub fn subscribe(&self) -> Subscription {
        let revisions = lock(&self.state).revisions.as_ref().map(watch::Sender::subscribe);
        Subscription {
            state: self.state.clone(),
            revisions: revisions.expect("a mirror publishes as long as it is there"),
        }
    }

    /// From now on this is rung at each publication.
    pub fn wake_on_publish(&self, signal: &Arc<WakeSignal>) {
        lock(&self.state).wake_signals.push(Arc::downgrade(signal));
    }

    /// From now on each published picture goes there as well, with the steps that led to it.
    pub fn stream_transitions(&self, batches: mpsc::Sender<TransitionBatch>) {
        let mut state = lock(&self.state);
        state.publish();
        let mut stream = TransitionStream { batches, has_gap: false };
        if stream.send(&state.snapshot, None) {
            state.snapshot_mut().transitions = Some(Vec::new());
            state.transition_stream = Some(stream);
        }
    }

    /// To be called before a write is sent that sets the data of these records.
    pub fn begin_write(&self, paths: Vec<String>) -> OwnWrite {
        let pending = Some(lock(&self.state).own_writes.begin_write(paths));
        OwnWrite { state: self.state.clone(), pending }
    }

    /// Takes over what a write of ours has changed, before the writer is told: who has begun three nodes counts three.
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

/// The ways in which an own write changes the picture.
pub struct SnapshotUpdate<'a> {
    state: &'a mut State,
}

impl SnapshotUpdate<'_> {
    pub fn snapshot_mut(&mut self) -> &mut Snapshot {
        self.state.snapshot_mut()
    }

    /// A node that was there before the write: where it is not, its removal was heard of before the writer got here.
    pub fn change_node(&mut self, id: NodeId, stored: Versioned<Node>) {
        if self.state.snapshot.node(&id).is_some() {
            self.state.snapshot_mut().put_node(id, stored);
        }
    }

    /// As for nodes.
    pub fn change_request(&mut self, id: RequestId, stored: Versioned<NodeRequest>) {
        if self.state.snapshot.request(&id).is_some() {
            self.state.snapshot_mut().put_request(id, stored);
        }
    }

    /// A new node, unless it has gone again already.
    pub fn add_node(&mut self, id: NodeId, stored: Versioned<Node>) {
        if !self.state.tombstones.contains(&paths::node(&id)) {
            self.state.snapshot_mut().put_node(id, stored);
        }
    }

    /// As for nodes.
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
    /// To change the picture.
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
        self.wake_signals.retain(|signal| signal.upgrade().inspect(|signal| signal.wake()).is_some());
    }

    fn request_reads(&self, paths: Vec<String>) {
        for path in paths {
            // Without a follower nobody looks at the picture either.
            let _ = self.foreign_writes.send(path);
        }
    }

    /// The znode at a path is gone; an answer to an earlier read of it must not bring it back.
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
        // Of what we took away ourselves we hear once more, and nobody needs to look at the same picture again.
        if !self.snapshot_contains(&parsed) {
            return;
        }
        match parsed {
            ZnodePath::Node(id) => self.snapshot_mut().remove_node(&id),
            ZnodePath::NodeLock(id) => self.snapshot_mut().set_node_lock(id, LockState::default()),
            ZnodePath::NodeContender(id, name) => {
                self.change_node_lock(id, |lock_state| lock_state.contenders.remove(&name))
            }
            ZnodePath::Request(id) => self.snapshot_mut().remove_request(&id),
            ZnodePath::RequestLock(id) => self.snapshot_mut().remove_request_lock(&id),
            ZnodePath::RequestContender(id, name) => {
                self.change_request_lock(id, |lock_state| lock_state.contenders.remove(&name))
            }
            ZnodePath::Component { kind, name } => self.snapshot_mut().remove_component(kind, &name),
            parsed => self.remove_image_znode(parsed),
        }
    }

    /// Whether there is something of what is said to be gone.
    fn snapshot_contains(&self, parsed: &ZnodePath) -> bool {
        let snapshot = &self.snapshot;
        match parsed {
            ZnodePath::Node(id) => snapshot.has_node(id),
            ZnodePath::NodeLock(id) => snapshot.node_lock(id) != LockState::absent(),
            ZnodePath::NodeContender(id, name) => snapshot.node_lock(id).contenders.contains(name),
            ZnodePath::Request(id) => snapshot.has_request(id),
            ZnodePath::RequestLock(id) => snapshot.has_request_lock(id),
            ZnodePath::RequestContender(id, name) => snapshot.request_lock(id).contenders.contains(name),
            // Of others few go.
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
        tracing::warn!(target: "nodepool.zk.ZooKeeper", %path, %reason, "cannot read a record; it is skipped and left alone");
    }
}

/// Makes sure that the containers exist that everybody expects. Looking first costs one round trip where they do; an
/// attempt to create what exists would cost a transaction each.
async fn ensure_roots(zk: &Zk) -> Result<(), ZkError> {
    let components = ["pool", "launcher", "builder"].map(|kind| format!("/nodepool/components/{kind}"));
    // Builders make theirs when they build something.
    let kept = ROOTS.into_iter().filter(|root| *root != paths::IMAGES).map(str::to_owned);
    let containers = std::iter::once("/nodepool".to_owned()).chain(kept).chain(components);
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

pub(super) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("nothing panics while it holds the mirror's state")
}
