//! Faults of calls, throttling, and knobs.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Cloud, code, pass, refused, text};

#[tokio::test(start_paused = true)]
async fn faults_have_the_status_and_code_that_they_name() {
    let cloud = Cloud::new(&["--fault", "503 action=create_instance every=2 times=1"]);
    let mut answers = Vec::new();
    for name in ["one", "two", "two", "three"] {
        answers.push(cloud.create(name, json!({})).await.0);
    }
    assert_eq!(answers, [201, 503, 201, 201]);
    for (fault, expected) in [
        ("503", refused(503, "service_unavailable")),
        ("500", refused(500, "internal_error")),
        ("429 retry-after=9", refused(429, "too_many_requests")),
        ("over_quota", refused(403, "over_quota")),
        ("400 code=over_quota", refused(400, "over_quota")),
        ("401 action=list_instances", refused(401, "not_authorized")),
        ("404 method=GET path=/instances$", refused(404, "not_found")),
    ] {
        cloud.knobs(json!({"faults": [fault]})).await;
        assert_eq!(code(cloud.vpc("GET", "instances", Value::Null).await), expected, "{fault}");
    }
    cloud.knobs(json!({"faults": ["html", "503 path=/none"]})).await;
    assert_eq!(cloud.vpc("GET", "instances", Value::Null).await.0, 502);
    assert_eq!(cloud.sim("GET", "state").await["counters"]["faults_struck"], json!([1, 0]));
    cloud.knobs(json!({"faults": ["503 action=token"]})).await;
    assert_eq!(cloud.call("POST", "/identity/token", b"").await.1["errorCode"], "service_unavailable");
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_executed_and_a_closed_call_is_not() {
    let cloud = Cloud::new(&["--fault", "lost-answer action=create_instance times=1"]);
    assert_eq!(cloud.create("one", json!({})).await.0, 0);
    assert_eq!(code(cloud.create("one", json!({})).await), refused(400, "validation_unique_failed"));
    cloud.knobs(json!({"faults": ["closed method=POST times=1"]})).await;
    assert_eq!(cloud.create("two", json!({})).await.0, 0);
    assert_eq!(cloud.count("instances").await, 1);
    cloud.knobs(json!({"faults": ["delay s=7 times=1", "hang after=1"], "hang_s": 50})).await;
    let start = Instant::now();
    assert_eq!(cloud.vpc("GET", "instances", Value::Null).await.0, 200);
    assert_eq!(start.elapsed().as_secs(), 7);
    assert_eq!((cloud.vpc("GET", "instances", Value::Null).await.0, start.elapsed().as_secs()), (0, 57));
    cloud.knobs(json!({"faults": ["truncated"]})).await;
    assert!(cloud.vpc("GET", "instances", Value::Null).await.1.is_null(), "half an answer is no JSON");
}

#[tokio::test(start_paused = true)]
async fn throttled_calls_say_when_to_repeat_them() {
    let cloud = Cloud::new(&["--throttle-above-per-s", "2", "--retry-after-s", "3"]);
    for expected in [200, 200, 429] {
        assert_eq!(cloud.vpc("GET", "vpcs", Value::Null).await.0, expected);
    }
    let uri = "/v1/vpcs?version=2025-06-03&generation=2";
    let response = cloud.send("GET", uri, &[], b"").await.unwrap();
    assert_eq!((response.status, &response.headers[..]), (429, &[("retry-after", "3".to_owned())][..]));
    let form = "grant_type=urn:ibm:params:oauth:grant-type:apikey&apikey=simulated-api-key";
    assert_eq!(cloud.call("POST", "/identity/token", form.as_bytes()).await.0, 200, "the API's rate is its own");
    pass(1.0).await;
    assert_eq!(cloud.vpc("GET", "vpcs", Value::Null).await.0, 200);
    assert_eq!(cloud.sim("GET", "state").await["counters"]["throttled"], 2);
}

#[tokio::test(start_paused = true)]
async fn wrong_knobs_change_nothing_and_are_named() {
    let cloud = Cloud::new(&[]);
    for (wrong, named) in [
        (json!({"boot_s": 2, "faults": ["700"]}), "700"),
        (json!({"boot_s": "5-2"}), "5-2"),
        (json!({"token_s": -1}), "time"),
        (json!({"boot": 2}), "boot"),
        (json!({"faults": ["503 zones=a"]}), "zones"),
        (json!({"launch_faults": ["no_luck"]}), "no_luck"),
        (json!({"launch_faults": ["cannot_start path=zones"]}), "path=zones"),
        (json!({"launch_faults": ["cannot_start status=paused"]}), "paused"),
        (json!({"full_zones": ["a b c"]}), "a b c"),
        (json!({"quotas": {"cores": 4}}), "cores"),
        (json!({"quota_status": 503}), "quota_status"),
        (json!({"image_gb": 0}), "image_gb"),
    ] {
        let (status, json) = cloud.call("POST", "/sim/knobs", wrong.to_string().as_bytes()).await;
        assert_eq!((status, text(&json["error"]).contains(named)), (400, true), "{wrong}: {json}");
    }
    assert_eq!(cloud.sim("GET", "knobs").await["boot_s"], "1");
}
