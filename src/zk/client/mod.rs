//! A session with a real ZooKeeper: connecting, the port's operations, closing.
//!
//! The modules below add what the client crate lacks and work around its defects. The reasons are in
//! `doc/decisions/0011-zookeeper-client.md`.

pub(crate) mod connection;
pub(crate) mod errors;
mod options;
mod probe;
pub(crate) mod reconnect;
mod rewatch;
mod tls;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::warn;
use zookeeper_client::SessionInfo;

use crate::client::connection::{ConnectFailure, SessionConnection};
use crate::client::reconnect::{Command, Reconnector, SharedSession, WarningLimiter};
use crate::client::rewatch::Events;
use crate::{Connection, Reply, SessionState};
use zookeeper_server::types::{CreateMode, Op, OpReply, Stat, WatchEvent, ZkError};

pub use crate::client::options::{ConnectError, ConnectOptions, ServerAddress};
pub use crate::client::tls::{Tls, TlsError, install_crypto_provider};
pub use nodepool_model::config::HostNames;

/// First and longest back-off between two attempts to connect.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A session with a ZooKeeper ensemble. Dropping it ends the session at once, in the background; `close` waits for it.
pub struct RealConnection {
    shared: Arc<SharedSession>,
    session: SessionInfo,
    chroot: String,
    /// Unbounded, but it carries only one `Close` and one message per reload of the configuration.
    commands: mpsc::UnboundedSender<Command>,
}

/// Makes one attempt at every server. The error states the problem of each server.
pub async fn connect(options: ConnectOptions) -> Result<Arc<RealConnection>, ConnectError> {
    match attempt(&options).await {
        Ok(connection) => Ok(connection),
        Err(ConnectFailure::Known(error)) => Err(error),
        Err(failure) => Err(ConnectError::Unreachable(reconnect::describe_failure(&options, failure).await)),
    }
}

/// Retries until a session is established, with a warning every ten seconds. `Ok(None)` when cancelled; an error only
/// if the configuration itself is wrong.
pub async fn connect_until(
    options: ConnectOptions,
    cancelled: impl Future<Output = ()>,
) -> Result<Option<Arc<RealConnection>>, ConnectError> {
    let mut cancelled = std::pin::pin!(cancelled);
    tokio::select! {
        biased;
        () = &mut cancelled => Ok(None),
        connected = connect_with_retry(options) => connected.map(Some),
    }
}

async fn connect_with_retry(options: ConnectOptions) -> Result<Arc<RealConnection>, ConnectError> {
    let mut retry_interval = MIN_RETRY_INTERVAL;
    let mut warning_limiter = WarningLimiter::default();
    loop {
        let failure = match attempt(&options).await {
            Ok(connection) => return Ok(connection),
            Err(ConnectFailure::Known(error)) if error.is_final() => return Err(error),
            Err(failure) => failure,
        };
        if warning_limiter.is_due() {
            let reason = reconnect::describe_failure(&options, failure).await;
            warn!(%reason, "cannot connect to ZooKeeper, retrying");
        }
        tokio::time::sleep(retry_interval).await;
        retry_interval = (retry_interval * 2).min(MAX_RETRY_INTERVAL);
    }
}

async fn attempt(options: &ConnectOptions) -> Result<Arc<RealConnection>, ConnectFailure> {
    options.check()?;
    install_crypto_provider();
    let connection = reconnect::with_timeout(options, SessionConnection::open(options, None)).await?;
    Ok(Arc::new(RealConnection::start(options.clone(), connection)?))
}

impl RealConnection {
    /// The reconnector has its own thread, so that neither a busy nor a stopped arbiter loses the session.
    fn start(options: ConnectOptions, connection: SessionConnection) -> Result<Self, ConnectError> {
        let no_thread = |error: std::io::Error| ConnectError::NoThread(error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let shared = Arc::new(SharedSession::new(&connection, options.request_deadline()));
        let session = connection.session().clone();
        let chroot = options.chroot.clone();
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let reconnector =
            Reconnector { options, shared: shared.clone(), session: session.clone(), commands: command_receiver };
        let body = move || runtime.block_on(reconnector.run(connection));
        std::thread::Builder::new().name("zookeeper".to_owned()).spawn(body).map_err(no_thread)?;
        Ok(Self { shared, session, chroot, commands })
    }

    /// Closes the session: its ephemeral znodes are deleted when this resolves, unless no server could be reached.
    /// Waits at most two seconds each for finding a server and for its confirmation.
    pub fn close(&self) -> BoxFuture<'static, ()> {
        let (done, closed) = oneshot::channel();
        // A reconnector that has ended drops the command, and with it the sender of the acknowledgement.
        let _ = self.commands.send(Command::Close(done));
        closed.map(|_| ()).boxed()
    }

    /// Moves the session to other servers of the same ensemble, for a reload of the configuration.
    pub fn set_servers(&self, servers: Vec<ServerAddress>) {
        // Without a reconnector the session has ended, which its state reports already.
        let _ = self.commands.send(Command::Servers(servers));
    }

    /// Id and password of the session: a process that has them can take it over.
    pub fn credentials(&self) -> SessionInfo {
        self.session.clone()
    }
}

impl Connection for RealConnection {
    fn get(&self, path: &str) -> Reply<(Bytes, Stat)> {
        let path = path.to_owned();
        self.shared.submit(|connected| async move {
            let (data, stat) = connected.client().get_data(&path).await.map_err(errors::error)?;
            Ok((Bytes::from(data), errors::stat(stat)))
        })
    }

    fn get_many(&self, paths: &[String]) -> Reply<Vec<Result<(Bytes, Stat), ZkError>>> {
        let paths = paths.to_vec();
        self.shared.submit(move |connected| async move {
            let client = connected.client();
            let mut reader = client.new_multi_reader();
            for path in &paths {
                reader.add_get_data(path).map_err(errors::error)?;
            }
            let results = reader.commit().await.map_err(errors::error)?;
            if results.len() != paths.len() {
                return Err(ZkError::Protocol(format!("{} answers to {} reads", results.len(), paths.len())));
            }
            results.into_iter().map(errors::read_reply).collect()
        })
    }

    fn exists(&self, path: &str) -> Reply<Option<Stat>> {
        let path = path.to_owned();
        self.shared.submit(|connected| async move {
            let stat = connected.client().check_stat(&path).await.map_err(errors::error)?;
            Ok(stat.map(errors::stat))
        })
    }

    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        let path = path.to_owned();
        self.shared.submit(|connected| async move {
            let (names, stat) = connected.client().get_children(&path).await.map_err(errors::error)?;
            Ok((names, errors::stat(stat)))
        })
    }

    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> Reply<(String, Stat)> {
        if let Err(error) = errors::check_size(&self.chroot, &[(path, &data)]) {
            return reconnect::failed(error);
        }
        let path = path.to_owned();
        self.shared.submit(move |connected| async move {
            let options = errors::create_options(mode);
            let (stat, sequence) =
                connected.by_leader(connected.client().create(&path, &data, &options)).await.map_err(errors::error)?;
            Ok((errors::created_path(path, mode, sequence), errors::stat(stat)))
        })
    }

    fn set(&self, path: &str, data: Bytes, version: i32) -> Reply<Stat> {
        if let Err(error) = errors::check_size(&self.chroot, &[(path, &data)]) {
            return reconnect::failed(error);
        }
        let path = path.to_owned();
        self.shared.submit(move |connected| async move {
            let stat = connected
                .by_leader(connected.client().set_data(&path, &data, Some(version)))
                .await
                .map_err(errors::error)?;
            Ok(errors::stat(stat))
        })
    }

    fn delete(&self, path: &str, version: i32) -> Reply<()> {
        let path = path.to_owned();
        self.shared.submit(move |connected| async move {
            connected.by_leader(connected.client().delete(&path, Some(version))).await.map_err(errors::error)
        })
    }

    fn multi(&self, ops: Vec<Op>) -> Reply<Vec<OpReply>> {
        if let Err(error) = errors::check_ops_size(&self.chroot, &ops) {
            return reconnect::failed(error);
        }
        self.shared.submit(move |connected| async move {
            let client = connected.client();
            let mut writer = client.new_multi_writer();
            for (index, op) in ops.iter().enumerate() {
                let bad = |error| ZkError::Multi { index, source: Box::new(errors::error(error)) };
                errors::add_op(&mut writer, op).map_err(bad)?;
            }
            let results = connected.by_leader(writer.commit()).await.map_err(errors::multi_error)?;
            results.into_iter().map(errors::op_reply).collect()
        })
    }

    fn watch(&self, path: &str) -> Reply<BoxStream<'static, WatchEvent>> {
        let (events, stream) = Events::channel(path);
        // Added before the request is sent: the next connection must know the watch, even if this connection is lost.
        self.shared.watches.add(events.clone());
        self.shared.submit(|connected| async move {
            // If the request waited for a connection, that connection has already added the watch.
            if !events.is_established() {
                connected.watch(events).await.map_err(errors::error)?;
            }
            Ok(stream)
        })
    }

    fn exists_and_watch(&self, path: &str) -> Reply<(Option<Stat>, BoxFuture<'static, ()>)> {
        let path = path.to_owned();
        self.shared.submit(|connected| async move {
            let client = connected.client();
            let (stat, watcher) = client.check_and_watch_stat(&path).await.map_err(errors::error)?;
            Ok((stat.map(errors::stat), connected.once(watcher).boxed()))
        })
    }

    fn sync(&self, path: &str) -> Reply<()> {
        let path = path.to_owned();
        self.shared.submit(|connected| async move {
            connected.by_leader(connected.client().sync(&path)).await.map_err(errors::error)
        })
    }

    fn session_valid_until(&self) -> Option<Instant> {
        self.shared.session_valid_until()
    }

    fn session_id(&self) -> i64 {
        self.shared.session_id
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        self.shared.state()
    }
}
