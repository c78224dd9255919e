//! Secrets of AWS in logs and dumps: keys, session tokens, signatures and user data are in none of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use nodepool_zk::client::{ConnectOptions, connect};
use testkit::clouds::moto::as_paths;
use testkit::clouds::simulated_ec2::{self, SimulatedEc2};
use testkit::in_process_launcher::Consumer;
use testkit::real::{
    self,
    nodepool_process::NodepoolProcess,
    zookeeper::{Options, Server},
};
use testkit::{programs, wait};

const TIMEOUT: Duration = Duration::from_secs(60);
const USERDATA: &str = "password of the user data";
/// All loggers, also those of libraries, at all levels.
const LOGGING: &str = "
version: 1
formatters: {plain: {format: '%(levelname)s %(name)s %(message)s'}}
handlers: {console: {class: logging.StreamHandler, level: NOTSET, formatter: plain}}
root: {level: 1, handlers: [console]}
";

fn configuration(server: &Server) -> String {
    let address = server.plain_address();
    let (host, port) = address.rsplit_once(':').expect("an address ends with its port");
    format!(
        "zookeeper-servers: [{{host: {host}, port: {port}}}]\nlabels: [{{name: small}}]\nproviders:\n  - {{name: west, driver: \
         aws, region-name: {}, rate: 100, cloud-images: [{{name: base, image-id: {}, username: zuul}}], pools: [{{name: main, \
         subnet-id: {}, security-group-id: {}, host-key-checking: false, labels: [{{name: small, cloud-image: base, \
         instance-type: t3.medium, key-name: {}, userdata: {USERDATA}}}]}}]}}\n",
        simulated_ec2::REGION,
        simulated_ec2::IMAGE,
        simulated_ec2::SUBNETS[0],
        simulated_ec2::SECURITY_GROUP,
        simulated_ec2::KEY_NAME,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_in_a_log_or_a_dump() {
    if real::skipped() {
        return;
    }
    let (server, cloud) = tokio::join!(Server::start(Options::default()), SimulatedEc2::start(&["--boot-s", "0.1"]));
    // Temporary credentials, which have a session token. The first ones expire in use.
    let credentials = format!("{}/creds", cloud.base());
    let mut environment: Vec<(&'static str, PathBuf)> = cloud.environment();
    environment.retain(|(name, _)| !["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].contains(name));
    environment.push(("AWS_CONTAINER_CREDENTIALS_FULL_URI", credentials.clone().into()));
    let folder = tempfile::tempdir().expect("the temporary directory is writable");
    let logging = folder.path().join("logging.yaml");
    std::fs::write(&logging, LOGGING).expect("a new directory is writable");
    let arguments = ["-f", "--no-webapp", "-l", logging.to_str().expect("a temporary path is UTF-8")];
    let variables: Vec<(&str, &Path)> = as_paths(&environment);
    let mut process = NodepoolProcess::start_in(&variables, programs::launcher(), &configuration(&server), &arguments);

    let address = server.plain_address();
    let (host, port) = address.rsplit_once(':').expect("an address ends with its port");
    let zk = connect(ConnectOptions::plain(host, port.parse().expect("a port is a number"))).await;
    let consumer = Consumer { zk: zk.expect("a running server accepts clients") };
    wait::until("a pool", TIMEOUT, async || consumer.count("/nodepool/components/pool").await == 1).await;
    let request = consumer.submit_labels(&["small"]).await;
    consumer.fulfilled_nodes(&request).await;
    cloud.expire_sessions().await;
    let next = consumer.submit_labels(&["small"]).await;
    consumer.fulfilled_nodes(&next).await;
    process.signal(Signal::SIGUSR2);
    process.wait_for_log("TaskManager", TIMEOUT).await;

    let issued: serde_json::Value = reqwest::get(&credentials).await.unwrap().json().await.unwrap();
    let log = process.log();
    assert!(log.contains("RunInstances"), "calls are logged");
    for key in ["SecretAccessKey", "Token"] {
        // Those of the process are other ones of the same form.
        let form: String = issued[key].as_str().unwrap().chars().take(8).collect();
        assert!(!log.contains(&form), "{key}");
    }
    for secret in ["Signature=", "hunter2", USERDATA, &base64(USERDATA)] {
        assert!(!log.contains(secret), "{secret}");
    }
    assert!(process.stop(TIMEOUT).await.success());
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}
