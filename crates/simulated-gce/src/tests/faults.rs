//! Faults of calls, throttling, knobs, history and reset.

use serde_json::json;
use tokio::time::Instant;

use super::{Cloud, INSTANCES, PROJECT, body, pass, plain, reason, refused};

#[tokio::test(start_paused = true)]
async fn faults_have_the_status_and_reason_that_they_name() {
    let cloud = Cloud::new(&["--fault", "503 action=instances.insert every=2 times=1"]);
    let mut answers = Vec::new();
    for name in ["one", "two", "two", "three"] {
        answers.push(cloud.insert(&plain(name)).await.0);
    }
    assert_eq!(answers, [200, 503, 200, 200]);
    for (fault, expected) in [
        ("503", refused(503, "backendError")),
        ("429", refused(429, "rateLimitExceeded")),
        ("403 reason=rateLimitExceeded", refused(403, "rateLimitExceeded")),
        ("403 reason=accessNotConfigured", refused(403, "accessNotConfigured")),
        ("quotaExceeded", refused(403, "quotaExceeded")),
        ("forbidden", refused(403, "forbidden")),
        ("401", refused(401, "authError")),
        ("404 method=GET path=/instances$", refused(404, "notFound")),
        ("500 project=simulated zone=us-central1-a", refused(500, "internalError")),
    ] {
        cloud.knobs(json!({"faults": [fault]})).await;
        assert_eq!(reason(cloud.call("GET", INSTANCES, b"").await), expected, "{fault}");
    }
    cloud.knobs(json!({"faults": ["html", "503 path=/none"]})).await;
    assert_eq!(cloud.call("GET", INSTANCES, b"").await.0, 502);
    assert_eq!(cloud.sim("GET", "state").await["counters"]["faults_struck"], json!([1, 0]));
    cloud.knobs(json!({"faults": ["400 path=/token"]})).await;
    assert_eq!(cloud.call("POST", "/token", b"").await.1["error"], "invalid_grant");
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_executed_and_a_closed_call_is_not() {
    let cloud = Cloud::new(&["--fault", "lost-answer method=POST path=/instances$ times=1"]);
    assert_eq!(cloud.insert(&plain("one")).await.0, 0);
    assert_eq!(reason(cloud.insert(&plain("one")).await), refused(409, "alreadyExists"));
    cloud.knobs(json!({"faults": ["closed method=POST times=1"]})).await;
    assert_eq!(cloud.insert(&plain("two")).await.0, 0);
    assert_eq!(cloud.status("two").await, "");
    cloud.knobs(json!({"faults": ["delay s=7 times=1", "hang after=1"], "hang_s": 50})).await;
    let start = Instant::now();
    assert_eq!(cloud.call("GET", INSTANCES, b"").await.0, 200);
    assert_eq!(start.elapsed().as_secs(), 7);
    assert_eq!((cloud.call("GET", INSTANCES, b"").await.0, start.elapsed().as_secs()), (0, 57));
    cloud.knobs(json!({"faults": ["truncated"]})).await;
    assert!(cloud.call("GET", INSTANCES, b"").await.1.is_null(), "half an answer is no JSON");
}

#[tokio::test(start_paused = true)]
async fn throttled_calls_speak_of_a_quota_without_its_reason() {
    let cloud = Cloud::new(&["--throttle-above-per-s", "2"]);
    let zones = format!("{PROJECT}/zones");
    for expected in [200, 200, 403] {
        assert_eq!(cloud.call("GET", &zones, b"").await.0, expected);
    }
    let answer = cloud.call("GET", &zones, b"").await;
    let message = answer.1["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("Quota exceeded for quota metric 'Read requests' and limit"), "{message}");
    assert_eq!(answer.1["error"]["errors"][0]["domain"], "usageLimits");
    assert_eq!(reason(answer), refused(403, "rateLimitExceeded"));
    pass(1.0).await;
    assert_eq!(cloud.call("GET", &zones, b"").await.0, 200);
    cloud.knobs(json!({"throttle_every": 1, "throttle_status": 429})).await;
    assert_eq!(reason(cloud.call("GET", &zones, b"").await), refused(429, "rateLimitExceeded"));
    assert_eq!(cloud.sim("GET", "state").await["counters"]["throttled"], 3);
}

#[tokio::test(start_paused = true)]
async fn the_history_has_calls_bodies_and_lifetimes() {
    let cloud = Cloud::new(&[]);
    let items = json!([{"key": "nodepool_node_id", "value": "7"}, {"key": "nodepool_provider_name", "value": "gce"}]);
    cloud.inserted(&body("one", json!({"metadata": {"items": items}}))).await;
    cloud.call("GET", &format!("{INSTANCES}/none"), b"").await;
    pass(2.0).await;
    let history = cloud.sim("GET", "history").await;
    let call = &history["calls"][0];
    assert_eq!((&call["method"], &call["path"], &call["status"]), (&json!("POST"), &json!(INSTANCES), &json!(200)));
    assert_eq!(call["body"]["name"], "one");
    assert!(call["time_ms"].as_f64().unwrap() > 1e12);
    assert_eq!((&history["calls"][1]["reason"], &history["calls"][1]["body"]), (&json!("notFound"), &json!(null)));
    let instance = &history["instances"][0];
    assert_eq!((&instance["provider"], &instance["node"]), (&json!("gce"), &json!("7")));
    let filtered = cloud.sim("GET", "history?action=instances.get").await;
    assert_eq!(filtered["calls"].as_array().unwrap().len(), 1);
    let counters = cloud.sim("GET", "state").await["counters"].clone();
    assert_eq!(counters["launches_by_node"], json!({"gce 7": 1}));
    cloud.knobs(json!({"history_calls": 1})).await;
    cloud.call("GET", PROJECT, b"").await;
    assert_eq!(cloud.sim("GET", "history").await["calls_dropped"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_second_instance_of_a_node_is_a_double_launch() {
    let cloud = Cloud::new(&[]);
    let items = json!({"metadata": {"items": [{"key": "nodepool_node_id", "value": "7"}]}});
    cloud.inserted(&body("one", items.clone())).await;
    cloud.inserted(&body("two", items)).await;
    let counters = cloud.sim("GET", "state").await["counters"].clone();
    assert_eq!((&counters["double_launches"], &counters["instances_at_once_max"]), (&json!(1), &json!(2)));
}

#[tokio::test(start_paused = true)]
async fn a_reset_restores_the_initial_state() {
    let cloud = Cloud::new(&[]);
    cloud.inserted(&plain("one")).await;
    cloud.knobs(json!({"boot_s": "3-9"})).await;
    cloud.sim("POST", "image?name=newer&family=nodepool").await;
    cloud.sim("POST", "reset").await;
    pass(20.0).await;
    assert_eq!(cloud.status("one").await, "");
    assert_eq!(cloud.sim("GET", "knobs").await["boot_s"], "1");
    let family = cloud.get(&format!("{PROJECT}/global/images/family/nodepool")).await;
    assert_eq!(family["name"], "nodepool-1");
    cloud.inserted(&plain("one")).await;
    assert_eq!(cloud.usage("INSTANCES").await, 1.0);
}

#[tokio::test(start_paused = true)]
async fn wrong_knobs_change_nothing_and_are_named() {
    let cloud = Cloud::new(&[]);
    for (wrong, named) in [
        (json!({"boot_s": 2, "faults": ["700"]}), "700"),
        (json!({"boot_s": "5-2"}), "5-2"),
        (json!({"wait_s": -1}), "time"),
        (json!({"boot": 2}), "boot"),
        (json!({"faults": ["503 zones=a"]}), "zones"),
        (json!({"operation_faults": ["quota"]}), "quota"),
        (json!({"operation_faults": ["QUOTA_EXCEEDED path=zones"]}), "path=zones"),
        (json!({"full_zones": ["a b c"]}), "a b c"),
        (json!({"throttle_status": 503}), "throttle_status"),
    ] {
        let (status, json) = cloud.call("POST", "/sim/knobs", wrong.to_string().as_bytes()).await;
        assert_eq!((status, json["error"].as_str().unwrap().contains(named)), (400, true), "{wrong}: {json}");
    }
    assert_eq!(cloud.sim("GET", "knobs").await["boot_s"], "1");
}
