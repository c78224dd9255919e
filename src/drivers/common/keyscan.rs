//! SSH host key scan: checks that a host accepts connections, and collects the keys of its SSH server.
//!
//! The scan does not authenticate. A key counts once the server has signed the key exchange with it.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PublicKeyOrCertificate};
use russh::{AlgorithmKind, Preferred, cipher, client, kex, mac};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout_at};

use nodepool_model::records::time::Seconds;

/// Maximum of concurrent key scans of one provider; others wait. Plain connections are cheap and not limited.
pub const MAX_SCANS: usize = 100;

/// Timeout of one connection attempt, and of one key exchange.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Failed exchanges after which a key type is skipped, if the server has sent a key of another type.
const MAX_ATTEMPTS_PER_KEY_TYPE: u32 = 3;

const NO_RESPONSE: &str = "no response in the key exchange";

#[derive(Clone, Debug, PartialEq)]
pub struct ScanTarget {
    /// Name or address. If it contains `fake`, the scan does not connect.
    pub host: String,
    pub port: u16,
    /// Timeout of the whole scan, including the wait for a permit.
    pub timeout: Seconds,
    pub mode: ScanMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanMode {
    Keys,
    /// Succeeds once a TCP connection is accepted.
    ConnectOnly,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyScanResult {
    /// `<type> <base64>`, each once, in the order of `key_types`.
    pub host_keys: Vec<String>,
    /// The address that accepted the connection; none for a fake host.
    pub address: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScanError {
    #[error("cannot resolve {host}: {detail}")]
    Unresolvable { host: String, detail: String },
    #[error("Timeout connecting to {host} on port {port}: {last}")]
    Timeout { host: String, port: u16, last: String },
}

/// Runs a bounded number of scans concurrently.
#[derive(Debug)]
pub struct Scanner {
    permits: Semaphore,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { permits: Semaphore::new(MAX_SCANS) }
    }
}

impl Scanner {
    /// Returns by the deadline, whatever the host does.
    pub async fn scan(&self, target: &ScanTarget) -> Result<KeyScanResult, ScanError> {
        if is_fake(&target.host) {
            return Ok(fake_scan(target.mode));
        }
        let deadline = deadline_after(target.timeout);
        match target.mode {
            ScanMode::ConnectOnly => {
                let mut attempt = ScanAttempt::begin(target, deadline).await?;
                let (_, address) = attempt.connect().await?;
                Ok(KeyScanResult { host_keys: Vec::new(), address: Some(address.ip()) })
            }
            ScanMode::Keys => {
                let Ok(permit) = timeout_at(deadline, self.permits.acquire()).await else {
                    return Err(target.timeout_error("too many scans in progress"));
                };
                let _permit = permit.expect("the semaphore is never closed");
                ScanAttempt::begin(target, deadline).await?.collect_keys().await
            }
        }
    }
}

/// Hosts of tests and trial configurations: always reachable, never connected to.
pub fn is_fake(host: &str) -> bool {
    host.contains("fake")
}

/// The first address of a name.
pub async fn first_address(host: &str, limit: Seconds) -> Result<IpAddr, ScanError> {
    let addresses = resolve(host, 0, deadline_after(limit)).await?;
    Ok(addresses[0].ip())
}

fn fake_scan(mode: ScanMode) -> KeyScanResult {
    let host_keys = match mode {
        ScanMode::Keys => vec![String::from("ssh-rsa FAKEKEY")],
        ScanMode::ConnectOnly => Vec::new(),
    };
    KeyScanResult { host_keys, address: None }
}

fn deadline_after(timeout: Seconds) -> Instant {
    // Timeouts are limited to a year: the clock cannot express every deadline.
    let limit = timeout.to_duration().min(Duration::from_secs(365 * 24 * 3600));
    Instant::now() + limit
}

/// At least one address, in the order of the resolver.
async fn resolve(host: &str, port: u16, deadline: Instant) -> Result<Vec<SocketAddr>, ScanError> {
    let unresolvable = |detail: String| ScanError::Unresolvable { host: host.to_owned(), detail };
    match timeout_at(deadline, tokio::net::lookup_host((host, port))).await {
        Err(_) => Err(unresolvable(String::from("the resolver did not answer in time"))),
        Ok(Err(error)) => Err(unresolvable(error.to_string())),
        Ok(Ok(found)) => {
            let addresses: Vec<SocketAddr> = found.collect();
            if addresses.is_empty() { Err(unresolvable(String::from("it has no address"))) } else { Ok(addresses) }
        }
    }
}

impl ScanTarget {
    fn timeout_error(&self, last: &str) -> ScanError {
        ScanError::Timeout { host: self.host.clone(), port: self.port, last: last.to_owned() }
    }
}

/// One scan in progress.
struct ScanAttempt<'a> {
    target: &'a ScanTarget,
    addresses: Vec<SocketAddr>,
    deadline: Instant,
    /// The last failure, for the message of a timeout.
    last_error: String,
    retry_interval: Duration,
}

impl<'a> ScanAttempt<'a> {
    async fn begin(target: &'a ScanTarget, deadline: Instant) -> Result<Self, ScanError> {
        let addresses = resolve(&target.host, target.port, deadline).await?;
        Ok(Self {
            target,
            addresses,
            deadline,
            last_error: String::from("no response"),
            retry_interval: MIN_RETRY_INTERVAL,
        })
    }

    /// Tries all addresses until one accepts a connection or the deadline passes.
    async fn connect(&mut self) -> Result<(TcpStream, SocketAddr), ScanError> {
        loop {
            for address in self.addresses.clone() {
                let attempt_ends = self.attempt_end();
                match timeout_at(attempt_ends, TcpStream::connect(address)).await {
                    Ok(Ok(stream)) => return Ok((stream, address)),
                    Ok(Err(error)) => self.last_error = error.to_string(),
                    Err(_) => self.last_error = String::from("no response"),
                }
            }
            self.wait_before_retry().await?;
        }
    }

    /// Opens one connection per key type, all at the same time: a server may take seconds until it sends its banner.
    /// Key types that fail are repeated one after the other, because the server may limit unauthenticated connections.
    async fn collect_keys(&mut self) -> Result<KeyScanResult, ScanError> {
        let key_types = key_types();
        let (address, first) = loop {
            let (stream, address) = self.connect().await?;
            let answers = self.exchange_all(stream, address, &key_types).await;
            if answers.iter().any(Result::is_ok) {
                break (address, answers);
            }
            self.last_error = answers.into_iter().find_map(Result::err).unwrap_or_default();
            self.wait_before_retry().await?;
        };
        self.retry_interval = MIN_RETRY_INTERVAL;
        let mut has_keys = first.iter().any(|answer| matches!(answer, Ok(Some(_))));
        let mut host_keys: Vec<String> = Vec::new();
        for (key_type, answer) in key_types.iter().zip(first) {
            let key = match answer {
                Ok(key) => key,
                Err(error) => self.repeat_exchange(key_type, error, has_keys).await?,
            };
            if let Some(key) = key.filter(|key| !host_keys.contains(key)) {
                host_keys.push(key);
                has_keys = true;
            }
        }
        Ok(KeyScanResult { host_keys, address: Some(address.ip()) })
    }

    /// One exchange per key type at the same time; the first one uses this connection.
    async fn exchange_all(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        key_types: &[Vec<Algorithm>],
    ) -> Vec<Result<Option<String>, String>> {
        let ends = self.attempt_end();
        let mut stream = Some(stream);
        let exchanges = key_types.iter().map(|key_type| {
            let connected = stream.take();
            async move {
                let stream = match connected {
                    Some(stream) => stream,
                    None => match timeout_at(ends, TcpStream::connect(address)).await {
                        Ok(connected) => connected.map_err(|error| error.to_string())?,
                        Err(_) => return Err(String::from(NO_RESPONSE)),
                    },
                };
                exchange_keys(stream, key_type, ends).await
            }
        });
        futures::future::join_all(exchanges).await
    }

    /// Repeats the exchange of a key type that failed. `has_keys`: the server has sent a key of another type, so this
    /// one is skipped after some failures.
    async fn repeat_exchange(
        &mut self,
        key_type: &[Algorithm],
        error: String,
        has_keys: bool,
    ) -> Result<Option<String>, ScanError> {
        self.last_error = error;
        let mut attempts = 1;
        loop {
            if attempts >= MAX_ATTEMPTS_PER_KEY_TYPE && has_keys {
                tracing::debug!(host = self.target.host, error = self.last_error, "key type skipped");
                return Ok(None);
            }
            self.wait_before_retry().await?;
            let (stream, _) = self.connect().await?;
            match exchange_keys(stream, key_type, self.attempt_end()).await {
                Ok(key) => {
                    self.retry_interval = MIN_RETRY_INTERVAL;
                    return Ok(key);
                }
                Err(error) => {
                    attempts += 1;
                    self.last_error = error;
                }
            }
        }
    }

    fn attempt_end(&self) -> Instant {
        self.deadline.min(Instant::now() + ATTEMPT_TIMEOUT)
    }

    async fn wait_before_retry(&mut self) -> Result<(), ScanError> {
        if Instant::now() + self.retry_interval >= self.deadline {
            sleep_until(self.deadline).await;
            return Err(self.target.timeout_error(&self.last_error));
        }
        sleep(self.retry_interval).await;
        self.retry_interval = (self.retry_interval * 2).min(MAX_RETRY_INTERVAL);
        Ok(())
    }
}

/// Kinds of host keys, each with the signature algorithms that prove it.
fn key_types() -> [Vec<Algorithm>; 5] {
    let ecdsa = |curve| vec![Algorithm::Ecdsa { curve }];
    let rsa = |hash| Algorithm::Rsa { hash };
    [
        vec![Algorithm::Ed25519],
        ecdsa(EcdsaCurve::NistP256),
        ecdsa(EcdsaCurve::NistP384),
        ecdsa(EcdsaCurve::NistP521),
        vec![rsa(Some(HashAlg::Sha512)), rsa(Some(HashAlg::Sha256)), rsa(None)],
    ]
}

/// One key exchange. `None`: the server has no key of this type.
async fn exchange_keys(stream: TcpStream, key_type: &[Algorithm], deadline: Instant) -> Result<Option<String>, String> {
    let recorded = Arc::new(Mutex::new(None));
    let stream = DeadlineStream { stream, deadline: Box::pin(sleep_until(deadline)) };
    let connecting =
        client::connect_stream(client_config(key_type), stream, KeyRecorder { recorded: recorded.clone() });
    let result = timeout_at(deadline, connecting).await;
    if let Some(key) = recorded.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Ok(Some(key));
    }
    match result {
        Err(_) => Err(String::from(NO_RESPONSE)),
        Ok(Err(russh::Error::IO(error))) if error.kind() == ErrorKind::TimedOut => Err(String::from(NO_RESPONSE)),
        Ok(Ok(_)) => Err(String::from("the server sent no host key")),
        Ok(Err(russh::Error::NoCommonAlgo { kind: AlgorithmKind::Key, .. })) => Ok(None),
        Ok(Err(error)) => Err(error.to_string().chars().take(300).collect()),
    }
}

/// Accepts the weak ciphers of old servers: the scan sends no secret.
fn client_config(key_type: &[Algorithm]) -> Arc<client::Config> {
    const KEX: &[kex::Name] = &[
        kex::CURVE25519,
        kex::CURVE25519_PRE_RFC_8731,
        kex::ECDH_SHA2_NISTP256,
        kex::ECDH_SHA2_NISTP384,
        kex::ECDH_SHA2_NISTP521,
        kex::MLKEM768X25519_SHA256,
        kex::DH_G14_SHA256,
        kex::DH_G16_SHA512,
        kex::DH_G18_SHA512,
        kex::DH_GEX_SHA256,
        kex::DH_G14_SHA1,
        kex::EXTENSION_SUPPORT_AS_CLIENT,
    ];
    const CIPHERS: &[cipher::Name] = &[
        cipher::CHACHA20_POLY1305,
        cipher::AES_256_GCM,
        cipher::AES_128_GCM,
        cipher::AES_256_CTR,
        cipher::AES_192_CTR,
        cipher::AES_128_CTR,
        cipher::AES_256_CBC,
        cipher::AES_192_CBC,
        cipher::AES_128_CBC,
    ];
    const MACS: &[mac::Name] = &[
        mac::HMAC_SHA256_ETM,
        mac::HMAC_SHA512_ETM,
        mac::HMAC_SHA256,
        mac::HMAC_SHA512,
        mac::HMAC_SHA1_ETM,
        mac::HMAC_SHA1,
    ];
    Arc::new(client::Config {
        preferred: Preferred {
            key: Cow::Owned(key_type.to_vec()),
            kex: Cow::Borrowed(KEX),
            cipher: Cow::Borrowed(CIPHERS),
            mac: Cow::Borrowed(MACS),
            ..Preferred::DEFAULT
        },
        ..client::Config::default()
    })
}

/// Records the server's key and then rejects it, which closes the connection before authentication.
struct KeyRecorder {
    recorded: Arc<Mutex<Option<String>>>,
}

impl client::Handler for KeyRecorder {
    type Error = russh::Error;

    async fn check_server_key(&mut self, server_key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        if let PublicKeyOrCertificate::PublicKey { key, .. } = server_key {
            let mut plain = key.clone();
            plain.set_comment("");
            let text = plain.to_openssh().map_err(|_| russh::Error::CouldNotReadKey)?;
            *self.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.trim_end().to_owned());
        }
        Ok(false)
    }
}

/// A stream that fails at its deadline. The SSH library runs a session in its own task, which would otherwise never end
/// if the peer stops responding.
struct DeadlineStream {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
}

impl DeadlineStream {
    fn check_deadline(&mut self, context: &mut Context<'_>) -> std::io::Result<()> {
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Err(ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for DeadlineStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.check_deadline(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for DeadlineStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.check_deadline(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
