//! The life of instances: boot, deletion, preemption, and events that `/sim` causes.

use serde_json::json;

use super::{Cloud, INSTANCES, PROJECT, body, pass, plain, reason, refused, text};

#[tokio::test(start_paused = true)]
async fn an_instance_is_provisioning_then_staging_then_running() {
    let cloud = Cloud::new(&["--boot-s", "4", "--operation-s", "1"]);
    let operation = cloud.inserted(&plain("one")).await;
    let listed = cloud.get(INSTANCES).await;
    assert_eq!(listed["items"][0]["status"], "PROVISIONING");
    let interface = listed["items"][0]["networkInterfaces"][0].clone();
    assert_eq!((&interface["networkIP"], interface["accessConfigs"][0].get("natIP")), (&json!("127.87.0.2"), None));
    assert_eq!(cloud.operation(&operation).await["status"], "PENDING");
    pass(1.5).await;
    let running = cloud.operation(&operation).await;
    assert_eq!((&running["status"], running.get("endTime")), (&json!("RUNNING"), None));
    assert!(running["startTime"].is_string());
    pass(1.0).await;
    let staging = cloud.get(&format!("{INSTANCES}/one")).await;
    assert_eq!(staging["status"], "STAGING");
    assert_eq!(staging["networkInterfaces"][0]["accessConfigs"][0]["natIP"], "127.88.0.2");
    pass(2.0).await;
    assert_eq!(cloud.status("one").await, "RUNNING");
    let done = cloud.operation(&operation).await;
    assert_eq!((&done["status"], &done["progress"], done.get("error")), (&json!("DONE"), &json!(100), None));
    assert_eq!(done["targetId"], staging["id"]);
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_access_config_has_no_external_address() {
    let cloud = Cloud::new(&[]);
    let internal = json!({"networkInterfaces": [{"subnetwork": "regions/us-central1/subnetworks/nodepool"}]});
    cloud.inserted(&body("one", internal)).await;
    pass(2.0).await;
    let interface = cloud.get(&format!("{INSTANCES}/one")).await["networkInterfaces"][0].clone();
    assert_eq!(interface.get("accessConfigs"), None);
    assert!(text(&interface["network"]).ends_with("/global/networks/nodepool"), "{interface}");
    assert_eq!(cloud.usage("IN_USE_ADDRESSES").await, 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_instance_is_stopping_then_gone() {
    let cloud = Cloud::new(&["--delete-s", "3"]);
    cloud.inserted(&plain("one")).await;
    pass(2.0).await;
    let (status, operation) = cloud.call("DELETE", &format!("{INSTANCES}/one"), b"").await;
    assert_eq!((status, &operation["operationType"]), (200, &json!("delete")));
    assert_eq!(cloud.status("one").await, "STOPPING");
    let again = cloud.call("DELETE", &format!("{INSTANCES}/one"), b"").await;
    assert_eq!(reason(again), refused(400, "resourceNotReady"));
    assert_eq!(reason(cloud.insert(&plain("one")).await), refused(409, "alreadyExists"));
    pass(3.5).await;
    assert_eq!(cloud.status("one").await, "");
    assert_eq!(cloud.operation(&text(&operation["name"])).await["status"], "DONE");
    let absent = cloud.call("DELETE", &format!("{INSTANCES}/one"), b"").await;
    assert_eq!(reason(absent), refused(404, "notFound"));
    let state = cloud.sim("GET", "state").await;
    let counters = &state["counters"];
    assert_eq!(
        (&counters["created"], &counters["deleted"], &counters["operations"]),
        (&json!(1), &json!(1), &json!(2))
    );
    assert_eq!(state["projects"]["simulated"]["instances"], json!({}));
    assert_eq!((cloud.usage("INSTANCES").await, cloud.usage("N2_CPUS").await), (0.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_during_the_boot_cancels_the_insert() {
    let cloud = Cloud::new(&["--boot-s", "10"]);
    let operation = cloud.inserted(&plain("one")).await;
    assert_eq!(cloud.call("DELETE", &format!("{INSTANCES}/one"), b"").await.0, 200);
    let canceled = cloud.operation(&operation).await;
    assert_eq!(canceled["error"]["errors"][0]["code"], "OPERATION_CANCELED_BY_USER");
    pass(20.0).await;
    assert_eq!(cloud.status("one").await, "");
}

#[tokio::test(start_paused = true)]
async fn a_preempted_instance_stays_terminated_or_is_deleted() {
    let cloud = Cloud::new(&["--boot-s", "9", "--stop-s", "2", "--delete-s", "2"]);
    let spot = |action: &str| json!({"scheduling": {"provisioningModel": "SPOT", "instanceTerminationAction": action}});
    cloud.inserted(&body("stays", spot("STOP"))).await;
    cloud.inserted(&body("goes", spot("DELETE"))).await;
    for name in ["stays", "goes"] {
        cloud.sim("POST", &format!("preempt?instance={name}")).await;
        assert_eq!(cloud.status(name).await, "STOPPING");
    }
    pass(3.0).await;
    assert_eq!((cloud.status("stays").await, cloud.status("goes").await), ("TERMINATED".to_owned(), String::new()));
    let stopped = cloud.get(&format!("{INSTANCES}/stays")).await;
    assert_eq!(stopped["networkInterfaces"][0]["accessConfigs"][0].get("natIP"), None);
    assert_eq!((cloud.usage("INSTANCES").await, cloud.usage("N2_CPUS").await), (1.0, 0.0));
    pass(60.0).await;
    assert_eq!(cloud.status("stays").await, "TERMINATED");
    let uri = format!("{PROJECT}/zones/us-central1-a/operations?filter=operationType=compute.instances.preempted");
    assert_eq!(cloud.get(&uri).await["items"].as_array().unwrap().len(), 2);
    cloud.knobs(json!({"preempt_after_s": 1})).await;
    cloud.inserted(&body("later", spot("STOP"))).await;
    pass(1.5).await;
    assert_eq!(cloud.status("later").await, "STOPPING");
}

#[tokio::test(start_paused = true)]
async fn instances_are_stopped_changed_and_removed_by_hand() {
    let cloud = Cloud::new(&[]);
    for name in ["one", "two", "three"] {
        cloud.inserted(&plain(name)).await;
    }
    pass(2.0).await;
    cloud.sim("POST", "stop?instance=one").await;
    cloud.sim("POST", "remove?instance=two&zone=us-central1-a").await;
    cloud.sim("POST", "status?instance=three&status=SUSPENDED").await;
    pass(2.0).await;
    let statuses = (cloud.status("one").await, cloud.status("two").await, cloud.status("three").await);
    assert_eq!(statuses, ("TERMINATED".to_owned(), String::new(), "SUSPENDED".to_owned()));
    assert_eq!(cloud.call("POST", "/sim/stop?instance=four", b"").await.0, 404);
    assert_eq!(cloud.call("POST", "/sim/stop?instance=one&zone=us-central1-b", b"").await.0, 404);
    assert_eq!(cloud.call("POST", "/sim/status?instance=one&status=GONE", b"").await.0, 400);
    let history = cloud.sim("GET", "history").await;
    assert_eq!(history["instances"][1]["reason"], "removed");
    assert!(history["instances"][1]["ended_ms"].is_number() && history["instances"][0]["running_ms"].is_number());
}

#[tokio::test(start_paused = true)]
async fn the_serial_port_answers_the_rest_of_its_text() {
    let cloud = Cloud::new(&["--boot-s", "2"]);
    cloud.inserted(&plain("one")).await;
    let uri = format!("{INSTANCES}/one/serialPort");
    assert_eq!(reason(cloud.call("GET", &uri, b"").await), refused(400, "resourceNotReady"));
    pass(3.0).await;
    let output = cloud.get(&uri).await;
    assert!(text(&output["contents"]).contains("Booting one"), "{output}");
    let rest = cloud.get(&format!("{uri}?start={}", text(&output["next"]))).await;
    assert_eq!((&rest["contents"], &rest["start"]), (&json!(""), &output["next"]));
    assert_eq!(reason(cloud.call("GET", &format!("{uri}?port=5"), b"").await), refused(400, "invalid"));
}
