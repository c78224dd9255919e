//! Apache ZooKeeper as Debian ships it, on loopback: one server or three, plain and TLS, to be killed at will.
#![allow(dead_code)] // each test binary uses its own part

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nodepool::zk::session::{ConnectOptions, Server};

const JAR: &str = "/usr/share/java/zookeeper.jar";

/// Whether the real parts are here. Without them a test says so and ends, unless the run insists on them.
pub fn available() -> bool {
    let there = Path::new(JAR).exists() && Path::new("/usr/bin/java").exists();
    if !there {
        assert!(std::env::var_os("NODEPOOL_REQUIRE_REAL").is_none(), "needs Debian's package zookeeper");
        eprintln!("SKIPPED: needs Debian's package zookeeper");
    }
    there
}

/// What a server is told beside the address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Plain,
    /// Also listens with TLS and demands a client certificate.
    Tls,
}

pub struct Ensemble {
    directory: tempfile::TempDir,
    members: Vec<Member>,
}

struct Member {
    port: u16,
    tls_port: Option<u16>,
    config: PathBuf,
    child: Option<Child>,
}

impl Ensemble {
    pub async fn single() -> Self {
        Self::start(1, Transport::Plain).await
    }

    pub async fn three() -> Self {
        Self::start(3, Transport::Plain).await
    }

    /// Stores for TLS are expected in the directory given: `server.p12` and `ca.p12`, both with password `secret`.
    pub async fn with_tls(stores: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["server.p12", "ca.p12"] {
            std::fs::copy(stores.join(name), directory.path().join(name)).unwrap();
        }
        Self::start_in(directory, 1, Transport::Tls).await
    }

    async fn start(size: usize, transport: Transport) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), size, transport).await
    }

    async fn start_in(directory: tempfile::TempDir, size: usize, transport: Transport) -> Self {
        let ports: Vec<[u16; 4]> = (0..size).map(|_| std::array::from_fn(|_| free_port())).collect();
        let mut members = Vec::new();
        for (index, [port, tls_port, ..]) in ports.iter().copied().enumerate() {
            let data = directory.path().join(format!("data{index}"));
            std::fs::create_dir(&data).unwrap();
            std::fs::write(data.join("myid"), (index + 1).to_string()).unwrap();
            let mut text = format!(
                "tickTime=200\ninitLimit=20\nsyncLimit=10\nminSessionTimeout=400\nmaxSessionTimeout=60000\n\
                 admin.enableServer=false\nforceSync=no\nmaxClientCnxns=0\n4lw.commands.whitelist=*\ndataDir={}\n\
                 clientPort={port}\nclientPortAddress=127.0.0.1\n",
                data.display()
            );
            if size > 1 {
                for (other, [_, _, peer, election]) in ports.iter().enumerate() {
                    text += &format!("server.{}=127.0.0.1:{peer}:{election}\n", other + 1);
                }
            }
            if transport == Transport::Tls {
                let path = directory.path().display();
                text += &format!(
                    "secureClientPort={tls_port}\nsecureClientPortAddress=127.0.0.1\n\
                     serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\nssl.clientAuth=need\n\
                     ssl.keyStore.location={path}/server.p12\nssl.keyStore.password=secret\nssl.keyStore.type=PKCS12\n\
                     ssl.trustStore.location={path}/ca.p12\nssl.trustStore.password=secret\nssl.trustStore.type=PKCS12\n\
                     ssl.hostnameVerification=false\n"
                );
            }
            let config = directory.path().join(format!("zoo{index}.cfg"));
            std::fs::write(&config, text).unwrap();
            let tls_port = (transport == Transport::Tls).then_some(tls_port);
            members.push(Member { port, tls_port, config, child: None });
        }
        let mut ensemble = Self { directory, members };
        for index in 0..size {
            ensemble.launch(index);
        }
        for index in 0..size {
            ensemble.serving(index).await;
        }
        ensemble
    }

    pub fn options(&self) -> ConnectOptions {
        let servers =
            self.members.iter().map(|member| Server { host: "127.0.0.1".into(), port: member.port }).collect();
        ConnectOptions { servers, session_timeout: Duration::from_secs(4), ..ConnectOptions::plain("unused", 1) }
    }

    pub fn port(&self) -> u16 {
        self.members[0].port
    }

    pub fn tls_port(&self) -> u16 {
        self.members[0].tls_port.expect("started with TLS")
    }

    pub fn size(&self) -> usize {
        self.members.len()
    }

    pub fn launch(&mut self, index: usize) {
        let log = std::fs::File::create(self.directory.path().join(format!("log{index}"))).unwrap();
        let member = &mut self.members[index];
        let child = Command::new("/usr/bin/java")
            .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", JAR])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(&member.config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        member.child = Some(child);
    }

    /// kill -9, as a crash or a power cut.
    pub fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.members[index].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// SIGSTOP: connections stay open and nobody answers, as when a network swallows packets.
    pub fn freeze(&self, index: usize) {
        self.signal(index, nix::sys::signal::Signal::SIGSTOP);
    }

    pub fn thaw(&self, index: usize) {
        self.signal(index, nix::sys::signal::Signal::SIGCONT);
    }

    fn signal(&self, index: usize, signal: nix::sys::signal::Signal) {
        let child = self.members[index].child.as_ref().expect("running");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), signal).unwrap();
    }

    /// The answer to a four-letter word, if any comes.
    pub async fn ask(&self, index: usize, word: &str) -> Option<String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let talk = async {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.members[index].port)).await.ok()?;
            stream.write_all(word.as_bytes()).await.ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await.ok()?;
            Some(text)
        };
        tokio::time::timeout(Duration::from_secs(1), talk).await.ok().flatten()
    }

    pub async fn serving(&self, index: usize) {
        eventually("the server serves", || async { self.mode(index).await.is_some() }).await;
    }

    /// `leader`, `follower` or `standalone`.
    pub async fn mode(&self, index: usize) -> Option<String> {
        let text = self.ask(index, "srvr").await?;
        text.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }

    pub async fn leader(&self) -> usize {
        for index in 0..self.size() {
            if self.mode(index).await.as_deref() == Some("leader") {
                return index;
            }
        }
        panic!("no leader")
    }

    /// The member that serves a session.
    pub async fn home_of(&self, session_id: i64) -> Option<usize> {
        let wanted = format!("sid=0x{session_id:x}");
        for index in 0..self.size() {
            if self.ask(index, "cons").await.is_some_and(|text| text.contains(&wanted)) {
                return Some(index);
            }
        }
        None
    }
}

impl Drop for Ensemble {
    fn drop(&mut self) {
        for index in 0..self.members.len() {
            self.kill(index);
        }
    }
}

/// Waits until a condition holds; names it when it does not come.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let holds = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(40), holds).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}
