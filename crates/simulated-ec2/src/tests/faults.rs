//! Faults, throttling, history and reset.

use serde_json::json;

use super::{Cloud, LAUNCH};

#[test]
fn faults_have_the_status_of_their_code() {
    let mut cloud = Cloud::new(&["--fault", "RequestLimitExceeded action=RunInstances every=2 times=1"]);
    let answers: Vec<u16> = (0..4).map(|_| cloud.ec2("RunInstances", LAUNCH).0).collect();
    assert_eq!(answers, [200, 503, 200, 200]);
    cloud.knobs(json!({"faults": ["InsufficientInstanceCapacity", "400:InternalError", "403 service=s3", "html"]}));
    assert_eq!(cloud.refused("RunInstances", LAUNCH), (500, "InsufficientInstanceCapacity".to_owned()));
    cloud.knobs(json!({"faults": ["400:InternalError"]}));
    assert_eq!(cloud.refused("DescribeHosts", ""), (400, "InternalError".to_owned()));
    cloud.knobs(json!({"faults": ["403 service=s3", "html service=ec2"]}));
    let (status, text) = cloud.call("s3", "GET", "/bucket", &[], b"");
    assert_eq!((status, text.contains("<Code>AccessDenied</Code>")), (403, true), "{text}");
    assert_eq!(cloud.ec2("DescribeHosts", "").0, 502);
    assert_eq!(cloud.sim("GET", "/sim/state")["counters"]["faults_struck"], json!([1, 1]));
}

#[test]
fn a_lost_answer_is_executed_and_its_token_repeated() {
    let mut cloud = Cloud::new(&["--fault", "lost-answer times=1", "--fault", "closed after=1 times=1"]);
    let launch = format!("{LAUNCH}&ClientToken=one");
    assert_eq!(cloud.ec2("RunInstances", &launch).0, 0);
    assert_eq!(cloud.ec2("RunInstances", &launch).0, 0);
    cloud.done("RunInstances", &launch);
    assert_eq!(cloud.instances(), json!({"running": 1}));
    let history = cloud.sim("GET", "/sim/history");
    let statuses: Vec<_> = history["calls"].as_array().unwrap().iter().map(|call| call["status"].clone()).collect();
    assert_eq!(statuses, [0, 0, 200]);
    assert_eq!(history["instances"].as_array().unwrap().len(), 1);
    assert_eq!(cloud.sim("GET", "/sim/state")["counters"]["tokens_repeated"], 1);
}

#[test]
fn each_service_throttles_in_its_own_words() {
    let mut cloud = Cloud::new(&["--throttle-every", "1"]);
    assert_eq!(cloud.refused("DescribeHosts", ""), (503, "RequestLimitExceeded".to_owned()));
    let (status, text) = cloud.call("s3", "GET", "/bucket", &[], b"");
    assert_eq!((status, text.contains("<Code>SlowDown</Code>")), (503, true), "{text}");
    let target = [("x-amz-target", "ServiceQuotasV20190624.ListServiceQuotas")];
    let (status, text) = cloud.call("servicequotas", "POST", "/", &target, b"{}");
    assert_eq!((status, text.contains("TooManyRequestsException")), (429, true), "{text}");
}

#[test]
fn a_reset_restores_the_initial_state() {
    let mut cloud = Cloud::new(&[]);
    cloud.launch("TagSpecification.1.ResourceType=instance&TagSpecification.1.Tag.1.Key=nodepool_node_id");
    cloud.knobs(json!({"boot_s": 9}));
    cloud.call("s3", "PUT", "/bucket", &[], b"");
    cloud.sim("POST", "/sim/reset");
    let state = cloud.sim("GET", "/sim/state");
    assert_eq!((&state["counters"]["calls"], &state["buckets"]), (&json!(0), &json!({})));
    assert_eq!(cloud.instances(), json!({}));
    assert_eq!(cloud.sim("GET", "/sim/knobs")["boot_s"], 0.0);
}

#[test]
fn wrong_knobs_change_nothing() {
    let mut cloud = Cloud::new(&[]);
    for wrong in [json!({"boot_s": 2, "faults": ["700"]}), json!({"boot_s": -1}), json!({"boot": 2}), json!([])] {
        let (status, text) = cloud.call("", "PUT", "/sim/knobs", &[], wrong.to_string().as_bytes());
        assert_eq!(status, 400, "{wrong}: {text}");
    }
    assert_eq!(cloud.sim("GET", "/sim/knobs")["boot_s"], 0.0);
}
