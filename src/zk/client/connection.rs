//! One connection of a session: a client of the crate on a thread of its own, so that it can be left without a word.
//!
//! The crate ends the session when its client is dropped, looks for a server at its own growing intervals, and forgets
//! persistent watches when it finds one. So it is not asked to reconnect: a client that lost its server is dropped
//! together with its runtime, which sends nothing, and the next one resumes the same session. Watchers are awaited on
//! that runtime only and a panic in a reply is caught, so what goes wrong in the crate stays there.

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

/// The part of its timeout for which a session surely lives after a leader has answered; why is told in
/// `doc/decisions/0025-fence.md`.
const SAFE_TIMEOUT_FRACTION: (u32, u32) = (5, 12);

/// Why a connection did not come about.
#[derive(Debug)]
pub enum ConnectFailure {
    /// The server says that the session to resume is over.
    Expired,
    /// Named precisely enough for the operator.
    Known(ConnectError),
    /// The crate's words, which say little or nothing; the probe finds out more.
    Unclear(String),
}

impl From<ConnectError> for ConnectFailure {
    fn from(error: ConnectError) -> Self {
        ConnectFailure::Known(error)
    }
}

pub struct SessionConnection {
    /// Present until the connection is left.
    connected: Option<Arc<Connected>>,
    state: StateWatcher,
    /// Ends the thread. What is sent along is dropped after the runtime, when it can no longer say goodbye.
    stop: Option<oneshot::Sender<Arc<Connected>>>,
}

/// What requests need of a connection.
pub struct Connected {
    client: Arc<Client>,
    tasks: Handle,
    maybe_lost: Notify,
    /// When the newest of those requests was sent that a leader has answered.
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
        self.connected.as_ref().expect("only dropping or leaving takes it")
    }

    pub fn session(&self) -> &SessionInfo {
        self.connected().client.session()
    }

    /// Brings a resumed connection up to date: nothing older than the leader's state is read from here on, and the
    /// watches stand before any other request is sent.
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

    /// Resolves when this connection is of no more use.
    pub async fn lost(&mut self) {
        let connected = self.connected.as_ref().expect("only dropping or leaving takes it");
        tokio::select! {
            // Whatever it changed to, it was disconnected in between.
            _ = self.state.changed() => {}
            () = connected.maybe_lost.notified() => {}
        }
    }

    /// Ends the session and waits until the server has heard it. False when that took too long: the server hangs, or
    /// somebody keeps a reply that holds on to the client without awaiting it.
    pub async fn close(mut self, timeout: Duration) -> bool {
        drop(self.connected.take());
        let ended = async { while !self.state.changed().await.is_terminated() {} };
        tokio::time::timeout(timeout, ended).await.is_ok()
    }
}

/// Leaves without a word: the session goes on.
impl Drop for SessionConnection {
    fn drop(&mut self) {
        if let (Some(connected), Some(stop)) = (self.connected.take(), self.stop.take()) {
            // A thread that is gone has dropped its runtime too.
            let _ = stop.send(connected);
        }
    }
}

impl Connected {
    pub fn client(&self) -> Arc<Client> {
        self.client.clone()
    }

    /// A request that the leader answers, and no follower that may have lost it: the session lived when it was sent.
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

    /// Sends a request now; the answer comes when it is awaited.
    pub fn start<T, F>(self: &Arc<Self>, request: F) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ZkError>> + Send + 'static,
    {
        let connected = self.clone();
        let mut reply = async move {
            let caught = AssertUnwindSafe(request).catch_unwind().await;
            let result = caught.unwrap_or_else(|_| Err(ZkError::Protocol("the client panicked at the answer".into())));
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

    /// An outcome that nobody knows means that the connection broke, or that the crate's own task died unnoticed.
    fn inspect<T>(&self, result: &Result<T, ZkError>) {
        if matches!(result, Err(ZkError::Unknown(_) | ZkError::Protocol(_))) {
            self.maybe_lost.notify_one();
        }
    }

    /// Adds a persistent recursive watch and passes its events on until the connection or the reader is gone.
    pub async fn watch(self: Arc<Self>, events: Events) -> Result<(), zookeeper_client::Error> {
        let watcher = self.client.watch(events.path(), AddWatchMode::PersistentRecursive).await?;
        events.set_established();
        self.tasks.spawn(forward(watcher, events));
        Ok(())
    }

    /// Resolves at the next change of the znode, or with the connection.
    pub fn once(&self, watcher: OneshotWatcher) -> impl Future<Output = ()> + Send + 'static {
        let (mut changed, waiting) = oneshot::channel();
        self.tasks.spawn(async move {
            tokio::select! {
                // Dropping the watcher takes the watch back.
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
        // Whatever happened to the session, this watch has seen its last event, and asking once more would panic.
        if event.event_type == EventType::Session {
            return;
        }
        if let Some(event) = errors::event(event) {
            events.push(event);
        }
    }
}

/// Of a new session the chroot is created if need be, but not its parent: a mistyped one must not take root.
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

/// The runtime needs no drivers: the crate brings its own for network and timers.
fn start_thread() -> Result<(Handle, oneshot::Sender<Arc<Connected>>), ConnectError> {
    let no_thread = |error: std::io::Error| ConnectError::NoThread(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(no_thread)?;
    let tasks = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel();
    let body = move || {
        let last = runtime.block_on(stopped);
        // First all tasks, then the client: its task must not be there to see it go.
        drop(runtime);
        drop(last);
    };
    std::thread::Builder::new().name("zookeeper-io".to_owned()).spawn(body).map_err(no_thread)?;
    Ok((tasks, stop))
}
