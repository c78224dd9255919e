//! Records of static nodes, from registration to deregistration.

mod in_process_launcher;
mod misbehaving_hosts;
mod support;

use std::time::Duration;

use in_process_launcher::{
    Consumer, InProcessDaemon, on_paused_time, on_real_time, start_launcher, start_process, until, yaml,
};
use nodepool_model::records::ids::NodeId;
use nodepool_zk::paths;
use serde_json::{Value, json};
use support::real::python::{self, Interpreter};
use support::real::{self, sshd};

async fn raw(consumer: &Consumer, id: &NodeId) -> Value {
    serde_json::from_slice(&consumer.zk.get(&paths::node(id)).await.unwrap().0).unwrap()
}

/// The creation time and the state time of a node, as stored.
async fn times(consumer: &Consumer, id: &NodeId) -> (Value, Value) {
    let record = raw(consumer, id).await;
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
        until("the second label", async || raw(&consumer, &id).await["type"] == json!(["a", "b"])).await;
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

/// The keys that tell Ansible how to connect to a node.
fn connection(record: &Value) -> [&Value; 5] {
    ["connection_type", "connection_port", "host_keys", "python_path", "shell_type"].map(|key| &record[key])
}

#[test]
fn a_windows_node_keeps_its_port_and_has_no_keys() {
    on_real_time(async {
        let (hung_up, _) = std::sync::mpsc::channel();
        let address = misbehaving_hosts::listen(misbehaving_hosts::ListenerBehavior::Silent, hung_up);
        let port = address.port();
        let text = format!(
            "zookeeper-servers: [{{host: localhost}}]\nlabels: [{{name: a}}]\nproviders:\n  - name: lab\n    driver: \
             static\n    pools:\n      - name: main\n        nodes:\n          - {{name: 127.0.0.1, labels: [a], \
             connection-type: winrm, connection-port: {port}, shell-type: powershell, username: Administrator}}\n          \
             - {{name: fake-w2, labels: [a], connection-type: winrm, connection-port: 5986, python-path: 'C:\\python'}}\n"
        );
        let (_zookeeper, consumer, _process) = start_process(InProcessDaemon::new(&text), 2).await;
        let mut records = Vec::new();
        for (id, _) in consumer.nodes().await {
            records.push(raw(&consumer, &id).await);
        }
        records.sort_by_key(|record| record["hostname"].to_string());
        let (real, fake) = (&records[0], &records[1]);
        let none = json!([]);
        assert_eq!(connection(real), [&json!("winrm"), &json!(port), &none, &json!("auto"), &json!("powershell")]);
        assert_eq!((&real["ssh_port"], &real["username"]), (&json!(port), &json!("Administrator")));
        assert_eq!(connection(fake), [&json!("winrm"), &json!(5986), &none, &json!("C:\\python"), &Value::Null]);
    });
}

#[test]
fn a_network_device_has_host_keys() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let host = sshd::Host::start(sshd::Options::at(61)).await;
        let (ip, port) = (host.address().ip(), host.port());
        let text = format!(
            "zookeeper-servers: [{{host: localhost}}]\nlabels: [{{name: a}}]\nproviders:\n  - name: lab\n    driver: \
             static\n    pools:\n      - name: main\n        nodes: [{{name: {ip}, labels: [a], connection-type: \
             network_cli, connection-port: {port}}}]\n"
        );
        let (_zookeeper, consumer, _process) = start_process(InProcessDaemon::new(&text), 1).await;
        let record = raw(&consumer, &consumer.nodes().await[0].0).await;
        let mut keys = host.keys();
        keys.sort();
        let mut found: Vec<String> = serde_json::from_value(record["host_keys"].clone()).unwrap();
        found.sort();
        assert!(!keys.is_empty() && found == keys, "{found:?}");
        let expected = [&json!("network_cli"), &json!(port), &record["host_keys"], &json!("auto"), &Value::Null];
        assert_eq!(connection(&record), expected);
    });
}

#[test]
fn a_network_device_whose_keys_are_not_checked_has_none() {
    on_paused_time(async {
        let line = "name: fake-n1, labels: [a], connection-type: network_cli, connection-port: 2022";
        let (_zookeeper, consumer, _process) = start_launcher(&yaml("lab", &[line], ""), 1).await;
        let record = raw(&consumer, &consumer.nodes().await[0].0).await;
        let expected = [&json!("network_cli"), &json!(2022), &json!([]), &json!("auto"), &Value::Null];
        assert_eq!(connection(&record), expected);
    });
}
