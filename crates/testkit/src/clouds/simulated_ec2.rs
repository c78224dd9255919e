//! The example `simulated-ec2` as a process, and the driver aws in the test's process.

use std::path::PathBuf;

use super::simulation_process::SimulationProcess;
use crate::clouds::cloud_launcher::InProcessDriver;
use nodepool_drivers::{OpenDriver, aws};
use nodepool_model::config::ProviderConfig;
use serde_json::Value;

pub const ACCESS_KEY: &str = "simulated";
pub const SECRET_KEY: &str = "simulated-secret";
pub const REGION: &str = "us-west-2";

/// Objects that exist from the start.
pub const IMAGE: &str = "ami-00000000000000001";
pub const SUBNETS: [&str; 2] = ["subnet-0000000000000000a", "subnet-0000000000000000b"];
pub const SECURITY_GROUP: &str = "sg-00000000000000002";
pub const KEY_NAME: &str = "nodepool";

/// A running AWS. Dropping it kills it and, if the test fails, prints its log.
pub struct SimulatedEc2(SimulationProcess);

impl SimulatedEc2 {
    /// Starts an AWS with these flags, for example `&["--boot-s", "0.1"]`, and waits until it listens.
    pub async fn start(flags: &[&str]) -> SimulatedEc2 {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        SimulatedEc2(SimulationProcess::start("simulated-ec2", |_| flags).await)
    }

    /// `http://127.0.0.1:PORT`, the endpoint of all services.
    pub fn base(&self) -> &str {
        self.0.base()
    }

    /// Variables that let any client of AWS use it, and nothing else.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        let variables = [
            ("AWS_ENDPOINT_URL", self.base()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
            ("AWS_REGION", REGION),
            ("AWS_DEFAULT_REGION", REGION),
            ("AWS_EC2_METADATA_DISABLED", "true"),
            ("AWS_CONFIG_FILE", "/dev/null"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
        ];
        variables.map(|(name, value)| (name, PathBuf::from(value))).to_vec()
    }

    /// The driver with this AWS, opened by the test itself.
    pub fn open_driver(&self, section: &ProviderConfig) -> aws::Aws {
        aws::open_with(section, self.base(), ACCESS_KEY, SECRET_KEY).expect("the section has no errors")
    }

    /// The driver with this AWS.
    pub fn driver(&self) -> InProcessDriver {
        in_process_aws(self.base(), ACCESS_KEY, SECRET_KEY)
    }

    /// Sets knobs, for example `json!({"boot_s": 5})`; the others are unchanged.
    pub async fn knobs(&self, knobs: Value) {
        self.0.knobs(knobs).await;
    }

    /// Objects and counters, by region.
    pub async fn state(&self) -> Value {
        self.0.get("state").await
    }

    /// All calls, and when each object was created, running and ended.
    pub async fn history(&self) -> Value {
        self.0.get("history").await
    }

    /// The calls of an action, in their order.
    pub async fn calls(&self, action: &str) -> Vec<Value> {
        let mut history = self.0.get(&format!("history?action={action}")).await;
        serde_json::from_value(history["calls"].take()).expect("the history has a list of calls")
    }

    /// All credentials of roles expire.
    pub async fn expire_sessions(&self) {
        self.0.post("expire-sessions").await;
    }

    /// Ends a spot instance, as AWS does when it needs the capacity.
    pub async fn reclaim(&self, instance: &str) {
        self.0.post(&format!("reclaim?instance={instance}")).await;
    }

    /// Resets objects, counters and knobs to those of the start.
    pub async fn reset(&self) {
        self.0.post("reset").await;
    }

    pub fn pid(&self) -> u32 {
        self.0.pid()
    }
}

/// The driver aws in the test's process, with fixed credentials and one endpoint for all services.
pub fn in_process_aws(base: &str, access_key: &'static str, secret_key: &'static str) -> InProcessDriver {
    let base = base.to_owned();
    InProcessDriver::new("aws", move |section, start| {
        Ok(start.with(aws::open_with(section, &base, access_key, secret_key)?))
    })
}
