//! Instances: their statuses, their parts, actions and deletion.

use serde_json::{Value, json};

use super::{Cloud, code, pass, refused, text};

#[tokio::test(start_paused = true)]
async fn an_instance_is_pending_then_starting_then_running() {
    let cloud = Cloud::new(&["--boot-s", "4"]);
    let created = cloud.created("one").await;
    let id = text(&created["id"]);
    assert!(id.starts_with("0717_"), "{id}");
    assert_eq!((&created["status"], &created["lifecycle_state"]), (&json!("pending"), &json!("pending")));
    assert!(text(&created["primary_network_interface"]["primary_ip"]["address"]).starts_with("127.95."));
    for (seconds, status) in [(1.0, "pending"), (1.5, "starting"), (2.0, "running")] {
        pass(seconds).await;
        assert_eq!(cloud.status(&id).await, status);
    }
    let running = cloud.get(&format!("instances/{id}")).await;
    assert_eq!((&running["lifecycle_state"], &running["memory"]), (&json!("stable"), &json!(4)));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_is_refused_until_the_instance_runs_and_removes_its_volume() {
    let cloud = Cloud::new(&[]);
    let id = text(&cloud.created("one").await["id"]);
    let path = format!("instances/{id}");
    assert_eq!(code(cloud.delete(&path).await), refused(409, "instance_delete_conflict"));
    pass(2.0).await;
    assert_eq!(cloud.delete(&path).await, (204, Value::Null));
    assert_eq!(cloud.status(&id).await, "deleting");
    assert_eq!(code(cloud.delete(&path).await), refused(409, "instance_delete_conflict"));
    assert_eq!(cloud.count("volumes").await, 1);
    pass(1.5).await;
    assert_eq!(code(cloud.delete(&path).await), refused(404, "not_found"));
    assert_eq!((cloud.status(&id).await, cloud.count("volumes").await), (String::new(), 0));
    assert_eq!(cloud.sim("GET", "state").await["usage"]["vcpus"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_knob_allows_deletions_of_pending_instances() {
    let cloud = Cloud::new(&["--delete-in-any-status", "--boot-s", "9"]);
    let id = text(&cloud.created("one").await["id"]);
    assert_eq!(cloud.delete(&format!("instances/{id}")).await.0, 204);
    pass(20.0).await;
    assert_eq!(cloud.status(&id).await, "");
}

#[tokio::test(start_paused = true)]
async fn a_launch_fault_ends_in_failed_or_stopped_with_its_reason() {
    let cloud = Cloud::new(&[
        "--launch-fault",
        "cannot_start_capacity times=1",
        "--launch-fault",
        "cannot_start_network after=1 times=1 status=stopped zone=us-south-1",
    ]);
    let mut ids = Vec::new();
    for name in ["one", "two", "three"] {
        ids.push(text(&cloud.created(name).await["id"]));
    }
    pass(3.0).await;
    for (id, status, reason) in [
        (&ids[0], "failed", json!("cannot_start_capacity")),
        (&ids[1], "stopped", json!("cannot_start_network")),
        (&ids[2], "running", Value::Null),
    ] {
        let instance = cloud.get(&format!("instances/{id}")).await;
        assert_eq!((&instance["status"], &instance["status_reasons"][0]["code"]), (&json!(status), &reason));
    }
    assert_eq!(cloud.delete(&format!("instances/{}", ids[0])).await.0, 204, "a failed instance can be deleted");
    let failures = cloud.sim("GET", "state").await["counters"]["launch_failures"].clone();
    assert_eq!(failures, json!({"cannot_start_capacity": 1, "cannot_start_network": 1}));
}

#[tokio::test(start_paused = true)]
async fn full_zones_fail_instances_or_refuse_them() {
    let cloud = Cloud::new(&["--full-zone", "us-south-1 cx2-2x4"]);
    let id = text(&cloud.created("one").await["id"]);
    pass(1.0).await;
    assert_eq!(cloud.status(&id).await, "failed");
    let other = cloud.create("two", json!({"profile": {"name": "cx2-4x8"}})).await;
    pass(2.0).await;
    assert_eq!(cloud.status(&text(&other.1["id"])).await, "running");
    cloud.knobs(json!({"refuse_when_full": true})).await;
    assert_eq!(code(cloud.create("three", json!({})).await), refused(503, "insufficient_capacity"));
    cloud.vpc("POST", &format!("instances/{id}/actions"), json!({"type": "start"})).await;
    pass(2.0).await;
    assert_eq!(cloud.status(&id).await, "stopped", "a full zone does not start an instance either");
}

#[tokio::test(start_paused = true)]
async fn quotas_count_instances_vcpus_memory_and_volumes() {
    let cloud = Cloud::new(&["--quotas", "vcpus=4"]);
    cloud.created("one").await;
    cloud.created("two").await;
    assert_eq!(code(cloud.create("three", json!({})).await), refused(403, "over_quota"));
    cloud.knobs(json!({"quotas": {"memory_gib": 8}, "quota_status": 400, "quota_code": "quota_exceeded"})).await;
    assert_eq!(code(cloud.create("three", json!({})).await), refused(400, "quota_exceeded"));
    for resource in ["instances", "volumes"] {
        cloud.knobs(json!({"quotas": {resource: 2}})).await;
        assert_eq!(cloud.create("three", json!({})).await.0, 400);
    }
    cloud.knobs(json!({"quotas": {}})).await;
    assert_eq!(cloud.create("three", json!({})).await.0, 201);
}

#[tokio::test(start_paused = true)]
async fn actions_follow_the_status() {
    let cloud = Cloud::new(&[]);
    let id = text(&cloud.created("one").await["id"]);
    let actions = format!("instances/{id}/actions");
    let act = async |kind: &str, force: bool| cloud.vpc("POST", &actions, json!({"type": kind, "force": force})).await;
    assert_eq!(code(act("stop", false).await), refused(409, "invalid_state"));
    pass(2.0).await;
    assert_eq!(code(act("explode", false).await), refused(400, "validation_enum"));
    assert_eq!(code(act("start", false).await), refused(409, "invalid_state"));
    for (kind, between, after) in
        [("reboot", "restarting", "running"), ("stop", "stopping", "stopped"), ("start", "starting", "running")]
    {
        let (status, action) = act(kind, false).await;
        assert_eq!((status, &action["type"]), (201, &json!(kind)));
        assert_eq!(cloud.status(&id).await, between);
        pass(2.0).await;
        assert_eq!(cloud.status(&id).await, after);
    }
}

#[tokio::test(start_paused = true)]
async fn network_attachments_show_an_interface_of_the_same_id() {
    let cloud = Cloud::new(&[]);
    let subnet = cloud.id("subnets", "nodepool-1").await;
    let attachment = json!({"virtual_network_interface": {"subnet": {"id": subnet}}});
    let changes = json!({"primary_network_interface": null, "primary_network_attachment": attachment});
    let (status, created) = cloud.create("one", changes).await;
    assert_eq!(status, 201, "{created}");
    let attachment = &created["primary_network_attachment"];
    assert_eq!(attachment["id"], created["primary_network_interface"]["id"]);
    assert_eq!(created["network_attachments"][0], *attachment);
    let both = json!({"primary_network_attachment": {"virtual_network_interface": {"subnet": {"id": subnet}}}});
    assert_eq!(code(cloud.create("two", both).await), refused(400, "validation_only_one"));
}

#[tokio::test(start_paused = true)]
async fn old_versions_and_a_knob_show_the_old_address_field() {
    let cloud = Cloud::new(&[]);
    let id = text(&cloud.created("one").await["id"]);
    let uri = format!("/v1/instances/{id}?version=2022-03-28&generation=2");
    let old = cloud.call("GET", &uri, b"").await.1["primary_network_interface"].clone();
    assert!(old["primary_ipv4_address"].is_string() && old["primary_ip"].is_null(), "{old}");
    let new = cloud.get(&format!("instances/{id}")).await["primary_network_interface"].clone();
    assert!(new["primary_ipv4_address"].is_null() && new["primary_ip"]["address"].is_string(), "{new}");
    cloud.knobs(json!({"legacy_fields": true})).await;
    let both = cloud.get("instances").await["instances"][0]["primary_network_interface"].clone();
    assert_eq!(both["primary_ipv4_address"], both["primary_ip"]["address"]);
    assert!(cloud.get("images").await["images"][0]["owner_type"] == "provider");
}

#[tokio::test(start_paused = true)]
async fn a_name_can_be_changed_to_one_that_is_free() {
    let cloud = Cloud::new(&[]);
    let id = text(&cloud.created("one").await["id"]);
    cloud.created("two").await;
    let path = format!("instances/{id}");
    assert_eq!(code(cloud.vpc("PATCH", &path, json!({"name": "two"})).await), refused(400, "validation_unique_failed"));
    assert_eq!(cloud.vpc("PATCH", &path, json!({"name": "three"})).await.1["name"], "three");
    assert_eq!(cloud.count("instances?name=three").await, 1);
}
