//! The example `simulated-ibm` as a process, and the driver ibmvpc in the test's process.

use std::path::PathBuf;

use super::simulation_process::SimulationProcess;
use crate::clouds::cloud_launcher::InProcessDriver;
use nodepool_drivers::{OpenDriver, ibmvpc};
use nodepool_model::config::ProviderConfig;
use serde_json::Value;

pub const REGION: &str = "us-south";
pub const ZONES: [&str; 3] = ["us-south-1", "us-south-2", "us-south-3"];

/// A running IBM VPC. Dropping it kills it and, if the test fails, prints its log.
pub struct SimulatedIbm(SimulationProcess);

impl SimulatedIbm {
    /// Starts an IBM VPC that needs no tokens with these flags, for example `&["--boot-s", "0.1"]`, and waits until it
    /// listens.
    pub async fn start(flags: &[&str]) -> Self {
        let cloud = Self::launch(&[&["--anonymous"], flags].concat()).await;
        let base = cloud.base();
        cloud.write_credentials(&format!("VPC_AUTH_TYPE=noauth\nVPC_URL={base}/v1\n"));
        cloud
    }

    /// `start` with an IBM VPC that needs tokens.
    pub async fn start_with_tokens(flags: &[&str]) -> Self {
        let cloud = Self::launch(flags).await;
        let base = cloud.base();
        let credentials = "VPC_AUTH_TYPE=iam\nVPC_APIKEY=simulated-api-key\n";
        cloud.write_credentials(&format!("{credentials}VPC_AUTH_URL={base}\nVPC_URL={base}/v1\n"));
        cloud
    }

    async fn launch(flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self(SimulationProcess::start("simulated-ibm", |_| flags).await)
    }

    fn write_credentials(&self, text: &str) {
        let text = format!("{text}RESOURCE_MANAGER_URL={}\n", self.base());
        std::fs::write(self.credentials_file(), text).expect("the folder is writable");
    }

    /// `http://127.0.0.1:PORT`
    pub fn base(&self) -> &str {
        self.0.base()
    }

    /// Credentials in the form of `ibm-credentials.env`.
    pub fn credentials_file(&self) -> PathBuf {
        self.0.home().join("ibm.env")
    }

    /// Variables with which a program uses it.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("IBM_CREDENTIALS_FILE", self.credentials_file())]
    }

    /// The driver with this IBM VPC, opened by the test itself.
    pub fn open_driver(&self, section: &ProviderConfig) -> ibmvpc::IbmVpc {
        ibmvpc::open_with(section, &self.credentials_file()).expect("the section has no errors")
    }

    /// The driver with this IBM VPC.
    pub fn driver(&self) -> InProcessDriver {
        let file = self.credentials_file();
        InProcessDriver::new("ibmvpc", move |section, start| Ok(start.with(ibmvpc::open_with(section, &file)?)))
    }

    /// Sets knobs, for example `json!({"boot_s": 5})`; the others are unchanged.
    pub async fn knobs(&self, knobs: Value) {
        self.0.knobs(knobs).await;
    }

    /// Objects and counters.
    pub async fn state(&self) -> Value {
        self.0.get("state").await
    }

    /// The number of resources in any state: `instances` or `floating_ips`.
    pub async fn count(&self, kind: &str) -> u64 {
        let state = self.state().await;
        let by_status = state[kind].as_object().unwrap_or_else(|| panic!("{state}"));
        by_status.values().filter_map(Value::as_u64).sum()
    }

    /// The calls of an action such as `create_instance`, in their order.
    pub async fn calls(&self, action: &str) -> Vec<Value> {
        self.calls_until_now(action).await.1
    }

    /// The current time in milliseconds since the Unix epoch, and the calls of an action.
    pub async fn calls_until_now(&self, action: &str) -> (f64, Vec<Value>) {
        let mut history = self.0.get(&format!("history?action={action}")).await;
        let now = history["now_ms"].as_f64().expect("the history has its time");
        (now, serde_json::from_value(history["calls"].take()).expect("the history has a list of calls"))
    }

    /// Sends a command to the control port, for example `remove?name=np0000000001`.
    pub async fn control(&self, command: &str) {
        self.0.post(command).await;
    }
}
