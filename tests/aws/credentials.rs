//! Temporary credentials of a launcher process on the simulated EC2: from a container, from instance metadata, from a
//! profile that assumes a role, and from a web identity. They expire in the middle of work, and are renewed once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nodepool_zk::client::connect;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::clouds::moto::as_paths;
use testkit::clouds::simulated_ec2::{ACCESS_KEY, SECRET_KEY, SimulatedEc2};
use testkit::in_process_launcher::Consumer;
use testkit::real;
use testkit::real::nodepool_process::NodepoolProcess;
use testkit::{embedded_zk, programs, wait};
use zookeeper_server::EmbeddedServer;

use crate::simulated::configuration;

/// Timeout for a launcher on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);
const ROLE: &str = "arn:aws:iam::123456789012:role/nodepool";

/// A launcher whose environment names a source of credentials.
struct Harness {
    cloud: SimulatedEc2,
    consumer: Consumer,
    launcher: NodepoolProcess,
    /// The action that returns credentials.
    action: &'static str,
    _zookeeper: EmbeddedServer,
    _home: TempDir,
}

impl Harness {
    /// `environment` returns variables for the base URL of AWS and a folder of the test.
    async fn start(
        flags: &[&str],
        action: &'static str,
        environment: impl FnOnce(&str, &Path) -> Vec<(&'static str, String)>,
    ) -> Self {
        let home = tempfile::tempdir().unwrap();
        let cloud = SimulatedEc2::start(&[&["--boot-s", "0.1", "--terminate-s", "0.1"], flags].concat()).await;
        let zookeeper = embedded_zk::start(&home.path().join("zookeeper")).await;
        let port = zookeeper.address().port();
        let consumer = Consumer { zk: connect(embedded_zk::client(port)).await.unwrap() };
        let usual = [("AWS_ENDPOINT_URL", cloud.base()), ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")];
        let mut variables: Vec<(&str, PathBuf)> = usual.map(|(name, value)| (name, value.into())).into();
        let own = environment(cloud.base(), home.path());
        for (name, value) in [("AWS_CONFIG_FILE", "/dev/null"), ("AWS_EC2_METADATA_DISABLED", "true")] {
            if own.iter().all(|(other, _)| *other != name) {
                variables.push((name, value.into()));
            }
        }
        variables.extend(own.into_iter().map(|(name, value)| (name, value.into())));
        let config = configuration("", "", &[("small", "")]);
        let config = config.replacen("{host: localhost}", &format!("{{host: 127.0.0.1, port: {port}}}"), 1);
        let program = programs::launcher();
        let launcher = NodepoolProcess::start_in(&as_paths(&variables), program, &config, &["-d", "--no-webapp"]);
        let harness = Self { cloud, consumer, launcher, action, _zookeeper: zookeeper, _home: home };
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

    /// The number of credentials that the launcher has received.
    async fn received(&self) -> usize {
        self.cloud.calls(self.action).await.len()
    }

    /// The number of calls that were refused because their credentials had expired.
    async fn refused(&self) -> u64 {
        let errors = &self.cloud.state().await["counters"]["errors_by_code"];
        assert!(errors.as_object().unwrap().keys().all(|code| code == "RequestExpired"), "{errors}");
        errors["RequestExpired"].as_u64().unwrap_or(0)
    }

    async fn last_launch(&self) -> Value {
        self.cloud.calls("RunInstances").await.pop().unwrap()
    }

    /// Serves a request, lets all credentials expire, and serves another one.
    async fn outlive_an_expiry(mut self) {
        self.serve().await;
        assert!(self.last_launch().await["access_key"].as_str().unwrap().starts_with("ASIA"));
        assert_eq!((self.received().await, self.refused().await), (1, 0));
        self.cloud.expire_sessions().await;
        self.serve().await;
        assert_eq!(self.received().await, 2);
        assert!(self.refused().await > 0);
        assert_eq!(self.last_launch().await["status"], json!(200));
        assert!(self.launcher.stop(TIMEOUT).await.success());
    }
}

#[tokio::test]
async fn credentials_of_a_container_are_renewed_when_they_have_expired() {
    if real::skipped() {
        return;
    }
    let variables = |base: &str, _: &Path| vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{base}/creds"))];
    Harness::start(&[], "GET%20/creds", variables).await.outlive_an_expiry().await;
}

#[tokio::test]
async fn credentials_of_instance_metadata_are_renewed_when_they_have_expired() {
    if real::skipped() {
        return;
    }
    let variables = |base: &str, _: &Path| {
        let endpoint = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", base.to_owned());
        vec![endpoint, ("AWS_EC2_METADATA_DISABLED", "false".to_owned())]
    };
    let action = "GET%20/latest/meta-data/iam/security-credentials/simulated-role";
    Harness::start(&[], action, variables).await.outlive_an_expiry().await;
}

#[tokio::test]
async fn a_role_of_a_profile_is_assumed_again_when_its_session_has_expired() {
    if real::skipped() {
        return;
    }
    let variables = |_: &str, home: &Path| {
        let file = home.join("config");
        let text = format!(
            "[default]\nrole_arn = {ROLE}\nsource_profile = base\n\n[profile base]\naws_access_key_id = {ACCESS_KEY}\n\
             aws_secret_access_key = {SECRET_KEY}\n"
        );
        std::fs::write(&file, text).unwrap();
        vec![("AWS_CONFIG_FILE", file.display().to_string())]
    };
    Harness::start(&[], "AssumeRole", variables).await.outlive_an_expiry().await;
}

#[tokio::test]
async fn a_web_identity_is_used_again_when_its_session_has_expired() {
    if real::skipped() {
        return;
    }
    let variables = |_: &str, home: &Path| {
        let file = home.join("token");
        std::fs::write(&file, "a token of an identity provider").unwrap();
        let file = file.display().to_string();
        vec![("AWS_WEB_IDENTITY_TOKEN_FILE", file), ("AWS_ROLE_ARN", ROLE.to_owned())]
    };
    Harness::start(&[], "AssumeRoleWithWebIdentity", variables).await.outlive_an_expiry().await;
}

#[tokio::test]
async fn credentials_are_renewed_before_they_expire() {
    if real::skipped() {
        return;
    }
    let variables = |base: &str, _: &Path| vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{base}/creds"))];
    let mut harness = Harness::start(&["--session-s", "12"], "GET%20/creds", variables).await;
    while harness.received().await < 2 {
        harness.serve().await;
    }
    assert_eq!(harness.refused().await, 0);
    assert!(harness.launcher.stop(TIMEOUT).await.success());
}
