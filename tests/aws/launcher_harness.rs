//! A launcher in the test's process on the simulated EC2 and a ZooKeeper in memory.

use std::ops::{Deref, DerefMut};

use nodepool_model::records::ids::NodeId;
use serde_json::Value;
use testkit::clouds::cloud_launcher::CloudLauncher;
use testkit::clouds::simulated_ec2::{REGION, SECRET_KEY, SimulatedEc2, in_process_aws};

use crate::ec2::Ec2;

pub use testkit::clouds::cloud_launcher::TIMEOUT;

/// The client of `Ec2` uses this key, and does not sign.
const ACCESS_KEY: &str = "testing";
const FLAGS: [&str; 8] =
    ["--boot-s", "0.1", "--terminate-s", "0.1", "--access-key", ACCESS_KEY, "--check-signatures", "false"];

pub struct LauncherHarness {
    pub cloud: SimulatedEc2,
    pub ec2: Ec2,
    launcher: CloudLauncher,
}

impl Deref for LauncherHarness {
    type Target = CloudLauncher;

    fn deref(&self) -> &CloudLauncher {
        &self.launcher
    }
}

impl DerefMut for LauncherHarness {
    fn deref_mut(&mut self) -> &mut CloudLauncher {
        &mut self.launcher
    }
}

impl LauncherHarness {
    /// Starts an AWS with these flags besides the usual ones, and a launcher.
    pub async fn start(config: String, flags: &[&str]) -> Self {
        let mut harness = Self::prepare(config, flags).await;
        harness.run().await;
        harness
    }

    /// `start` without running the launcher, for tests that first create what the launcher finds.
    pub async fn prepare(config: String, flags: &[&str]) -> Self {
        let cloud = SimulatedEc2::start(&[&FLAGS, flags].concat()).await;
        let ec2 = Ec2::new(cloud.base());
        let driver = in_process_aws(cloud.base(), ACCESS_KEY, SECRET_KEY);
        Self { cloud, ec2, launcher: CloudLauncher::prepare(config, driver) }
    }

    pub async fn instance(&self, node: &NodeId) -> String {
        let record = self.consumer.raw_node(node).await;
        record["external_id"]["instance"].as_str().expect("external_id names the instance").to_owned()
    }

    /// Objects of the region and this kind, by state.
    pub async fn by_state(&self, kind: &str) -> Value {
        self.cloud.state().await["regions"][REGION][kind].clone()
    }
}
