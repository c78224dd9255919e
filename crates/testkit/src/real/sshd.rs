//! OpenSSH's server on a loopback address with its own host keys: a static host for tests of host keys and liveness.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use super::{
    child_process::{ChildProcess, Output},
    ports::{self, Port},
};
use crate::wait;
use tempfile::TempDir;
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Kinds of host keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    Ed25519,
    Ecdsa,
    Ecdsa384,
    Ecdsa521,
    Rsa,
}

impl KeyKind {
    /// The keys of a newly installed server.
    pub const ALL: [KeyKind; 3] = [KeyKind::Ed25519, KeyKind::Ecdsa, KeyKind::Rsa];

    fn name(self) -> &'static str {
        match self {
            KeyKind::Ed25519 => "ed25519",
            KeyKind::Ecdsa => "ecdsa",
            KeyKind::Ecdsa384 => "ecdsa384",
            KeyKind::Ecdsa521 => "ecdsa521",
            KeyKind::Rsa => "rsa",
        }
    }

    /// Type and size as ssh-keygen takes them.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            KeyKind::Ed25519 => &["-t", "ed25519"],
            KeyKind::Ecdsa => &["-t", "ecdsa"],
            KeyKind::Ecdsa384 => &["-t", "ecdsa", "-b", "384"],
            KeyKind::Ecdsa521 => &["-t", "ecdsa", "-b", "521"],
            KeyKind::Rsa => &["-t", "rsa"],
        }
    }
}

/// Address and keys of a host.
#[derive(Clone)]
pub struct Options {
    /// Any address of 127.0.0.0/8.
    pub address: IpAddr,
    pub keys: Vec<KeyKind>,
    /// Further lines of sshd_config.
    pub settings: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options { address: Ipv4Addr::LOCALHOST.into(), keys: KeyKind::ALL.to_vec(), settings: Vec::new() }
    }
}

impl Options {
    /// The host 127.0.0.`last`, for tests that need several.
    pub fn at(last: u8) -> Self {
        Options { address: Ipv4Addr::new(127, 0, 0, last).into(), ..Options::default() }
    }
}

/// A running sshd that accepts no logins. Dropping it kills it.
pub struct Host {
    options: Options,
    running: Option<ChildProcess>,
    port: Port,
    home: TempDir,
}

impl Host {
    pub async fn start(options: Options) -> Host {
        let port = ports::reserve_at(options.address);
        Host::start_on(options, port).await
    }

    /// Starts on a port that was reserved before.
    pub async fn start_on(options: Options, port: Port) -> Host {
        let home = tempfile::Builder::new().prefix("nodepool-test-sshd-").tempdir();
        let home = home.expect("the temporary directory is writable");
        let mut host = Host { options, running: None, port, home };
        host.make_keys();
        host.start_again().await;
        host
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.options.address, self.port.number)
    }

    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// The public keys as `kind base64`, the form in which Nodepool stores them, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.options.keys.iter().map(|kind| public_key(&self.key_file(*kind))).collect();
        keys.sort();
        keys
    }

    /// Kills sshd: connections are refused from now on.
    pub fn stop(&mut self) {
        self.running.take().expect("only a running sshd can be stopped").kill();
    }

    /// Starts sshd on the same address and port after `stop`.
    pub async fn start_again(&mut self) {
        assert!(self.running.is_none(), "sshd runs already");
        let configuration = self.home.path().join("sshd_config");
        std::fs::write(&configuration, self.configuration()).expect("a new directory is writable");
        let mut command = Command::new(super::setting("NODEPOOL_TEST_SSHD"));
        command.args(["-D", "-e", "-f"]).arg(&configuration);
        let log = self.home.path().join("log");
        let mut running = ChildProcess::start("sshd", &mut command, Output::Logged, &log, self.home.path());
        let address = self.address();
        wait::until("sshd to send its banner", START_TIMEOUT, async || {
            if let Some(status) = running.ended() {
                panic!("sshd ended with {status}\n{}", running.log_tail());
            }
            sends_banner(address).await
        })
        .await;
        self.running = Some(running);
    }

    /// Restarts with new host keys on the same address, like a reinstalled machine.
    pub async fn change_keys(&mut self) {
        self.stop();
        self.make_keys();
        self.start_again().await;
    }

    fn make_keys(&self) {
        for kind in &self.options.keys {
            let file = self.key_file(*kind);
            // ssh-keygen would prompt before it overwrites a file.
            let _ = std::fs::remove_file(&file);
            let made = Command::new("ssh-keygen")
                .args(kind.arguments())
                .args(["-q", "-N", "", "-C", "", "-f"])
                .arg(&file)
                .stdin(Stdio::null())
                .status();
            assert!(made.is_ok_and(|status| status.success()), "ssh-keygen cannot create {}", file.display());
        }
    }

    fn key_file(&self, kind: KeyKind) -> PathBuf {
        self.home.path().join(format!("key_{}", kind.name()))
    }

    fn configuration(&self) -> String {
        let mut lines = vec![
            format!("ListenAddress {}", self.address()),
            "PidFile none".to_owned(),
            "UsePAM no".to_owned(),
            "PasswordAuthentication no".to_owned(),
            // The tests run many scans at once.
            "MaxStartups 1000".to_owned(),
        ];
        lines.extend(self.options.keys.iter().map(|kind| format!("HostKey {}", self.key_file(*kind).display())));
        lines.extend_from_slice(&self.options.settings);
        lines.join("\n") + "\n"
    }
}

/// A host that accepts connections and sends nothing.
pub struct SilentHost {
    pub address: SocketAddr,
    task: JoinHandle<()>,
    _port: Port,
}

/// Listens on a port of this address and keeps connections open until the value is dropped.
pub async fn start_silent_host(address: IpAddr) -> SilentHost {
    let port = ports::reserve_at(address);
    let address = SocketAddr::new(address, port.number);
    let listener = TcpListener::bind(address).await.expect("a reserved port is free");
    let task = tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.push(stream);
        }
    });
    SilentHost { address, task, _port: port }
}

impl Drop for SilentHost {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn public_key(private: &Path) -> String {
    let text = std::fs::read_to_string(private.with_extension("pub")).expect("ssh-keygen wrote the public key");
    text.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

async fn sends_banner(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address).await else { return false };
    let mut banner = [0; 4];
    stream.read_exact(&mut banner).await.is_ok() && &banner == b"SSH-"
}
