//! One TCP connection of a session: a client of the crate on its own thread, so that it can be abandoned without
//! closing the session.
//!
//! The crate closes the session when its client is dropped. It reconnects at its own growing intervals, and loses
//! persistent watches when it reconnects. So the crate is never left to reconnect: a client that lost its server is
//! dropped together with its runtime, which sends nothing, and the next client resumes the session. Watchers are
//! awaited only on that runtime, and a panic in a reply is caught, so defects of the crate do not reach other threads.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use zookeeper_client::{AddWatchMode, Client, EventType, OneshotWatcher, PersistentWatcher, SessionInfo, StateWatcher};

use super::errors;
use super::options::{ConnectError, ConnectOptions};
use super::rewatch::Events;
use super::tls::TlsPem;
use crate::Reply;
use zookeeper_server::types::{CreateMode, ZkError};

/// The fraction of its timeout for which a session is certainly alive after a leader has answered. The reason is in
/// `doc/decisions/0025-fence.md`.
const SAFE_TIMEOUT_FRACTION: (u32, u32) = (5, 12);

/// Reason of a failed attempt to connect.
#[derive(Debug)]
pub enum ConnectFailure {
    /// The server reports that the session to resume has expired.
    Expired,
    /// An error that is precise enough for the operator.
    Known(ConnectError),
    /// The crate's error text, which is vague or empty; the probe determines the reason.
    Unclear(String),
}

impl From<ConnectError> for ConnectFailure {
    fn from(error: ConnectError) -> Self {
        ConnectFailure::Known(error)
    }
}

pub struct SessionConnection {
    /// Present until the connection is closed or abandoned.
    connected: Option<Arc<Connected>>,
    state: StateWatcher,
    /// Ends the thread. The value sent is dropped after the runtime, when it can no longer close the session.
    stop: Option<oneshot::Sender<Arc<Connected>>>,
}

/// The parts of a connection that requests use.
pub struct Connected {
    client: Arc<Client>,
    tasks: Handle,
    maybe_lost: Notify,
    /// Time at which the newest request that a leader has answered was sent.
    confirmed: Mutex<Option<Instant>>,
}

impl SessionConnection {
    /// Connects, for a new session or to resume one.
    pub async fn open(options: &ConnectOptions, session: Option<SessionInfo>) -> Result<Self, ConnectFailure> {
        let is_new = session.is_none();
        let mut connector = Client::connector().with_session_timeout(options.session_timeout).with_fail_eagerly();
        if let Some(session) = session {
            connector = connector.with_session(session);
        }
        if let Some(tls) = &options.tls {
            let pem = TlsPem::read(tls).map_err(ConnectError::from)?;
            connector = connector.with_tls(pem.client_options().map_err(ConnectError::from)?);
        }
        let (tasks, stop) = start_thread()?;
        let servers = options.addresses().await;
        let chroot = options.chroot.clone();
        let secure = options.tls.is_some();
        let opening = async move {
            let connected =
                if secure { connector.secure_connect(&servers).await } else { connector.connect(&servers).await };
            let client = connected.map_err(|error| match error {
                zookeeper_client::Error::SessionExpired => ConnectFailure::Expired,
                zookeeper_client::Error::NoHosts => ConnectFailure::Unclear(String::new()),
                other => ConnectFailure::Unclear(other.to_string()),
            })?;
            enter_chroot(client, chroot, is_new).await
        };
        let client = match tasks.spawn(opening).await {
            Ok(result) => result?,
            Err(error) => return Err(ConnectFailure::Unclear(error.to_string())),
        };
        let state = client.state_watcher();
        let connected = Arc::new(Connected {
            client: Arc::new(client),
            tasks,
            maybe_lost: Notify::new(),
            confirmed: Mutex::default(),
        });
        Ok(Self { connected: Some(connected), state, stop: Some(stop) })
    }

    pub fn connected(&self) -> &Arc<Connected> {
        self.connected.as_ref().expect("only `close` and `drop` take it")
    }

    pub fn session(&self) -> &SessionInfo {
        self.connected().client.session()
    }

    /// Brings a resumed connection up to date: later reads are at least as new as the leader's present state, and the
    /// watches exist before any other request is sent.
    pub async fn restore(&self, watches: Vec<Events>) -> Result<(), ConnectFailure> {
        let connected = self.connected().clone();
        let restoring = async move {
            connected.client.sync("/").await.map_err(|error| ConnectFailure::Unclear(error.to_string()))?;
            let adding = watches.into_iter().map(|events| connected.clone().watch(events));
            for added in futures::future::join_all(adding).await {
                added.map_err(|error| ConnectFailure::Unclear(error.to_string()))?;
            }
            Ok(())
        };
        match self.connected().tasks.spawn(restoring).await {
            Ok(result) => result,
            Err(error) => Err(ConnectFailure::Unclear(error.to_string())),
        }
    }

    /// Resolves when this connection is no longer usable.
    pub async fn lost(&mut self) {
        let connected = self.connected.as_ref().expect("only `close` and `drop` take it");
        tokio::select! {
            // Every change of state means that the client was disconnected meanwhile.
            _ = self.state.changed() => {}
            () = connected.maybe_lost.notified() => {}
        }
    }

    /// Closes the session and waits for the server's confirmation. False on timeout: the server hangs, or a caller
    /// keeps an unawaited reply, which holds the client.
    pub async fn close(mut self, timeout: Duration) -> bool {
        drop(self.connected.take());
        let ended = async { while !self.state.changed().await.is_terminated() {} };
        tokio::time::timeout(timeout, ended).await.is_ok()
    }
}

/// Abandons the connection without closing the session.
impl Drop for SessionConnection {
    fn drop(&mut self) {
        if let (Some(connected), Some(stop)) = (self.connected.take(), self.stop.take()) {
            // A thread that has ended has dropped its runtime too.
            let _ = stop.send(connected);
        }
    }
}

impl Connected {
    pub fn client(&self) -> Arc<Client> {
        self.client.clone()
    }

    /// Runs a request that only a leader answers; a follower may have lost its leader. The answer proves that the
    /// session was alive when the request was sent.
    pub async fn by_leader<T, E>(&self, request: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let sent = Instant::now();
        let reply = request.await?;
        let mut confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        *confirmed = (*confirmed).max(Some(sent));
        Ok(reply)
    }

    pub fn session_valid_until(&self) -> Option<Instant> {
        let confirmed = *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        Some(confirmed? + self.client.session_timeout() * SAFE_TIMEOUT_FRACTION.0 / SAFE_TIMEOUT_FRACTION.1)
    }

    /// Sends a request now; its result is returned when the reply is awaited.
    pub fn start<T, F>(self: &Arc<Self>, request: F) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ZkError>> + Send + 'static,
    {
        let connected = self.clone();
        let mut reply = async move {
            let caught = AssertUnwindSafe(request).catch_unwind().await;
            let result = caught
                .unwrap_or_else(|_| Err(ZkError::Protocol("the client panicked while decoding the reply".into())));
            connected.inspect(&result);
            result
        }
        .boxed();
        // The crate sends at the first poll.
        match (&mut reply).now_or_never() {
            Some(result) => futures::future::ready(result).boxed(),
            None => reply,
        }
    }

    /// An unknown outcome means that the connection broke, or that the crate's own task died unnoticed.
    fn inspect<T>(&self, result: &Result<T, ZkError>) {
        if matches!(result, Err(ZkError::Unknown(_) | ZkError::Protocol(_))) {
            self.maybe_lost.notify_one();
        }
    }

    /// Adds a persistent recursive watch and forwards its events until the connection is lost or the reader is dropped.
    pub async fn watch(self: Arc<Self>, events: Events) -> Result<(), zookeeper_client::Error> {
        let watcher = self.client.watch(events.path(), AddWatchMode::PersistentRecursive).await?;
        events.set_established();
        self.tasks.spawn(forward(watcher, events));
        Ok(())
    }

    /// Resolves at the next change of the znode, or when the connection is lost.
    pub fn once(&self, watcher: OneshotWatcher) -> impl Future<Output = ()> + Send + 'static {
        let (mut changed, waiting) = oneshot::channel();
        self.tasks.spawn(async move {
            tokio::select! {
                // Dropping the watcher removes the watch.
                () = changed.closed() => return,
                _ = watcher.changed() => {}
            }
            let _ = changed.send(());
        });
        waiting.map(|_| ())
    }
}

async fn forward(mut watcher: PersistentWatcher, events: Events) {
    loop {
        let event = tokio::select! {
            () = events.reader_dropped() => return,
            event = watcher.changed() => event,
        };
        // After a session event this watch has received its last event, and polling it once more would panic.
        if event.event_type == EventType::Session {
            return;
        }
        if let Some(event) = errors::event(event) {
            events.push(event);
        }
    }
}

/// Creates the chroot of a new session if it is missing, but not its parent: a mistyped chroot must not become a new
/// tree.
async fn enter_chroot(client: Client, chroot: String, is_new: bool) -> Result<Client, ConnectFailure> {
    if chroot.is_empty() {
        return Ok(client);
    }
    if is_new {
        let options = errors::create_options(CreateMode::Persistent);
        let created = match client.check_stat(&chroot).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => client.create(&chroot, b"", &options).await.map(|_| ()),
            Err(error) => Err(error),
        };
        match created {
            Ok(()) | Err(zookeeper_client::Error::NodeExists) => {}
            Err(zookeeper_client::Error::NoNode) => return Err(ConnectError::NoChrootParent(chroot).into()),
            Err(error @ (zookeeper_client::Error::NoAuth | zookeeper_client::Error::NotReadOnly)) => {
                return Err(ConnectError::ChrootRefused { chroot, reason: error.to_string() }.into());
            }
            Err(error) => return Err(ConnectFailure::Unclear(error.to_string())),
        }
    }
    client.chroot(chroot.clone()).map_err(|_| ConnectError::BadChroot(chroot).into())
}

/// The runtime needs no drivers: the crate has its own for network and timers.
fn start_thread() -> Result<(Handle, oneshot::Sender<Arc<Connected>>), ConnectError> {
    let no_thread = |error: std::io::Error| ConnectError::NoThread(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(no_thread)?;
    let tasks = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel();
    let body = move || {
        let last = runtime.block_on(stopped);
        // First all tasks, then the client: the client's task must no longer run when the client is dropped.
        drop(runtime);
        drop(last);
    };
    std::thread::Builder::new().name("zookeeper-io".to_owned()).spawn(body).map_err(no_thread)?;
    Ok((tasks, stop))
}
