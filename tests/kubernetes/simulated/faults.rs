//! Faults of calls, throttling and latency.

use std::time::Duration;

use super::plain_pod;
use super::start;
use crate::client::{Client, TIMEOUT};
use serde_json::{Value, json};
use testkit::wait;
use tokio::time::Instant;

const NAMESPACES: &str = "/api/v1/namespaces";

fn namespace(name: &str, node: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"nodepool_node_id": node, "nodepool_provider_name": "k8s"}}})
}

#[tokio::test]
async fn faults_hit_the_calls_that_they_describe() {
    let (simulated, client) = start(&["--fault", "503 verb=create resource=pods every=2"]).await;
    client.post(NAMESPACES, namespace("main-1", "1")).await.expect(201);
    let create = async |name: &str| client.post("/api/v1/namespaces/main-1/pods", plain_pod(name)).await;
    create("one").await.expect(201);
    let refused = create("two").await;
    assert_eq!(refused.headers["retry-after"], "1");
    refused.refused(503, "ServiceUnavailable");
    create("two").await.expect(201);

    simulated.knobs(json!({"retry_after_s": 7, "faults": ["429 times=1", "no-token times=1 resource=pods"]})).await;
    let answer = client.get(NAMESPACES).await;
    assert_eq!(answer.headers["retry-after"], "7");
    answer.refused(429, "TooManyRequests");
    let text = create("three").await.refused(500, "ServerTimeout");
    assert!(text.starts_with("No API token found for service account \"default\""), "{text}");
    simulated.knobs(json!({"faults": ["quota times=1 verb=create resource=pods"]})).await;
    let text = create("three").await.refused(403, "Forbidden");
    assert!(text.contains("exceeded quota: "), "{text}");
    simulated
        .knobs(json!({"faults": ["409 method=POST path=/pods$", "401 verb=list after=1", "html verb=delete"]}))
        .await;
    let text = create("three").await.refused(409, "Conflict");
    assert!(text.starts_with("Operation cannot be fulfilled on resourcequotas"), "{text}");
    client.get(NAMESPACES).await.expect(200);
    client.get(NAMESPACES).await.refused(401, "Unauthorized");
    let page = client.delete("/api/v1/namespaces/main-1").await;
    assert!(page.status == 502 && page.text.starts_with("<html>"), "{page:?}");
    assert_eq!(simulated.state().await["counters"]["faults_struck"], json!([1, 1, 1]));
}

#[tokio::test]
async fn answers_are_lost_cut_and_partial() {
    let (simulated, client) = start(&[]).await;
    simulated.knobs(json!({"faults": ["lost-answer verb=create times=1"]})).await;
    client.try_call("POST", NAMESPACES, Some(&namespace("main-1", "1"))).await.unwrap_err();
    let text = client.post(NAMESPACES, namespace("main-1", "1")).await.refused(409, "AlreadyExists");
    assert_eq!(text, "namespaces \"main-1\" already exists");
    simulated
        .knobs(
            json!({"hang_s": 0.2, "faults": ["closed times=1", "hang after=1 times=1", "truncated after=2 times=1"]}),
        )
        .await;
    client.try_call("GET", NAMESPACES, None).await.unwrap_err();
    let before = Instant::now();
    client.try_call("GET", NAMESPACES, None).await.unwrap_err();
    assert!(before.elapsed() >= Duration::from_millis(200));
    let cut = client.get(NAMESPACES).await;
    assert!(cut.status == 200 && cut.body.is_null(), "{cut:?}");
    simulated.knobs(json!({"faults": ["partial-list"]})).await;
    let list = client.get(NAMESPACES).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 2, "the namespaces are four of the system and one more");
}

#[tokio::test]
async fn calls_are_throttled_and_delayed() {
    let (simulated, client) = start(&["--throttle-every", "2", "--latency-ms", "100"]).await;
    let before = Instant::now();
    client.get(NAMESPACES).await.expect(200);
    assert!(before.elapsed() >= Duration::from_millis(100));
    client.get(NAMESPACES).await.refused(429, "TooManyRequests");
    simulated.knobs(json!({"throttle_every": 0, "throttle_above_per_s": 1, "latency_ms": 0})).await;
    wait::until("a refused call", TIMEOUT, async || client.get(NAMESPACES).await.status == 429).await;
    let counters = simulated.state().await["counters"].clone();
    assert!(counters["throttled"].as_u64().unwrap() >= 2, "{counters}");
    assert!(counters["calls_by_kind"]["list namespaces"].as_u64().unwrap() >= 3, "{counters}");
}

#[tokio::test]
async fn a_refusing_server_keeps_its_state() {
    let (simulated, client) = start(&["--tls"]).await;
    client.post(NAMESPACES, namespace("main-1", "1")).await.expect(201);
    simulated.knobs(json!({"refuse_connections": true})).await;
    wait::until("a refused connection", TIMEOUT, async || client.try_call("GET", "/version", None).await.is_err())
        .await;
    simulated.knobs(json!({"refuse_connections": false})).await;
    wait::until("an accepted connection", TIMEOUT, async || client.try_call("GET", "/version", None).await.is_ok())
        .await;
    client.get("/api/v1/namespaces/main-1").await.expect(200);
}

#[tokio::test]
async fn logins_expire_and_are_revoked_and_those_of_secrets_are_not() {
    let (simulated, client) = start(&["--token-lifetime-s", "0.5"]).await;
    wait::until("the token to expire", TIMEOUT, async || client.get(NAMESPACES).await.status == 401).await;
    simulated.knobs(json!({"token_lifetime_s": 0, "secret_fill_s": 0.2})).await;
    simulated.renew_kubeconfig().await;
    let client = Client::connect(&simulated.kubeconfig(), "nodepool");
    client.post(NAMESPACES, namespace("main-1", "1")).await.expect(201);
    let path = "/api/v1/namespaces/main-1";
    client.post(&format!("{path}/serviceaccounts"), json!({"metadata": {"name": "worker"}})).await.expect(201);
    let metadata = json!({"name": "worker", "annotations": {"kubernetes.io/service-account.name": "worker"}});
    let secret = json!({"metadata": metadata, "type": "kubernetes.io/service-account-token"});
    let created = client.post(&format!("{path}/secrets"), secret).await.expect(201);
    assert!(created["data"].is_null(), "the secret is filled later");
    let filled = wait::until_some("the token", TIMEOUT, async || {
        Some(client.get(&format!("{path}/secrets/worker")).await.expect(200))
            .filter(|secret| secret["data"].is_object())
    })
    .await;
    simulated.revoke_tokens().await;
    client.get(NAMESPACES).await.refused(401, "Unauthorized");
    let http = reqwest::Client::new();
    let credential = http.get(simulated.credential_url("nodepool")).send().await.unwrap();
    let credential: Value = credential.json().await.unwrap();
    assert_eq!(credential["kind"], "ExecCredential");
    client.with_token(credential["status"]["token"].as_str()).get(NAMESPACES).await.expect(200);
    let token = super::decoded(&filled["data"]["token"]);
    // No role is bound to the account, but it is known.
    client.with_token(Some(&token)).get(NAMESPACES).await.refused(403, "Forbidden");
}
