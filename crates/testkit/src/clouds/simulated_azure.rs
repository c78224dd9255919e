//! The example `simulated-azure` as a process, and the driver azure in the test's process.

use std::path::PathBuf;

use super::simulation_process::SimulationProcess;
use crate::clouds::cloud_launcher::InProcessDriver;
use nodepool_drivers::{OpenDriver, azure};
use nodepool_model::config::ProviderConfig;
use serde_json::Value;

pub const LOCATION: &str = "eastus";
pub const GROUP: &str = "nodepool";
pub const NETWORK: &str = "network";

/// A running Azure. Dropping it kills it and, if the test fails, prints its log.
pub struct SimulatedAzure {
    process: SimulationProcess,
    auth: Value,
}

impl SimulatedAzure {
    /// Starts an Azure with these flags, for example `&["--boot-s", "0.1"]`, and waits until it listens.
    pub async fn start(flags: &[&str]) -> Self {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let process = SimulationProcess::start("simulated-azure", |home| {
            let file = home.join("azure.json").display().to_string();
            [flags, vec!["--auth-file".to_owned(), file]].concat()
        });
        let process = process.await;
        let auth = process.get("auth").await;
        Self { process, auth }
    }

    /// `http://127.0.0.1:PORT`
    pub fn base(&self) -> &str {
        self.process.base()
    }

    /// The authentication file of its service principal.
    pub fn auth_file(&self) -> PathBuf {
        self.process.home().join("azure.json")
    }

    /// The content of that file.
    pub fn auth(&self) -> &Value {
        &self.auth
    }

    /// The driver with this Azure, opened by the test itself.
    pub fn open_driver(&self, section: &ProviderConfig) -> azure::Azure {
        azure::open_with(section, self.auth.clone()).expect("the section has no errors")
    }

    /// The driver with this Azure.
    pub fn driver(&self) -> InProcessDriver {
        let auth = self.auth.clone();
        InProcessDriver::new("azure", move |section, start| Ok(start.with(azure::open_with(section, auth.clone())?)))
    }

    /// Sets knobs, for example `json!({"boot_s": 5})`; the others are unchanged.
    pub async fn knobs(&self, knobs: Value) {
        self.process.knobs(knobs).await;
    }

    /// Objects and counters.
    pub async fn state(&self) -> Value {
        self.process.get("state").await
    }

    /// The calls of an action such as `vm.create`, in their order.
    pub async fn calls(&self, action: &str) -> Vec<Value> {
        self.calls_until_now(action).await.1
    }

    /// The current time in milliseconds since the Unix epoch, and the calls of an action.
    pub async fn calls_until_now(&self, action: &str) -> (f64, Vec<Value>) {
        let mut history = self.process.get(&format!("history?action={action}")).await;
        let now = history["now_ms"].as_f64().expect("the history has its time");
        (now, serde_json::from_value(history["calls"].take()).expect("the history has a list of calls"))
    }

    /// All calls but those of tokens and pages.
    pub async fn calls_of_all_kinds(&self) -> Vec<Value> {
        let mut history = self.process.get("history").await;
        let calls: Vec<Value> =
            serde_json::from_value(history["calls"].take()).expect("the history has a list of calls");
        calls
            .into_iter()
            .filter(|call| !["token", "pages.create"].iter().any(|action| call["action"] == *action))
            .collect()
    }

    /// Names of resources of a kind: `vms`, `nics`, `ips`, `disks` or `images`.
    pub async fn names(&self, kind: &str) -> Vec<String> {
        serde_json::from_value(self.state().await["names"][kind].take()).expect("the state has lists of names")
    }

    /// The resources that exist, as `KIND NAME`.
    pub async fn resources(&self) -> Vec<String> {
        let state = self.state().await;
        let kinds = ["vms", "nics", "ips", "disks", "images"].iter();
        let all =
            kinds.flat_map(|kind| state["names"][kind].as_array().into_iter().flatten().map(move |name| (kind, name)));
        all.map(|(kind, name)| format!("{kind} {}", name.as_str().unwrap_or_default())).collect()
    }

    /// Sends a command to the control port, for example `remove-vm?vm=np0000000001`.
    pub async fn control(&self, command: &str) {
        self.process.post(command).await;
    }
}
