//! A simulated cloud as a process: an example that prints the URLs of its API and of its control port.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::real::child_process::{ChildProcess, Output};
use crate::{programs, wait};
use serde_json::Value;
use tempfile::TempDir;

/// Timeout of the start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running simulation. Dropping it kills it and, if the test fails, prints its log.
pub struct SimulationProcess {
    running: ChildProcess,
    home: TempDir,
    base: String,
    /// URL of the port for `/sim`, which has no TLS and listens even while the API refuses connections.
    control: String,
    http: reqwest::Client,
}

impl SimulationProcess {
    /// Starts an example with the flags that `flags` returns for a folder of its own, and waits until it listens.
    pub async fn start(example: &str, flags: impl FnOnce(&Path) -> Vec<String>) -> Self {
        // No idle connections: the simulation may close one at the moment of its reuse.
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a plain client can be built");
        let home = tempfile::Builder::new().prefix("nodepool-test-cloud-").tempdir();
        let home = home.expect("the temporary directory is writable");
        let mut command = Command::new(programs::example(example));
        command.args(flags(home.path()));
        let log = home.path().join("log");
        let mut running = ChildProcess::start(example, &mut command, Output::Logged, &log, home.path());
        let (control, base) = wait::until_some("the simulation to listen", START_TIMEOUT, async || {
            let log = running.log();
            assert!(running.ended().is_none(), "the simulation ended: {log}");
            let address = |prefix| log.lines().find_map(|line| line.strip_prefix(prefix).map(str::to_owned));
            address("control on ").zip(address("listening on ")).filter(|_| log.ends_with('\n'))
        })
        .await;
        Self { running, home, base, control, http }
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    pub fn control(&self) -> &str {
        &self.control
    }

    /// Its folder.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Sets knobs; the others are unchanged.
    pub async fn knobs(&self, knobs: Value) {
        let sent = self.http.put(format!("{}/sim/knobs", self.control)).json(&knobs).send().await;
        let answer = sent.expect("the simulation answers");
        let status = answer.status();
        assert!(status.is_success(), "{knobs}: {}", answer.text().await.unwrap_or_default());
    }

    pub async fn get(&self, what: &str) -> Value {
        let sent = self.http.get(format!("{}/sim/{what}", self.control)).send().await;
        sent.expect("the simulation answers").json().await.expect("the simulation replies with JSON")
    }

    pub async fn post(&self, what: &str) {
        let sent = self.http.post(format!("{}/sim/{what}", self.control)).send().await;
        assert!(sent.expect("the simulation answers").status().is_success(), "{what}");
    }
}
