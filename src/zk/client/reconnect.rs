//! Keeps one session alive over as many connections as it takes, until it is closed or the server calls it expired.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{info, warn};
use zookeeper_client::SessionInfo;

use super::connection::{ConnectFailure, Connected, Refusal};
use super::options::{ConnectOptions, Server};
use super::probe;
use super::rewatch::Watches;
use crate::{Reply, SessionState};
use zookeeper_server::types::ZkError;

/// First and longest pause between two attempts to find a server.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(20);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How often waiting requests are looked through for those that have waited long enough.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How long the end of the session is tried to be said: on the connection at hand, then on another one.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
const RECONNECT_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// A lost connection is complained about this often.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);
/// Requests that may wait for a connection. Callers keep one request per node or request in flight, so this is far
/// above what a healthy program reaches.
const MAX_WAITING_REQUESTS: usize = 50_000;

pub enum Command {
    Close(oneshot::Sender<()>),
    Servers(Vec<Server>),
}

/// A request that waits for a connection, or for the reason why there will be none.
type Job = Box<dyn FnOnce(Result<&Arc<Connected>, ZkError>) + Send>;

struct Waiting {
    until: Instant,
    job: Job,
}

enum Slot {
    Connected(Arc<Connected>),
    Suspended(VecDeque<Waiting>),
    Ended,
}

/// What the senders of requests and the keeper share.
pub struct Shared {
    slot: Mutex<Slot>,
    state: watch::Sender<SessionState>,
    pub watches: Watches,
    pub session_id: i64,
    deadline: Duration,
}

impl Shared {
    pub fn new(connection: &SessionConnection, deadline: Duration) -> Self {
        Self {
            slot: Mutex::new(Slot::Connected(connection.connected().clone())),
            state: watch::Sender::new(SessionState::Connected),
            watches: Watches::default(),
            session_id: connection.session().id().0,
            deadline,
        }
    }

    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.state.subscribe()
    }

    /// Sends a request at once, or as soon as there is a connection again, in the order of the calls.
    pub fn submit<T, F>(&self, request: impl FnOnce(Arc<Connected>) -> F + Send + 'static) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ZkError>> + Send + 'static,
    {
        let mut slot = self.lock();
        let waiting = match &mut *slot {
            Slot::Connected(connected) => {
                let connected = connected.clone();
                drop(slot);
                return connected.start(request(connected.clone()));
            }
            Slot::Suspended(waiting) if waiting.len() < MAX_WAITING_REQUESTS => waiting,
            Slot::Suspended(_) => return failed(ZkError::Unknown("too many requests wait for a connection".into())),
            Slot::Ended => return failed(ZkError::SessionExpired),
        };
        let (answer, started) = oneshot::channel();
        let job = move |connected: Result<&Arc<Connected>, ZkError>| {
            let reply = match connected {
                Ok(connected) => connected.start(request(connected.clone())),
                Err(error) => failed(error),
            };
            // Nobody may be waiting for the answer; the request stands all the same.
            drop(answer.send(reply));
        };
        waiting.push_back(Waiting { until: Instant::now() + self.deadline, job: Box::new(job) });
        async move {
            match started.await {
                Ok(reply) => reply.await,
                Err(_) => Err(ZkError::SessionExpired),
            }
        }
        .boxed()
    }

    /// `None` while there is no connection.
    pub fn lives_until(&self) -> Option<Instant> {
        match &*self.lock() {
            Slot::Connected(connected) => connected.lives_until(),
            Slot::Suspended(_) | Slot::Ended => None,
        }
    }

    fn suspend(&self) {
        *self.lock() = Slot::Suspended(VecDeque::new());
        self.state.send_replace(SessionState::Suspended);
    }

    fn resume(&self, connected: &Arc<Connected>) {
        let mut slot = self.lock();
        let before = std::mem::replace(&mut *slot, Slot::Connected(connected.clone()));
        if let Slot::Suspended(waiting) = before {
            let now = Instant::now();
            for request in waiting {
                // Sending under the lock keeps newer requests behind those that waited.
                (request.job)(if request.until > now { Ok(connected) } else { Err(self.too_late()) });
            }
        }
        drop(slot);
        for events in self.watches.current() {
            events.resync();
        }
        self.state.send_replace(SessionState::Connected);
    }

    fn expire_waiting(&self) {
        let mut late = Vec::new();
        if let Slot::Suspended(waiting) = &mut *self.lock() {
            let now = Instant::now();
            while waiting.front().is_some_and(|request| request.until <= now) {
                late.extend(waiting.pop_front());
            }
        }
        for request in late {
            (request.job)(Err(self.too_late()));
        }
    }

    fn too_late(&self) -> ZkError {
        ZkError::Unknown(format!("no connection for {:?}, the request was not sent", self.deadline))
    }

    fn end(&self) {
        let before = std::mem::replace(&mut *self.lock(), Slot::Ended);
        if let Slot::Suspended(waiting) = before {
            for request in waiting {
                (request.job)(Err(ZkError::SessionExpired));
            }
        }
        self.watches.clear();
        self.state.send_replace(SessionState::Expired);
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        // Nothing is left half done in there when a thread panics.
        self.slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

pub struct Keeper {
    pub options: ConnectOptions,
    pub shared: Arc<Shared>,
    pub session: SessionInfo,
    /// Ends when the last holder of the session has gone, which closes it.
    pub commands: mpsc::UnboundedReceiver<Command>,
}

/// What ends a connection.
enum Turn {
    Lost,
    Close(Option<oneshot::Sender<()>>),
}

/// What comes after it.
enum Next {
    Resumed(SessionConnection),
    Expired,
    Closed(Option<oneshot::Sender<()>>),
}

impl Keeper {
    pub async fn run(mut self, mut connection: SessionConnection) {
        loop {
            if let Turn::Close(done) = self.attend(&mut connection).await {
                self.shared.end();
                if !connection.close(CLOSE_TIMEOUT).await {
                    self.close_on_another_connection().await;
                }
                return acknowledge(done);
            }
            self.shared.suspend();
            drop(connection);
            match self.find_server().await {
                Next::Resumed(next) => {
                    info!(session = %self.session.id(), "connected to ZooKeeper again, session kept");
                    connection = next;
                    self.shared.resume(connection.connected());
                }
                Next::Expired => {
                    warn!(session = %self.session.id(), "ZooKeeper session expired");
                    return self.shared.end();
                }
                Next::Closed(done) => {
                    self.shared.end();
                    self.close_on_another_connection().await;
                    return acknowledge(done);
                }
            }
        }
    }

    async fn attend(&mut self, connection: &mut SessionConnection) -> Turn {
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    None => return Turn::Close(None),
                    Some(Command::Close(done)) => return Turn::Close(Some(done)),
                    Some(Command::Servers(servers)) if servers == self.options.servers => {}
                    Some(Command::Servers(servers)) => {
                        info!("the list of ZooKeeper servers changed, connecting anew");
                        self.options.servers = servers;
                        return Turn::Lost;
                    }
                },
                () = connection.lost() => {
                    warn!(session = %self.session.id(), "connection to ZooKeeper lost");
                    return Turn::Lost;
                }
            }
        }
    }

    async fn find_server(&mut self) -> Next {
        let mut tick = tokio::time::interval(EXPIRY_CHECK_INTERVAL);
        loop {
            let attempts = attempts(self.options.clone(), self.session.clone(), self.shared.clone());
            let mut attempts = std::pin::pin!(attempts);
            let servers = loop {
                tokio::select! {
                    biased;
                    command = self.commands.recv() => match command {
                        None => return Next::Closed(None),
                        Some(Command::Close(done)) => return Next::Closed(Some(done)),
                        Some(Command::Servers(servers)) => break servers,
                    },
                    found = &mut attempts => return found.map_or(Next::Expired, Next::Resumed),
                    _ = tick.tick() => self.shared.expire_waiting(),
                }
            };
            self.options.servers = servers;
        }
    }

    /// One more try to end the session now, where the connection that we had is gone or of no use.
    async fn close_on_another_connection(self) {
        let attempts = attempts(self.options, self.session, self.shared);
        if let Ok(Some(connection)) = tokio::time::timeout(RECONNECT_CLOSE_TIMEOUT, attempts).await {
            // After that the server finds out by itself.
            connection.close(RECONNECT_CLOSE_TIMEOUT).await;
        }
    }
}

/// Tries until the session is resumed, or `None` when the server says that it is over.
async fn attempts(options: ConnectOptions, session: SessionInfo, shared: Arc<Shared>) -> Option<SessionConnection> {
    let mut retry_interval = MIN_RETRY_INTERVAL;
    let mut complaint = Complaint::default();
    loop {
        let refusal = match attempt(&options, &session, &shared).await {
            Ok(connection) => return Some(connection),
            Err(Refusal::Expired) => return None,
            Err(refusal) => refusal,
        };
        if complaint.is_due() {
            // Finding out takes seconds where a server hangs: meanwhile it is tried again.
            let (options, session) = (options.clone(), session.id());
            tokio::spawn(async move {
                let reason = reason(&options, refusal).await;
                warn!(%session, %reason, "no connection to ZooKeeper, trying again");
            });
        }
        tokio::time::sleep(retry_interval).await;
        // A server that comes back gives each session one more timeout: there must be time for several tries in it.
        retry_interval = (retry_interval * 2).min(MAX_RETRY_INTERVAL).min(options.session_timeout / 5);
    }
}

async fn attempt(options: &ConnectOptions, session: &SessionInfo, shared: &Shared) -> Result<SessionConnection, Refusal> {
    let attempt = async {
        let connection = SessionConnection::open(options, Some(session.clone())).await?;
        connection.restore(shared.watches.current()).await?;
        Ok(connection)
    };
    with_timeout(options, attempt).await
}

/// Two session timeouts: more than the crate's own limits for connecting, which do not cover everything.
pub async fn with_timeout<T>(
    options: &ConnectOptions,
    attempt: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    match tokio::time::timeout(options.session_timeout * 2, attempt).await {
        Ok(result) => result,
        Err(_) => Err(Refusal::Unclear("no server was done in time".to_owned())),
    }
}

/// What to tell the operator.
pub async fn reason(options: &ConnectOptions, refusal: Refusal) -> String {
    match refusal {
        Refusal::Known(error) => error.to_string(),
        Refusal::Expired => "the session expired".to_owned(),
        Refusal::Unclear(words) if words.is_empty() => probe::explain(options).await,
        Refusal::Unclear(words) => format!("{} ({words})", probe::explain(options).await),
    }
}

pub fn failed<T: Send + 'static>(error: ZkError) -> Reply<T> {
    futures::future::ready(Err(error)).boxed()
}

fn acknowledge(done: Option<oneshot::Sender<()>>) {
    if let Some(done) = done {
        // Whoever asked may have stopped waiting.
        let _ = done.send(());
    }
}

/// Says when it is time for another warning of the same kind.
#[derive(Default)]
pub struct Complaint {
    last: Option<Instant>,
}

impl Complaint {
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = self.last.is_none_or(|last| now.duration_since(last) >= WARNING_INTERVAL);
        if due {
            self.last = Some(now);
        }
        due
    }
}
