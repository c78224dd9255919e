//! The example `simulated-kubernetes` as a process, with access to its knobs and counters.

use std::path::PathBuf;

use super::simulation_process::SimulationProcess;
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_drivers::{OpenDriver, kubernetes};
use nodepool_model::config::ProviderConfig;
use python_yaml::diagnostics::Diagnostic;
use serde_json::Value;

/// A running cluster. Dropping it kills it and, if the test fails, prints its log.
pub struct SimulatedKubernetes(SimulationProcess);

impl SimulatedKubernetes {
    /// Starts a cluster with these flags, for example `&["--tls", "--pod-start-s", "0.1"]`, and waits until it listens.
    pub async fn start(flags: &[&str]) -> SimulatedKubernetes {
        let start = SimulationProcess::start("simulated-kubernetes", |home| {
            let kubeconfig = ["--kubeconfig".to_owned(), home.join("kubeconfig").display().to_string()];
            kubeconfig.into_iter().chain(flags.iter().map(|flag| (*flag).to_owned())).collect()
        });
        SimulatedKubernetes(start.await)
    }

    /// `http://127.0.0.1:PORT`, or `https://…` with `--tls`.
    pub fn base(&self) -> &str {
        self.0.base()
    }

    /// A kubeconfig with the contexts `admin` and `nodepool`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.0.home().join("kubeconfig")
    }

    /// URL that returns an ExecCredential with a new token of `admin` or `nodepool`, for an exec plugin.
    pub fn credential_url(&self, user: &str) -> String {
        format!("{}/sim/credential?user={user}", self.0.control())
    }

    /// Sets knobs, for example `json!({"pod_start_s": 5})`; the others are unchanged.
    pub async fn knobs(&self, knobs: Value) {
        self.0.knobs(knobs).await;
    }

    /// Objects and counters of the cluster.
    pub async fn state(&self) -> Value {
        self.0.get("state").await
    }

    /// History of the cluster: when each namespace and pod was created, running and deleted, and the mutating calls.
    pub async fn history(&self) -> Value {
        self.0.get("history").await
    }

    /// Resets objects, counters and knobs to those of the start.
    pub async fn reset(&self) {
        self.0.post("reset").await;
    }

    /// Revokes the tokens of the users `admin` and `nodepool`.
    pub async fn revoke_tokens(&self) {
        self.0.post("revoke-tokens").await;
    }

    /// Writes new tokens into the kubeconfig.
    pub async fn renew_kubeconfig(&self) {
        self.0.post("kubeconfig").await;
    }

    pub fn pid(&self) -> u32 {
        self.0.pid()
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
