//! The kubernetes driver on a real cluster, if `NODEPOOL_TEST_KUBECONFIG` names one.

use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use futures::FutureExt;
use nodepool_driver::job::{Job, Outcome};
use nodepool_model::records::ids::ExternalId;
use serde_json::json;
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::ProviderHarness;

use crate::client::Client;
use crate::driver::{KubernetesHarness, LABELS, connection, order};

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
