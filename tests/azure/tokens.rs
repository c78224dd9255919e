//! A launcher process with an authentication file: tokens, changes of the file, and secrets that are nowhere shown.

use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use nodepool_zk::client::connect;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::clouds::simulated_azure::SimulatedAzure;
use testkit::in_process_launcher::Consumer;
use testkit::real;
use testkit::real::nodepool_process::NodepoolProcess;
use testkit::{embedded_zk, programs, wait};
use zookeeper_server::EmbeddedServer;

use crate::driver::{QUICK, configuration};

/// Timeout for a launcher on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);

struct Harness {
    cloud: SimulatedAzure,
    consumer: Consumer,
    launcher: NodepoolProcess,
    _zookeeper: EmbeddedServer,
    home: TempDir,
}

impl Harness {
    /// Starts a launcher whose authentication file has this content.
    async fn start(cloud: SimulatedAzure, auth: &Value, label: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let zookeeper = embedded_zk::start(&home.path().join("zookeeper")).await;
        let port = zookeeper.address().port();
        let consumer = Consumer { zk: connect(embedded_zk::client(port)).await.unwrap() };
        std::fs::write(home.path().join("auth.json"), auth.to_string()).unwrap();
        let file = home.path().join("auth.json").display().to_string();
        let config = configuration("", "", label);
        let config = config.replacen("{host: localhost}", &format!("{{host: 127.0.0.1, port: {port}}}"), 1);
        let config = config.replacen("/nonexistent", &file, 1);
        let launcher = NodepoolProcess::start(programs::launcher(), &config, &["-d", "--no-webapp"]);
        Self { cloud, consumer, launcher, _zookeeper: zookeeper, home }
    }

    fn auth_file(&self) -> PathBuf {
        self.home.path().join("auth.json")
    }

    /// Requests a node, and waits until it is ready.
    async fn serve(&self) {
        let pools = "/nodepool/components/pool";
        wait::until("the pool to be registered", TIMEOUT, async || self.consumer.count(pools).await > 0).await;
        let request = self.consumer.submit_labels(&["small"]).await;
        self.consumer.fulfilled_nodes(&request).await;
    }

    async fn tokens(&self) -> usize {
        self.cloud.calls("token").await.len()
    }
}

#[tokio::test]
async fn refused_tokens_are_renewed_and_no_secret_is_shown() {
    if real::skipped() {
        return;
    }
    let cloud = SimulatedAzure::start(&QUICK).await;
    let auth = cloud.auth().clone();
    let mut harness = Harness::start(cloud, &auth, "custom-data: the-custom-data, user-data: the-user-data").await;
    harness.serve().await;
    let before = harness.tokens().await;
    harness.cloud.control("revoke-tokens").await;
    harness.serve().await;
    assert_eq!(harness.tokens().await, before + 1);
    harness.launcher.signal(Signal::SIGUSR2);
    wait::until("a dump", TIMEOUT, async || harness.launcher.log().contains("TaskManager")).await;
    assert!(harness.launcher.stop(TIMEOUT).await.success());
    let log = harness.launcher.log();
    let secret = auth["clientSecret"].as_str().unwrap();
    // The data are sent in base64.
    for secret in
        [secret, "Bearer", "adminPassword", "the-custom-data", "the-user-data", "dGhlLWN1c3Rvb", "dGhlLXVzZXIt"]
    {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

#[tokio::test]
async fn a_corrected_authentication_file_opens_the_provider() {
    if real::skipped() {
        return;
    }
    let cloud = SimulatedAzure::start(&QUICK).await;
    let auth = cloud.auth().clone();
    let wrong = json!({"clientSecret": "only-this"});
    let mut harness = Harness::start(cloud, &wrong, "").await;
    let reason = "clientId is missing";
    wait::until("the reason", TIMEOUT, async || harness.launcher.log().contains(reason)).await;
    std::fs::write(harness.auth_file(), auth.to_string()).unwrap();
    harness.serve().await;
    assert!(harness.launcher.stop(TIMEOUT).await.success());
    assert!(!harness.launcher.log().contains("only-this"));
}

#[tokio::test]
async fn a_wrong_secret_is_named_as_the_reason() {
    if real::skipped() {
        return;
    }
    let cloud = SimulatedAzure::start(&QUICK).await;
    let mut auth = cloud.auth().clone();
    auth["clientSecret"] = json!("a-wrong-secret");
    let mut harness = Harness::start(cloud, &auth, "").await;
    wait::until("the reason", TIMEOUT, async || harness.launcher.log().contains("no token: 401")).await;
    assert!(harness.launcher.stop(TIMEOUT).await.success());
    assert!(!harness.launcher.log().contains("a-wrong-secret"));
}
