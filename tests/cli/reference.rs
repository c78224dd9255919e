//! Our command line and that of Nodepool 11 on one ZooKeeper: each reads and changes records that the other wrote.
//!
//! Both run as processes on a real ZooKeeper with TLS.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::NodeRequest;
use nodepool_model::records::time::Timestamp;
use nodepool_zk::Connection;
use nodepool_zk::client::{ConnectOptions, RealConnection, connect};
use nodepool_zk::locks::lock;
use serde_json::Value;
use tempfile::TempDir;
use testkit::programs;
use testkit::real::python::Interpreter;
use testkit::real::zookeeper::{Options, Server};
use tokio::process::Command;
use zookeeper_server::types::CreateMode;

const DEADLINE: Duration = Duration::from_secs(120);

struct CliReferenceHarness {
    zk: std::sync::Arc<RealConnection>,
    home: TempDir,
    _zookeeper: Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Implementation {
    Ours,
    Python,
}

struct CommandOutput {
    stdout: String,
    stderr: String,
    status: Option<i32>,
}

impl CliReferenceHarness {
    /// Starts a ZooKeeper with TLS, because Nodepool 11 connects in no other way.
    async fn start() -> CliReferenceHarness {
        let zookeeper = Server::start(Options::tls()).await;
        let home = tempfile::tempdir().unwrap();
        let tls = PathBuf::from(testkit::real::setting("NODEPOOL_TEST_TLS"));
        let port = zookeeper.address().rsplit_once(':').unwrap().1.to_owned();
        let file = |name: &str| tls.join(name).display().to_string();
        let configuration = format!(
            "zookeeper-servers:\n  - host: 127.0.0.1\n    port: {port}\nzookeeper-tls:\n  ca: {}\n  cert: {}\n  key: {}\n\
             labels:\n  - name: a\nproviders:\n  - name: p\n    driver: static\n    pools: []\n",
            file("ca.pem"),
            file("client.pem"),
            file("client.key"),
        );
        std::fs::write(home.path().join("nodepool.yaml"), configuration).unwrap();
        let plain = zookeeper.plain_address();
        let (host, port) = plain.rsplit_once(':').unwrap();
        let zk = connect(ConnectOptions::plain(host, port.parse().unwrap())).await.unwrap();
        CliReferenceHarness { zk, home, _zookeeper: zookeeper }
    }

    async fn run(&self, implementation: Implementation, line: &str) -> CommandOutput {
        let mut command = match implementation {
            Implementation::Ours => Command::new(programs::nodepool()),
            Implementation::Python => {
                let mut python = Command::new(Interpreter::Reference.path());
                python.args([
                    "-B",
                    "-c",
                    "import sys; from nodepool.cmd import nodepoolcmd; sys.exit(nodepoolcmd.main())",
                ]);
                python
            }
        };
        command.args(["-c", "nodepool.yaml"]).args(line.split(' ')).current_dir(self.home.path());
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(DEADLINE, command.output()).await.unwrap().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        CommandOutput { stdout: text(output.stdout), stderr: text(output.stderr), status: output.status.code() }
    }

    async fn put(&self, path: &str, data: &[u8]) {
        for (slash, _) in path.match_indices('/').skip(1) {
            let _ = self.zk.create(&path[..slash], Vec::new().into(), CreateMode::Persistent).await;
        }
        self.zk.create(path, data.to_vec().into(), CreateMode::Persistent).await.unwrap();
    }

    async fn put_node(&self, id: &str, node: &Node) {
        self.put(&format!("/nodepool/nodes/{id}"), &json::to_bytes(node)).await;
    }

    async fn node(&self, id: &str) -> Node {
        let (data, _) = self.zk.get(&format!("/nodepool/nodes/{id}")).await.unwrap();
        json::from_bytes(&data).unwrap()
    }

    /// Asserts that both print the same rows, in any order. Ages are masked, because they advance between the runs.
    async fn assert_same(&self, line: &str) {
        let ours = self.run(Implementation::Ours, line).await;
        let python = self.run(Implementation::Python, line).await;
        assert_eq!((ours.status, python.status), (Some(0), Some(0)), "{}{}", ours.stderr, python.stderr);
        assert_eq!(comparable(&ours.stdout), comparable(&python.stdout), "{line}");
    }
}

fn comparable(table: &str) -> Vec<String> {
    let mut lines: Vec<String> = table.lines().map(without_ages).collect();
    lines.sort();
    lines
}

/// Replaces `DD:HH:MM:SS` by `DD:HH:**:**`.
fn without_ages(line: &str) -> String {
    let is_age = |word: &str| word.split(':').count() == 4 && word.bytes().all(|b| b.is_ascii_digit() || b == b':');
    let masked = |word: &str| if is_age(word) { format!("{}**:**", &word[..word.len() - 5]) } else { word.to_owned() };
    line.split(' ').map(masked).collect::<Vec<_>>().join(" ")
}

fn node() -> Node {
    let mut node = Node::new(NodeState::Ready, Timestamp(1.7e9));
    node.provider = Some("p".into());
    node.pool = Some("main".into());
    node.labels = vec!["a".into(), "标签".into()];
    node.external_id = serde_json::json!({"pod": "x'y", "n": [1, 2.5, null, true]}).into();
    node.user_data = serde_json::json!({"zuul_system": "z", "project_name": "é"}).into();
    node.driver_data = Value::String("text \"quoted\"".to_owned()).into();
    node.comment = Some("two\nlines".to_owned());
    node.public_ipv4 = Some("127.0.0.1".to_owned());
    node.username = None;
    node
}

#[tokio::test]
async fn both_programs_print_the_same_lists() {
    if testkit::real::skipped() {
        return;
    }
    let both = CliReferenceHarness::start().await;
    for line in ["list --detail", "info p"] {
        both.assert_same(line).await;
    }
    both.put_node("0000000000", &node()).await;
    let mut container = node();
    container.connection_port = serde_json::json!({"token": "secret"}).into();
    container.allocated_to = Some("200-0000000000".into());
    container.external_id = Value::Null.into();
    both.put_node("0000000001", &container).await;
    let session: nodepool_zk::Zk = both.zk.clone();
    let held = lock::try_lock(&session, "/nodepool/nodes/0000000001/lock", "").await.unwrap().unwrap();
    let mut request = NodeRequest::new(vec!["a".into(), "标签".into()], "z", Timestamp(1.7e9));
    request.declined_by = vec!["one".into(), "two".into()];
    request.nodes = vec!["0000000001".into()];
    both.put("/nodepool/requests/200-0000000000", &json::to_bytes(&request)).await;
    let images = "/nodepool/images/debian/builds";
    let upload = br#"{"state": "ready", "state_time": 1700000000.0, "external_id": "x", "external_name": "y"}"#;
    for upload_id in ["0000000002", "0000000001"] {
        both.put(&format!("{images}/0123456789abcdef0123456789abcdef/providers/p/images/{upload_id}"), upload).await;
    }
    both.put(&format!("{images}/lock"), b"").await;
    both.put(&format!("{images}/fedcba9876543210fedcba9876543210/providers/p/images"), b"").await;
    for line in ["list", "list --detail", "request-list", "info p"] {
        both.assert_same(line).await;
    }
    held.release().await.unwrap();
}

#[tokio::test]
async fn each_program_holds_and_deletes_nodes_of_the_other() {
    if testkit::real::skipped() {
        return;
    }
    let both = CliReferenceHarness::start().await;
    both.put_node("0000000000", &node()).await;
    let mut lines = Vec::new();
    for implementation in [Implementation::Ours, Implementation::Python] {
        let held = both.run(implementation, "hold 0000000000").await;
        assert_eq!(held.status, Some(0), "{implementation:?} {}", held.stderr);
        assert_eq!(both.node("0000000000").await.state, NodeState::Hold);
        let deleted = both.run(implementation, "delete 0000000000").await;
        assert_eq!(deleted.status, Some(0), "{implementation:?} {}", deleted.stderr);
        assert_eq!(both.node("0000000000").await.state, NodeState::Deleting);
        let missing = both.run(implementation, "hold 0000000009").await;
        assert_eq!(missing.status, Some(0), "{implementation:?} {}", missing.stderr);
        lines.push([comparable(&held.stdout), comparable(&deleted.stdout), comparable(&missing.stdout)]);
    }
    assert_eq!(lines[0], lines[1]);
    let session: nodepool_zk::Zk = both.zk.clone();
    let held = lock::try_lock(&session, "/nodepool/nodes/0000000000/lock", "").await.unwrap().unwrap();
    for implementation in [Implementation::Ours, Implementation::Python] {
        let rejected = both.run(implementation, "hold 0000000000").await;
        assert_eq!(rejected.status, Some(1), "{implementation:?}");
        let last = rejected.stderr.lines().last().unwrap();
        let message = "Timeout trying to acquire lock /nodepool/nodes/0000000000/lock";
        assert!(last.ends_with(message), "{implementation:?} {}", rejected.stderr);
    }
    held.release().await.unwrap();
    for implementation in [Implementation::Ours, Implementation::Python] {
        both.put("/nodepool/images/debian/builds/b/providers/p/images/0000000001", b"{}").await;
        let erased = both.run(implementation, "erase p --force").await;
        assert_eq!(erased.stdout, "Erasing build data for p...\nErasing node data for p...\n", "{implementation:?}");
        assert_eq!(both.zk.exists("/nodepool/nodes/0000000000").await.unwrap(), None, "{implementation:?}");
        assert_eq!(
            both.zk.exists("/nodepool/images/debian/builds/b/providers/p").await.unwrap(),
            None,
            "{implementation:?}"
        );
        both.put_node("0000000000", &node()).await;
    }
    let deletion = both.run(Implementation::Ours, "delete --now 0000000000").await;
    assert_eq!(deletion.status, Some(0), "{}", deletion.stderr);
    assert_eq!(both.zk.exists("/nodepool/nodes/0000000000").await.unwrap(), None);
    let missing = both.run(Implementation::Python, "delete 0000000000").await;
    assert_eq!(missing.stdout, "Node id 0000000000 not found\n", "{}", missing.stderr);
}
