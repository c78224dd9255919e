//! Credentials and addresses of a cluster: kubeconfig files with all kinds of entries, and how they change.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use testkit::clouds::simulated_kubernetes::SimulatedKubernetes;
use testkit::in_process_launcher::on_real_time;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::driver::{KubernetesHarness, LABELS, connection};

/// A kubeconfig of the cluster with changed entries: `change` gets each cluster with each user.
pub fn changed_kubeconfig(cluster: &SimulatedKubernetes, change: impl Fn(&mut Value, &mut Value)) -> NamedTempFile {
    let text = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_yaml::from_str(&text).unwrap();
    let mut users = kubeconfig["users"].take();
    for cluster in kubeconfig["clusters"].as_array_mut().unwrap() {
        for user in users.as_array_mut().unwrap() {
            change(&mut cluster["cluster"], &mut user["user"]);
        }
    }
    kubeconfig["users"] = users;
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), kubeconfig.to_string()).unwrap();
    file
}

/// Launches and deletes nodes with this kubeconfig; returns the connection data of the last one.
async fn launch_with(harness: &mut KubernetesHarness, kubeconfig: &NamedTempFile, nodes: usize) -> Value {
    harness.provider = KubernetesHarness::provider("kubernetes", kubeconfig.path().to_owned(), LABELS);
    let mut data = Value::Null;
    for number in 0..nodes {
        let node = harness.launch("pod", &format!("000000000{number}")).await.unwrap();
        data = connection(&node);
        harness.delete(node).await;
    }
    data
}

#[test]
fn tokens_of_an_exec_plugin_are_renewed() {
    on_real_time(async {
        let mut harness = KubernetesHarness::start(&["--token-lifetime-s", "2"], LABELS).await;
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "curl", "interactiveMode": "Never",
            "args": ["-s", harness.cluster.credential_url("nodepool")],
        });
        let kubeconfig = changed_kubeconfig(&harness.cluster, |_, user| *user = json!({ "exec": exec }));
        let written = std::fs::read_to_string(kubeconfig.path()).unwrap();
        launch_with(&mut harness, &kubeconfig, 6).await;
        assert_eq!(std::fs::read_to_string(kubeconfig.path()).unwrap(), written);
    });
}

#[test]
fn a_token_file_is_read_again_when_its_token_is_no_longer_accepted() {
    on_real_time(async {
        let mut harness = KubernetesHarness::start(&[], LABELS).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let copy_token = |harness: &KubernetesHarness| {
            let text = std::fs::read_to_string(harness.cluster.kubeconfig()).unwrap();
            let kubeconfig: Value = serde_yaml::from_str(&text).unwrap();
            let users = kubeconfig["users"].as_array().unwrap();
            let user = users.iter().find(|user| user["name"] == "nodepool").unwrap();
            std::fs::write(&file, user["user"]["token"].as_str().unwrap()).unwrap();
        };
        copy_token(&harness);
        let kubeconfig = changed_kubeconfig(&harness.cluster, |_, user| *user = json!({"tokenFile": file}));
        launch_with(&mut harness, &kubeconfig, 1).await;
        harness.cluster.revoke_tokens().await;
        harness.cluster.renew_kubeconfig().await;
        copy_token(&harness);
        let node = harness.launch("ns", "0000000007").await.unwrap();
        harness.delete(node).await;
    });
}

#[test]
fn certificates_are_checked_as_the_kubeconfig_says() {
    on_real_time(async {
        let mut harness = KubernetesHarness::start(&[], LABELS).await;
        // Without a check the nodes' users do not check either, and get no certificate.
        let unchecked = changed_kubeconfig(&harness.cluster, |cluster, _| {
            *cluster = json!({"server": cluster["server"], "insecure-skip-tls-verify": true});
        });
        let data = launch_with(&mut harness, &unchecked, 1).await;
        assert_eq!((&data["skiptls"], data.get("ca_crt")), (&json!(true), None));
        let named = changed_kubeconfig(&harness.cluster, |cluster, _| cluster["tls-server-name"] = json!("localhost"));
        let data = launch_with(&mut harness, &named, 1).await;
        assert_eq!((&data["skiptls"], &data["host"]), (&json!(false), &json!(harness.cluster.base())));
        let other =
            changed_kubeconfig(&harness.cluster, |cluster, _| cluster["tls-server-name"] = json!("other.example"));
        let provider = KubernetesHarness::provider("kubernetes", other.path().to_owned(), LABELS);
        let facts = provider.wait_for_facts(|facts| facts.unavailable.is_some()).await;
        let reason = facts.unavailable.as_ref().unwrap().reason().to_owned();
        assert!(reason.contains("certificate"), "{reason}");
    });
}

/// An HTTP proxy that forwards `CONNECT`; returns its URL, and counts its connections.
async fn start_proxy(connections: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let connections = connections.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut request = String::new();
                while !request.ends_with("\r\n\r\n") && stream.read_line(&mut request).await? > 0 {}
                let target = request.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
                let mut cluster = TcpStream::connect(target.unwrap_or_default()).await?;
                connections.fetch_add(1, Ordering::Relaxed);
                stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
                tokio::io::copy_bidirectional(&mut stream, &mut cluster).await
            });
        }
    });
    url
}

#[test]
fn a_proxy_of_the_kubeconfig_carries_all_connections() {
    on_real_time(async {
        let mut harness = KubernetesHarness::start(&[], LABELS).await;
        let connections = Arc::new(AtomicUsize::new(0));
        let proxy = start_proxy(connections.clone()).await;
        let kubeconfig = changed_kubeconfig(&harness.cluster, |cluster, _| cluster["proxy-url"] = json!(proxy));
        let data = launch_with(&mut harness, &kubeconfig, 1).await;
        assert_eq!(data["host"], harness.cluster.base(), "users of the node may need no proxy");
        assert!(connections.load(Ordering::Relaxed) > 0);
        let dead =
            changed_kubeconfig(&harness.cluster, |cluster, _| cluster["proxy-url"] = json!("http://127.0.0.1:9"));
        let provider = KubernetesHarness::provider("kubernetes", dead.path().to_owned(), LABELS);
        provider.wait_for_facts(|facts| facts.health != Default::default()).await;
    });
}

#[test]
fn an_unusable_kubeconfig_is_the_reason_of_each_failure() {
    on_real_time(async {
        let harness = KubernetesHarness::start(&[], LABELS).await;
        let provider = KubernetesHarness::provider("kubernetes", PathBuf::from("/no/such/kubeconfig"), LABELS);
        let facts = provider.wait_for_facts(|facts| facts.unavailable.is_some()).await;
        let reason = facts.unavailable.as_ref().unwrap().reason().to_owned();
        assert!(reason.contains("/no/such/kubeconfig does not exist"), "{reason}");
        let folder = tempfile::tempdir().unwrap();
        let text = std::fs::read_to_string(harness.cluster.kubeconfig()).unwrap();
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, text.replace("nodepool", "other")).unwrap();
        let provider = KubernetesHarness::provider("kubernetes", path, LABELS);
        let facts = provider.wait_for_facts(|facts| facts.unavailable.is_some()).await;
        let reason = facts.unavailable.as_ref().unwrap().reason().to_owned();
        assert!(reason.contains("context nodepool of the kubeconfig"), "{reason}");
    });
}
