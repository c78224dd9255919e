//! Tokens of a launcher process: those of a service account's key and of an authorized user are renewed when Google
//! refuses them, and credentials are nowhere shown.

use std::path::PathBuf;
use std::time::Duration;

use nodepool_model::records::request::RequestState;
use nodepool_zk::client::connect;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::clouds::moto::as_paths;
use testkit::clouds::simulated_gce::SimulatedGce;
use testkit::in_process_launcher::Consumer;
use testkit::real;
use testkit::real::nodepool_process::NodepoolProcess;
use testkit::{embedded_zk, programs, wait};
use zookeeper_server::EmbeddedServer;

use crate::driver::configuration;

/// Timeout for a launcher on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);

struct Harness {
    cloud: SimulatedGce,
    consumer: Consumer,
    launcher: NodepoolProcess,
    _zookeeper: EmbeddedServer,
    home: TempDir,
}

impl Harness {
    /// Starts a launcher with these credentials, or with those of the service account.
    async fn start(cloud: SimulatedGce, credentials: Option<Value>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let zookeeper = embedded_zk::start(&home.path().join("zookeeper")).await;
        let port = zookeeper.address().port();
        let consumer = Consumer { zk: connect(embedded_zk::client(port)).await.unwrap() };
        let mut environment: Vec<(&str, PathBuf)> = cloud.environment();
        if let Some(content) = credentials {
            let file = home.path().join("user.json");
            std::fs::write(&file, content.to_string()).unwrap();
            environment.retain(|(name, _)| *name != "GOOGLE_APPLICATION_CREDENTIALS");
            environment.push(("GOOGLE_APPLICATION_CREDENTIALS", file));
        }
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

    async fn cloud() -> SimulatedGce {
        SimulatedGce::start_with_tokens(&["--boot-s", "0.1", "--delete-s", "0.1"]).await
    }

    /// Requests a node, and waits until it is ready.
    async fn serve(&self) {
        let request = self.consumer.submit_labels(&["small"]).await;
        self.consumer.fulfilled_nodes(&request).await;
    }

    async fn tokens(&self) -> usize {
        self.cloud.calls("token").await.len()
    }

    /// Serves a request, lets Google refuse all tokens, and serves another one. None of `secrets` is logged.
    async fn outlive_a_revocation(mut self, secrets: &[String]) {
        self.serve().await;
        assert_eq!(self.tokens().await, 1);
        self.cloud.control("revoke-tokens").await;
        self.serve().await;
        assert_eq!(self.tokens().await, 2);
        assert!(self.launcher.stop(TIMEOUT).await.success());
        let log = self.launcher.log();
        assert!(secrets.iter().all(|secret| !secret.is_empty() && !log.contains(secret)), "{log}");
    }
}

#[tokio::test]
async fn tokens_of_a_service_account_are_renewed_when_they_are_refused() {
    if real::skipped() {
        return;
    }
    let harness = Harness::start(Harness::cloud().await, None).await;
    let key: Value = serde_json::from_slice(&std::fs::read(harness.cloud.key_file()).unwrap()).unwrap();
    let secret = key["private_key"].as_str().unwrap().lines().nth(1).unwrap().to_owned();
    harness.outlive_a_revocation(&[secret]).await;
}

#[tokio::test]
async fn tokens_of_an_authorized_user_are_renewed_when_they_are_refused() {
    if real::skipped() {
        return;
    }
    let cloud = Harness::cloud().await;
    let file = cloud.authorized_user().await;
    let secrets = ["client_secret", "refresh_token"].map(|key| file[key].as_str().unwrap().to_owned());
    Harness::start(cloud, Some(file)).await.outlive_a_revocation(&secrets).await;
}

#[tokio::test]
async fn unusable_credentials_put_the_provider_out_of_service() {
    if real::skipped() {
        return;
    }
    let mut harness = Harness::start(
        Harness::cloud().await,
        Some(json!({"type": "external_account", "audience": "secret-audience"})),
    )
    .await;
    let reason = "credentials of the type external_account are not supported";
    wait::until("the reason", TIMEOUT, async || harness.launcher.log().contains(reason)).await;
    // A file that can be used opens the provider again.
    std::fs::copy(harness.cloud.key_file(), harness.home.path().join("user.json")).unwrap();
    wait::until("a node", TIMEOUT, async || {
        let request = harness.consumer.submit_labels(&["small"]).await;
        harness.consumer.wait_for_end(&request).await.state == RequestState::Fulfilled
    })
    .await;
    assert!(harness.launcher.stop(TIMEOUT).await.success());
    assert!(!harness.launcher.log().contains("secret-audience"));
}
