//! Floating IPs: creation, attachment, detachment and deletion.

use serde_json::{Value, json};

use super::{Cloud, code, pass, refused, text};

async fn floating_ip(cloud: &Cloud, name: &str) -> String {
    let body = json!({"name": name, "zone": {"name": "us-south-1"}});
    text(&cloud.post("floating_ips", body).await["id"])
}

/// The path of the floating IPs of a running instance's interface.
async fn interface(cloud: &Cloud, name: &str) -> (String, String) {
    let instance = cloud.created(name).await;
    let (id, interface) = (text(&instance["id"]), text(&instance["primary_network_interface"]["id"]));
    (format!("instances/{id}/network_interfaces/{interface}/floating_ips"), interface)
}

#[tokio::test(start_paused = true)]
async fn a_floating_ip_is_pending_then_available_and_can_be_deleted_then() {
    let cloud = Cloud::new(&[]);
    let path = format!("floating_ips/{}", floating_ip(&cloud, "one").await);
    let found = cloud.get(&path).await;
    assert_eq!((&found["status"], &found["target"]), (&json!("pending"), &Value::Null));
    assert!(text(&found["address"]).starts_with("127.96."));
    assert_eq!(code(cloud.delete(&path).await), refused(409, "invalid_state"));
    pass(1.0).await;
    assert_eq!(cloud.get(&path).await["status"], "available");
    assert_eq!(cloud.delete(&path).await, (204, Value::Null));
    assert_eq!(cloud.get(&path).await["status"], "deleting");
    pass(1.0).await;
    assert_eq!(code(cloud.vpc("GET", &path, Value::Null).await), refused(404, "not_found"));
}

#[tokio::test(start_paused = true)]
async fn a_failed_floating_ip_can_only_be_deleted() {
    let cloud = Cloud::new(&["--floating-ips-fail-every", "2"]);
    let (path, _) = interface(&cloud, "one").await;
    let (first, second) = (floating_ip(&cloud, "first").await, floating_ip(&cloud, "second").await);
    pass(1.0).await;
    for (id, status) in [(&first, "available"), (&second, "failed")] {
        assert_eq!(cloud.get(&format!("floating_ips/{id}")).await["status"], status);
    }
    assert_eq!(code(cloud.vpc("PUT", &format!("{path}/{second}"), Value::Null).await), refused(409, "invalid_state"));
    assert_eq!(cloud.delete(&format!("floating_ips/{second}")).await.0, 204);
}

#[tokio::test(start_paused = true)]
async fn an_interface_has_one_floating_ip_and_a_floating_ip_one_interface() {
    let cloud = Cloud::new(&["--attach-s", "2"]);
    let (one, target) = interface(&cloud, "one").await;
    let (two, _) = interface(&cloud, "two").await;
    let (first, second) = (floating_ip(&cloud, "first").await, floating_ip(&cloud, "second").await);
    assert_eq!(
        code(cloud.vpc("PUT", &format!("{one}/{first}"), Value::Null).await),
        refused(409, "invalid_state"),
        "it is pending"
    );
    pass(1.0).await;
    assert_eq!(cloud.vpc("PUT", &format!("{one}/{first}"), Value::Null).await.0, 201);
    assert_eq!(cloud.get(&format!("floating_ips/{first}")).await["target"], Value::Null);
    pass(2.5).await;
    assert_eq!(cloud.get(&format!("floating_ips/{first}")).await["target"]["id"], target.as_str());
    assert_eq!(cloud.count(&format!("floating_ips?target.id={target}")).await, 1);
    let attach = async |path: String| code(cloud.vpc("PUT", &path, Value::Null).await);
    assert_eq!(attach(format!("{one}/{second}")).await, refused(409, "target_in_use"));
    assert_eq!(attach(format!("{two}/{first}")).await, refused(409, "floating_ip_in_use"));
    assert_eq!(cloud.get(&one).await["floating_ips"][0]["id"], first.as_str());
    assert_eq!(cloud.delete(&format!("{one}/{first}")).await.0, 204);
    assert_eq!(cloud.get(&one).await["floating_ips"], json!([]));
    assert_eq!(cloud.vpc("PUT", &format!("{one}/{second}"), Value::Null).await.0, 201);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_instance_leaves_its_floating_ip_without_a_target() {
    let cloud = Cloud::new(&[]);
    let (path, target) = interface(&cloud, "one").await;
    let created = cloud.post("floating_ips", json!({"target": {"id": target}})).await;
    assert_eq!((&created["target"]["id"], &created["zone"]["name"]), (&json!(target), &json!("us-south-1")));
    pass(2.0).await;
    cloud.delete(path.split("/network").next().unwrap()).await;
    pass(2.0).await;
    let found = cloud.get(&format!("floating_ips/{}", text(&created["id"]))).await;
    assert_eq!((&found["status"], &found["target"]), (&json!("available"), &Value::Null));
}

#[tokio::test(start_paused = true)]
async fn a_change_attaches_and_null_detaches() {
    let cloud = Cloud::new(&[]);
    let (_, target) = interface(&cloud, "one").await;
    let path = format!("floating_ips/{}", floating_ip(&cloud, "one").await);
    pass(1.0).await;
    let changed = cloud.vpc("PATCH", &path, json!({"target": {"id": target}, "name": "new"})).await;
    assert_eq!((changed.0, &changed.1["target"]["id"], &changed.1["name"]), (200, &json!(target), &json!("new")));
    assert_eq!(cloud.vpc("PATCH", &path, json!({"target": null})).await.1["target"], Value::Null);
    assert_eq!(code(cloud.vpc("PATCH", &path, json!({"target": {"id": "none"}})).await), refused(400, "bad_field"));
}

#[tokio::test(start_paused = true)]
async fn creations_need_a_zone_or_a_target_and_a_free_name() {
    let cloud = Cloud::new(&["--quotas", "floating_ips=2"]);
    floating_ip(&cloud, "one").await;
    let zone = json!({"name": "us-south-2"});
    for (body, expected) in [
        (json!({"name": "one", "zone": zone}), refused(400, "validation_unique_failed")),
        (json!({"name": "A", "zone": zone}), refused(400, "validation_invalid_name")),
        (json!({"name": "two"}), refused(400, "validation_required_field")),
        (json!({"zone": {"name": "mars"}}), refused(400, "bad_field")),
        (json!({"zone": zone, "size": 1}), refused(400, "invalid_request_field")),
    ] {
        assert_eq!(code(cloud.vpc("POST", "floating_ips", body.clone()).await), expected, "{body}");
    }
    let other = text(&cloud.post("floating_ips", json!({"zone": zone})).await["id"]);
    assert_eq!(code(cloud.vpc("POST", "floating_ips", json!({"zone": zone})).await), refused(403, "over_quota"));
    let (path, _) = interface(&cloud, "one").await;
    pass(1.0).await;
    assert_eq!(code(cloud.vpc("PUT", &format!("{path}/{other}"), Value::Null).await), refused(400, "invalid_zone"));
}
