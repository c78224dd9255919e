//! The embedded coordinator: the tree behind ZooKeeper's wire protocol on loopback, stored on disk. For one machine.

mod certificates;
pub mod client_connection;
pub mod coordinator;
pub mod engine;
pub(crate) mod four_letter_words;
pub mod jute;
mod ports;
pub mod protocol;
pub mod store;
pub mod tree;
pub mod types;

use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, error, info, warn};

use client_connection::LinkError;
use coordinator::{Input, LinkId};
use engine::{Engine, Message};
use store::{Store, StoreError};

/// Interval between checks of the sessions for expiry.
const TICK_INTERVAL: Duration = Duration::from_millis(250);
/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections served at once; more wait to be accepted.
const MAX_CONNECTIONS: usize = 1_024;
/// Maximum number of messages that wait for the engine; each connection also limits its own.
const INBOX_CAPACITY: usize = 16_384;

/// PEM files for a client: its certificate, its key and the authority that signed the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub ca: PathBuf,
}

/// Options of a server.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    pub data_dir: PathBuf,
    /// The first port to try, for plain connections; 0 takes any free ones.
    pub first_port: u16,
    /// Wall-clock milliseconds, which znodes are stamped with.
    pub now_ms: fn() -> i64,
}

#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    #[error("cannot use the data directory {path}: {source}", path = path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("the data directory {path} is in use by another process; stop it or choose another --data-dir", path = path.display())]
    InUse { path: PathBuf },
    #[error("the store in {path} is damaged: {reason}; restore the directory from a backup, or move it away to start empty", path = path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("cannot use the store in {path}: {source}", path = path.display())]
    Store { path: PathBuf, source: StoreError },
    #[error("no two free ports on 127.0.0.1 from {first_port} on")]
    NoPort { first_port: u16 },
    #[error("cannot listen on 127.0.0.1: {0}")]
    Listen(#[source] std::io::Error),
    #[error(transparent)]
    Certificates(#[from] certificates::CertificateError),
}

/// A running server. Dropping it stops it too, without waiting.
pub struct EmbeddedServer {
    address: SocketAddr,
    tls_address: SocketAddr,
    tls_files: TlsFiles,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    failure: watch::Receiver<Option<String>>,
}

impl EmbeddedServer {
    /// Opens the store, recovers its data and listens.
    pub async fn start(options: EmbeddedOptions) -> Result<Self, EmbeddedError> {
        let EmbeddedOptions { data_dir, first_port, now_ms } = options;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&data_dir)
            .map_err(|source| EmbeddedError::Directory { path: data_dir.clone(), source })?;
        let (inbox, received) = mpsc::channel(INBOX_CAPACITY);
        let failure = start_engine(&data_dir, now_ms, received).await?;
        let (tls_files, tls_config) = certificates::prepare(&data_dir)?;
        let (plain, tls) = ports::listen(&data_dir, first_port)
            .await
            .map_err(EmbeddedError::Listen)?
            .ok_or(EmbeddedError::NoPort { first_port })?;
        let address = plain.local_addr().map_err(EmbeddedError::Listen)?;
        let tls_address = tls.local_addr().map_err(EmbeddedError::Listen)?;
        let (stop, stopping) = watch::channel(false);
        let acceptor = Acceptor {
            engine: inbox.clone(),
            stopping,
            connection_limit: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            next_link: Arc::new(AtomicU64::new(1)),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(acceptor.clone().accept(plain, None));
        tasks.spawn(acceptor.clone().accept(tls, Some(TlsAcceptor::from(tls_config))));
        tasks.spawn(tick(inbox, acceptor.stopping));
        info!(%address, %tls_address, data_dir = %data_dir.display(), "embedded coordinator is listening");
        Ok(Self { address, tls_address, tls_files, stop, tasks, failure })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The TLS address. Clients must present the certificate of `tls_files` here.
    pub fn tls_address(&self) -> SocketAddr {
        self.tls_address
    }

    pub fn tls_files(&self) -> TlsFiles {
        self.tls_files.clone()
    }

    /// Resolves when the server has stopped by itself because it could no longer store changes, with the reason.
    pub fn failed(&self) -> impl Future<Output = String> + Send + use<> {
        let mut failure = self.failure.clone();
        async move {
            let reason = failure.wait_for(Option::is_some).await.map(|reason| reason.clone());
            match reason {
                Ok(reason) => reason.unwrap_or_default(),
                Err(_) => std::future::pending().await, // stopped cleanly
            }
        }
    }

    /// Closes the connections and the store. Sessions stay and may be resumed after the next start.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        // The engine ends when all senders to it are dropped; it drops its end of the channel last.
        while self.failure.changed().await.is_ok() {}
    }
}

/// Starts the thread that owns store and tree. Its report channel closes when it ends cleanly.
async fn start_engine(
    data_dir: &Path,
    now_ms: fn() -> i64,
    inbox: mpsc::Receiver<Message>,
) -> Result<watch::Receiver<Option<String>>, EmbeddedError> {
    let (opened, open) = oneshot::channel();
    let (report, failure) = watch::channel(None);
    let directory = data_dir.to_owned();
    let run = move || {
        // A damaged file can make the store crate panic: then the thread ends, and dropping `opened` reports it.
        let engine = match Store::open(&directory) {
            Ok((store, tree)) => Engine::new(store, tree, now_ms),
            Err(error) => return drop(opened.send(Err(error))),
        };
        drop(opened.send(Ok(())));
        let panic_reporter = PanicReporter { report };
        if let Err(failure) = engine.run(inbox) {
            error!(%failure, data_dir = %directory.display(), "embedded coordinator cannot store changes, stopping");
            panic_reporter.report.send_replace(Some(failure.to_string()));
        }
    };
    let path = data_dir.to_owned();
    std::thread::Builder::new()
        .name("coordinator".into())
        .spawn(run)
        .map_err(|source| EmbeddedError::Directory { path: path.clone(), source })?;
    match open.await {
        Ok(Ok(())) => Ok(failure),
        Ok(Err(StoreError::InUse)) => Err(EmbeddedError::InUse { path }),
        Ok(Err(StoreError::Damaged(reason))) => Err(EmbeddedError::Damaged { path, reason }),
        Ok(Err(source)) => Err(EmbeddedError::Store { path, source }),
        Err(_) => Err(EmbeddedError::Damaged { path, reason: "reading it failed".into() }),
    }
}

/// Reports a panic in the engine, which would otherwise look like a clean end.
struct PanicReporter {
    report: watch::Sender<Option<String>>,
}

impl Drop for PanicReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.report.send_replace(Some("the coordinator's thread ended unexpectedly".into()));
        }
    }
}

async fn tick(engine: mpsc::Sender<Message>, mut stopping: watch::Receiver<bool>) {
    let mut ticks = interval(TICK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            _ = ticks.tick() => {}
        }
        // A full inbox means that the engine has other messages to process first.
        if let Err(mpsc::error::TrySendError::Closed(_)) = engine.try_send(Message::Input(Input::Tick)) {
            return;
        }
    }
}

/// Accepts and serves connections.
#[derive(Clone)]
struct Acceptor {
    engine: mpsc::Sender<Message>,
    stopping: watch::Receiver<bool>,
    connection_limit: Arc<Semaphore>,
    next_link: Arc<AtomicU64>,
}

impl Acceptor {
    async fn accept(self, listener: TcpListener, tls: Option<TlsAcceptor>) {
        let mut connections = JoinSet::new();
        let mut stopping = self.stopping.clone();
        loop {
            let accepted = tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => break,
                () = self.engine.closed() => break,
                accepted = self.next(&listener) => accepted,
            };
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, permit)) => {
                    let (acceptor, tls) = (self.clone(), tls.clone());
                    connections.spawn(async move {
                        acceptor.serve(stream, tls).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // The process is most likely out of file descriptors: wait until some connections end.
                    warn!(%error, "embedded coordinator cannot accept a connection");
                    tokio::time::sleep(TICK_INTERVAL).await;
                }
            }
        }
        connections.shutdown().await;
    }

    async fn next(&self, listener: &TcpListener) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
        let permit = self.connection_limit.clone().acquire_owned().await.expect("the semaphore is never closed");
        Ok((listener.accept().await?.0, permit))
    }

    async fn serve(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let link = LinkId(self.next_link.fetch_add(1, Ordering::Relaxed));
        let peer = stream.peer_addr().map_or_else(|_| "unknown".into(), |peer| peer.to_string());
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%peer, %error, "cannot set TCP_NODELAY");
        }
        let ended = match tls {
            None => client_connection::serve(stream, link, self.engine).await,
            Some(acceptor) => match handshake(&acceptor, stream).await {
                Ok(stream) => client_connection::serve(stream, link, self.engine).await,
                Err(error) => Err(error),
            },
        };
        match ended {
            Ok(()) => {}
            Err(LinkError::Handshake(error)) => warn!(%peer, %error, "TLS handshake with a client failed"),
            Err(LinkError::Network(error)) => debug!(%peer, %error, "connection lost"),
            Err(reason) => warn!(%peer, %reason, "embedded coordinator closes a connection"),
        }
    }
}

async fn handshake(acceptor: &TlsAcceptor, stream: TcpStream) -> Result<TlsStream<TcpStream>, LinkError> {
    match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(accepted) => accepted.map_err(LinkError::Handshake),
        Err(_) => Err(LinkError::HandshakeTimeout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::ServerConfig;
    use rustls::server::ResolvesServerCertUsingSni;

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_times_out_is_reported_as_such() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let certificates = Arc::new(ResolvesServerCertUsingSni::new());
        let acceptor = TlsAcceptor::from(Arc::new(builder.with_no_client_auth().with_cert_resolver(certificates)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _silent = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let ended = handshake(&acceptor, stream).await.map(drop).unwrap_err();
        assert_eq!(ended.to_string(), "TLS handshake not completed within 10 s");
    }
}
