//! Faults of calls, throttling, history, knobs and reset.

use serde_json::json;

use super::{Azure, COMPUTE, VM_VERSION, refused, vm_body, vm_path};

#[test]
fn faults_have_the_status_of_their_code() {
    let mut azure =
        Azure::new(&["--fault", "SkuNotAvailable action=vm.create every=2 times=1", "--retry-after-s", "9"]);
    let statuses: Vec<u16> =
        (0..4).map(|one| format!("np{one}")).map(|name| azure.put_vm(&name, &vm_body(&name)).status).collect();
    assert_eq!(statuses, [201, 409, 201, 201]);
    let list = format!("{COMPUTE}/virtualMachines?api-version={VM_VERSION}");
    for (fault, expected) in [
        ("429", refused(429, "TooManyRequests")),
        ("503 action=vm", refused(503, "ServiceUnavailable")),
        ("409:Conflict path=virtualMachines", refused(409, "Conflict")),
        ("AuthorizationFailed method=GET message=No rights", refused(403, "AuthorizationFailed")),
    ] {
        azure.knobs(json!({"faults": [fault]}));
        let answer = azure.get(&list);
        assert_eq!(answer.error(), expected);
        assert_eq!(answer.header("Retry-After"), if matches!(expected.0, 429 | 503) { "9" } else { "" });
    }
    assert!(azure.get(&list).text.contains("No rights"));
    for fault in ["html", "text", "truncated"] {
        azure.knobs(json!({"faults": [fault]}));
        let answer = azure.get(&list);
        assert!(answer.json().is_null() && answer.status == if fault == "html" { 502 } else { 200 });
    }
}

#[test]
fn a_lost_answer_is_executed() {
    let mut azure = Azure::new(&[
        "--fault",
        "lost-answer method=PUT path=/np1 times=1",
        "--fault",
        "closed action=vm.create after=1 times=1",
    ]);
    assert_eq!(azure.put_vm("np1", &vm_body("np1")).status, 0);
    assert_eq!(azure.put_vm("np1", &vm_body("np1")).status, 0);
    assert_eq!(azure.put_vm("np1", &vm_body("np1")).status, 200);
    assert_eq!(azure.vms(), ["np1"]);
    let history = azure.sim("GET", "/sim/history?action=vm.create");
    let statuses: Vec<_> = history["calls"].as_array().unwrap().iter().map(|call| call["status"].clone()).collect();
    assert_eq!(statuses, [0, 0, 200]);
    assert_eq!(history["calls"][0]["body"]["tags"]["nodepool_node_id"], "np1");
    assert_eq!(azure.sim("GET", "/sim/state")["counters"]["faults_struck"], json!([1, 1]));
}

#[test]
fn throttling_has_a_retry_after_of_its_own() {
    let mut azure = Azure::new(&["--throttle-code", "SubscriptionRequestsThrottled"]);
    azure.sim("POST", "/sim/throttle?calls=2&retry_after_s=1200");
    let path = vm_path("np1");
    for _ in 0..2 {
        let answer = azure.get(&path);
        assert_eq!(answer.error(), refused(429, "SubscriptionRequestsThrottled"));
        assert_eq!(answer.header("Retry-After"), "1200");
    }
    assert_eq!(azure.get(&path).status, 404);
    azure.sim("POST", "/sim/throttle?seconds=7");
    assert_eq!(azure.get(&path).status, 429);
    azure.wait(7.0);
    assert_eq!(azure.get(&path).status, 404);
    azure.knobs(json!({"throttle_above_per_s": 1}));
    let statuses: Vec<u16> = (0..3).map(|_| azure.get(&path).status).collect();
    assert!(statuses.contains(&429), "{statuses:?}");
    assert!(azure.sim("GET", "/sim/state")["counters"]["throttled"].as_u64() >= Some(4));
}

#[test]
fn a_reset_restores_the_initial_state_except_for_tokens() {
    let mut azure = Azure::new(&[]);
    azure.create("np1");
    azure.knobs(json!({"boot_s": "3-9"}));
    azure.sim("POST", "/sim/reset");
    let state = azure.sim("GET", "/sim/state");
    assert_eq!((&state["counters"]["calls"], &state["vms"], &state["usages"]), (&json!(0), &json!({}), &json!({})));
    assert_eq!(azure.sim("GET", "/sim/knobs")["boot_s"], "0");
    azure.create("np1");
}

#[test]
fn wrong_knobs_change_nothing() {
    let mut azure = Azure::new(&[]);
    for wrong in [
        json!({"parts_s": 2, "faults": ["700"]}),
        json!({"parts_s": -1}),
        json!({"boot": 2}),
        json!({"faults": ["closed in=operation"]}),
        json!({"operation_statuses": ["Succeeded"]}),
        json!([]),
    ] {
        let answer = azure.send("POST", "/sim/knobs", &[], wrong.to_string().as_bytes());
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.text);
    }
    assert_eq!(azure.sim("GET", "/sim/knobs")["parts_s"], 0.0);
}
