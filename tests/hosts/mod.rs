//! Hosts for tests: a real sshd on a loopback address, and listeners that misbehave.
#![allow(dead_code)] // each test binary uses its part

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::time::Instant;

/// A running sshd with keys of its own. It is killed when this is dropped.
pub struct Sshd {
    child: Child,
    directory: tempfile::TempDir,
    pub address: SocketAddr,
    types: Vec<String>,
}

/// False, loudly, where there is no sshd; a failure where the real parts are required.
pub fn sshd_is_here() -> bool {
    let found = std::path::Path::new("/usr/sbin/sshd").exists();
    if !found {
        assert!(std::env::var_os("NODEPOOL_REQUIRE_REAL").is_none(), "sshd is missing: apt-get install openssh-server");
        eprintln!("SKIPPED: sshd is missing (apt-get install openssh-server)");
    }
    found
}

/// An address on which nothing listens.
pub fn free_address(ip: &str) -> SocketAddr {
    TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap()
}

impl Sshd {
    /// `types` as ssh-keygen names them, `ecdsa-384` for another curve.
    pub fn start(ip: &str, types: &[&str]) -> Self {
        Self::start_at(free_address(ip), types)
    }

    pub fn start_at(address: SocketAddr, types: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = format!(
            "ListenAddress {address}\nPidFile none\nUsePAM no\nStrictModes no\nMaxStartups 200\nLogLevel QUIET\n"
        );
        for kind in types {
            let file = directory.path().join(kind);
            let (kind, bits) = kind.split_once('-').unwrap_or((kind, if *kind == "rsa" { "2048" } else { "256" }));
            let status = Command::new("ssh-keygen")
                .args(["-q", "-N", "", "-C", "a comment", "-t", kind, "-b", bits, "-f"])
                .arg(&file)
                .status();
            assert!(status.unwrap().success());
            config.push_str(&format!("HostKey {}\n", file.display()));
        }
        let file = directory.path().join("sshd_config");
        std::fs::write(&file, config).unwrap();
        std::fs::create_dir_all("/run/sshd").unwrap();
        let child = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(&file)
            .stderr(Stdio::null())
            .spawn()
            .expect("sshd starts");
        let host = Self { child, directory, address, types: types.iter().map(|kind| kind.to_string()).collect() };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
            assert!(Instant::now() < deadline, "sshd does not listen on {address}");
            std::thread::yield_now();
        }
        host
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The public keys as a scan shall show them.
    pub fn keys(&self) -> Vec<String> {
        let lines = self.types.iter().map(|kind| {
            let text = std::fs::read_to_string(self.directory.path().join(format!("{kind}.pub"))).unwrap();
            text.split(' ').take(2).collect::<Vec<_>>().join(" ")
        });
        lines.collect()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a listener does with whoever connects.
#[derive(Clone, Copy)]
pub enum Manners {
    /// Accepts, says nothing, and reports when the other side has gone.
    Silent,
    /// Says that it speaks SSH, and no more.
    BannerOnly,
    /// Closes at once.
    HangsUp,
    /// Sends lines that are not SSH for as long as anybody listens.
    Chatters,
    /// Sends bytes without any structure, as a packet after a good banner.
    Garbage,
}

/// Listens on loopback until the test process ends. Each connection that the peer has closed is told to `gone`.
pub fn listen(manners: Manners, gone: std::sync::mpsc::Sender<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let gone = gone.clone();
            std::thread::spawn(move || {
                serve(stream, manners);
                let _ = gone.send(());
            });
        }
    });
    address
}

fn serve(mut stream: TcpStream, manners: Manners) {
    let bytes: &[u8] = match manners {
        Manners::HangsUp => return,
        Manners::Silent => b"",
        Manners::BannerOnly => b"SSH-2.0-OpenSSH_9.2\r\n",
        Manners::Garbage => b"SSH-2.0-OpenSSH_9.2\r\n\xff\xff\xff\xff\xff\xff\xff\xffgarbage and more garbage\0\0\0",
        Manners::Chatters => {
            while stream.write_all(b"220 welcome to the mail service\r\n").is_ok() {}
            return;
        }
    };
    let _ = stream.write_all(bytes);
    let mut buffer = [0; 4096];
    while matches!(stream.read(&mut buffer), Ok(read) if read > 0) {}
}
