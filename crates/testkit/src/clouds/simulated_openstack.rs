//! The example `simulated-openstack` as a process, with access to its knobs and counters.

use std::{path::PathBuf, process::Command, time::Duration};

use crate::real::child_process::{ChildProcess, Output};
use crate::{programs, wait};
use serde_json::Value;
use tempfile::TempDir;

/// Timeout of the start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const LISTENING: &str = "listening on ";

/// A running cloud. Dropping it kills it and, if the test fails, prints its log.
pub struct SimulatedOpenStack {
    running: ChildProcess,
    home: TempDir,
    base: String,
    /// URL of the port for `/sim`, which listens even while the services refuse connections.
    control: String,
    http: reqwest::Client,
}

impl SimulatedOpenStack {
    /// Starts a cloud with these flags, for example `&["--boot-time-s", "0.1"]`, and waits until it listens.
    pub async fn start(flags: &[&str]) -> SimulatedOpenStack {
        Self::start_for(flags, reqwest::Client::builder()).await
    }

    /// `start` for a cloud that serves TLS with a certificate of this authority (PEM).
    pub async fn start_with_authority(flags: &[&str], authority: &str) -> SimulatedOpenStack {
        let authority = reqwest::Certificate::from_pem(authority.as_bytes()).expect("an authority is PEM");
        Self::start_for(flags, reqwest::Client::builder().add_root_certificate(authority)).await
    }

    async fn start_for(flags: &[&str], http: reqwest::ClientBuilder) -> SimulatedOpenStack {
        // No idle connections: the cloud may close one at the moment of its reuse.
        let http = http.pool_max_idle_per_host(0).build().expect("a client with an authority can be built");
        let home = tempfile::Builder::new().prefix("nodepool-test-cloud-").tempdir();
        let home = home.expect("the temporary directory is writable");
        let mut command = Command::new(programs::example("simulated-openstack"));
        command.arg("--clouds-yaml").arg(home.path().join("clouds.yaml")).args(flags);
        let log = home.path().join("log");
        let mut running = ChildProcess::start("simulated-openstack", &mut command, Output::Logged, &log, home.path());
        let base = wait::until_some("the simulated cloud to listen", START_TIMEOUT, async || {
            let log = running.log();
            assert!(running.ended().is_none(), "the simulated cloud ended: {log}");
            let line = log.lines().find_map(|line| line.strip_prefix(LISTENING).map(str::to_owned));
            line.filter(|_| log.ends_with('\n'))
        })
        .await;
        let mut cloud = SimulatedOpenStack { running, home, control: base.clone(), base, http };
        cloud.control = cloud.state().await["control"].as_str().expect("the URL is text").to_owned();
        cloud
    }

    /// `http://127.0.0.1:PORT`; the services are below it: `/identity/v3`, `/compute/v2.1` and so on.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// A clouds.yaml with the clouds `simulated` and `simulated-appcred`.
    pub fn clouds_yaml(&self) -> PathBuf {
        self.home.path().join("clouds.yaml")
    }

    /// Sets knobs, for example `json!({"boot_time_s": 5})`; the others are unchanged.
    pub async fn knobs(&self, knobs: Value) {
        let sent = self.http.put(format!("{}/sim/knobs", self.control)).json(&knobs).send().await;
        let answer = sent.expect("the simulated cloud answers");
        let status = answer.status();
        assert!(status.is_success(), "{knobs}: {}", answer.text().await.unwrap_or_default());
    }

    /// Objects and counters of the cloud.
    pub async fn state(&self) -> Value {
        self.get("state").await
    }

    /// History of the cloud: when each server and image was created and deleted, and the mutating calls.
    pub async fn history(&self) -> Value {
        self.get("history").await
    }

    async fn get(&self, what: &str) -> Value {
        let sent = self.http.get(format!("{}/sim/{what}", self.control)).send().await;
        sent.expect("the simulated cloud answers").json().await.expect("the simulated cloud replies with JSON")
    }

    /// Resets objects, counters and knobs to those of the start.
    pub async fn reset(&self) {
        self.post("reset").await;
    }

    /// Revokes all tokens.
    pub async fn revoke_tokens(&self) {
        self.post("revoke-tokens").await;
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    async fn post(&self, what: &str) {
        let sent = self.http.post(format!("{}/sim/{what}", self.control)).send().await;
        assert!(sent.expect("the simulated cloud answers").status().is_success(), "{what}");
    }
}
