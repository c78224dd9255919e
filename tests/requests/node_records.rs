//! Records of nodes: ids and times of static nodes, and defaults of missing fields.
//!
//! The defaults are compared with those of Nodepool 11's classes, which only `tests/run` provides.

use std::time::Duration;

use nodepool_model::records::ids::NodeId;
use nodepool_zk::paths;
use serde_json::{Value, json};
use testkit::in_process_launcher::{Consumer, on_paused_time, start_launcher, until, yaml};
use testkit::real::python::{self, Interpreter};
use testkit::real::{self};

/// The creation time and the state time of a node, as ZooKeeper stores them.
async fn times(consumer: &Consumer, id: &NodeId) -> (Value, Value) {
    let record = consumer.raw_node(id).await;
    (record["created_time"].clone(), record["state_time"].clone())
}

#[test]
fn a_new_node_has_a_ten_digit_id_and_a_creation_time() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_launcher(&yaml("lab", &["name: fake-h1, labels: [a], max-parallel-jobs: 3"], ""), 3).await;
        let ids: Vec<NodeId> = consumer.nodes().await.into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids.iter().map(NodeId::as_str).collect::<Vec<_>>(), ["0000000000", "0000000001", "0000000002"]);
        for id in &ids {
            let (_, stat) = consumer.zk.get(&paths::node(id)).await.unwrap();
            assert_eq!((stat.ephemeral_owner, stat.version), (0, 0), "the record outlives the session");
            let (created, state) = times(&consumer, id).await;
            assert!(created.is_f64() && created == state, "{created} {state}");
        }
    });
}

#[test]
fn only_state_changes_update_state_time() {
    on_paused_time(async {
        let (_zookeeper, consumer, process) =
            start_launcher(&yaml("lab", &["name: fake-h1, labels: [a]"], ""), 1).await;
        let id = consumer.nodes().await.remove(0).0;
        let before = times(&consumer, &id).await;
        let later = || tokio::time::sleep(Duration::from_secs(100));

        later().await;
        let request = consumer.submit_labels(&["a"]).await;
        assert_eq!(consumer.wait_for_end(&request).await.nodes, std::slice::from_ref(&id));
        assert_eq!(times(&consumer, &id).await, before, "assigned");
        later().await;
        consumer.zk.delete(&paths::request(&request), -1).await.unwrap();
        until("the node to be released", async || consumer.ready_nodes().await == 1).await;
        assert_eq!(times(&consumer, &id).await, before, "released");
        later().await;
        std::fs::write(&process.file, yaml("lab", &["name: fake-h1, labels: [a, b]"], "")).unwrap();
        until("the second label", async || consumer.raw_node(&id).await["type"] == json!(["a", "b"])).await;
        assert_eq!(times(&consumer, &id).await, before, "updated");
    });
}

#[tokio::test]
async fn a_record_with_only_a_state_is_completed_as_python_completes_it() {
    if real::skipped() {
        return;
    }
    let mut nodepool = python::spawn(Interpreter::Reference, "records.py", &[]);
    for text in [
        r#"{"state": "ready", "state_time": 1795175600.25}"#,
        r#"{"state": "hold", "state_time": 5.5, "ssh_port": 2222}"#,
    ] {
        let theirs = nodepool.call(json!({"do": "node", "text": text})).await;
        let node: nodepool_model::records::node::Node =
            nodepool_model::records::json::from_bytes(text.as_bytes()).unwrap();
        let ours = String::from_utf8(nodepool_model::records::json::to_bytes(&node)).unwrap();
        assert_eq!(ours, theirs["written"].as_str().unwrap());
    }
}
