//! kubectl with the connection data that a launcher hands out.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use testkit::in_process_launcher::on_real_time;

use crate::launcher::{CONFIG, LauncherHarness};
use crate::openshift_launcher;

/// A kubeconfig of a node's connection data and nothing else.
fn kubeconfig(data: &Value) -> NamedTempFile {
    let cluster = json!({"server": data["host"], "certificate-authority-data": data["ca_crt"]});
    let context = json!({"cluster": "c", "user": "u", "namespace": data["namespace"]});
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "node",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": data["token"]}}],
        "contexts": [{"name": "node", "context": context}],
    });
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(config.to_string().as_bytes()).unwrap();
    file
}

fn kubectl(kubeconfig: &Path, arguments: &str) -> Output {
    // Neither the files nor the caches of the home directory.
    let home = kubeconfig.with_extension("home");
    let mut command = Command::new("kubectl");
    command.args(arguments.split(' ')).env("KUBECONFIG", kubeconfig).env("HOME", &home);
    let output = command.output().unwrap_or_else(|error| panic!("kubectl: {error}; run the tests with tests/run"));
    let _ = std::fs::remove_dir_all(home);
    output
}

/// Asserts that kubectl may do this with the node.
fn may(data: &Value, arguments: &str) {
    let output = kubectl(kubeconfig(data).path(), arguments);
    assert!(output.status.success(), "{arguments}: {output:?}");
}

/// Asserts that the cluster refuses it.
fn may_not(data: &Value, arguments: &str) {
    let output = kubectl(kubeconfig(data).path(), arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("Forbidden"), "{arguments}: {output:?}");
}

/// `kubectl create` of an object of this kind, from a file and as it is: the simulated cluster serves no OpenAPI
/// documents and no protobuf.
fn create(data: &Value, api_version: &str, kind: &str) -> Output {
    let mut file = NamedTempFile::new().unwrap();
    let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "settings"}});
    file.write_all(object.to_string().as_bytes()).unwrap();
    kubectl(kubeconfig(data).path(), &format!("create --validate=false -f {}", file.path().display()))
}

/// Rights of a node that is a whole namespace or project.
fn assert_whole(data: &Value) {
    for (api_version, kind) in [("v1", "ConfigMap"), ("apps/v1", "Deployment"), ("batch/v1", "Job")] {
        let output = create(data, api_version, kind);
        assert!(output.status.success(), "{kind}: {output:?}");
    }
    may(data, "get pods,configmaps,deployments");
    may_not(data, "get nodes");
    may_not(data, "-n default get pods");
}

/// Rights of a node that is a pod in a namespace of its own.
fn assert_pod(data: &Value) {
    let pod = data["pod"].as_str().unwrap();
    may(data, &format!("wait --for=condition=Ready --timeout=10s pod/{pod}"));
    // The simulated cluster has no containers, so these end after the check of the rights.
    for arguments in [format!("logs {pod}"), format!("exec {pod} -- true")] {
        let output = kubectl(kubeconfig(data).path(), &arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!text.contains("Forbidden") && !text.contains("Unauthorized"), "{arguments}: {output:?}");
    }
    let output = create(data, "v1", "ConfigMap");
    assert!(String::from_utf8_lossy(&output.stderr).contains("Forbidden"), "{output:?}");
    may_not(data, &format!("delete pod {pod}"));
}

#[test]
fn kubectl_uses_namespaces_and_pods_as_they_are_handed_out() {
    on_real_time(async {
        let harness = LauncherHarness::start_with(CONFIG, &["--pod-start-s", "0.1"]).await;
        assert_whole(&harness.node("ns").await.1["connection_port"]);
        assert_pod(&harness.node("pod").await.1["connection_port"]);
    });
}

#[test]
fn kubectl_uses_projects_and_their_pods_as_they_are_handed_out() {
    on_real_time(async {
        let harness = openshift_launcher::start("0.1").await;
        assert_whole(&harness.node("project").await.1["connection_port"]);
        let (_, node) = harness.node("project-pod").await;
        may(&node["connection_port"], "wait --for=condition=Ready --timeout=10s pod/project-pod");
        let (_, node) = harness.node("pod").await;
        let data = &node["connection_port"];
        may(data, &format!("wait --for=condition=Ready --timeout=10s pod/{}", data["pod"].as_str().unwrap()));
    });
}
