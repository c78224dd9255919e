//! Service accounts, their token secrets, and other secrets.

use std::sync::Arc;

use crate::client::TIMEOUT;
use crate::contract::cluster::Cluster;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::wait;

/// A token secret of this account.
pub fn token_body(name: &str, account: &str) -> Value {
    json!({
        "metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": account}},
        "type": "kubernetes.io/service-account-token",
    })
}

/// Creates an account with a token secret; returns the filled secret.
pub async fn account(cluster: &Cluster, namespace: &str, name: &str) -> Value {
    let body = json!({"metadata": {"name": name}});
    cluster.nodepool.post(&format!("{namespace}/serviceaccounts"), body).await.expect(201);
    cluster.nodepool.post(&format!("{namespace}/secrets"), token_body(name, name)).await.expect(201);
    let path = format!("{namespace}/secrets/{name}");
    wait::until_some("the token secret to be filled", TIMEOUT, async || {
        Some(cluster.nodepool.get(&path).await.expect(200)).filter(|secret| !secret["data"]["token"].is_null())
    })
    .await
}

/// The decoded text of an entry of a secret.
pub fn text(secret: &Value, key: &str) -> String {
    String::from_utf8(STANDARD.decode(secret["data"][key].as_str().unwrap()).unwrap()).unwrap()
}

pub async fn token_secret(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let secret = account(&cluster, &namespace, "zuul-worker").await;
    assert_eq!(text(&secret, "namespace"), namespace.rsplit('/').next().unwrap());
    assert!(text(&secret, "ca.crt").starts_with("-----BEGIN CERTIFICATE-----"));
    assert_eq!(text(&secret, "token").split('.').count(), 3);
    let found = cluster.nodepool.get(&format!("{namespace}/serviceaccounts/zuul-worker")).await.expect(200);
    let annotations = &secret["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/service-account.uid"], found["metadata"]["uid"]);
    let again = cluster.nodepool.post(&format!("{namespace}/secrets"), token_body("zuul-worker", "zuul-worker")).await;
    assert_eq!(again.refused(409, "AlreadyExists"), "secrets \"zuul-worker\" already exists");
    let body = json!({"metadata": {"name": "nameless"}, "type": "kubernetes.io/service-account-token"});
    let answer = cluster.nodepool.post(&format!("{namespace}/secrets"), body).await;
    let field = "metadata.annotations[kubernetes.io/service-account.name]";
    assert_eq!(answer.body["details"]["causes"][0]["field"], field);
    let text = format!("Secret \"nameless\" is invalid: {field}: Required value");
    assert_eq!(answer.refused(422, "Invalid"), text);
}

pub async fn orphan_secret(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    cluster.nodepool.post(&format!("{namespace}/secrets"), token_body("orphan", "nothing")).await.expect(201);
    cluster.gone(&format!("{namespace}/secrets/orphan")).await;
}

pub async fn deleted_account(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    account(&cluster, &namespace, "worker").await;
    let deleted = cluster.nodepool.delete(&format!("{namespace}/serviceaccounts/worker")).await.expect(200);
    assert_eq!(deleted["kind"], "ServiceAccount");
    cluster.gone(&format!("{namespace}/secrets/worker")).await;
}

pub async fn plain_secret(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let body = json!({"metadata": {"name": "plain"}, "stringData": {"key": "value"}});
    let created = cluster.nodepool.post(&format!("{namespace}/secrets"), body).await.expect(201);
    assert_eq!((&created["type"], text(&created, "key")), (&json!("Opaque"), "value".to_owned()));
    assert!(created["stringData"].is_null());
    let deleted = cluster.nodepool.delete(&format!("{namespace}/secrets/plain")).await.expect(200);
    let details = json!({"name": "plain", "kind": "secrets", "uid": created["metadata"]["uid"]});
    assert_eq!((&deleted["kind"], &deleted["status"]), (&json!("Status"), &json!("Success")));
    assert_eq!(deleted["details"], details);
}
