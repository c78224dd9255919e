//! The drivers kubernetes and openshiftpods on a real cluster, if `NODEPOOL_TEST_KUBECONFIG` names one.

use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use nodepool_driver::job::{Job, Outcome};
use nodepool_model::records::ids::ExternalId;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use testkit::clouds::simulated_kubernetes::SimulatedKubernetes;
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::ProviderHarness;
use testkit::wait;

use crate::client::{Client, TIMEOUT};
use crate::driver::{KubernetesHarness, LABELS, connection, launch, order};
use crate::openshiftpods;

/// Nodes of each label.
const NODES: u64 = 5;

/// The kubeconfig of the real cluster; says on standard error that a test is skipped if there is none.
pub fn real_kubeconfig() -> Option<PathBuf> {
    let Some(kubeconfig) = std::env::var_os("NODEPOOL_TEST_KUBECONFIG").map(PathBuf::from) else {
        // Written to the stream itself: the test harness captures the output of a test that passes.
        let line = "SKIPPED: no real Kubernetes (set NODEPOOL_TEST_KUBECONFIG)\n";
        std::io::stderr().write_all(line.as_bytes()).expect("standard error is open in a test");
        return None;
    };
    // Another address could be a cluster in production.
    let base = Client::connect(&kubeconfig, "admin").base;
    assert!(base.starts_with("https://127.0.0.1:"), "{base} is not on loopback");
    Some(kubeconfig)
}

/// Launches nodes and uses them as their users.
async fn use_nodes(provider: &mut ProviderHarness, kubeconfig: &Path) {
    for number in 0..2 * NODES {
        let label = if number % 2 == 0 { "ns" } else { "pod" };
        provider.submit(number, order(label, &format!("{:010}", 9_000_000_000 + number)));
    }
    for _ in 0..2 * NODES {
        let (number, outcome) = provider.wait_for_end().await;
        let Ok(Outcome::Launched(node)) = outcome else { panic!("{number}: {outcome:?}") };
        let data = connection(&node);
        // `admin` may have a certificate, which would count instead of the token.
        let user = Client::connect(kubeconfig, "nodepool").with_token(data["token"].as_str());
        let namespace = format!("/api/v1/namespaces/{}", data["namespace"].as_str().unwrap());
        user.get(&format!("{namespace}/pods")).await.expect(200);
        user.get("/api/v1/nodes").await.expect(403);
        let status = if data.get("pod").is_some() { 403 } else { 201 };
        user.post(&format!("{namespace}/configmaps"), json!({"metadata": {"name": "c"}})).await.expect(status);
    }
}

#[test]
fn nodes_of_a_real_cluster_are_usable_and_leave_nothing() {
    let Some(kubeconfig) = real_kubeconfig() else { return };
    on_real_time(async {
        let admin = Client::connect(&kubeconfig, "admin");
        let mut provider = KubernetesHarness::provider("kubernetes", kubeconfig.clone(), LABELS);
        let used = AssertUnwindSafe(use_nodes(&mut provider, &kubeconfig)).catch_unwind().await;
        // The cluster outlives the test, also one that fails.
        let namespaces = "/api/v1/namespaces?labelSelector=nodepool_provider_name%3Dkube";
        let left = admin.get(namespaces).await.expect(200);
        let left = left["items"].as_array().unwrap().iter().map(|one| one["metadata"]["name"].as_str().unwrap());
        let left: Vec<ExternalId> = left.map(ExternalId::text).collect();
        for (number, id) in (100..).zip(&left) {
            provider.submit(number, Job::Delete(id.clone()));
        }
        for _ in &left {
            assert_eq!(provider.wait_for_end().await.1, Ok(Outcome::Deleted));
        }
        if let Err(panic) = used {
            std::panic::resume_unwind(panic);
        }
        assert_eq!(left.len() as u64, 2 * NODES);
        assert_eq!(admin.get(namespaces).await.expect(200)["items"], json!([]));
    });
}

/// The role in the manual of openshiftpods, for this namespace.
fn documented_role(namespace: &str) -> Value {
    let manual = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("doc/drivers/openshiftpods.md"));
    let manual = manual.unwrap();
    let blocks = manual.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap());
    let mut roles = blocks.map(|block| serde_yaml::from_str::<Value>(block).unwrap());
    let mut role = roles.find(|block| block["kind"] == "Role").expect("the manual has a role");
    role["metadata"]["namespace"] = namespace.into();
    role
}

/// An account with the documented role in a new namespace; returns a kubeconfig with its token.
async fn account_with_documented_role(kubeconfig: &Path, namespace: &str) -> NamedTempFile {
    let admin = Client::connect(kubeconfig, "admin");
    let path = format!("/api/v1/namespaces/{namespace}");
    let name = json!({"name": "nodepool-pods"});
    admin.post("/api/v1/namespaces", json!({"metadata": {"name": namespace}})).await.expect(201);
    admin.post(&format!("{path}/serviceaccounts"), json!({ "metadata": name })).await.expect(201);
    let annotations = json!({"kubernetes.io/service-account.name": "nodepool-pods"});
    let secret = json!({
        "metadata": {"name": "token", "annotations": annotations}, "type": "kubernetes.io/service-account-token",
    });
    admin.post(&format!("{path}/secrets"), secret).await.expect(201);
    let rbac = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}");
    admin.post(&format!("{rbac}/roles"), documented_role(namespace)).await.expect(201);
    let binding = json!({
        "metadata": name, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "nodepool-pods"},
        "subjects": [{"kind": "ServiceAccount", "name": "nodepool-pods", "namespace": namespace}],
    });
    admin.post(&format!("{rbac}/rolebindings"), binding).await.expect(201);
    let quota = json!({"metadata": {"name": "rq"}, "spec": {"hard": {"pods": "7"}}});
    admin.post(&format!("{path}/resourcequotas"), quota).await.expect(201);
    let secret = wait::until_some("the token and the count of the quota", TIMEOUT, async || {
        let quota = admin.get(&format!("{path}/resourcequotas/rq")).await.expect(200);
        let secret = admin.get(&format!("{path}/secrets/token")).await.expect(200);
        (secret["data"]["token"].is_string() && quota["status"]["used"]["pods"].is_string()).then_some(secret)
    })
    .await;
    let cluster = json!({"server": admin.base, "certificate-authority-data": secret["data"]["ca.crt"]});
    let token = STANDARD.decode(secret["data"]["token"].as_str().unwrap()).unwrap();
    let config = json!({
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": String::from_utf8(token).unwrap()}}],
        "contexts": [{"name": "nodepool", "context": {"cluster": "c", "user": "u"}}],
    });
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(config.to_string().as_bytes()).unwrap();
    file
}

async fn use_pods(kubeconfig: &Path, namespace: &str) {
    let account = account_with_documented_role(kubeconfig, namespace).await;
    let mut provider = openshiftpods::provider(account.path(), &[namespace]);
    provider.submit(1, launch("kube", namespace, "pod", "9000000001", json!({"id": "100-0000000001"})));
    let Ok(Outcome::Launched(node)) = provider.wait_for_end().await.1 else { panic!("the launch failed") };
    let data = connection(&node);
    let user = Client::connect(kubeconfig, "nodepool").with_token(data["token"].as_str());
    user.get(&format!("/api/v1/namespaces/{namespace}/pods/pod-9000000001")).await.expect(200);
    user.get(&format!("/api/v1/namespaces/{namespace}/secrets")).await.expect(403);
    let Ok(Outcome::Refreshed(facts, _)) = provider.run(Job::Refresh).await else { panic!("no facts") };
    assert_eq!(facts.pool_quotas[namespace].limits.get("instances"), 7.0);
    assert_eq!(provider.run(Job::Delete(node.external_id)).await, Ok(Outcome::Deleted));
}

/// Uses pods in a new namespace, and deletes it in any case.
async fn use_and_clean(kubeconfig: &Path) {
    let namespace = format!("contract-pods-{}", uuid::Uuid::new_v4().simple());
    let used = AssertUnwindSafe(use_pods(kubeconfig, &namespace)).catch_unwind().await;
    Client::connect(kubeconfig, "admin").delete(&format!("/api/v1/namespaces/{namespace}")).await.expect(200);
    if let Err(panic) = used {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn the_documented_role_suffices_for_pods_in_a_namespace() {
    on_real_time(async {
        let simulated = SimulatedKubernetes::start(&["--tls", "--pod-start-s", "0.1"]).await;
        use_and_clean(&simulated.kubeconfig()).await;
        if let Some(kubeconfig) = real_kubeconfig() {
            use_and_clean(&kubeconfig).await;
        }
    });
}
