//! Apache ZooKeeper from Debian's package, started for one test or one test binary.

use std::{
    collections::BTreeMap,
    fmt::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::{
    child_process::{ChildProcess, Output},
    ports::{self, Port},
    tls,
};
use crate::wait;
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::OnceCell,
};
use zookeeper_client::{Acls, Client, CreateMode, Error};

pub use super::ensemble::Ensemble;

/// Timestamps in the log, to compare it with the test's own messages.
const LOG_TIMES: [&str; 2] =
    ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"];

/// Timeout of the start. A Java program starts slowly on a machine that is busy with other tests.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Parameters of a server.
#[derive(Clone)]
pub struct Options {
    /// The server certificate of `tests/certificates`, for example "server"; none for a server without TLS.
    pub certificate: Option<&'static str>,
    /// ZooKeeper's unit of time; session timeouts are 2 to 20 ticks.
    pub tick: Duration,
    /// Time for which members of an ensemble wait for each other. It is long, because the machine may be busy, and does
    /// not depend on the tick, because short ticks are only meant for short sessions.
    pub sync_timeout: Duration,
    /// Further lines of zoo.cfg.
    pub settings: Vec<String>,
    /// Options of the JVM. The default starts fast and computes slowly; benchmarks set their own.
    pub java: Vec<String>,
    /// Additional environment variables.
    pub environment: Vec<(String, PathBuf)>,
}

impl Default for Options {
    fn default() -> Self {
        let java = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
        Options {
            certificate: None,
            tick: Duration::from_secs(2),
            sync_timeout: Duration::from_secs(20),
            settings: Vec::new(),
            java: java.map(str::to_owned).to_vec(),
            environment: Vec::new(),
        }
    }
}

impl Options {
    /// Sessions of 0.4 to 4 seconds instead of 4 to 40.
    pub fn short_sessions() -> Self {
        Options { tick: Duration::from_millis(200), ..Options::default() }
    }

    /// Clients must use TLS and present a certificate.
    pub fn tls() -> Self {
        Options { certificate: Some("server"), ..Options::default() }
    }
}

/// One server with its own data directory; dropping it kills it and removes the directory.
pub struct Server {
    options: Options,
    running: Option<ChildProcess>,
    plain_port: Port,
    secure_port: Option<Port>,
    home: TempDir,
}

impl Server {
    pub async fn start(options: Options) -> Server {
        let mut server = Server::prepare(options);
        server.launch();
        server.wait_until_serving().await;
        server
    }

    /// A server that has its ports and directory but does not run yet.
    pub(crate) fn prepare(options: Options) -> Server {
        let secure_port = options.certificate.map(|_| ports::reserve());
        let home = tempfile::Builder::new().prefix("nodepool-test-zookeeper-").tempdir();
        let home = home.expect("the temporary directory is writable");
        std::fs::create_dir(home.path().join("data")).expect("a new directory is writable");
        Server { options, running: None, plain_port: ports::reserve(), secure_port, home }
    }

    pub(crate) fn launch(&mut self) {
        assert!(self.running.is_none(), "this ZooKeeper runs already");
        let configuration = self.home.path().join("zoo.cfg");
        std::fs::write(&configuration, self.configuration()).expect("a new directory is writable");
        let mut command = Command::new("java");
        command
            .args(&self.options.java)
            .args(LOG_TIMES)
            .envs(self.options.environment.iter().map(|(name, value)| (name, value)))
            .arg("-cp")
            .arg(super::setting("NODEPOOL_TEST_ZOOKEEPER_CLASSPATH"))
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(&configuration);
        let log = self.home.path().join("log");
        self.running = Some(ChildProcess::start("ZooKeeper", &mut command, Output::Logged, &log, self.home.path()));
    }

    /// Waits until the server answers and, as member of an ensemble, takes part in a quorum.
    pub async fn wait_until_serving(&mut self) {
        let port = self.plain_port.number;
        let secure = self.secure_port.as_ref().map(|port| port.number);
        let running = self.running.as_mut().expect("only a server that was launched can serve");
        wait::until("ZooKeeper to answer", START_TIMEOUT, async || {
            if let Some(status) = running.ended() {
                panic!("ZooKeeper ended with {status}\n{}", running.log_tail());
            }
            let listens = match secure {
                Some(secure) => TcpStream::connect(("127.0.0.1", secure)).await.is_ok(),
                None => true,
            };
            listens && four_letter_word(port, "srvr").await.is_some_and(|answer| answer.contains("Mode: "))
        })
        .await;
    }

    /// `host:port` for clients: the TLS port if the server has one.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.secure_port.as_ref().unwrap_or(&self.plain_port).number)
    }

    /// `host:port` without TLS. A server with TLS has this port as well, so that tests can read and change its tree
    /// easily.
    pub fn plain_address(&self) -> String {
        format!("127.0.0.1:{}", self.plain_port.number)
    }

    /// The address with a new chroot of this server.
    pub async fn chroot(&self, name: &str) -> String {
        let path = self.make_chroot(name).await;
        format!("{}{path}", self.address())
    }

    async fn make_chroot(&self, name: &str) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = format!("/{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let client = Client::connect(&self.plain_address()).await.expect("a running server accepts clients");
        let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create(&path, b"", &open).await.unwrap_or_else(|error: Error| panic!("cannot create {path}: {error}"));
        path
    }

    /// Kills the server (SIGKILL).
    pub fn kill(&mut self) {
        self.running.take().expect("only a running server can be killed").kill();
    }

    /// Stops the server (SIGTERM).
    pub async fn stop(&mut self) {
        self.running.take().expect("only a running server can be stopped").stop(STOP_TIMEOUT).await;
    }

    /// Restarts the server on its ports and data, after `kill` or `stop`, and waits until it serves.
    pub async fn start_again(&mut self) {
        self.launch();
        self.wait_until_serving().await;
    }

    /// Suspends the server: its connections stay open and silent, as on a machine that hangs.
    pub fn freeze(&self) {
        self.running.as_ref().expect("only a running server can be frozen").signal(Signal::SIGSTOP);
    }

    pub fn thaw(&self) {
        self.running.as_ref().expect("only a running server can be frozen").signal(Signal::SIGCONT);
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(ChildProcess::pid)
    }

    /// The role of the server: "standalone", "leader" or "follower"; `None` while it does not serve.
    pub async fn role(&self) -> Option<String> {
        let answer = four_letter_word(self.plain_port.number, "srvr").await?;
        Some(answer.lines().find_map(|line| line.strip_prefix("Mode: "))?.to_owned())
    }

    /// The zxid of the last transaction. The difference of two is the number of writes in between.
    pub async fn zxid(&self) -> u64 {
        let answer = four_letter_word(self.plain_port.number, "srvr").await.expect("a running server answers");
        let zxid = answer.lines().find_map(|line| line.strip_prefix("Zxid: 0x"));
        u64::from_str_radix(zxid.expect("srvr prints the zxid"), 16).expect("a zxid is a hexadecimal number")
    }

    /// The metrics of `mntr`, for example `zk_packets_received`.
    pub async fn metrics(&self) -> BTreeMap<String, String> {
        let answer = four_letter_word(self.plain_port.number, "mntr").await.expect("a running server answers");
        answer.lines().filter_map(|line| line.split_once('\t')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Makes the server a member of an ensemble.
    pub(crate) fn join(&mut self, id: usize, members: &[String]) {
        std::fs::write(self.home.path().join("data/myid"), id.to_string()).expect("a new directory is writable");
        self.options.settings.extend_from_slice(members);
    }

    fn configuration(&self) -> String {
        let mut text = format!(
            "tickTime={}\ndataDir={}\nclientPortAddress=127.0.0.1\nclientPort={}\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\nmaxClientCnxns=0\n",
            self.options.tick.as_millis(),
            self.home.path().join("data").display(),
            self.plain_port.number,
        );
        if let (Some(port), Some(certificate)) = (&self.secure_port, self.options.certificate) {
            let store = tls::file(&format!("{certificate}-store.pem"));
            write!(
                text,
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
                 secureClientPortAddress=127.0.0.1\nsecureClientPort={}\nssl.clientAuth=need\n\
                 ssl.keyStore.location={}\nssl.keyStore.type=PEM\nssl.trustStore.location={}\nssl.trustStore.type=PEM\n",
                port.number,
                store.display(),
                tls::file("ca.pem").display(),
            )
            .expect("a string takes any text");
        }
        for setting in &self.options.settings {
            writeln!(text, "{setting}").expect("a string takes any text");
        }
        text
    }
}

/// A server without TLS. All tests of one binary share it, each in its own chroot:
/// `shared().await.chroot("name").await`.
pub async fn shared() -> &'static Server {
    static SHARED: OnceCell<Server> = OnceCell::const_new();
    SHARED.get_or_init(|| Server::start(Options::default())).await
}

/// Sends one of ZooKeeper's four-letter words; `None` if the server does not answer.
async fn four_letter_word(port: u16, word: &str) -> Option<String> {
    let conversation = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(word.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    };
    tokio::time::timeout(REPLY_TIMEOUT, conversation).await.ok().flatten()
}
