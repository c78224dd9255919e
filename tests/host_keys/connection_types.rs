//! Host keys of a node by its connection type: SSH hosts, Windows hosts and network devices.

use serde_json::{Value, json};
use testkit::in_process_launcher::fake_cloud::{self, configuration, start_fake_launcher};
use testkit::in_process_launcher::{
    InProcessDaemon, on_paused_time, on_real_time, start_launcher, start_process, yaml,
};
use testkit::real::{self, sshd};

/// The fields of a record that describe to Ansible how to connect to the node.
fn connection(record: &Value) -> [&Value; 5] {
    ["connection_type", "connection_port", "host_keys", "python_path", "shell_type"].map(|key| &record[key])
}

#[test]
fn a_windows_node_keeps_its_port_and_has_no_keys() {
    on_real_time(async {
        let (hung_up, _) = std::sync::mpsc::channel();
        let address = testkit::misbehaving_hosts::listen(testkit::misbehaving_hosts::ListenerBehavior::Silent, hung_up);
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
            records.push(consumer.raw_node(&id).await);
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
        let record = consumer.raw_node(&consumer.nodes().await[0].0).await;
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
        let record = consumer.raw_node(&consumer.nodes().await[0].0).await;
        let expected = [&json!("network_cli"), &json!(2022), &json!([]), &json!("auto"), &Value::Null];
        assert_eq!(connection(&record), expected);
    });
}

#[test]
fn host_keys_follow_connection_type_and_settings() {
    on_paused_time(async {
        let image = |name: &str, more: Value| {
            let mut image = json!({"name": name, "image-name": "Fake Precise"});
            image.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            image
        };
        let images = json!([
            image("plain", json!({"shell-type": "csh"})),
            image("windows", json!({"connection-type": "winrm"})),
            image("ported", json!({"connection-type": "winrm", "connection-port": 1234})),
            image("switch", json!({"connection-type": "network_cli"})),
        ]);
        let label = |name: &str, image: &str| json!({"name": name, "cloud-image": image, "flavor-name": "Fake Flavor"});
        let mut unchecked = label("unchecked", "plain");
        unchecked["host-key-checking"] = json!(false);
        let names = ["plain", "windows", "ported", "switch"];
        let labels: Vec<Value> = names.iter().map(|name| label(name, name)).chain([unchecked]).collect();
        let mut lab = fake_cloud::provider("lab", json!({"cloud-images": images}), json!({"labels": labels}));
        let second =
            json!({"name": "second", "host-key-checking": false, "labels": [label("unchecked-pool", "plain")]});
        lab["pools"].as_array_mut().unwrap().push(second);
        let mut all = configuration(&[lab]);
        let names = names.iter().chain(&["unchecked", "unchecked-pool"]);
        all["labels"] = names.map(|name| json!({"name": name})).collect();
        let (_zookeeper, consumer, _process) = start_fake_launcher(&all).await;
        let key = vec!["ssh-rsa FAKEKEY".to_owned()];
        let expected = [
            ("plain", "ssh", 22, Some("csh"), key.clone()),
            ("windows", "winrm", 5986, None, vec![]),
            ("ported", "winrm", 1234, None, vec![]),
            ("switch", "network_cli", 22, None, key),
            ("unchecked", "ssh", 22, Some("csh"), vec![]),
            ("unchecked-pool", "ssh", 22, Some("csh"), vec![]),
        ];
        for (label, connection, port, shell, keys) in expected {
            let id = consumer.submit_labels(&[label]).await;
            let node = consumer.node(&consumer.fulfilled_nodes(&id).await[0]).await.unwrap();
            assert_eq!((node.connection_type.as_deref(), node.port()), (Some(connection), Some(port)), "{label}");
            assert_eq!((node.shell_type.as_deref(), node.host_keys), (shell, keys), "{label}");
        }
    });
}
