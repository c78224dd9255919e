//! Command `nodepool`: output, files, exit statuses and signals.
//!
//! The tests run the real program, and one of them a real launcher, against the embedded coordinator in the test's
//! process.

use std::process::{Output, Stdio};
use std::time::Duration;

use nodepool_zk::Connection;
use nodepool_zk::client::{ConnectOptions, RealConnection, connect};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{programs, wait};
use tokio::process::{Child, Command};
use zookeeper_server::types::CreateMode;
use zookeeper_server::{EmbeddedOptions, EmbeddedServer};

const DEADLINE: Duration = Duration::from_secs(60);

/// An embedded coordinator, a session with it, and a directory with a configuration that names the coordinator.
struct CliHarness {
    home: TempDir,
    zk: std::sync::Arc<RealConnection>,
    server: EmbeddedServer,
}

impl CliHarness {
    async fn new() -> CliHarness {
        let home = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { data_dir: home.path().join("store"), first_port: 0, now_ms };
        let server = EmbeddedServer::start(options).await.unwrap();
        let port = server.address().port();
        let configuration = format!(
            "zookeeper-servers: [{{host: 127.0.0.1, port: {port}}}]\nzookeeper-timeout: 4.0\nlabels: [{{name: a}}]\n\
             providers: [{{name: p, driver: static, pools: []}}]\n"
        );
        std::fs::create_dir(home.path().join("nodepool-data")).unwrap();
        std::fs::write(home.path().join("nodepool.yaml"), &configuration).unwrap();
        std::fs::write(home.path().join("nodepool-data/nodepool.yaml"), &configuration).unwrap();
        let zk = connect(ConnectOptions::plain("127.0.0.1", port)).await.unwrap();
        CliHarness { home, zk, server }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = nodepool(arguments);
        command.current_dir(self.home.path());
        command
    }

    async fn run(&self, line: &str) -> CommandOutput {
        let words: Vec<&str> = ["-c", "nodepool.yaml"].into_iter().chain(line.split(' ')).collect();
        output_of(self.command(&words)).await
    }

    fn spawn(&self, words: &[&str]) -> Child {
        let words: Vec<&str> = ["-c", "nodepool.yaml"].into_iter().chain(words.iter().copied()).collect();
        self.command(&words).spawn().unwrap()
    }

    async fn put(&self, path: &str, data: &[u8]) {
        for (slash, _) in path.match_indices('/').skip(1) {
            let _ = self.zk.create(&path[..slash], Vec::new().into(), CreateMode::Persistent).await;
        }
        self.zk.create(path, data.to_vec().into(), CreateMode::Persistent).await.unwrap();
    }

    async fn children(&self, path: &str) -> Vec<String> {
        self.zk.children(path).await.map(|(names, _)| names).unwrap_or_default()
    }

    async fn record(&self, path: &str) -> Value {
        let (data, _) = self.zk.get(path).await.unwrap();
        serde_json::from_slice(&data).unwrap()
    }

    /// Fulfils the only request with one node per label, as a launcher would.
    async fn fulfill_request(&self) {
        let name = wait::until_some("a request", DEADLINE, async || {
            self.children("/nodepool/requests").await.into_iter().next()
        })
        .await;
        let path = format!("/nodepool/requests/{name}");
        let mut request = self.record(&path).await;
        let mut nodes = Vec::new();
        for (index, label) in request["node_types"].as_array().unwrap().iter().enumerate() {
            let id = format!("{index:010}");
            let mut node = json!({
                "state": "ready", "allocated_to": name, "type": [label], "provider": "p", "pool": "main",
                "interface_ip": "127.0.0.1", "connection_port": 22 + 2000 * index, "username": "zuul",
                "host_keys": ["ssh-ed25519 AAAA"], "connection_type": "ssh", "python_path": "auto",
                "attributes": {"zone": "yes", "no": "007"},
            });
            if label == "pod" {
                node["connection_type"] = "kubectl".into();
                node["connection_port"] = json!({
                    "name": "main-1", "namespace": "main-1", "host": "https://127.0.0.1:6443", "skiptls": false,
                    "token": "secret", "user": "zuul-worker", "ca_crt": "Q0E=", "pod": "pod",
                });
            }
            self.put(&format!("/nodepool/nodes/{id}"), node.to_string().as_bytes()).await;
            nodes.push(id);
        }
        request["state"] = "fulfilled".into();
        request["nodes"] = json!(nodes);
        self.zk.set(&path, request.to_string().into(), -1).await.unwrap();
    }

    async fn assert_released(&self, nodes: usize) {
        assert_eq!(self.children("/nodepool/requests").await, Vec::<String>::new());
        for index in 0..nodes {
            let path = format!("/nodepool/nodes/{index:010}");
            assert_eq!(self.record(&path).await["state"], "used");
            assert_eq!(self.children(&format!("{path}/lock")).await, Vec::<String>::new());
        }
    }

    async fn stop(self) {
        self.zk.close().await;
        self.server.stop().await;
    }
}

#[allow(clippy::disallowed_methods)] // a server needs the wall clock, and a test has no other place to read it
fn now_ms() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since_epoch.as_millis()).unwrap()
}

struct CommandOutput {
    stdout: String,
    stderr: String,
    status: Option<i32>,
}

impl CommandOutput {
    fn last_stderr_line(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }
}

fn nodepool(arguments: &[&str]) -> Command {
    let mut command = Command::new(programs::nodepool());
    command.args(arguments).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn output_of(mut command: Command) -> CommandOutput {
    wait_for_output(command.spawn().unwrap()).await
}

async fn wait_for_output(child: Child) -> CommandOutput {
    let output: Output = tokio::time::timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { stdout: text(output.stdout), stderr: text(output.stderr), status: output.status.code() }
}

fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
}

#[tokio::test]
async fn help_version_and_usage_errors_have_exit_statuses() {
    let help = output_of(nodepool(&[])).await;
    assert_eq!((help.status, help.stderr.as_str()), (Some(1), ""));
    assert!(help.stdout.contains("Usage: nodepool"), "{}", help.stdout);
    let version = output_of(nodepool(&["--version"])).await;
    assert_eq!((version.status, version.stdout.as_str()), (Some(0), "Nodepool version: 12.0.0\n"));
    let usage_error = output_of(nodepool(&["no-such-command"])).await;
    assert_eq!((usage_error.status, usage_error.stdout.as_str()), (Some(2), ""));
    assert!(usage_error.last_stderr_line().starts_with("nodepool: error: "), "{}", usage_error.stderr);
}

#[tokio::test]
async fn unreadable_records_are_shown_or_named_and_never_fatal() {
    let harness = CliHarness::new().await;
    let node = r#"{"state": "ready", "state_time": 99999999999, "type": ["标签", "x"], "comment": "two\nlines\u001b[2J",
        "external_id": {"pod": true}, "connection_port": {"token": "secret"}, "provider": "p"}"#;
    harness.put("/nodepool/nodes/0000000002", node.as_bytes()).await;
    harness.put("/nodepool/nodes/0000000001", b"\xff\x00").await;
    harness.put("/nodepool/nodes/0000000000", b"").await;
    let output = harness.run("list --detail").await;
    assert_eq!(output.status, Some(0));
    assert!(output.stdout.contains("| 0000000002 | p        | 标签,x |"), "{}", output.stdout);
    assert!(
        output.stdout.contains("| lines\\x1b[2J |") && output.stdout.contains("{'pod': True}"),
        "{}",
        output.stdout
    );
    assert!(output.stdout.contains("| redacted |") && !output.stdout.contains("secret"), "{}", output.stdout);
    assert_eq!(output.stderr.lines().count(), 2, "{}", output.stderr);
    assert!(output.stderr.contains("/nodepool/nodes/0000000001 is skipped"), "{}", output.stderr);
    let json: Value = serde_json::from_str(&harness.run("list -o json").await.stdout).unwrap();
    assert_eq!(json[0]["server_id"], json!({"pod": true}));
    assert_eq!(harness.children("/nodepool/nodes/0000000002").await, Vec::<String>::new());
    harness.stop().await;
}

#[tokio::test]
async fn the_standalone_configuration_is_the_default_and_is_named() {
    let harness = CliHarness::new().await;
    let here = output_of(harness.command(&["request-list"])).await;
    assert_eq!((here.status, here.stderr.as_str()), (Some(0), "using ./nodepool-data/nodepool.yaml\n"));
    let empty = tempfile::tempdir().unwrap();
    let mut elsewhere = nodepool(&["request-list"]);
    elsewhere.current_dir(empty.path());
    let elsewhere = output_of(elsewhere).await;
    assert_eq!(elsewhere.status, Some(1));
    assert!(elsewhere.last_stderr_line().contains("name a configuration with -c"), "{}", elsewhere.stderr);
    harness.stop().await;
}

#[tokio::test]
async fn an_unreachable_zookeeper_is_reported_within_the_timeout() {
    let home = tempfile::tempdir().unwrap();
    // The listener is dropped at once, so no process listens on this port.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = home.path().join("nodepool.yaml");
    let text = format!("{{zookeeper-servers: [{{host: 127.0.0.1, port: {free}}}], labels: [], providers: []}}");
    std::fs::write(&file, text).unwrap();
    let words = ["-c", file.to_str().unwrap(), "list", "--timeout", "1", "-o", "json"];
    let output = output_of(nodepool(&words)).await;
    assert_eq!(output.status, Some(1));
    assert!(output.stderr.contains("WARNING nodepool.zk.ZooKeeperClient: "), "{}", output.stderr);
    assert!(output.last_stderr_line().contains(&format!("127.0.0.1:{free}")), "{}", output.stderr);
    let document: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(document["outcome"], "failed");
}

#[tokio::test]
async fn unloadable_files_fail_with_a_reason_and_fail_validation() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("nodepool.yaml");
    for text in ["labels: [", "\u{0}", "- a", "{labels: [{name: a}], providers: [{name: p, driver: statik}]}"] {
        std::fs::write(&file, text).unwrap();
        for command in ["list", "config-validate"] {
            let output = output_of(nodepool(&["-c", file.to_str().unwrap(), command])).await;
            assert_eq!(output.status, Some(1), "{text} {command}: {}", output.stderr);
            assert!(output.last_stderr_line().contains("nodepool.yaml"), "{text} {command}: {}", output.stderr);
        }
    }
    let servers = "zookeeper-servers: [{host: localhost}]";
    std::fs::write(&file, format!("{{zookeper-timeout: 1, {servers}, labels: [], providers: []}}")).unwrap();
    let rejected = output_of(nodepool(&["-c", file.to_str().unwrap(), "config-validate", "-o", "json"])).await;
    let document: Value = serde_json::from_str(&rejected.stdout).unwrap();
    assert_eq!(document["problems"].as_array().map(Vec::len), Some(1), "{document}");
    assert!(rejected.last_stderr_line().ends_with("is not valid: 1 error"), "{}", rejected.stderr);
    std::fs::write(&file, format!("{{{servers}, labels: [], providers: []}}")).unwrap();
    let output = output_of(nodepool(&["-c", file.to_str().unwrap(), "config-validate"])).await;
    assert_eq!((output.status, output.stderr.lines().count()), (Some(0), 1), "{}", output.stderr);
}

#[tokio::test]
async fn a_failed_write_of_the_output_is_an_error() {
    let harness = CliHarness::new().await;
    for format in ["table", "json"] {
        let mut command = harness.command(&["-c", "nodepool.yaml", "-o", format, "list"]);
        command.stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        let output = wait_for_output(command.spawn().unwrap()).await;
        assert_eq!(output.status, Some(1));
        assert!(output.last_stderr_line().contains("No space left on device"), "{format}: {:?}", output.stderr);
    }
    // The last value of a repeated flag applies.
    let output = harness.run("--debug --debug -c /nonexistent -c nodepool.yaml list").await;
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert!(output.stderr.contains("DEBUG nodepool.zk.ZooKeeperClient: connected"), "{}", output.stderr);
    harness.stop().await;
}

#[tokio::test]
async fn a_failed_export_keeps_the_previous_file() {
    let harness = CliHarness::new().await;
    let record = json!({"state": "ready", "state_time": 5.0, "builder": "b".repeat(2000)});
    harness.put("/nodepool/images/debian/builds/b1", record.to_string().as_bytes()).await;
    let file = harness.home.path().join("export.json");
    assert_eq!(harness.run("export-image-data export.json").await.status, Some(0));
    let before = std::fs::read(&file).unwrap();
    // The limit is in units of 512 bytes. With XFSZ ignored, the write fails instead of killing the process.
    let script = "trap '' XFSZ; ulimit -f 2; exec \"$0\" -c nodepool.yaml export-image-data export.json";
    let mut command = Command::new("sh");
    command.args(["-c", script, programs::nodepool()]).current_dir(harness.home.path()).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = output_of(command).await;
    assert_eq!(failed.status, Some(1), "{}", failed.stderr);
    assert!(failed.last_stderr_line().contains("cannot write export.json: "), "{}", failed.stderr);
    assert_eq!(std::fs::read(&file).unwrap(), before);
    let entries = std::fs::read_dir(harness.home.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(entries.filter(|name| name.to_string_lossy().contains("export.json")).count(), 1);
    let piped = harness.run("export-image-data /dev/stdout").await;
    assert_eq!((piped.status, piped.stdout.as_bytes()), (Some(0), &*before));
    harness.stop().await;
}

#[tokio::test]
async fn a_build_in_no_format_is_refused() {
    let harness = CliHarness::new().await;
    let file = harness.home.path().join("nodepool.yaml");
    let configuration = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{configuration}diskimages: [{{name: loose}}]\n")).unwrap();
    for line in ["image-build loose", "image-build --wait loose"] {
        let output = harness.run(line).await;
        assert_eq!(output.status, Some(1), "{line}: {}", output.stdout);
        let expected = "image loose is built in no format: add it to the diskimages of a provider";
        assert!(output.last_stderr_line().contains(expected), "{line}: {}", output.stderr);
    }
    assert_eq!(harness.children("/nodepool/images").await, Vec::<String>::new());
    harness.stop().await;
}

#[tokio::test]
async fn a_closed_output_pipe_is_no_error() {
    let harness = CliHarness::new().await;
    harness.put("/nodepool/nodes/0000000000", br#"{"state": "ready"}"#).await;
    let record = bytes::Bytes::from_static(br#"{"state": "ready"}"#);
    let path = |index| format!("/nodepool/nodes/{index:010}");
    let creates = (1..2000).map(|index| harness.zk.create(&path(index), record.clone(), CreateMode::Persistent));
    futures::future::try_join_all(creates).await.unwrap();
    let mut command = harness.command(&["-c", "nodepool.yaml", "list"]);
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = wait_for_output(child).await;
    assert_eq!(output.stderr, "");
    harness.stop().await;
}

#[tokio::test]
async fn the_run_command_gets_its_nodes_and_its_status_is_returned() {
    let harness = CliHarness::new().await;
    let script = r#"
        cp "$NODEPOOL_NODES" nodes.json; cp "$NODEPOOL_INVENTORY" inventory.yaml; cp "$NODEPOOL_KNOWN_HOSTS" known_hosts
        stat -c %a "$NODEPOOL_NODES" "$(dirname "$NODEPOOL_NODES")"
        echo "$NODEPOOL_NODES" >where
        env | grep ^NODEPOOL_NODE_ | sort
        exit 7"#;
    let words = ["request", "--label", "a", "--label", "b-1", "-o", "json", "--", "sh", "-c", script];
    let child = harness.spawn(&words);
    harness.fulfill_request().await;
    let output = wait_for_output(child).await;
    assert_eq!(output.status, Some(7), "{}", output.stderr);
    let expected = "600\n700\nNODEPOOL_NODE_1_ADDRESS=127.0.0.1\nNODEPOOL_NODE_1_ID=0000000000\nNODEPOOL_NODE_1_LABEL=a\n\
        NODEPOOL_NODE_1_PORT=22\nNODEPOOL_NODE_1_USER=zuul\nNODEPOOL_NODE_2_ADDRESS=127.0.0.1\n\
        NODEPOOL_NODE_2_ID=0000000001\nNODEPOOL_NODE_2_LABEL=b-1\nNODEPOOL_NODE_2_PORT=2022\nNODEPOOL_NODE_2_USER=zuul\n\
        NODEPOOL_NODE_COUNT=2\n";
    assert_eq!(output.stdout, expected);
    let file = |name: &str| std::fs::read_to_string(harness.home.path().join(name)).unwrap();
    assert_eq!(file("known_hosts"), "127.0.0.1 ssh-ed25519 AAAA\n[127.0.0.1]:2022 ssh-ed25519 AAAA\n");
    let nodes: Value = serde_json::from_str(&file("nodes.json")).unwrap();
    assert_eq!((&nodes[1]["label"], &nodes[1]["attributes"]["no"]), (&json!("b-1"), &json!("007")));
    let inventory: Value = serde_yaml::from_str(&file("inventory.yaml")).unwrap();
    let host = &inventory["all"]["hosts"]["node2"];
    assert_eq!((&host["ansible_host"], &host["ansible_port"]), (&json!("127.0.0.1"), &json!(2022)));
    assert_eq!(host["nodepool"]["attributes"], json!({"zone": "yes", "no": "007"}));
    assert_eq!(inventory["all"]["children"]["b_1"]["hosts"], json!({"node2": null}));
    assert!(!std::path::Path::new(file("where").trim()).exists(), "the files are deleted when the command ends");
    harness.assert_released(2).await;
    harness.stop().await;
}

#[tokio::test]
async fn the_run_command_gets_a_kubeconfig_for_its_pods() {
    let harness = CliHarness::new().await;
    let script = r#"stat -c %a "$KUBECONFIG"; cp "$KUBECONFIG" kubeconfig; cp "$NODEPOOL_INVENTORY" inventory.yaml"#;
    let child = harness.spawn(&["request", "--label", "a", "--label", "pod", "--", "sh", "-c", script]);
    harness.fulfill_request().await;
    let output = wait_for_output(child).await;
    assert_eq!((output.status, output.stdout.as_str()), (Some(0), "600\n"), "{}", output.stderr);
    let file = |name: &str| std::fs::read_to_string(harness.home.path().join(name)).unwrap();
    let cluster = json!({"server": "https://127.0.0.1:6443", "certificate-authority-data": "Q0E="});
    let context = json!({"cluster": "node2", "user": "node2", "namespace": "main-1"});
    let expected = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "node2",
        "clusters": [{"name": "node2", "cluster": cluster}],
        "users": [{"name": "node2", "user": {"token": "secret"}}],
        "contexts": [{"name": "node2", "context": context}],
    });
    assert_eq!(serde_json::from_str::<Value>(&file("kubeconfig")).unwrap(), expected);
    let inventory = file("inventory.yaml");
    assert!(!inventory.contains("secret"), "{inventory}");
    let inventory: Value = serde_yaml::from_str(&inventory).unwrap();
    let hosts = &inventory["all"]["hosts"];
    assert_eq!(hosts["node2"]["ansible_kubectl_pod"], "pod");
    assert_eq!(hosts["node2"]["ansible_kubectl_context"], "node2");
    assert_eq!(hosts["node1"].get("ansible_kubectl_kubeconfig"), None);
    harness.stop().await;
}

#[tokio::test]
async fn a_missing_command_releases_all_nodes() {
    let harness = CliHarness::new().await;
    let child = harness.spawn(&["request", "--label", "a", "--", "/nonexistent/program"]);
    harness.fulfill_request().await;
    let output = wait_for_output(child).await;
    assert_eq!(output.status, Some(127));
    assert!(output.last_stderr_line().contains("cannot run /nonexistent/program"), "{}", output.stderr);
    harness.assert_released(1).await;
    harness.stop().await;
}

#[tokio::test]
async fn a_signal_is_forwarded_and_the_nodes_are_released() {
    let harness = CliHarness::new().await;
    let script = "trap 'exit 3' TERM; touch started; while :; do sleep 0.05; done";
    let child = harness.spawn(&["request", "--label", "a", "--", "sh", "-c", script]);
    harness.fulfill_request().await;
    let started = harness.home.path().join("started");
    wait::until("the command to start", DEADLINE, async || started.exists()).await;
    assert_eq!(harness.record("/nodepool/nodes/0000000000").await["state"], "in-use");
    signal(&child, nix::sys::signal::Signal::SIGTERM);
    assert_eq!(wait_for_output(child).await.status, Some(3));
    harness.assert_released(1).await;
    harness.stop().await;
}

/// Shell script that records the signals it receives, and exits on SIGTERM.
const SIGNAL_RECORDER: &str = "trap 'echo int >>signals' INT; trap 'echo term >>signals; exit 3' TERM; touch started; \
                       while :; do sleep 0.05; done";

#[tokio::test]
async fn ctrl_c_is_delivered_once_and_sigterm_follows() {
    let harness = CliHarness::new().await;
    let terminal = nix::pty::openpty(None, None).unwrap();
    let name = nix::unistd::ttyname(&terminal.slave).unwrap();
    // A session leader that opens a terminal receives it as its controlling terminal. The process group of the leader
    // is then in the foreground.
    let script = "exec 3<>\"$0\"; exec \"$@\" </dev/null";
    let mut command = Command::new("setsid");
    command.args(["sh", "-c", script]).arg(name).arg(programs::nodepool());
    command.args(["-c", "nodepool.yaml", "request", "--label", "a", "--", "sh", "-c", SIGNAL_RECORDER]);
    command.current_dir(harness.home.path()).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    harness.fulfill_request().await;
    let started = harness.home.path().join("started");
    wait::until("the command to start", DEADLINE, async || started.exists()).await;
    nix::unistd::write(&terminal.master, b"\x03").unwrap();
    let output = wait_for_output(child).await;
    assert_eq!(output.status, Some(3), "{}", output.stderr);
    assert_eq!(std::fs::read_to_string(harness.home.path().join("signals")).unwrap(), "int\nterm\n");
    harness.assert_released(1).await;
    harness.stop().await;
}

#[tokio::test]
async fn a_sigint_not_from_the_terminal_is_forwarded() {
    let harness = CliHarness::new().await;
    let terminal = nix::pty::openpty(None, None).unwrap();
    let mut command =
        harness.command(&["-c", "nodepool.yaml", "request", "--label", "a", "--", "sh", "-c", SIGNAL_RECORDER]);
    // In its own process group, the command is not in the foreground of the terminal that runs this test.
    command.process_group(0).stdin(terminal.slave);
    let child = command.spawn().unwrap();
    harness.fulfill_request().await;
    let started = harness.home.path().join("started");
    wait::until("the command to start", DEADLINE, async || started.exists()).await;
    signal(&child, nix::sys::signal::Signal::SIGINT);
    let signals = harness.home.path().join("signals");
    let received = async || std::fs::read_to_string(&signals).is_ok_and(|text| text == "int\n");
    wait::until("the command to receive the signal", DEADLINE, received).await;
    signal(&child, nix::sys::signal::Signal::SIGTERM);
    assert_eq!(wait_for_output(child).await.status, Some(3));
    harness.assert_released(1).await;
    harness.stop().await;
}

#[tokio::test]
async fn an_interrupted_wait_withdraws_its_request() {
    let harness = CliHarness::new().await;
    for (kind, status) in [(nix::sys::signal::Signal::SIGINT, 130), (nix::sys::signal::Signal::SIGTERM, 143)] {
        let child = harness.spawn(&["request", "--label", "a"]);
        let is_submitted = async || !harness.children("/nodepool/requests").await.is_empty();
        wait::until("the request to be submitted", DEADLINE, is_submitted).await;
        signal(&child, kind);
        assert_eq!(wait_for_output(child).await.status, Some(status));
        harness.assert_released(0).await;
    }
    harness.stop().await;
}

#[tokio::test]
async fn a_killed_consumer_leaves_neither_request_nor_lock() {
    let harness = CliHarness::new().await;
    let child = harness.spawn(&["request", "--label", "a"]);
    wait::until("the new request", DEADLINE, async || !harness.children("/nodepool/requests").await.is_empty()).await;
    signal(&child, nix::sys::signal::Signal::SIGKILL);
    wait_for_output(child).await;
    wait::until("the request to be deleted", DEADLINE, async || {
        harness.children("/nodepool/requests").await.is_empty()
    })
    .await;
    let child = harness.spawn(&["request", "--label", "a", "--", "sh", "-c", "echo $$ >started; exec sleep 600"]);
    harness.fulfill_request().await;
    let lock = "/nodepool/nodes/0000000000/lock";
    let in_use = async || harness.record("/nodepool/nodes/0000000000").await["state"] == "in-use";
    wait::until("the node to be in use", DEADLINE, in_use).await;
    let started = harness.home.path().join("started");
    let command = wait::until_some("the pid of the command", DEADLINE, async || {
        std::fs::read_to_string(&started).ok()?.trim().parse::<u32>().ok()
    })
    .await;
    signal(&child, nix::sys::signal::Signal::SIGKILL);
    wait_for_output(child).await;
    // A launcher may assign the node to another request, so the command must not continue to use it. Its pid may be
    // reused, so the check also reads the command line.
    let is_ours = || std::fs::read_to_string(format!("/proc/{command}/cmdline")).is_ok_and(|line| line.contains("600"));
    wait::until("the command to end", DEADLINE, async || !is_ours()).await;
    wait::until("the lock to be released", DEADLINE, async || harness.children(lock).await.is_empty()).await;
    harness.stop().await;
}

#[tokio::test]
async fn the_launcher_serves_the_command_and_explains_waiting_requests() {
    let harness = CliHarness::new().await;
    let configuration = format!(
        "{{zookeeper-servers: [{{host: 127.0.0.1, port: {}}}], webapp: {{port: 0, listen_address: 127.0.0.1}}, \
         labels: [{{name: a}}], providers: [{{name: p, driver: static, pools: [{{name: main, nodes: [{{name: 127.0.0.1, \
         labels: a, max-parallel-jobs: 2, host-key-checking: false, username: me}}]}}]}}]}}",
        harness.server.address().port()
    );
    std::fs::write(harness.home.path().join("nodepool.yaml"), configuration).unwrap();
    let mut launcher = Command::new(programs::launcher());
    launcher.args(["-f", "-c", "nodepool.yaml"]).current_dir(harness.home.path()).kill_on_drop(true);
    let log = std::fs::File::create(harness.home.path().join("launcher.log")).unwrap();
    let mut launcher = launcher.stdin(Stdio::null()).stdout(log).stderr(Stdio::inherit()).spawn().unwrap();
    let script = "touch started; while ! test -e done; do sleep 0.05; done";
    let busy = harness.spawn(&["request", "--label", "a", "--label", "a", "--", "sh", "-c", script]);
    let started = harness.home.path().join("started");
    wait::until("the command to start on two nodes", DEADLINE, async || started.exists()).await;
    let waiting = harness.spawn(&["request", "--label", "a", "-o", "json"]);
    let explained = wait::until_some("the verdict of the pool", DEADLINE, async || {
        let id = harness.children("/nodepool/requests").await.into_iter().next()?;
        let document: Value = serde_json::from_str(&harness.run(&format!("why {id} -o json")).await.stdout).unwrap();
        (document["verdicts"][0]["verdict"] == "defer").then_some(document)
    })
    .await;
    assert_eq!((&explained["state"], &explained["unanswered"]), (&json!("requested"), &json!([])));
    std::fs::write(harness.home.path().join("done"), "").unwrap();
    assert_eq!(wait_for_output(busy).await.status, Some(0));
    let served = wait_for_output(waiting).await;
    assert_eq!(served.status, Some(0), "{}", served.stderr);
    let document: Value = serde_json::from_str(&served.stdout).unwrap();
    assert_eq!(document["nodes"][0]["user"], "me");
    assert_eq!(harness.children("/nodepool/requests").await, Vec::<String>::new());
    signal(&launcher, nix::sys::signal::Signal::SIGTERM);
    tokio::time::timeout(DEADLINE, launcher.wait()).await.unwrap().unwrap();
    harness.stop().await;
}
