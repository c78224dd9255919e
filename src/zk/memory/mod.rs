//! ZooKeeper in memory: the port over the pure tree, with fault injection for tests and the simulator.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::channel::{mpsc, oneshot};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::memory::replica::{LogEntry, Replica};
use crate::{Connection, MAX_TRANSACTION_BYTES, Reply, SessionState};
use zookeeper_server::tree::{Applied, DirtyKey, Fired, Session, Tree, WatchKind, Write, WriteResult};
use zookeeper_server::types::{CreateMode, EventKind, Op, OpReply, Stat, WatchEvent, ZkError};

mod replica;

/// Start of a store's clock unless one is given: a fixed time, so that runs are reproducible.
const EPOCH_MS: i64 = 1_700_000_000_000;
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Failure of a request, injected by a test. The caller receives `ZkError::Unknown` in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request was lost on its way to the server.
    BeforeApplying,
    /// The server executed the request and the reply was lost.
    AfterApplying,
}

/// One ZooKeeper for any number of sessions. Clones share it.
#[derive(Clone)]
pub struct MemoryZooKeeper {
    shared: Arc<Mutex<ServerState>>,
}

struct ServerState {
    tree: Tree,
    observer: Option<Observer>,
    clients: BTreeMap<i64, Client>,
    /// The trees of sessions whose server lags.
    replicas: BTreeMap<i64, Replica>,
    clock: Box<dyn Fn() -> i64 + Send>,
    advanced_ms: i64,
    max_transaction_bytes: usize,
}

/// Called with each znode that a transaction changed, and its new data and metadata; `None` if it was deleted.
pub type Observer = Box<dyn FnMut(&str, Option<&(Bytes, Stat)>) + Send>;

/// A request that waits until the session is resumed.
type QueuedRequest = Box<dyn FnOnce(&mut ServerState) + Send>;

/// The client side of one session.
struct Client {
    state: watch::Sender<SessionState>,
    /// Time since which the connection is cut.
    disconnected_since: Option<Instant>,
    /// The server has ended the session, and the client does not know it yet.
    has_ended: bool,
    /// Requests made while suspended, in order. Bounded by what the test issues.
    waiting: VecDeque<QueuedRequest>,
    streams: Vec<Stream>,
    one_shots: BTreeMap<String, Vec<oneshot::Sender<()>>>,
    faults: VecDeque<Fault>,
}

/// A persistent recursive watch. Bounded only by the changes that the test makes.
struct Stream {
    root: String,
    listener: Listener,
}

/// Called with each event at once; returns false to be removed.
pub type Listener = Box<dyn FnMut(WatchEvent) -> bool + Send>;

impl Stream {
    fn covers(&self, path: &str) -> bool {
        self.root == "/" || path.strip_prefix(&self.root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl Default for MemoryZooKeeper {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryZooKeeper {
    /// A fresh store whose clock follows tokio's, also while that is paused.
    pub fn new() -> Self {
        let start = Instant::now();
        Self::with_clock(move || EPOCH_MS + i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    /// A fresh store that stamps znodes with the milliseconds that `clock` returns.
    pub fn with_clock(clock: impl Fn() -> i64 + Send + 'static) -> Self {
        let shared = ServerState {
            tree: Tree::new(),
            observer: None,
            clients: BTreeMap::new(),
            replicas: BTreeMap::new(),
            clock: Box::new(clock),
            advanced_ms: 0,
            max_transaction_bytes: MAX_TRANSACTION_BYTES,
        };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// From now on the observer receives every change, in order and at once.
    pub fn observe(&self, observer: Observer) {
        self.lock().observer = Some(observer);
    }

    /// A new session. It ends when the last handle to the connection is dropped, or by `expire`.
    pub fn connect(&self) -> Arc<MemoryConnection> {
        let mut shared = self.lock();
        let id = shared.tree.last_session() + 1;
        let session = Session { id, password: [0; 16], timeout_ms: SESSION_TIMEOUT.as_millis() as i32 };
        shared.replicate(|| LogEntry::Opened(session.clone()));
        let applied = shared.tree.open_session(session);
        shared.deliver(applied.events);
        let (state, receiver) = watch::channel(SessionState::Connected);
        let client = Client {
            state,
            disconnected_since: None,
            has_ended: false,
            waiting: VecDeque::new(),
            streams: Vec::new(),
            one_shots: BTreeMap::new(),
            faults: VecDeque::new(),
        };
        shared.clients.insert(id, client);
        Arc::new(MemoryConnection { zookeeper: self.clone(), id, state: receiver })
    }

    /// Ends a session as the server does when a client was silent for too long.
    pub fn expire(&self, session_id: i64) {
        self.lock().end_session(session_id);
    }

    /// Ends a session whose connection is cut. Its client is notified when it is resumed, as with a real server. A
    /// client that is connected by now is notified at once.
    pub fn expire_unnoticed(&self, session_id: i64) {
        let mut shared = self.lock();
        let Some(client) = shared.clients.get_mut(&session_id) else { return };
        if *client.state.borrow() != SessionState::Suspended {
            return shared.end_session(session_id);
        }
        client.has_ended = true;
        shared.close_session(session_id);
    }

    /// From now on the server of this session lags: its client reads older state, while events still arrive at once.
    /// `None` ends the lag.
    pub fn lag(&self, session_id: i64, lag: Option<Duration>) {
        let mut shared = self.lock();
        match lag.filter(|_| shared.clients.contains_key(&session_id)) {
            Some(lag) => {
                let replica = Replica::new(&shared.tree, lag);
                shared.replicas.insert(session_id, replica);
            }
            None => drop(shared.replicas.remove(&session_id)),
        }
    }

    /// Cuts a session's connection: its requests wait, and its ephemeral znodes stay.
    pub fn suspend(&self, session_id: i64) {
        if let Some(client) = self.lock().clients.get_mut(&session_id) {
            client.disconnected_since.get_or_insert_with(Instant::now);
            client.state.send_replace(SessionState::Suspended);
            client.one_shots.clear(); // a change of state resolves them
        }
    }

    /// Reconnects a suspended session: watch streams receive `Resync`, then the waiting requests are executed.
    pub fn resume(&self, session_id: i64) {
        let mut shared = self.lock();
        let Some(client) = shared.clients.get_mut(&session_id) else { return };
        if *client.state.borrow() != SessionState::Suspended {
            return;
        }
        if client.has_ended {
            return shared.end_session(session_id);
        }
        client.disconnected_since = None;
        client.state.send_replace(SessionState::Connected);
        for stream in &mut client.streams {
            // A listener that is no longer interested is removed with the next event.
            let _ = (stream.listener)(WatchEvent { kind: EventKind::Resync, path: stream.root.clone() });
        }
        for request in std::mem::take(&mut client.waiting) {
            request(&mut shared);
        }
    }

    /// Lets the next requests of a session fail with `ZkError::Unknown`.
    pub fn fail_next(&self, session_id: i64, requests: usize, fault: Fault) {
        if let Some(client) = self.lock().clients.get_mut(&session_id) {
            client.faults.extend(std::iter::repeat_n(fault, requests));
        }
    }

    /// Sets the limit of a transaction that writers observe from now on. Larger transactions are not refused.
    pub fn limit_transactions(&self, bytes: usize) {
        self.lock().max_transaction_bytes = bytes;
    }

    /// The newest transaction. Failed writes and the start and end of sessions count, as on a real server.
    pub fn last_zxid(&self) -> i64 {
        self.lock().tree.last_zxid()
    }

    /// Advances the clock that stamps znodes, in addition to its own progress.
    pub fn advance(&self, time: Duration) {
        self.lock().advanced_ms += i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    }

    pub fn now_ms(&self) -> i64 {
        self.lock().now_ms()
    }

    fn lock(&self) -> MutexGuard<'_, ServerState> {
        // Every step under the lock either completes or asserts; after a failed assertion the test is over anyway.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerState {
    fn now_ms(&self) -> i64 {
        (self.clock)() + self.advanced_ms
    }

    fn write(&mut self, session: i64, write: Write) -> Result<WriteResult, ZkError> {
        let now_ms = self.now_ms();
        self.replicate(|| LogEntry::Written { session, now_ms, write: write.clone() });
        let Applied { result, events, dirty_keys, .. } = self.tree.apply(session, now_ms, write);
        self.notify_observer(&dirty_keys);
        self.deliver(events);
        result.map_err(ZkError::from)
    }

    /// Lagging replicas apply the same change later.
    fn replicate(&mut self, step: impl Fn() -> LogEntry) {
        self.replicas.values_mut().for_each(|replica| replica.append(step()));
    }

    /// The tree as visible to this session.
    fn view(&mut self, session: i64) -> &Tree {
        match self.replicas.get_mut(&session) {
            Some(replica) => replica.view(),
            None => &self.tree,
        }
    }

    fn close_session(&mut self, id: i64) {
        self.replicate(|| LogEntry::Closed(id));
        let applied = self.tree.close_session(id);
        self.notify_observer(&applied.dirty_keys);
        self.deliver(applied.events);
    }

    fn notify_observer(&mut self, dirty_keys: &[DirtyKey]) {
        let Some(observer) = &mut self.observer else { return };
        // A transaction changes few znodes, so a linear search suffices.
        let mut notified: Vec<&str> = Vec::with_capacity(dirty_keys.len());
        for path in dirty_keys.iter().filter_map(|dirty_key| match dirty_key {
            DirtyKey::Znode(path) => Some(path),
            DirtyKey::Session(_) => None,
        }) {
            if notified.contains(&&**path) {
                continue;
            }
            notified.push(path);
            observer(path, self.tree.get(path).ok().as_ref());
        }
    }

    fn deliver(&mut self, fired: Vec<Fired>) {
        for Fired { session, event } in fired {
            let Some(client) = self.clients.get_mut(&session) else { continue };
            if *client.state.borrow() != SessionState::Connected {
                continue; // lost, as on a cut connection; `Resync` makes up for it
            }
            client.one_shots.remove(&event.path); // dropping the senders resolves the futures
            client.streams.retain_mut(|stream| !stream.covers(&event.path) || (stream.listener)(event.clone()));
        }
    }

    fn end_session(&mut self, id: i64) {
        let Some(client) = self.clients.remove(&id) else { return };
        self.replicas.remove(&id);
        client.state.send_replace(SessionState::Expired);
        self.close_session(id);
        for request in client.waiting {
            request(self);
        }
    }
}

/// One session on a `MemoryZooKeeper`.
pub struct MemoryConnection {
    zookeeper: MemoryZooKeeper,
    id: i64,
    state: watch::Receiver<SessionState>,
}

impl Drop for MemoryConnection {
    fn drop(&mut self) {
        self.zookeeper.expire(self.id);
    }
}

impl MemoryConnection {
    /// As `watch`, for callers that have to know when an event was sent.
    pub fn listen(&self, path: &str, listener: Listener) -> Reply<()> {
        let (root, id) = (path.to_owned(), self.id);
        self.submit(move |shared| {
            shared.tree.add_watch(id, &root, WatchKind::Recursive);
            let client = shared.clients.get_mut(&id).ok_or(ZkError::SessionExpired)?;
            client.streams.push(Stream { root, listener });
            Ok(())
        })
    }

    /// Executes the request now, or on `resume`. The reply needs one turn of the executor, as no server answers before
    /// the caller yields.
    fn submit<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut ServerState) -> Result<T, ZkError> + Send + 'static,
    ) -> Reply<T> {
        let (answer, answered) = oneshot::channel();
        let id = self.id;
        let run = move |shared: &mut ServerState| {
            let result = match shared.clients.get_mut(&id).map(|client| client.faults.pop_front()) {
                None => Err(ZkError::SessionExpired),
                Some(None) => request(shared),
                Some(Some(Fault::BeforeApplying)) => Err(ZkError::Unknown("the test lost the request".into())),
                Some(Some(Fault::AfterApplying)) => {
                    drop(request(shared));
                    Err(ZkError::Unknown("the test lost the answer".into()))
                }
            };
            drop(answer.send(result)); // the caller may have dropped the reply
        };
        let mut shared = self.zookeeper.lock();
        match shared.clients.get_mut(&id) {
            Some(client) if *client.state.borrow() == SessionState::Suspended => {
                client.waiting.push_back(Box::new(run))
            }
            _ => run(&mut shared),
        }
        async move {
            tokio::task::yield_now().await;
            answered.await.unwrap_or(Err(ZkError::SessionExpired))
        }
        .boxed()
    }

    fn write<T: Send + 'static>(
        &self,
        write: Write,
        reply: impl FnOnce(WriteResult) -> Option<T> + Send + 'static,
    ) -> Reply<T> {
        let id = self.id;
        self.submit(move |shared| {
            let written = shared.write(id, write)?;
            Ok(reply(written).expect("the result has the kind of its write"))
        })
    }
}

impl Connection for MemoryConnection {
    fn get(&self, path: &str) -> Reply<(Bytes, Stat)> {
        let (path, id) = (path.to_owned(), self.id);
        self.submit(move |shared| Ok(shared.view(id).get(&path)?))
    }

    fn exists(&self, path: &str) -> Reply<Option<Stat>> {
        let (path, id) = (path.to_owned(), self.id);
        self.submit(move |shared| stat(shared.view(id), &path))
    }

    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        let (path, id) = (path.to_owned(), self.id);
        self.submit(move |shared| {
            let (names, stat) = shared.view(id).children(&path)?;
            Ok((names.cloned().collect(), stat))
        })
    }

    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> Reply<(String, Stat)> {
        self.write(Op::create(path, data, mode).into(), |written| match written {
            WriteResult::Created { path, stat } => Some((path, stat)),
            _ => None,
        })
    }

    fn set(&self, path: &str, data: Bytes, version: i32) -> Reply<Stat> {
        self.write(Op::set(path, data, version).into(), |written| match written {
            WriteResult::Set(stat) => Some(stat),
            _ => None,
        })
    }

    fn delete(&self, path: &str, version: i32) -> Reply<()> {
        self.write(Op::delete(path, version).into(), |_| Some(()))
    }

    fn multi(&self, ops: Vec<Op>) -> Reply<Vec<OpReply>> {
        let writes = ops.into_iter().map(Write::from).collect();
        self.write(Write::Multi(writes), |written| match written {
            WriteResult::Multi(all) => all.into_iter().map(reply_of).collect(),
            _ => None,
        })
    }

    fn max_transaction_bytes(&self) -> usize {
        self.zookeeper.lock().max_transaction_bytes
    }

    fn watch(&self, path: &str) -> Reply<BoxStream<'static, WatchEvent>> {
        let (events, stream) = mpsc::unbounded();
        let watching = self.listen(path, Box::new(move |event| events.unbounded_send(event).is_ok()));
        async move { watching.await.map(|()| stream.boxed()) }.boxed()
    }

    fn exists_and_watch(&self, path: &str) -> Reply<(Option<Stat>, BoxFuture<'static, ()>)> {
        let (path, id) = (path.to_owned(), self.id);
        self.submit(move |shared| {
            let stat = stat(shared.view(id), &path)?;
            let (sender, changed) = oneshot::channel();
            shared.tree.add_watch(id, &path, WatchKind::Data);
            let client = shared.clients.get_mut(&id).ok_or(ZkError::SessionExpired)?;
            client.one_shots.entry(path).or_default().push(sender);
            Ok((stat, changed.map(drop).boxed()))
        })
    }

    fn sync(&self, _path: &str) -> Reply<()> {
        let id = self.id;
        self.submit(move |shared| {
            shared.replicas.get_mut(&id).into_iter().for_each(Replica::sync);
            Ok(())
        })
    }

    /// Only sessions that have lost their connection are ended here, and no sooner than a server may end them.
    fn session_valid_until(&self) -> Option<Instant> {
        let shared = self.zookeeper.lock();
        let client = shared.clients.get(&self.id)?;
        Some(client.disconnected_since.unwrap_or_else(Instant::now) + SESSION_TIMEOUT)
    }

    fn session_id(&self) -> i64 {
        self.id
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        self.state.clone()
    }
}

fn stat(tree: &Tree, path: &str) -> Result<Option<Stat>, ZkError> {
    match tree.stat(path).map_err(ZkError::from) {
        Ok(stat) => Ok(Some(stat)),
        Err(ZkError::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

fn reply_of(written: WriteResult) -> Option<OpReply> {
    match written {
        WriteResult::Created { path, .. } => Some(OpReply::Created { path }),
        WriteResult::Set(stat) => Some(OpReply::Set(stat)),
        WriteResult::Deleted => Some(OpReply::Deleted),
        WriteResult::Checked(_) => Some(OpReply::Checked),
        WriteResult::AclSet(_) | WriteResult::Multi(_) => None,
    }
}
