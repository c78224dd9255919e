//! Microsoft's own emulator of Azure's blobs, if `tests/run` could install it.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::real::child_process::{ChildProcess, Output};
use crate::real::ports;
use crate::wait;

/// Timeout of the start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running azurite. Dropping it kills it and, if the test fails, prints its log.
pub struct Azurite {
    _running: ChildProcess,
    _home: TempDir,
    base: String,
}

impl Azurite {
    /// The program, if it is installed.
    pub fn program() -> Option<PathBuf> {
        std::env::var_os("NODEPOOL_TEST_AZURITE").map(PathBuf::from)
    }

    pub async fn start(program: PathBuf) -> Self {
        let home = tempfile::Builder::new().prefix("nodepool-test-azurite-").tempdir();
        let home = home.expect("the temporary directory is writable");
        let port = ports::reserve();
        let mut command = Command::new(program);
        command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.number.to_string(), "--location"]);
        // Microsoft's client is newer than the emulator.
        command.arg(home.path()).args(["--silent", "--skipApiVersionCheck", "--disableTelemetry"]);
        let log = home.path().join("log");
        let running = ChildProcess::start("azurite", &mut command, Output::Logged, &log, home.path());
        wait::until("azurite to listen", START_TIMEOUT, async || {
            TcpStream::connect(("127.0.0.1", port.number)).await.is_ok()
        })
        .await;
        Self { _running: running, _home: home, base: format!("http://127.0.0.1:{}", port.number) }
    }

    /// `http://127.0.0.1:PORT`
    pub fn base(&self) -> &str {
        &self.base
    }
}
