//! Unusual and very large requests: they are served like any other, and verdicts name their labels.
//!
//! The test of labels runs a launcher process on an embedded coordinator; the others run in memory and in paused time.

use std::time::Duration;

use bytes::Bytes;
use nodepool_model::records::ids::{LabelName, NodeId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::RequestState;
use nodepool_model::report::status::{PoolVerdict, VerdictKind};
use nodepool_zk::locks::lock;
use nodepool_zk::paths;
use serde_json::Value;
use testkit::daemon_process::{Coordinator, WorkDir};
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, until, yaml, zookeeper};
use zookeeper_server::types::CreateMode;

fn odd_labels() -> Vec<String> {
    let short = [
        "two words",
        " blanks around ",
        "Grüße aus Köln",
        "e\u{301}",
        "日本語",
        "🦀👩‍💻",
        "it's \"quoted\"",
        "a/b/../c",
        "..",
        "back\\slash",
        "[a, b]",
        "{b: c}",
        "- d",
        "#hash",
        "null",
        "7",
        "%s%n{}",
        "<b>&amp;</b>",
        "\u{202e}gnp",
    ];
    short.iter().map(ToString::to_string).chain(["long-".repeat(200)]).collect()
}

fn configuration(port: u16) -> String {
    // A JSON string is also a quoted YAML string.
    let quoted: Vec<String> = odd_labels().iter().map(|label| Value::from(label.as_str()).to_string()).collect();
    let labels: String = quoted.iter().map(|label| format!("  - name: {label}\n")).collect();
    let nodes = quoted.iter().enumerate();
    let nodes: String = nodes
        .map(|(number, label)| {
            format!("          - {{name: fake-{number}, labels: [{label}], host-key-checking: false}}\n")
        })
        .collect();
    format!(
        "zookeeper-servers: [{{host: 127.0.0.1, port: {port}}}]\nlabels:\n{labels}providers:\n  - name: lab\n    driver: \
         static\n    pools:\n      - name: main\n        nodes:\n{nodes}"
    )
}

async fn why(work_dir: &WorkDir, id: &nodepool_model::records::ids::RequestId) -> Vec<PoolVerdict> {
    let (status, body) = work_dir.get(&format!("/why/{id}")).await.expect("the launcher replies");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn labels_with_any_text_are_served_and_named_in_verdicts() {
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
    work_dir.configure(&configuration(coordinator.port));
    let _launcher = work_dir.launcher(&["-f"]);
    let consumer = Consumer { zk: coordinator.session().await };
    let labels = odd_labels();
    until("a node of each label", async || consumer.ready_nodes().await == labels.len()).await;
    for label in &labels {
        let id = consumer.submit_labels(&[label]).await;
        let ended = consumer.wait_for_end(&id).await;
        assert_eq!(ended.state, RequestState::Fulfilled, "{label:?}");
        assert_eq!(ended.node_types, [LabelName::from(label.as_str())]);
        let node = consumer.node(&ended.nodes[0]).await.unwrap();
        assert_eq!(node.labels, [LabelName::from(label.as_str())]);

        // There is only one node of the label.
        let waiting = consumer.submit_labels(&[label]).await;
        let verdict = async || why(&work_dir, &waiting).await.pop();
        until("the verdict about the waiting request", async || verdict().await.is_some()).await;
        let verdict = verdict().await.unwrap();
        assert_eq!(verdict.verdict, VerdictKind::Defer, "{label:?}");
        assert_eq!(verdict.reason, format!("needs 1 idle node(s) of label {label}, 0 idle"));
        consumer.zk.delete(&paths::request(&waiting), -1).await.unwrap();

        let unknown = format!("{label}!");
        let unserved = consumer.submit_labels(&[&unknown]).await;
        assert_eq!(consumer.wait_for_end(&unserved).await.state, RequestState::Failed, "{label:?}");
        let verdict = why(&work_dir, &unserved).await.pop().expect("the verdict is kept");
        assert!(verdict.reason.contains(&unknown), "{label:?}: {}", verdict.reason);
    }
}

/// Numbers that a record may contain because of a typing error, a wrong clock or Python's JSON.
const NUMBERS: [&str; 12] = [
    "-1",
    "1e308",
    "-1e308",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "0.5",
    "1e18",
    "4294967296",
    "NaN",
    "Infinity",
    "-Infinity",
];

#[test]
fn extreme_numbers_in_records_stop_no_launcher() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        for container in ["nodes", "requests", "components/pool"] {
            lock::make_path(&consumer.zk, &format!("/nodepool/{container}")).await.unwrap();
        }
        let create = async |path: String, text: String| {
            consumer.zk.create(&path, Bytes::from(text), CreateMode::PersistentSequential).await.unwrap();
        };
        let ours = r#""provider": "lab", "pool": "main", "type": ["a"], "hostname": "fake-h1", "username": "zuul""#;
        for number in NUMBERS {
            for key in ["state_time", "created_time", "slot", "connection_port", "hold_expiration"] {
                for state in ["ready", "hold", "used"] {
                    let text = format!(r#"{{"state": "{state}", "state_time": 1.0, {ours}, "{key}": {number}}}"#);
                    create(paths::node_prefix(), text).await;
                }
            }
            let text =
                format!(r#"{{"state": "hold", {ours}, "tenant_name": "t", "resources": {{"instances": {number}}}}}"#);
            create(paths::node_prefix(), text).await;
            for key in ["relative_priority", "state_time", "created_time"] {
                let text =
                    format!(r#"{{"state": "requested", "node_types": ["a"], "tenant_name": "t", "{key}": {number}}}"#);
                create(paths::request_prefix("200"), text).await;
            }
            let pool = format!(r#"{{"kind": "pool", "id": "x", "priority": {number}, "supported_labels": ["b"]}}"#);
            create("/nodepool/components/pool/x".to_owned(), pool).await;
        }
        let text = yaml("lab", &["name: fake-h1, labels: [a], max-parallel-jobs: 3", "name: fake-h2, labels: [c]"], "");
        let limits = "max-hold-age: 1000\ntenant-resource-limits: [{tenant-name: t, max-servers: 2}]\n";
        let text = text.replacen("  - name: a\n", "  - name: a\n    max-ready-age: 1000\n", 1) + limits;
        let mut process = InProcessDaemon::new(&text);
        let running = process.run(&zookeeper);
        let id = consumer.submit_labels(&["c"]).await;
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert!(!running.is_finished(), "no panic, and the session continues");
        for name in consumer.zk.children("/nodepool/nodes").await.unwrap().0 {
            let (data, _) = consumer.zk.get(&paths::node(&name.into())).await.unwrap();
            // Readable records are handled according to their state.
            let node = json::from_bytes::<Node>(&data);
            assert!(node.is_err() || node.is_ok_and(|node| node.state != NodeState::Used), "{data:?}");
        }
        // Records that cannot be changed cause no busy loop.
        let zxid = zookeeper.last_zxid();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let writes = zookeeper.last_zxid() - zxid;
        assert!(writes < 100, "{writes} writes in a quiet minute");
    });
}

#[test]
fn a_request_for_ten_thousand_nodes_is_served() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let mut process =
            InProcessDaemon::new(&yaml("lab", &["name: fake-h1, labels: [a], max-parallel-jobs: 10000"], ""));
        process.run(&zookeeper);
        until("10,000 nodes", async || consumer.count("/nodepool/nodes").await == 10_000).await;
        let id = consumer.submit_labels(&vec!["a"; 10_000]).await;
        let ended = consumer.wait_for_end(&id).await;
        assert_eq!((ended.state, ended.nodes.len()), (RequestState::Fulfilled, 10_000));
        let assigned: std::collections::BTreeSet<&NodeId> = ended.nodes.iter().collect();
        assert_eq!(assigned.len(), 10_000, "a node is assigned twice");
        let nodes = consumer.nodes().await;
        assert!(nodes.iter().all(|(_, node)| node.allocated_to.as_ref() == Some(&id)));
        let lock = paths::request_lock(&id);
        until("the request's lock to be free", async || consumer.count(&lock).await == 0).await;
        let largest = json::to_bytes(&ended).len();
        assert!(largest < 0xf_ffff, "a record of {largest} bytes exceeds the limit of ZooKeeper");

        consumer.zk.delete(&paths::request(&id), -1).await.unwrap();
        until("all nodes to be idle again", async || {
            // Checks the first and the last node before it reads all.
            let ends = [&nodes[0].0, &nodes[9_999].0];
            for id in ends {
                if !consumer.node(id).await.unwrap().is_idle() {
                    return false;
                }
            }
            consumer.ready_nodes().await == 10_000
        })
        .await;
    });
}
