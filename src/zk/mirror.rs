//! Keeps one `Snapshot` of nodes, requests, locks and components: first read, then kept by persistent watches.
//!
//! Events of one session arrive in the order of the transactions, but a read that was sent before an event may be
//! answered after it. Every read therefore carries a ticket, and a removal takes the ticket back.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, try_join_all};
use futures::stream::{BoxStream, FuturesUnordered, SelectAll};
use futures::{FutureExt, StreamExt};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use super::bulk::{self, Picture};
use super::echoes::{Announced, Echoes};
use super::paths::{self, Place};
use super::{CreateMode, EventKind, SessionState, Stat, WatchEvent, Zk, ZkError};
use crate::model::ids::{NodeId, RequestId};
use crate::model::node::Node;
use crate::model::request::NodeRequest;
use crate::model::snapshot::{LockView, Snapshot, Stored};

/// What the mirror follows; the order in which it is read at the start.
pub const ROOTS: [&str; 4] =
    ["/nodepool/nodes", "/nodepool/requests", "/nodepool/requests-lock", "/nodepool/components"];

/// After a read whose answer was lost.
const RETRY_READ: Duration = Duration::from_millis(200);

/// The snapshot as the session sees it, published whenever it changes.
pub struct Mirror {
    state: Arc<Mutex<State>>,
    published: watch::Receiver<Arc<Snapshot>>,
    /// Something was folded in that nobody has looked at yet.
    folded: Arc<Notify>,
    follower: JoinHandle<()>,
}

struct State {
    snapshot: Snapshot,
    reads: HashMap<String, Read>,
    next_ticket: u64,
    gone: Gone,
    echoes: Echoes,
    /// Paths for the follower to read, at most one per write that just ended.
    unexplained: mpsc::UnboundedSender<String>,
    publish: watch::Sender<Arc<Snapshot>>,
    /// Whether the picture differs from the published one.
    is_dirty: bool,
}

/// Records that went a short while ago. Their ids never come back, but the answer to a write may arrive late.
#[derive(Default)]
struct Gone {
    paths: HashSet<String>,
    order: VecDeque<String>,
}

impl Gone {
    /// Far more than go while an answer is on its way.
    const MOST: usize = 2000;

    fn note(&mut self, path: &str) {
        if self.paths.insert(path.to_owned()) {
            self.order.push_back(path.to_owned());
        }
        if self.order.len() > Self::MOST
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
    announced: Option<Announced>,
}

impl OwnWrite {
    /// It was carried out, and its records have been folded in.
    pub fn done(mut self) {
        if let Some(announced) = self.announced.take() {
            let mut state = lock(&self.state);
            let unexplained = state.echoes.done(announced);
            state.ask_to_read(unexplained);
        }
    }
}

impl Drop for OwnWrite {
    fn drop(&mut self) {
        if let Some(announced) = self.announced.take() {
            let mut state = lock(&self.state);
            let unexplained = state.echoes.failed(announced);
            state.ask_to_read(unexplained);
        }
    }
}

/// A read under way, and whether its path changed again since it was sent.
struct Read {
    ticket: u64,
    again: bool,
}

type ReadDone = (String, u64, Result<(Bytes, Stat), ZkError>);

impl Mirror {
    /// Watches first, then reads everything; returns with the first complete picture.
    pub async fn start(zk: Zk) -> Result<Self, ZkError> {
        ensure_roots(&zk).await?;
        let mut events = SelectAll::new();
        for watch in ROOTS.map(|root| zk.watch(root)) {
            events.push(watch.await?);
        }
        let mut snapshot = Snapshot::default();
        snapshot.connected = true;
        for picture in try_join_all(ROOTS.map(|root| bulk::read(&zk, root))).await? {
            picture.replace_in(&mut snapshot);
        }
        report_unreadable(&snapshot);
        let (publish, published) = watch::channel(Arc::new(snapshot.clone()));
        let (unexplained, to_read) = mpsc::unbounded_channel();
        let state = Arc::new(Mutex::new(State {
            snapshot,
            reads: HashMap::new(),
            next_ticket: 0,
            gone: Gone::default(),
            echoes: Echoes::default(),
            unexplained,
            publish,
            is_dirty: false,
        }));
        let session = zk.session();
        let folded = Arc::new(Notify::new());
        let (mirror_state, folds, reads) = (state.clone(), folded.clone(), FuturesUnordered::new());
        let follower = Follower { zk, state: mirror_state, reads, to_read, folds };
        let follower = tokio::spawn(follower.run(events, session));
        Ok(Self { state, published, folded, follower })
    }

    /// The picture as it is now, with all that was folded in.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        lock(&self.state).publish();
        self.published.borrow().clone()
    }

    pub fn node_lock(&self, id: &NodeId) -> LockView {
        lock(&self.state).snapshot.node_lock(id)
    }

    pub fn request_lock(&self, id: &RequestId) -> LockView {
        lock(&self.state).snapshot.request_lock(id)
    }

    /// Tells of changes a little later than `snapshot` shows them: many of them together are one.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.published.clone()
    }

    /// To be called before a write is sent that sets the data of these records.
    pub fn announce(&self, paths: Vec<String>) -> OwnWrite {
        let announced = Some(lock(&self.state).echoes.announce(paths));
        OwnWrite { state: self.state.clone(), announced }
    }

    /// Takes over what a write of ours has changed, before the writer is told: who has begun three nodes counts three.
    pub fn fold(&self, change: impl FnOnce(&mut Fold<'_>)) {
        let mut state = lock(&self.state);
        change(&mut Fold { state: &mut state });
        state.is_dirty = true;
        drop(state);
        self.folded.notify_one();
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

/// The ways in which an own write changes the picture.
pub struct Fold<'a> {
    state: &'a mut State,
}

impl Fold<'_> {
    pub fn snapshot(&mut self) -> &mut Snapshot {
        &mut self.state.snapshot
    }

    /// A node that was there before the write: where it is not, its removal was heard of before the writer got here.
    pub fn change_node(&mut self, id: NodeId, stored: Stored<Node>) {
        if self.state.snapshot.node(&id).is_some() {
            self.state.snapshot.put_node(id, stored);
        }
    }

    /// As for nodes.
    pub fn change_request(&mut self, id: RequestId, stored: Stored<NodeRequest>) {
        if self.state.snapshot.request(&id).is_some() {
            self.state.snapshot.put_request(id, stored);
        }
    }

    /// A new node, unless it has gone again already.
    pub fn add_node(&mut self, id: NodeId, stored: Stored<Node>) {
        if !self.state.gone.contains(&paths::node(&id)) {
            self.state.snapshot.put_node(id, stored);
        }
    }

    /// As for nodes.
    pub fn add_request(&mut self, id: RequestId, stored: Stored<NodeRequest>) {
        if !self.state.gone.contains(&paths::request(&id)) {
            self.state.snapshot.put_request(id, stored);
        }
    }

    pub fn remove(&mut self, path: &str) {
        self.state.remove(path);
    }
}

impl State {
    fn publish(&mut self) {
        if !std::mem::take(&mut self.is_dirty) {
            return;
        }
        self.snapshot.revision += 1;
        self.publish.send_replace(Arc::new(self.snapshot.clone()));
    }

    fn ask_to_read(&self, paths: Vec<String>) {
        for path in paths {
            // Without a follower nobody looks at the picture either.
            let _ = self.unexplained.send(path);
        }
    }

    /// The znode at a path is gone; an answer to an earlier read of it must not bring it back.
    fn remove(&mut self, path: &str) {
        self.reads.remove(path);
        self.echoes.forget(path);
        self.snapshot.forget_unreadable(path);
        self.is_dirty = true;
        let place = paths::parse(path);
        if matches!(place, Place::Node(_) | Place::Request(_)) {
            self.gone.note(path);
        }
        match place {
            Place::Node(id) => self.snapshot.remove_node(&id),
            Place::NodeLock(id) => self.snapshot.set_node_lock(id, LockView::default()),
            Place::NodeContender(id, name) => self.change_node_lock(id, |view| view.contenders.remove(&name).is_some()),
            Place::Request(id) => self.snapshot.remove_request(&id),
            Place::RequestLock(id) => self.snapshot.remove_request_lock(&id),
            Place::RequestContender(id, name) => {
                let mut view = self.snapshot.request_lock(&id);
                view.contenders.remove(&name);
                if view.exists {
                    self.snapshot.set_request_lock(id, view);
                }
            }
            Place::Component { kind, name } => self.snapshot.remove_component(kind, &name),
            _ => {}
        }
    }

    fn change_node_lock(&mut self, id: NodeId, change: impl FnOnce(&mut LockView) -> bool) {
        let mut view = self.snapshot.node_lock(&id);
        if change(&mut view) {
            self.is_dirty = true;
            self.snapshot.set_node_lock(id, view);
        }
    }
}

struct Follower {
    zk: Zk,
    state: Arc<Mutex<State>>,
    reads: FuturesUnordered<BoxFuture<'static, ReadDone>>,
    to_read: mpsc::UnboundedReceiver<String>,
    folds: Arc<Notify>,
}

impl Follower {
    async fn run(
        mut self,
        mut events: SelectAll<BoxStream<'static, WatchEvent>>,
        mut session: watch::Receiver<SessionState>,
    ) {
        loop {
            tokio::select! {
                event = events.next() => {
                    let Some(event) = event else { break };
                    self.on_event(event).await;
                }
                Some(done) = self.reads.next(), if !self.reads.is_empty() => self.on_read(done),
                Some(path) = self.to_read.recv() => self.on_changed(&path),
                () = self.folds.notified() => {}
                changed = session.changed() => {
                    let state = *session.borrow_and_update();
                    if changed.is_err() || state == SessionState::Expired {
                        break;
                    }
                    self.on_session(state).await;
                }
            }
            // A burst is taken in whole before it is published.
            loop {
                if let Some(Some(event)) = events.next().now_or_never() {
                    self.on_event(event).await;
                } else if let Some(Some(done)) = self.reads.next().now_or_never() {
                    self.on_read(done);
                } else {
                    break;
                }
            }
            lock(&self.state).publish();
        }
        let mut state = lock(&self.state);
        state.snapshot.connected = false;
        state.is_dirty = true;
        state.publish();
    }

    async fn on_session(&mut self, session: SessionState) {
        let is_connected = session == SessionState::Connected;
        if is_connected {
            for root in ROOTS {
                // A picture that may be old is none to decide on; when the connection is lost again, we are told.
                while !self.read_root(root).await && *self.zk.session().borrow() == SessionState::Connected {
                    tokio::time::sleep(RETRY_READ).await;
                }
            }
        }
        let mut state = lock(&self.state);
        state.snapshot.connected = is_connected;
        state.is_dirty = true;
    }

    async fn on_event(&mut self, event: WatchEvent) {
        match event.kind {
            EventKind::Created => self.on_created(&event.path),
            EventKind::DataChanged => {
                let is_echo = lock(&self.state).echoes.hear(&event.path);
                if !is_echo {
                    self.on_changed(&event.path);
                }
            }
            EventKind::Deleted => lock(&self.state).remove(&event.path),
            EventKind::ChildrenChanged => {}
            // The session says that it is connected again, too, and does not give up.
            EventKind::Resync => drop(self.read_root(&event.path).await),
        }
    }

    fn on_created(&mut self, path: &str) {
        let mut state = lock(&self.state);
        match paths::parse(path) {
            Place::Node(_) | Place::Request(_) | Place::Component { .. } => {
                drop(state);
                self.on_changed(path);
            }
            Place::NodeLock(id) => state.change_node_lock(id, |view| !std::mem::replace(&mut view.exists, true)),
            Place::NodeContender(id, name) => state.change_node_lock(id, |view| {
                view.exists = true;
                view.contenders.insert(name).is_none()
            }),
            Place::RequestLock(id) => {
                state.snapshot.set_request_lock(id, LockView { exists: true, ..LockView::default() });
                state.is_dirty = true;
            }
            Place::RequestContender(id, name) => {
                let mut view = state.snapshot.request_lock(&id);
                view.exists = true;
                view.contenders.insert(name);
                state.snapshot.set_request_lock(id, view);
                state.is_dirty = true;
            }
            _ => {}
        }
    }

    /// Reads a record again; one read per path is under way at most, and a change meanwhile asks for one more.
    fn on_changed(&mut self, path: &str) {
        if !matches!(paths::parse(path), Place::Node(_) | Place::Request(_) | Place::Component { .. }) {
            return;
        }
        let mut state = lock(&self.state);
        if let Some(read) = state.reads.get_mut(path) {
            read.again = true;
            return;
        }
        state.next_ticket += 1;
        let ticket = state.next_ticket;
        state.reads.insert(path.to_owned(), Read { ticket, again: false });
        drop(state);
        let (reply, path) = (self.zk.get(path), path.to_owned());
        self.reads.push(async move { (path, ticket, reply.await) }.boxed());
    }

    fn on_read(&mut self, (path, ticket, answer): ReadDone) {
        let mut state = lock(&self.state);
        match state.reads.get(&path) {
            Some(read) if read.ticket == ticket => {}
            _ => return, // Removed meanwhile.
        }
        let again = state.reads.remove(&path).is_some_and(|read| read.again);
        match answer {
            Ok((data, stat)) => {
                apply(&mut state.snapshot, &path, &data, &stat);
                state.is_dirty = true;
            }
            Err(ZkError::NoNode) => state.remove(&path),
            Err(ZkError::SessionExpired) => {}
            Err(error) => {
                tracing::debug!(%path, %error, "cannot read a changed record, trying again");
                state.reads.insert(path.clone(), Read { ticket, again: false });
                drop(state);
                let zk = self.zk.clone();
                self.reads.push(
                    async move {
                        tokio::time::sleep(RETRY_READ).await;
                        let answer = zk.get(&path).await;
                        (path, ticket, answer)
                    }
                    .boxed(),
                );
                return;
            }
        }
        drop(state);
        if again {
            self.on_changed(&path);
        }
    }

    /// Reads everything below a root; false when that failed.
    async fn read_root(&mut self, root: &str) -> bool {
        lock(&self.state).echoes.start_over();
        match bulk::read(&self.zk, root).await {
            Ok(picture) => {
                let mut state = lock(&self.state);
                state.reads.retain(|path, _| !path.starts_with(root));
                picture.replace_in(&mut state.snapshot);
                state.is_dirty = true;
                report_unreadable(&state.snapshot);
                true
            }
            Err(error) => {
                tracing::warn!(root, %error, "cannot read again after a reconnect");
                false
            }
        }
    }
}

/// Puts what was read of one record into the picture.
fn apply(snapshot: &mut Snapshot, path: &str, data: &Bytes, stat: &Stat) {
    snapshot.forget_unreadable(path);
    let mut picture = Picture::default();
    picture.take(path, data, stat);
    let unreadable = picture.merge_into(snapshot);
    for (path, reason) in unreadable {
        tracing::warn!(target: "nodepool.zk.ZooKeeper", %path, %reason, "cannot read a record; it is skipped and left alone");
    }
}

fn report_unreadable(snapshot: &Snapshot) {
    for (path, reason) in snapshot.unreadable() {
        tracing::warn!(target: "nodepool.zk.ZooKeeper", %path, %reason, "cannot read a record; it is skipped and left alone");
    }
}

/// Makes sure that the containers exist that everybody expects. Looking first costs one round trip where they do; an
/// attempt to create what exists would cost a transaction each.
async fn ensure_roots(zk: &Zk) -> Result<(), ZkError> {
    let components = ["pool", "launcher", "builder"].map(|kind| format!("/nodepool/components/{kind}"));
    let containers = std::iter::once("/nodepool".to_owned()).chain(ROOTS.map(str::to_owned)).chain(components);
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

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("nothing panics while it holds the mirror's state")
}
