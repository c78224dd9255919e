//! The example `simulated-gce` as a process, and the driver gce in the test's process.

use std::path::PathBuf;

use super::simulation_process::SimulationProcess;
use crate::clouds::cloud_launcher::InProcessDriver;
use nodepool_driver::simple_adapter::Simple;
use nodepool_drivers::{OpenDriver, gce};
use nodepool_model::config::ProviderConfig;
use serde_json::Value;

pub const PROJECT: &str = "simulated";
pub const REGION: &str = "us-central1";
pub const ZONES: [&str; 3] = ["us-central1-a", "us-central1-b", "us-central1-c"];

/// A running Compute Engine. Dropping it kills it and, if the test fails, prints its log.
pub struct SimulatedGce(SimulationProcess);

impl SimulatedGce {
    /// Starts a Compute Engine that needs no tokens with these flags, for example `&["--boot-s", "0.1"]`, and waits
    /// until it listens.
    pub async fn start(flags: &[&str]) -> Self {
        Self::start_with_tokens(&[&["--anonymous"], flags].concat()).await
    }

    /// `start` with a Compute Engine that needs tokens.
    pub async fn start_with_tokens(flags: &[&str]) -> Self {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let process = SimulationProcess::start("simulated-gce", |home| {
            let key = home.join("key.json").display().to_string();
            [flags, vec!["--service-account-key".to_owned(), key]].concat()
        });
        Self(process.await)
    }

    /// `http://127.0.0.1:PORT`
    pub fn base(&self) -> &str {
        self.0.base()
    }

    /// The address of the API.
    pub fn endpoint(&self) -> String {
        endpoint(self.base())
    }

    /// The key of the service account.
    pub fn key_file(&self) -> PathBuf {
        self.0.home().join("key.json")
    }

    /// The content of a file that `gcloud auth application-default login` would store.
    pub async fn authorized_user(&self) -> Value {
        self.0.get("authorized-user").await
    }

    /// Variables with which a program uses it.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", self.endpoint().into()),
            ("GOOGLE_APPLICATION_CREDENTIALS", self.key_file()),
        ]
    }

    /// The driver with this Compute Engine, opened by the test itself.
    pub fn open_driver(&self, section: &ProviderConfig) -> Simple<gce::Gce> {
        gce::open_with(section, &self.endpoint(), None).expect("the section has no errors")
    }

    /// The driver with this Compute Engine.
    pub fn driver(&self) -> InProcessDriver {
        let endpoint = self.endpoint();
        InProcessDriver::new("gce", move |section, start| Ok(start.with(gce::open_with(section, &endpoint, None)?)))
    }

    /// Sets knobs, for example `json!({"boot_s": 5})`; the others are unchanged.
    pub async fn knobs(&self, knobs: Value) {
        self.0.knobs(knobs).await;
    }

    /// Objects and counters.
    pub async fn state(&self) -> Value {
        self.0.get("state").await
    }

    /// The calls of an action such as `instances.insert`, in their order.
    pub async fn calls(&self, action: &str) -> Vec<Value> {
        self.calls_until_now(action).await.1
    }

    /// The current time in milliseconds since the Unix epoch, and the calls of an action.
    pub async fn calls_until_now(&self, action: &str) -> (f64, Vec<Value>) {
        let mut history = self.0.get(&format!("history?action={action}")).await;
        let now = history["now_ms"].as_f64().expect("the history has its time");
        (now, serde_json::from_value(history["calls"].take()).expect("the history has a list of calls"))
    }

    /// Sends a command to the control port, for example `preempt?instance=np0000000001`.
    pub async fn control(&self, command: &str) {
        self.0.post(command).await;
    }
}

fn endpoint(base: &str) -> String {
    format!("{base}/compute/v1/")
}
