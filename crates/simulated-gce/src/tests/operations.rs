//! Operations: waiting for them, their errors, and quotas and zones without capacity.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Cloud, INSTANCES, PROJECT, body, pass, plain, reason, refused, text};

fn code(operation: &Value) -> String {
    text(&operation["error"]["errors"][0]["code"])
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_the_operation_or_at_its_limit() {
    let cloud = Cloud::new(&["--boot-s", "30", "--wait-s", "20"]);
    let name = cloud.inserted(&plain("one")).await;
    let uri = format!("{PROJECT}/zones/us-central1-a/operations/{name}/wait");
    let start = Instant::now();
    let (status, operation) = cloud.call("POST", &uri, b"").await;
    assert_eq!((status, &operation["status"], start.elapsed().as_secs()), (200, &json!("RUNNING"), 20));
    let wait = cloud.call("POST", &uri, b"");
    // Timers run with each call; the task of the port runs them otherwise.
    let (other, (_, operation)) = tokio::join!(
        async {
            pass(10.5).await;
            cloud.status("one").await
        },
        wait
    );
    assert_eq!((other.as_str(), &operation["status"]), ("RUNNING", &json!("DONE")));
    assert_eq!(start.elapsed().as_secs(), 30);
    assert_eq!(cloud.call("POST", &uri, b"").await.1["status"], "DONE");
    let absent = cloud.call("POST", &uri.replace("operation-", "none-"), b"").await;
    assert_eq!(reason(absent), refused(404, "notFound"));
}

#[tokio::test(start_paused = true)]
async fn a_finished_operation_is_known_for_a_while() {
    let cloud = Cloud::new(&["--operations-kept-s", "60"]);
    let name = cloud.inserted(&plain("one")).await;
    pass(30.0).await;
    assert_eq!(cloud.operation(&name).await["status"], "DONE");
    pass(60.0).await;
    let uri = format!("{PROJECT}/zones/us-central1-a/operations");
    assert_eq!(cloud.call("GET", &format!("{uri}/{name}"), b"").await.0, 404);
    assert_eq!(cloud.get(&uri).await.get("items"), None);
}

#[tokio::test(start_paused = true)]
async fn an_insert_into_a_full_zone_leaves_no_instance() {
    let cloud = Cloud::new(&["--full-zone", "us-central1-a n2-standard-4 spot", "--fail-s", "1"]);
    cloud.inserted(&plain("standard")).await;
    let spot = json!({"scheduling": {"provisioningModel": "SPOT"}});
    let name = cloud.inserted(&body("spot", spot.clone())).await;
    assert_eq!(cloud.status("spot").await, "PROVISIONING");
    pass(2.0).await;
    let operation = cloud.operation(&name).await;
    assert_eq!(
        (code(&operation).as_str(), &operation["status"]),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", &json!("DONE"))
    );
    assert_eq!(
        (&operation["httpErrorStatusCode"], &operation["httpErrorMessage"]),
        (&json!(503), &json!("SERVICE UNAVAILABLE"))
    );
    assert_eq!((cloud.status("spot").await.as_str(), cloud.status("standard").await.as_str()), ("", "RUNNING"));
    cloud.knobs(json!({"full_code": "ZONE_RESOURCE_POOL_EXHAUSTED"})).await;
    let name = cloud.inserted(&body("spot", spot)).await;
    pass(2.0).await;
    assert_eq!(code(&cloud.operation(&name).await), "ZONE_RESOURCE_POOL_EXHAUSTED");
    let counters = cloud.sim("GET", "state").await["counters"].clone();
    assert_eq!((&counters["created"], &counters["deleted"]), (&json!(1), &json!(0)));
}

#[tokio::test(start_paused = true)]
async fn a_quota_ends_the_operation_or_refuses_the_call() {
    let cloud = Cloud::new(&["--quotas", "N2_CPUS=4,us-central1/INSTANCES=2"]);
    cloud.inserted(&plain("one")).await;
    let name = cloud.inserted(&plain("two")).await;
    assert_eq!(cloud.usage("N2_CPUS").await, 4.0);
    pass(2.0).await;
    let operation = cloud.operation(&name).await;
    assert_eq!((code(&operation).as_str(), &operation["httpErrorStatusCode"]), ("QUOTA_EXCEEDED", &json!(403)));
    assert_eq!(
        operation["error"]["errors"][0]["message"],
        "Quota 'N2_CPUS' exceeded.  Limit: 4.0 in region us-central1."
    );
    cloud.knobs(json!({"refuse_above_quota": true})).await;
    assert_eq!(reason(cloud.insert(&plain("two")).await), refused(403, "quotaExceeded"));
    let small = json!({"machineType": "zones/us-central1-a/machineTypes/e2-small"});
    cloud.inserted(&body("two", small.clone())).await;
    assert_eq!((cloud.usage("CPUS").await, cloud.usage("INSTANCES").await), (2.0, 2.0));
    assert_eq!(reason(cloud.insert(&body("three", small)).await), refused(403, "quotaExceeded"));
    cloud.knobs(json!({"hidden_quotas": ["N2_CPUS", "INSTANCES"]})).await;
    cloud.inserted(&plain("three")).await;
}

#[tokio::test(start_paused = true)]
async fn spot_instances_have_a_quota_of_their_own_if_it_has_a_limit() {
    let cloud = Cloud::new(&[]);
    let spot = json!({"scheduling": {"provisioningModel": "SPOT"}});
    cloud.inserted(&body("one", spot.clone())).await;
    assert_eq!((cloud.usage("N2_CPUS").await, cloud.usage("PREEMPTIBLE_CPUS").await), (4.0, 0.0));
    cloud.knobs(json!({"quotas": {"PREEMPTIBLE_CPUS": 8}})).await;
    cloud.inserted(&body("two", spot)).await;
    assert_eq!((cloud.usage("N2_CPUS").await, cloud.usage("PREEMPTIBLE_CPUS").await), (4.0, 4.0));
    cloud.knobs(json!({"quotas": {}})).await;
    pass(2.0).await;
    for name in ["one", "two"] {
        assert_eq!(cloud.call("DELETE", &format!("{INSTANCES}/{name}"), b"").await.0, 200);
    }
    pass(2.0).await;
    assert_eq!((cloud.usage("N2_CPUS").await, cloud.usage("PREEMPTIBLE_CPUS").await), (0.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn operation_faults_end_inserts_and_deletions() {
    let cloud = Cloud::new(&["--operation-fault", "STOCKOUT times=1 type=n2-standard-4 message=try another zone"]);
    let failed = cloud.inserted(&plain("one")).await;
    let good = cloud.inserted(&plain("two")).await;
    pass(2.0).await;
    let error = cloud.operation(&failed).await["error"]["errors"][0].clone();
    assert_eq!((&error["code"], &error["message"]), (&json!("STOCKOUT"), &json!("try another zone")));
    assert_eq!(cloud.operation(&good).await.get("error"), None);
    cloud.knobs(json!({"operation_faults": ["INTERNAL_ERROR operation=delete times=1"]})).await;
    let (_, deletion) = cloud.call("DELETE", &format!("{INSTANCES}/two"), b"").await;
    pass(2.0).await;
    assert_eq!(code(&cloud.operation(&text(&deletion["name"])).await), "INTERNAL_ERROR");
    assert_eq!(cloud.status("two").await, "RUNNING");
    assert_eq!(cloud.call("DELETE", &format!("{INSTANCES}/two"), b"").await.0, 200);
    let state = cloud.sim("GET", "state").await;
    assert_eq!(state["counters"]["operation_errors"], json!({"INTERNAL_ERROR": 1, "STOCKOUT": 1}));
    assert_eq!(state["counters"]["operation_faults_struck"], json!([1]));
}
