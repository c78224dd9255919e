//! Lifecycle of one request of Zuul: two nodes of the fake cloud, one of which needs a second attempt, are used and
//! deleted.

use std::sync::Arc;

use crate::daemon_process::{Coordinator, PROCESS_TIMEOUT, WorkDir};
use crate::{programs, wait};
use nix::sys::signal::Signal;
use nodepool_zk::Connection;
use nodepool_zk::client::RealConnection;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use zookeeper_server::types::CreateMode;

pub const EVENT: &str = "3b2f1a7c9d8e4f50a1b2c3d4e5f60718";
/// Ids of the trace and span, as hexadecimal numbers.
pub const TRACE: u128 = 0xfedc_ba98_7654_3210_0123_4567_89ab_cdef;
pub const SPAN: u64 = 0xf123_4567_89ab_cdef;

pub struct RequestLifecycle {
    pub request: String,
    pub nodes: Vec<String>,
    /// The fulfilled record, as Zuul reads it.
    pub record: String,
    /// Output of the launcher on its standard streams.
    pub log: String,
}

/// Key order, spacing and `requestor_data` are those of Zuul 13.
fn record() -> String {
    format!(
        "{{\"requestor_data\": {}, \"node_types\": [\"small\", \"small\"], \"requestor\": \"zuul\", \"created_time\": 1706933106.25, \
         \"provider\": null, \"state\": \"requested\", \"state_time\": 1706933106.25, \"relative_priority\": 0, \
         \"event_id\": \"{EVENT}\", \"tenant_name\": \"acme\"}}",
        requestor_data()
    )
}

pub fn requestor_data() -> String {
    format!(
        "{{\"build_set_uuid\": \"b1\", \"tenant_name\": \"acme\", \"pipeline_name\": \"check\", \"job_uuid\": \"j1\", \
         \"job_name\": \"unit\", \"span_info\": {{\"name\": \"RequestNodes\", \"trace_id\": {TRACE}, \"span_id\": {SPAN}, \
         \"trace_flags\": 1, \"start_time\": 1706933106250000000, \"parent\": {{\"trace_id\": {TRACE}, \
         \"span_id\": 1234567890123456789, \"is_remote\": false}}}}}}"
    )
}

fn configuration(coordinator: &Coordinator, port: u16) -> String {
    let head = coordinator.configuration().lines().next().unwrap().to_owned();
    // For connections other than SSH the launcher checks the port and collects no host keys.
    let image = format!("{{name: image, image-name: Fake Precise, connection-type: winrm, connection-port: {port}}}");
    let label = "{name: small, cloud-image: image, flavor-name: Fake Flavor}";
    format!(
        "{head}\nlabels: [{{name: small}}]\nproviders:\n  - name: lab\n    driver: fake\n    cloud: fake\n\
        \x20   fake: {{address: 127.0.0.1, boot-time: 0.05, boot-fails-every: 2}}\n    cloud-images: [{image}]\n\
        \x20   pools: [{{name: main, labels: [{label}]}}]\n"
    )
}

/// Runs one request with a launcher that has these flags and variables.
pub async fn run_one_request(flags: &[&str], environment: &[(&str, &str)]) -> RequestLifecycle {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("store")).await;
    work_dir.configure(&configuration(&coordinator, server.local_addr().unwrap().port()));
    let zk = coordinator.session().await;
    let mut command = work_dir.command(programs::launcher(), &[&["-c", "nodepool.yaml"], flags].concat());
    command.envs(environment.iter().copied());
    let mut launcher = work_dir.start_command(command);
    work_dir.wait_until_ready().await;

    let path = submit(&zk, record()).await;
    let fulfilled = wait_until_fulfilled(&zk, &path).await;
    let nodes: Vec<String> = serde_json::from_value(parsed(&fulfilled)["nodes"].clone()).unwrap();
    for node in &nodes {
        mark_used(&zk, node).await;
    }
    zk.delete(&path, -1).await.unwrap();
    wait::until("its nodes to be deleted", PROCESS_TIMEOUT, async || {
        zk.children("/nodepool/nodes").await.is_ok_and(|(names, _)| !names.iter().any(|node| nodes.contains(node)))
    })
    .await;
    // A launcher that is stopped between a deletion and its log line would not log it.
    let is_logged =
        async || launcher.log().lines().filter(|line| line.contains("StateMachineNodeDeleter")).count() == 2;
    wait::until("the deletions to be logged", PROCESS_TIMEOUT, is_logged).await;
    launcher.signal(Signal::SIGINT);
    assert!(launcher.wait_for_exit().await.success(), "{}", launcher.log());
    let request = path.rsplit('/').next().unwrap().to_owned();
    RequestLifecycle { request, nodes, record: fulfilled, log: launcher.log() }
}

/// Creates a request with this record; returns its path.
pub async fn submit(zk: &Arc<RealConnection>, record: String) -> String {
    for path in ["/nodepool", "/nodepool/requests"] {
        // The znode may exist already.
        let _ = zk.create(path, Vec::new().into(), CreateMode::Persistent).await;
    }
    let submitted = zk.create("/nodepool/requests/200-", record.into(), CreateMode::PersistentSequential).await;
    submitted.unwrap().0
}

/// Waits for a request; returns its record.
pub async fn wait_until_fulfilled(zk: &Arc<RealConnection>, path: &str) -> String {
    wait::until_some("the request to be fulfilled", PROCESS_TIMEOUT, async || {
        let text = read(zk, path).await?;
        text.contains("\"state\": \"fulfilled\"").then_some(text)
    })
    .await
}

async fn read(zk: &Arc<RealConnection>, path: &str) -> Option<String> {
    let (data, _) = zk.get(path).await.ok()?;
    String::from_utf8(data.to_vec()).ok()
}

/// Parses JSON. Numbers beyond 64 bits are rounded, which is irrelevant here.
fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

pub async fn mark_used(zk: &Arc<RealConnection>, node: &str) {
    let path = format!("/nodepool/nodes/{node}");
    let mut record = parsed(&read(zk, &path).await.unwrap());
    record["state"] = json!("used");
    zk.set(&path, record.to_string().into(), -1).await.unwrap();
}
