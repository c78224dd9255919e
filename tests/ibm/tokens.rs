//! Tokens of a launcher process: they are renewed when IBM refuses them, and credentials are nowhere shown.

use std::path::PathBuf;
use std::time::Duration;

use nodepool_zk::client::connect;
use tempfile::TempDir;
use testkit::clouds::moto::as_paths;
use testkit::clouds::simulated_ibm::SimulatedIbm;
use testkit::in_process_launcher::Consumer;
use testkit::real;
use testkit::real::nodepool_process::NodepoolProcess;
use testkit::{embedded_zk, programs, wait};
use zookeeper_server::EmbeddedServer;

use crate::driver::{QUICK, configuration};

/// Timeout for a launcher on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);
const SECRET: &str = "simulated-api-key";

struct Harness {
    cloud: SimulatedIbm,
    consumer: Consumer,
    launcher: NodepoolProcess,
    _zookeeper: EmbeddedServer,
    home: TempDir,
}

impl Harness {
    /// Starts a launcher whose environment names a credentials file with this text.
    async fn start(credentials: impl FnOnce(&str) -> String) -> Self {
        let cloud = SimulatedIbm::start_with_tokens(&QUICK).await;
        let home = tempfile::tempdir().unwrap();
        let zookeeper = embedded_zk::start(&home.path().join("zookeeper")).await;
        let port = zookeeper.address().port();
        let consumer = Consumer { zk: connect(embedded_zk::client(port)).await.unwrap() };
        let file = home.path().join("ibm.env");
        let text = std::fs::read_to_string(cloud.credentials_file()).unwrap();
        std::fs::write(&file, credentials(&text)).unwrap();
        let environment: Vec<(&str, PathBuf)> = vec![("IBM_CREDENTIALS_FILE", file)];
        let config = configuration("", "", &[("small", "")]);
        let config = config.replacen("{host: localhost}", &format!("{{host: 127.0.0.1, port: {port}}}"), 1);
        let program = programs::launcher();
        let launcher = NodepoolProcess::start_in(&as_paths(&environment), program, &config, &["-d", "--no-webapp"]);
        let harness = Self { cloud, consumer, launcher, _zookeeper: zookeeper, home };
        wait::until("the pool to be registered", TIMEOUT, async || {
            harness.consumer.count("/nodepool/components/pool").await > 0
        })
        .await;
        harness
    }

    /// Requests a node, and waits until it is ready.
    async fn serve(&self) {
        let request = self.consumer.submit_labels(&["small"]).await;
        self.consumer.fulfilled_nodes(&request).await;
    }

    async fn tokens(&self) -> usize {
        self.cloud.calls("token").await.len()
    }
}

#[tokio::test]
async fn tokens_are_renewed_when_they_are_refused() {
    if real::skipped() {
        return;
    }
    let mut harness = Harness::start(str::to_owned).await;
    harness.serve().await;
    assert_eq!(harness.tokens().await, 1);
    harness.cloud.control("revoke-tokens").await;
    harness.serve().await;
    assert_eq!(harness.tokens().await, 2);
    assert!(harness.launcher.stop(TIMEOUT).await.success());
    let log = harness.launcher.log();
    assert!(!log.contains(SECRET) && !log.contains("Bearer "), "{log}");
}

#[tokio::test]
async fn a_wrong_key_puts_the_provider_out_of_service_until_the_file_is_changed() {
    if real::skipped() {
        return;
    }
    let mut harness = Harness::start(|text| text.replace(SECRET, "wrong-secret-key")).await;
    wait::until("the reason", TIMEOUT, async || harness.launcher.log().contains("BXNIM0415E")).await;
    std::fs::copy(harness.cloud.credentials_file(), harness.home.path().join("ibm.env")).unwrap();
    wait::until("a token", TIMEOUT, async || harness.cloud.state().await["tokens_issued"] == 1).await;
    harness.serve().await;
    assert!(harness.launcher.stop(TIMEOUT).await.success());
    assert!(!harness.launcher.log().contains("wrong-secret-key"));
}
