//! Daemon processes: the programs as children of a test, with any options and environment, beside a coordinator in the
//! test's own process.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output as Ended};
use std::sync::Arc;
use std::time::Duration;

use crate::real::child_process::{ChildProcess, Output};
use crate::real::ports::{self, Port};
use crate::{embedded_zk, programs, wait};
use nix::sys::signal::Signal;
use nodepool_zk::Connection;
use nodepool_zk::client::{ConnectOptions, RealConnection, connect};
use zookeeper_server::{EmbeddedOptions, EmbeddedServer};

/// Timeout of actions that take no time on an idle machine.
pub const PROCESS_TIMEOUT: Duration = Duration::from_secs(30);

/// A directory with a configuration, and the programs started in it.
pub struct WorkDir {
    home: tempfile::TempDir,
    pub web_port: Port,
}

impl WorkDir {
    /// `rest` follows the web port in the configuration.
    pub fn new(rest: &str) -> Self {
        let home = tempfile::Builder::new().prefix("nodepool-test-").tempdir().unwrap();
        let work_dir = Self { home, web_port: ports::reserve() };
        work_dir.configure(rest);
        work_dir
    }

    pub fn configure(&self, rest: &str) {
        let webapp = format!("webapp: {{port: {}, listen_address: 127.0.0.1}}\n", self.web_port.number);
        self.write("nodepool.yaml", &(webapp + rest));
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    pub fn command(&self, executable: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(executable);
        command.args(arguments).current_dir(self.home()).env("HOME", self.home());
        command.env_remove("STATSD_HOST").env_remove("STATSD_PORT");
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, executable: &str, arguments: &[&str]) -> Ended {
        self.command(executable, arguments).output().unwrap()
    }

    pub fn start(&self, executable: &str, arguments: &[&str]) -> Daemon {
        self.start_command(self.command(executable, arguments))
    }

    pub fn start_command(&self, mut command: Command) -> Daemon {
        let log = self.path("daemon.log");
        Daemon { running: ChildProcess::start("daemon", &mut command, Output::Logged, &log, self.home()) }
    }

    /// Starts the launcher in the foreground with the configuration of this directory.
    pub fn launcher(&self, arguments: &[&str]) -> Daemon {
        self.start(programs::launcher(), &[&["-c", "nodepool.yaml"], arguments].concat())
    }

    /// Status and body of a page; `None` while the port does not answer.
    pub async fn get(&self, path: &str) -> Option<(u16, String)> {
        let response = reqwest::get(format!("http://127.0.0.1:{}{path}", self.web_port.number)).await.ok()?;
        let status = response.status().as_u16();
        Some((status, response.text().await.ok()?))
    }

    pub async fn wait_until_ready(&self) {
        wait::until("the launcher to be ready", PROCESS_TIMEOUT, async || {
            self.get("/ready").await == Some((200, "OK".to_owned()))
        })
        .await;
    }
}

pub struct Daemon {
    running: ChildProcess,
}

impl Daemon {
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    pub fn log(&self) -> String {
        self.running.log()
    }

    pub fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    pub async fn wait_for_log(&self, text: &str) {
        wait::until(&format!("{text:?} in the log"), PROCESS_TIMEOUT, async || self.log().contains(text)).await;
    }

    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        self.running.wait(PROCESS_TIMEOUT).await
    }

    pub fn kill(&mut self) -> ExitStatus {
        self.running.kill()
    }
}

/// The embedded coordinator in the test's process. It keeps its port across restarts.
pub struct Coordinator {
    pub port: u16,
    server: Option<EmbeddedServer>,
}

impl Coordinator {
    pub async fn start(data_dir: &Path) -> Self {
        let server = serve(data_dir, 0).await;
        Self { port: server.address().port(), server: Some(server) }
    }

    pub async fn stop(&mut self) {
        self.server.take().expect("the coordinator runs").stop().await;
    }

    /// Restarts with the data of this directory. With an empty directory, all sessions are unknown.
    pub async fn start_again(&mut self, data_dir: &Path) {
        // The port is not reserved by `ports`, because the coordinator takes the next free port for TLS, which must not
        // be the reservation of another test.
        let server = serve(data_dir, self.port).await;
        assert_eq!(server.address().port(), self.port, "the coordinator did not get its previous port");
        self.server = Some(server);
    }

    pub fn configuration(&self) -> String {
        configuration(self.port)
    }

    /// Arguments of a TLS client: `host:port`, and the files with certificate, key and authority.
    pub fn tls(&self) -> [String; 4] {
        let server = self.server.as_ref().expect("the coordinator runs");
        let files = server.tls_files();
        let [certificate, key, authority] =
            [files.cert, files.key, files.ca].map(|path| path.to_string_lossy().into_owned());
        [server.tls_address().to_string(), certificate, key, authority]
    }

    pub async fn session(&self) -> Arc<RealConnection> {
        connect(ConnectOptions::plain("127.0.0.1", self.port)).await.unwrap()
    }
}

pub fn configuration(port: u16) -> String {
    format!("zookeeper-servers: [{{host: 127.0.0.1, port: {port}}}]\nlabels: []\nproviders: []\n")
}

pub async fn serve(data_dir: &Path, first_port: u16) -> EmbeddedServer {
    EmbeddedServer::start(EmbeddedOptions { first_port, ..embedded_zk::options(data_dir) }).await.unwrap()
}

/// Names of the registered launchers.
pub async fn registered_launchers(session: &RealConnection) -> Vec<String> {
    match session.children("/nodepool/components/launcher").await {
        Ok((names, _)) => names,
        Err(_) => Vec::new(),
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The last line of a program's standard error.
pub fn last_line(output: &Ended) -> String {
    text(&output.stderr).lines().last().unwrap_or_default().to_owned()
}
