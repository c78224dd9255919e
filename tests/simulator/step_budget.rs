//! What separates a process from the world when it is killed: from one step to the next nothing of it gets through any more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, pending};
use futures::stream::BoxStream;
use nodepool_zk::memory::MemoryConnection;
use nodepool_zk::{Connection, Reply, SessionState};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use zookeeper_server::types::{CreateMode, Op, OpReply, Stat, WatchEvent};

use super::network::{RequestKind, SimLink};

/// Steps that a process may still make: requests to ZooKeeper and calls of clouds. Clones share them.
#[derive(Clone, Debug)]
pub struct StepBudget {
    steps: Arc<AtomicU64>,
    exhausted_signal: Arc<Notify>,
    /// Of each session of the process, one after the other, since when it is over.
    sessions: Arc<Mutex<Vec<Option<Instant>>>>,
    /// That somebody has counted its death.
    is_death_counted: Arc<AtomicBool>,
}

impl StepBudget {
    pub fn unlimited() -> Self {
        Self {
            steps: Arc::new(AtomicU64::new(u64::MAX)),
            exhausted_signal: Arc::default(),
            sessions: Arc::default(),
            is_death_counted: Arc::default(),
        }
    }

    /// The process has this session from now on.
    pub fn track_session(&self, mut session: watch::Receiver<SessionState>) {
        let sessions = self.sessions.clone();
        sessions.lock().unwrap().push(None);
        let at = self.last_session();
        actix_rt::spawn(async move {
            let _ = session.wait_for(|state| *state == SessionState::Expired).await;
            sessions.lock().unwrap()[at].get_or_insert_with(Instant::now);
        });
    }

    /// The server has ended this session, of which the process may not have heard.
    pub fn record_session_end(&self, session: usize) {
        self.sessions.lock().unwrap()[session].get_or_insert_with(Instant::now);
    }

    /// The number of the session that the process had last.
    pub fn last_session(&self) -> usize {
        self.sessions.lock().unwrap().len() - 1
    }

    /// The number of the session that the process has now.
    pub fn live_session(&self) -> Option<usize> {
        let sessions = self.sessions.lock().unwrap();
        sessions.last().is_some_and(Option::is_none).then(|| sessions.len() - 1)
    }

    /// For how long this session has been over: whoever does something for it now does it on nobody's behalf.
    pub fn expired_for(&self, session: usize) -> Option<Duration> {
        self.sessions.lock().unwrap()[session].map(|since| since.elapsed())
    }

    /// Killed after so many more steps. Who is dead already stays so.
    pub fn limit_to(&self, steps: u64) {
        self.steps.fetch_min(steps, Ordering::Relaxed);
        self.notify_if_exhausted();
    }

    /// Once it is.
    pub async fn exhausted(&self) {
        // Whoever closes it after this line wakes us.
        let exhausted = self.exhausted_signal.notified();
        if !self.is_exhausted() {
            exhausted.await;
        }
    }

    fn notify_if_exhausted(&self) {
        if self.is_exhausted() {
            self.exhausted_signal.notify_waiters();
        }
    }

    pub fn is_exhausted(&self) -> bool {
        self.steps.load(Ordering::Relaxed) == 0
    }

    /// Once for each process that is killed, however often somebody tried to.
    pub fn count_death(&self) -> bool {
        !self.is_death_counted.swap(true, Ordering::Relaxed)
    }

    /// Whether a step gets through.
    pub fn take_step(&self) -> bool {
        let step = |remaining: u64| match remaining {
            u64::MAX => Some(u64::MAX),
            left => left.checked_sub(1),
        };
        let is_allowed = self.steps.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).is_ok();
        self.notify_if_exhausted();
        is_allowed
    }
}

/// The session of a process that may be killed, at the end of a wire.
pub struct KillableConnection {
    pub inner: Arc<MemoryConnection>,
    pub budget: StepBudget,
    pub link: SimLink,
}

impl KillableConnection {
    fn send<T: Send + 'static>(
        &self,
        kind: RequestKind,
        request: impl FnOnce(&MemoryConnection) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        if !self.budget.take_step() {
            return pending().boxed();
        }
        let inner = self.inner.clone();
        self.link.transmit(kind, move || request(&inner))
    }

    /// The same of what is done to a path.
    fn send_for_path<T: Send + 'static>(
        &self,
        kind: RequestKind,
        path: &str,
        request: impl FnOnce(&MemoryConnection, &str) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let path = path.to_owned();
        self.send(kind, move |zk| request(zk, &path))
    }
}

impl Connection for KillableConnection {
    fn get(&self, path: &str) -> Reply<(Bytes, Stat)> {
        self.send_for_path(RequestKind::Read, path, |zk, path| zk.get(path))
    }

    fn exists(&self, path: &str) -> Reply<Option<Stat>> {
        self.send_for_path(RequestKind::Read, path, |zk, path| zk.exists(path))
    }

    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        self.send_for_path(RequestKind::Read, path, |zk, path| zk.children(path))
    }

    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> Reply<(String, Stat)> {
        self.send_for_path(RequestKind::Write, path, move |zk, path| zk.create(path, data, mode))
    }

    fn set(&self, path: &str, data: Bytes, version: i32) -> Reply<Stat> {
        self.send_for_path(RequestKind::Write, path, move |zk, path| zk.set(path, data, version))
    }

    fn delete(&self, path: &str, version: i32) -> Reply<()> {
        self.send_for_path(RequestKind::Write, path, move |zk, path| zk.delete(path, version))
    }

    fn multi(&self, ops: Vec<Op>) -> Reply<Vec<OpReply>> {
        self.send(RequestKind::Write, |zk| zk.multi(ops))
    }

    fn max_transaction_bytes(&self) -> usize {
        self.inner.max_transaction_bytes()
    }

    fn watch(&self, path: &str) -> Reply<BoxStream<'static, WatchEvent>> {
        let (listener, events) = self.link.events();
        let watching = self.send_for_path(RequestKind::Read, path, move |zk, path| zk.listen(path, listener));
        async move { watching.await.map(|()| events) }.boxed()
    }

    fn exists_and_watch(&self, path: &str) -> Reply<(Option<Stat>, BoxFuture<'static, ()>)> {
        let reply = self.send_for_path(RequestKind::Read, path, |zk, path| zk.exists_and_watch(path));
        let wire = self.link.clone();
        async move {
            let (stat, changed) = reply.await?;
            // What changed before the watch was there, and is not shown yet, is told as well; so is what did not.
            let lag = wire.lag();
            let notified = async move {
                if lag.is_zero() { changed.await } else { drop(tokio::time::timeout(lag, changed).await) }
            };
            Ok((stat, notified.boxed()))
        }
        .boxed()
    }

    fn sync(&self, path: &str) -> Reply<()> {
        self.send_for_path(RequestKind::Write, path, |zk, path| zk.sync(path))
    }

    fn session_valid_until(&self) -> Option<Instant> {
        self.inner.session_valid_until()
    }

    fn session_id(&self) -> i64 {
        self.inner.session_id()
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        self.inner.session()
    }
}
