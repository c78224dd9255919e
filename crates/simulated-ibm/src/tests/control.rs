//! `/sim`: history, state, reset, foreign resources and changes by hand.

use serde_json::{Value, json};

use super::{Cloud, pass, text};

#[tokio::test(start_paused = true)]
async fn the_history_has_calls_bodies_and_lifetimes() {
    let cloud = Cloud::new(&[]);
    let group = cloud.sim("POST", "group?name=np_ibm_main").await;
    let (_, created) = cloud.create("np0000000007", json!({"resource_group": {"id": group["id"]}})).await;
    pass(2.0).await;
    cloud.delete(&format!("instances/{}", text(&created["id"]))).await;
    pass(2.0).await;
    let history = cloud.sim("GET", "history?action=create_instance").await;
    let call = &history["calls"][0];
    assert_eq!((&call["status"], &call["body"]["name"]), (&json!(201), &json!("np0000000007")));
    assert!(call["time_ms"].as_f64().unwrap() > 1e12);
    let instance = &history["instances"][0];
    assert_eq!((&instance["provider"], &instance["node"]), (&json!("ibm"), &json!("0000000007")));
    assert_eq!((&instance["zone"], &instance["what"]), (&json!("us-south-1"), &json!("cx2-2x4")));
    let time = |field: &str| instance[field].as_f64().unwrap();
    assert!(time("created_ms") < time("running_ms") && time("end_asked_ms") < time("ended_ms"));
    assert_eq!(history["volumes"][0]["reason"], "deleted");
    let counters = cloud.sim("GET", "state").await["counters"].clone();
    assert_eq!(counters["launches_by_node"], json!({"ibm 0000000007": 1}));
    cloud.knobs(json!({"history_calls": 1})).await;
    cloud.get("vpcs").await;
    assert_eq!(cloud.sim("GET", "history").await["calls"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_history_has_no_api_key() {
    let cloud = Cloud::with_tokens(&["--apikey", "very-secret"]);
    let form = "grant_type=urn:ibm:params:oauth:grant-type:apikey&apikey=very-secret";
    assert_eq!(cloud.call("POST", "/identity/token", form.as_bytes()).await.0, 200);
    let history = cloud.sim("GET", "history").await;
    assert_eq!((&history["calls"][0]["action"], &history["calls"][0]["body"]), (&json!("token"), &Value::Null));
    assert!(!history.to_string().contains("very-secret"));
}

#[tokio::test(start_paused = true)]
async fn a_second_instance_of_a_node_is_a_double_launch() {
    let cloud = Cloud::new(&[]);
    let group = cloud.sim("POST", "group?name=np_ibm_main").await;
    for name in ["np7", "np7-b"] {
        cloud.create(name, json!({"resource_group": {"id": group["id"]}})).await;
    }
    let counters = cloud.sim("GET", "state").await["counters"].clone();
    assert_eq!((&counters["double_launches"], &counters["instances_at_once_max"]), (&json!(1), &json!(2)));
}

#[tokio::test(start_paused = true)]
async fn a_reset_restores_the_initial_state() {
    let cloud = Cloud::new(&[]);
    let id = text(&cloud.created("one").await["id"]);
    cloud.knobs(json!({"boot_s": "3-9"})).await;
    cloud.sim("POST", "group?name=new").await;
    cloud.sim("POST", "reset").await;
    pass(20.0).await;
    assert_eq!(cloud.status(&id).await, "");
    let state = cloud.sim("GET", "state").await;
    assert_eq!((&state["resource_groups"], &state["usage"]["volumes"]), (&json!(["Default"]), &json!(0)));
    assert_eq!(cloud.sim("GET", "knobs").await["boot_s"], "1");
    cloud.created("one").await;
}

#[tokio::test(start_paused = true)]
async fn foreign_resources_are_ready_and_in_a_group_of_their_own() {
    let cloud = Cloud::new(&[]);
    for kind in ["instance", "floating_ip", "image", "volume"] {
        cloud
            .sim("POST", &format!("foreign?kind={kind}&count=3&group=theirs&prefix={}-", kind.replace('_', "-")))
            .await;
    }
    let state = cloud.sim("GET", "state").await;
    assert_eq!((&state["instances"], &state["instances_by_group"]), (&json!({"running": 3}), &json!({"theirs": 3})));
    assert_eq!((&state["floating_ips"], &state["images"]), (&json!({"available": 3}), &json!({"available": 3})));
    assert_eq!(state["volumes"], json!({"attached": 3, "unattached": 3}));
    cloud.sim("POST", "foreign?count=3&prefix=instance-").await;
    assert_eq!(cloud.count("instances").await, 3, "names that exist are skipped");
    cloud.sim("POST", "foreign?prefix=old-&profile=bc1-2x8").await;
    assert_eq!(cloud.get("instances").await["instances"][0]["profile"]["name"], "bc1-2x8");
    for wrong in ["kind=none", "count=x", "zone=mars", "prefix=A"] {
        assert_eq!(cloud.call("POST", &format!("/sim/foreign?{wrong}"), b"").await.0, 400, "{wrong}");
    }
}

#[tokio::test(start_paused = true)]
async fn statuses_can_be_set_by_hand() {
    let cloud = Cloud::new(&[]);
    let id = text(&cloud.created("one").await["id"]);
    cloud.sim("POST", "status?name=one&status=stopped&reason=cannot_start_capacity").await;
    pass(5.0).await;
    let instance = cloud.get(&format!("instances/{id}")).await;
    assert_eq!(instance["status"], "stopped", "the boot does not go on");
    assert_eq!(instance["status_reasons"][0]["code"], "cannot_start_capacity");
    cloud.sim("POST", "foreign?kind=image&prefix=image-").await;
    cloud.sim("POST", "status?kind=image&name=image-0001&status=failed&reason=image_data_corrupted").await;
    assert_eq!(cloud.count("images?status=failed").await, 1);
    for (query, status) in [("name=none&status=stopped", 404), ("name=one&status=x", 400), ("kind=x&name=one", 400)] {
        assert_eq!(cloud.call("POST", &format!("/sim/status?{query}"), b"").await.0, status, "{query}");
    }
    assert_eq!(cloud.call("POST", "/sim/none", b"").await.0, 404);
}
