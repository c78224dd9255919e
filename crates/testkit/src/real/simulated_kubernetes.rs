//! The example `simulated-kubernetes` as a process, with access to its knobs and counters.

use std::{path::PathBuf, process::Command, time::Duration};

use super::child_process::{ChildProcess, Output};
use crate::{programs, wait};
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_drivers::{OpenDriver, kubernetes};
use nodepool_model::config::ProviderConfig;
use python_yaml::diagnostics::Diagnostic;
use serde_json::Value;
use tempfile::TempDir;

/// Timeout of the start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running cluster. Dropping it kills it and, if the test fails, prints its log.
pub struct SimulatedKubernetes {
    running: ChildProcess,
    home: TempDir,
    base: String,
    /// URL of the port for `/sim`, which has no TLS and listens even while the API refuses connections.
    control: String,
    http: reqwest::Client,
}

impl SimulatedKubernetes {
    /// Starts a cluster with these flags, for example `&["--tls", "--pod-start-s", "0.1"]`, and waits until it listens.
    pub async fn start(flags: &[&str]) -> SimulatedKubernetes {
        // No idle connections: the cluster may close one at the moment of its reuse.
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a plain client can be built");
        let home = tempfile::Builder::new().prefix("nodepool-test-cluster-").tempdir();
        let home = home.expect("the temporary directory is writable");
        let mut command = Command::new(programs::example("simulated-kubernetes"));
        command.arg("--kubeconfig").arg(home.path().join("kubeconfig")).args(flags);
        let log = home.path().join("log");
        let mut running = ChildProcess::start("simulated-kubernetes", &mut command, Output::Logged, &log, home.path());
        let (control, base) = wait::until_some("the simulated cluster to listen", START_TIMEOUT, async || {
            let log = running.log();
            assert!(running.ended().is_none(), "the simulated cluster ended: {log}");
            let address = |prefix| log.lines().find_map(|line| line.strip_prefix(prefix).map(str::to_owned));
            address("control on ").zip(address("listening on ")).filter(|_| log.ends_with('\n'))
        })
        .await;
        SimulatedKubernetes { running, home, base, control, http }
    }

    /// `http://127.0.0.1:PORT`, or `https://…` with `--tls`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// A kubeconfig with the contexts `admin` and `nodepool`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.home.path().join("kubeconfig")
    }

    /// URL that returns an ExecCredential with a new token of `admin` or `nodepool`, for an exec plugin.
    pub fn credential_url(&self, user: &str) -> String {
        format!("{}/sim/credential?user={user}", self.control)
    }

    /// Sets knobs, for example `json!({"pod_start_s": 5})`; the others are unchanged.
    pub async fn knobs(&self, knobs: Value) {
        let sent = self.http.put(format!("{}/sim/knobs", self.control)).json(&knobs).send().await;
        let answer = sent.expect("the simulated cluster answers");
        let status = answer.status();
        assert!(status.is_success(), "{knobs}: {}", answer.text().await.unwrap_or_default());
    }

    /// Objects and counters of the cluster.
    pub async fn state(&self) -> Value {
        self.get("state").await
    }

    /// History of the cluster: when each namespace and pod was created, running and deleted, and the mutating calls.
    pub async fn history(&self) -> Value {
        self.get("history").await
    }

    async fn get(&self, what: &str) -> Value {
        let sent = self.http.get(format!("{}/sim/{what}", self.control)).send().await;
        sent.expect("the simulated cluster answers").json().await.expect("the simulated cluster replies with JSON")
    }

    /// Resets objects, counters and knobs to those of the start.
    pub async fn reset(&self) {
        self.post("reset").await;
    }

    /// Revokes the tokens of the users `admin` and `nodepool`.
    pub async fn revoke_tokens(&self) {
        self.post("revoke-tokens").await;
    }

    /// Writes new tokens into the kubeconfig.
    pub async fn renew_kubeconfig(&self) {
        self.post("kubeconfig").await;
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    async fn post(&self, what: &str) {
        let sent = self.http.post(format!("{}/sim/{what}", self.control)).send().await;
        assert!(sent.expect("the simulated cluster answers").status().is_success(), "{what}");
    }
}

/// The drivers kubernetes, openshift and openshiftpods in the test's process, with kubeconfig files of its own instead
/// of those that the environment names.
pub struct InProcessKubernetes(pub Vec<PathBuf>);

impl ExtraDrivers for InProcessKubernetes {
    fn names(&self) -> Vec<&'static str> {
        vec!["kubernetes", "openshift", "openshiftpods"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        Ok(start.with(kubernetes::open_with(section, self.0.clone())?))
    }
}
