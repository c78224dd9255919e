//! Step budget: number of requests and cloud calls after which a simulated process is killed. Once the budget is
//! exhausted, no further step of the process has an effect.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::network::{RequestKind, SimLink};
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, pending};
use futures::stream::BoxStream;
use nodepool_zk::memory::MemoryConnection;
use nodepool_zk::{Connection, Reply, SessionState};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use zookeeper_server::types::{CreateMode, Op, OpReply, Stat, WatchEvent};

/// Remaining steps of a process: requests to ZooKeeper and cloud calls. Clones share them.
#[derive(Clone, Debug)]
pub struct StepBudget {
    steps: Arc<AtomicU64>,
    exhausted_signal: Arc<Notify>,
    /// Sessions of the process in their order, each with the time of its end.
    sessions: Arc<Mutex<Vec<Option<Instant>>>>,
    /// Whether the kill of this process was counted.
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

    /// Adds the new session of the process.
    pub fn track_session(&self, mut session: watch::Receiver<SessionState>) {
        let sessions = self.sessions.clone();
        sessions.lock().unwrap().push(None);
        let at = self.last_session();
        actix_rt::spawn(async move {
            let _ = session.wait_for(|state| *state == SessionState::Expired).await;
            sessions.lock().unwrap()[at].get_or_insert_with(Instant::now);
        });
    }

    /// Records that the server expired this session, even if the process does not know yet.
    pub fn record_session_end(&self, session: usize) {
        self.sessions.lock().unwrap()[session].get_or_insert_with(Instant::now);
    }

    /// Number of the newest session of the process.
    pub fn last_session(&self) -> usize {
        self.sessions.lock().unwrap().len() - 1
    }

    /// Number of the newest session, if it has not ended.
    pub fn live_session(&self) -> Option<usize> {
        let sessions = self.sessions.lock().unwrap();
        sessions.last().is_some_and(Option::is_none).then(|| sessions.len() - 1)
    }

    /// Time since the end of this session: the process may no longer act on its behalf.
    pub fn expired_for(&self, session: usize) -> Option<Duration> {
        self.sessions.lock().unwrap()[session].map(|since| since.elapsed())
    }

    /// Kills the process after this many more steps. A dead process stays dead.
    pub fn limit_to(&self, steps: u64) {
        self.steps.fetch_min(steps, Ordering::Relaxed);
        self.notify_if_exhausted();
    }

    /// Waits until the budget is exhausted.
    pub async fn exhausted(&self) {
        // Registers before the check, so that an exhaustion in between is not missed.
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

    /// True once per killed process, however many kill faults it had.
    pub fn count_death(&self) -> bool {
        !self.is_death_counted.swap(true, Ordering::Relaxed)
    }

    /// Uses up one step. False if the budget is exhausted.
    pub fn take_step(&self) -> bool {
        let step = |remaining: u64| match remaining {
            u64::MAX => Some(u64::MAX),
            remaining => remaining.checked_sub(1),
        };
        let is_allowed = self.steps.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).is_ok();
        self.notify_if_exhausted();
        is_allowed
    }
}

/// A ZooKeeper session of a process that may be killed, behind a simulated link.
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

    /// `send` for a request with a path.
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
        let link = self.link.clone();
        async move {
            let (stat, changed) = reply.await?;
            // A lagging server may also report a change from before the watch was set, so the watch fires after the lag
            // in any case.
            let lag = link.lag();
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
