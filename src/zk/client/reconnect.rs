//! Reconnect loop: keeps one session alive over any number of connections, until it is closed or the server reports it
//! as expired.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{info, warn};
use zookeeper_client::SessionInfo;

use super::connection::{ConnectFailure, Connected, SessionConnection};
use super::options::{ConnectOptions, ServerAddress};
use super::probe;
use super::rewatch::Watches;
use crate::{Reply, SessionState};
use zookeeper_server::types::ZkError;

/// First and longest back-off between two attempts to find a server.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(20);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between checks of the waiting requests for exceeded deadlines.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Timeouts for closing the session: on the current connection, then on another one.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
const RECONNECT_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between warnings about a lost connection.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of requests that wait for a connection. Callers keep one request per node or request in flight, so a
/// healthy program stays far below this.
const MAX_WAITING_REQUESTS: usize = 50_000;

pub enum Command {
    Close(oneshot::Sender<()>),
    Servers(Vec<ServerAddress>),
}

/// Sends a waiting request on a connection, or fails it with the reason why there will be no connection.
type QueuedRequest = Box<dyn FnOnce(Result<&Arc<Connected>, ZkError>) + Send>;

struct WaitingRequest {
    until: Instant,
    send: QueuedRequest,
}

enum Slot {
    Connected(Arc<Connected>),
    Suspended(VecDeque<WaitingRequest>),
    Ended,
}

/// State shared by the senders of requests and the reconnector.
pub struct SharedSession {
    slot: Mutex<Slot>,
    state: watch::Sender<SessionState>,
    pub watches: Watches,
    pub session_id: i64,
    deadline: Duration,
}

impl SharedSession {
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
            Slot::Suspended(_) => {
                return failed(ZkError::Unknown(
                    "too many requests are waiting for a connection, the request was not sent".into(),
                ));
            }
            Slot::Ended => return failed(ZkError::SessionExpired),
        };
        let (answer, started) = oneshot::channel();
        let send = move |connected: Result<&Arc<Connected>, ZkError>| {
            let reply = match connected {
                Ok(connected) => connected.start(request(connected.clone())),
                Err(error) => failed(error),
            };
            // The caller may have dropped the receiver; the request is sent anyway.
            drop(answer.send(reply));
        };
        waiting.push_back(WaitingRequest { until: Instant::now() + self.deadline, send: Box::new(send) });
        async move {
            match started.await {
                Ok(reply) => reply.await,
                Err(_) => Err(ZkError::SessionExpired),
            }
        }
        .boxed()
    }

    /// `None` while there is no connection.
    pub fn session_valid_until(&self) -> Option<Instant> {
        match &*self.lock() {
            Slot::Connected(connected) => connected.session_valid_until(),
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
                (request.send)(if request.until > now { Ok(connected) } else { Err(self.too_late()) });
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
            (request.send)(Err(self.too_late()));
        }
    }

    fn too_late(&self) -> ZkError {
        ZkError::Unknown(format!("no connection for {:?}, the request was not sent", self.deadline))
    }

    fn end(&self) {
        let before = std::mem::replace(&mut *self.lock(), Slot::Ended);
        if let Slot::Suspended(waiting) = before {
            for request in waiting {
                (request.send)(Err(ZkError::SessionExpired));
            }
        }
        self.watches.clear();
        self.state.send_replace(SessionState::Expired);
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        // A panic leaves no partial change behind this lock.
        self.slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

pub struct Reconnector {
    pub options: ConnectOptions,
    pub shared: Arc<SharedSession>,
    pub session: SessionInfo,
    /// Ends when the last handle of the session is dropped, which closes the session.
    pub commands: mpsc::UnboundedReceiver<Command>,
}

/// Reason of a connection's end.
enum ConnectionEnd {
    Lost,
    Close(Option<oneshot::Sender<()>>),
}

/// Result of a reconnect.
enum ReconnectOutcome {
    Resumed(SessionConnection),
    Expired,
    Closed(Option<oneshot::Sender<()>>),
}

impl Reconnector {
    pub async fn run(mut self, mut connection: SessionConnection) {
        loop {
            if let ConnectionEnd::Close(done) = self.wait_for_end(&mut connection).await {
                self.shared.end();
                if !connection.close(CLOSE_TIMEOUT).await {
                    self.close_on_another_connection().await;
                }
                return acknowledge(done);
            }
            self.shared.suspend();
            drop(connection);
            match self.reconnect().await {
                ReconnectOutcome::Resumed(next) => {
                    info!(session = %self.session.id(), "reconnected to ZooKeeper, session resumed");
                    connection = next;
                    self.shared.resume(connection.connected());
                }
                ReconnectOutcome::Expired => {
                    warn!(session = %self.session.id(), "ZooKeeper session expired");
                    return self.shared.end();
                }
                ReconnectOutcome::Closed(done) => {
                    self.shared.end();
                    self.close_on_another_connection().await;
                    return acknowledge(done);
                }
            }
        }
    }

    async fn wait_for_end(&mut self, connection: &mut SessionConnection) -> ConnectionEnd {
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    None => return ConnectionEnd::Close(None),
                    Some(Command::Close(done)) => return ConnectionEnd::Close(Some(done)),
                    Some(Command::Servers(servers)) if servers == self.options.servers => {}
                    Some(Command::Servers(servers)) => {
                        info!("the list of ZooKeeper servers changed, reconnecting");
                        self.options.servers = servers;
                        return ConnectionEnd::Lost;
                    }
                },
                () = connection.lost() => {
                    warn!(session = %self.session.id(), "connection to ZooKeeper lost");
                    return ConnectionEnd::Lost;
                }
            }
        }
    }

    async fn reconnect(&mut self) -> ReconnectOutcome {
        let mut tick = tokio::time::interval(EXPIRY_CHECK_INTERVAL);
        loop {
            let attempts = attempts(self.options.clone(), self.session.clone(), self.shared.clone());
            let mut attempts = std::pin::pin!(attempts);
            let servers = loop {
                tokio::select! {
                    biased;
                    command = self.commands.recv() => match command {
                        None => return ReconnectOutcome::Closed(None),
                        Some(Command::Close(done)) => return ReconnectOutcome::Closed(Some(done)),
                        Some(Command::Servers(servers)) => break servers,
                    },
                    found = &mut attempts => return found.map_or(ReconnectOutcome::Expired, ReconnectOutcome::Resumed),
                    _ = tick.tick() => self.shared.expire_waiting(),
                }
            };
            self.options.servers = servers;
        }
    }

    /// Tries once more to close the session if the current connection is lost or unusable.
    async fn close_on_another_connection(self) {
        let attempts = attempts(self.options, self.session, self.shared);
        if let Ok(Some(connection)) = tokio::time::timeout(RECONNECT_CLOSE_TIMEOUT, attempts).await {
            // If this fails too, the session ends by its timeout.
            connection.close(RECONNECT_CLOSE_TIMEOUT).await;
        }
    }
}

/// Retries until the session is resumed; `None` when the server reports it as expired.
async fn attempts(
    options: ConnectOptions,
    session: SessionInfo,
    shared: Arc<SharedSession>,
) -> Option<SessionConnection> {
    let mut retry_interval = MIN_RETRY_INTERVAL;
    let mut warning_limiter = WarningLimiter::default();
    loop {
        let failure = match attempt(&options, &session, &shared).await {
            Ok(connection) => return Some(connection),
            Err(ConnectFailure::Expired) => return None,
            Err(failure) => failure,
        };
        if warning_limiter.is_due() {
            // The probe takes seconds if a server hangs, so it runs beside the next attempts.
            let (options, session) = (options.clone(), session.id());
            tokio::spawn(async move {
                let reason = describe_failure(&options, failure).await;
                warn!(%session, %reason, "cannot connect to ZooKeeper, retrying");
            });
        }
        tokio::time::sleep(retry_interval).await;
        // A restarted server extends each session by one more timeout, which must suffice for several attempts.
        retry_interval = (retry_interval * 2).min(MAX_RETRY_INTERVAL).min(options.session_timeout / 5);
    }
}

async fn attempt(
    options: &ConnectOptions,
    session: &SessionInfo,
    shared: &SharedSession,
) -> Result<SessionConnection, ConnectFailure> {
    let attempt = async {
        let connection = SessionConnection::open(options, Some(session.clone())).await?;
        connection.restore(shared.watches.current()).await?;
        Ok(connection)
    };
    with_timeout(options, attempt).await
}

/// Limits an attempt to two session timeouts: more than the client crate's own limits, which do not cover every step.
pub async fn with_timeout<T>(
    options: &ConnectOptions,
    attempt: impl Future<Output = Result<T, ConnectFailure>>,
) -> Result<T, ConnectFailure> {
    match tokio::time::timeout(options.session_timeout * 2, attempt).await {
        Ok(result) => result,
        Err(_) => Err(ConnectFailure::Unclear("timed out connecting to every ZooKeeper server".to_owned())),
    }
}

/// Reason of a failure, for the operator.
pub async fn describe_failure(options: &ConnectOptions, failure: ConnectFailure) -> String {
    match failure {
        ConnectFailure::Known(error) => error.to_string(),
        ConnectFailure::Expired => "the session expired".to_owned(),
        ConnectFailure::Unclear(text) if text.is_empty() => probe::explain(options).await,
        ConnectFailure::Unclear(text) => format!("{} ({text})", probe::explain(options).await),
    }
}

pub fn failed<T: Send + 'static>(error: ZkError) -> Reply<T> {
    futures::future::ready(Err(error)).boxed()
}

fn acknowledge(done: Option<oneshot::Sender<()>>) {
    if let Some(done) = done {
        // The caller of `close` may have stopped waiting.
        let _ = done.send(());
    }
}

/// Limits the rate of warnings of one kind.
#[derive(Default)]
pub struct WarningLimiter {
    last: Option<Instant>,
}

impl WarningLimiter {
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = self.last.is_none_or(|last| now.duration_since(last) >= WARNING_INTERVAL);
        if due {
            self.last = Some(now);
        }
        due
    }
}
