//! Times, stuck namespaces and pods, counters and history.

use std::time::Duration;

use super::plain_pod;
use super::start;
use crate::client::TIMEOUT;
use serde_json::{Value, json};
use testkit::wait;
use tokio::time::Instant;

const NAMESPACES: &str = "/api/v1/namespaces";

fn namespace(name: &str, node: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"nodepool_node_id": node, "nodepool_provider_name": "k8s"}}})
}

#[tokio::test]
async fn pods_and_namespaces_take_the_configured_times() {
    let flags = ["--pod-start-s", "0.4", "--namespace-delete-s", "0.3", "--grace-max-s", "0.3"];
    let (simulated, client) = start(&flags).await;
    client.post(NAMESPACES, namespace("main-1", "1")).await.expect(201);
    let before = Instant::now();
    client.post("/api/v1/namespaces/main-1/pods", plain_pod("node")).await.expect(201);
    let path = "/api/v1/namespaces/main-1/pods/node";
    let runs = async || client.get(path).await.expect(200)["status"]["phase"] == "Running";
    wait::until("the pod to run", TIMEOUT, runs).await;
    assert!(before.elapsed() >= Duration::from_millis(400));
    let before = Instant::now();
    client.delete("/api/v1/namespaces/main-1").await.expect(200);
    wait::until("the pod to end", TIMEOUT, async || client.get(path).await.status == 404).await;
    assert!(before.elapsed() >= Duration::from_millis(300));
    let found = client.get("/api/v1/namespaces/main-1").await.expect(200);
    assert_eq!(found["status"]["phase"], "Terminating");
    wait::until("the end", TIMEOUT, async || client.get("/api/v1/namespaces/main-1").await.status == 404).await;
    assert!(before.elapsed() >= Duration::from_millis(600));

    let history = simulated.history().await;
    let [namespace, pod] = ["namespaces", "pods"].map(|kind| history[kind].as_array().unwrap().last().unwrap().clone());
    assert_eq!(
        (&namespace["name"], &namespace["node"], &namespace["provider"]),
        (&json!("main-1"), &json!("1"), &json!("k8s"))
    );
    let times = ["created", "running", "delete_asked", "gone"].map(|key| pod[key].as_f64().unwrap());
    assert!(times.is_sorted() && times[1] - times[0] > 0.39, "{pod}");
    let last = history["changes"].as_array().unwrap().last().unwrap();
    assert_eq!(last["call"], "DELETE /api/v1/namespaces/main-1");
    assert_eq!(last["by"], "system:serviceaccount:default:nodepool");
}

#[tokio::test]
async fn the_content_of_a_deleted_namespace_may_exist_for_a_while() {
    let flags = ["--namespace-wait-s", "0.5", "--namespace-delete-s", "0", "--pod-start-s", "0", "--grace-max-s", "0"];
    let (_simulated, client) = start(&flags).await;
    client.post(NAMESPACES, namespace("main-1", "1")).await.expect(201);
    client.post("/api/v1/namespaces/main-1/pods", plain_pod("node")).await.expect(201);
    let before = Instant::now();
    client.delete("/api/v1/namespaces/main-1").await.expect(200);
    let found = client.get("/api/v1/namespaces/main-1/pods/node").await.expect(200);
    assert!(found["metadata"]["deletionTimestamp"].is_null(), "{found}");
    wait::until("the end", TIMEOUT, async || client.get("/api/v1/namespaces/main-1").await.status == 404).await;
    assert!(before.elapsed() >= Duration::from_millis(500));
}

#[tokio::test]
async fn stuck_namespaces_end_when_the_knob_is_zero() {
    let (simulated, client) = start(&["--stuck-namespaces-every", "2", "--namespace-delete-s", "0"]).await;
    for name in ["main-1", "main-2"] {
        client.post(NAMESPACES, namespace(name, name)).await.expect(201);
        client.delete(&format!("{NAMESPACES}/{name}")).await.expect(200);
    }
    wait::until("the first one to end", TIMEOUT, async || client.get("/api/v1/namespaces/main-1").await.status == 404)
        .await;
    let stuck = client.get("/api/v1/namespaces/main-2").await.expect(200);
    let condition = &stuck["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("NamespaceDeletionDiscoveryFailure"), &json!("True"))
    );
    assert!(condition["message"].as_str().unwrap().starts_with("Discovery failed for some groups"), "{condition}");
    simulated.knobs(json!({"stuck_namespaces_every": 0})).await;
    wait::until("the other one to end", TIMEOUT, async || client.get("/api/v1/namespaces/main-2").await.status == 404)
        .await;
}

#[tokio::test]
async fn knobs_choose_pods_that_fail_and_pods_that_stick() {
    let flags = ["--pods-fail-every", "2", "--pods-stick-every", "3", "--pod-start-s", "0.1"];
    let (simulated, client) = start(&flags).await;
    client.post(NAMESPACES, namespace("main-1", "1")).await.expect(201);
    for name in ["a", "b", "c"] {
        client.post("/api/v1/namespaces/main-1/pods", plain_pod(name)).await.expect(201);
    }
    let expected = json!({"Running": 1, "Failed": 1, "Pending": 1});
    wait::until("the phases", TIMEOUT, async || simulated.state().await["phases"]["pods"] == expected).await;
    let invalid = reqwest::Client::new().put(simulated.credential_url("admin").replace("credential", "knobs"));
    let refused = invalid.body(r#"{"pod_start_s": -1}"#).send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 400);
}

#[tokio::test]
async fn double_creations_of_a_node_are_counted_and_a_reset_forgets_them() {
    let (simulated, client) = start(&[]).await;
    for (name, node) in [("main-1", "1"), ("main-2", "2"), ("other-1", "1")] {
        client.post(NAMESPACES, namespace(name, node)).await.expect(201);
    }
    let state = simulated.state().await;
    let counters = &state["counters"];
    assert_eq!((&counters["double_creates"], &counters["namespaces_at_once_max"]), (&json!(1), &json!(3)), "{state}");
    assert_eq!(counters["creates_by_node"]["namespaces k8s 1"], 2);
    assert_eq!((&state["objects"]["namespaces"], &state["objects"]["serviceaccounts"]), (&json!(3), &json!(3)));
    simulated.reset().await;
    let state = simulated.state().await;
    assert_eq!((&state["objects"], &state["counters"]["double_creates"]), (&json!({}), &json!(0)), "{state}");
    client.get(NAMESPACES).await.expect(200);
}
