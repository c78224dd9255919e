//! Contract of the Kubernetes API: everything that a driver relies on. The simulated cluster is always tested, and a
//! real one if `NODEPOOL_TEST_KUBECONFIG` names it (doc/simulated-kubernetes.md lists its requirements).

mod cases;
mod cluster;

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;

use crate::real::real_kubeconfig;
use cluster::Cluster;
use futures::FutureExt;
use serde_json::json;
use testkit::clouds::simulated_kubernetes::SimulatedKubernetes;

/// Runs all cases one after another, reports those that failed, and deletes all their objects.
async fn check_contract(kubeconfig: &Path) {
    let cluster = Arc::new(Cluster::connect(kubeconfig));
    let mut failed = Vec::new();
    for (claim, case) in cases::all(&cluster) {
        // A panic fails its case only; its text is in the output already.
        if AssertUnwindSafe(case).catch_unwind().await.is_err() {
            failed.push(claim);
        }
    }
    cluster.clean_up().await;
    assert!(failed.is_empty(), "cases that fail: {failed:#?}");
}

#[tokio::test]
async fn the_simulated_cluster_fulfils_the_contract() {
    let simulated = SimulatedKubernetes::start(&["--tls", "--pod-start-s", "0.2", "--namespace-delete-s", "0.1"]).await;
    check_contract(&simulated.kubeconfig()).await;
    let state = simulated.state().await;
    assert_eq!(state["objects"], json!({}), "{state}");
}

/// As versions up to 1.23 are.
#[tokio::test]
async fn the_contract_holds_with_token_secrets_of_all_accounts() {
    let flags = ["--account-secrets", "--default-account-s", "0.1", "--pod-start-s", "0.1", "--grace-max-s", "0.3"];
    let simulated = SimulatedKubernetes::start(&flags).await;
    check_contract(&simulated.kubeconfig()).await;
}

/// Needs a real cluster that the environment names, because the test cannot install one.
#[tokio::test]
async fn a_real_cluster_fulfils_the_contract() {
    let Some(kubeconfig) = real_kubeconfig() else { return };
    check_contract(&kubeconfig).await;
}
