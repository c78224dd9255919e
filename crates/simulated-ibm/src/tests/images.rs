//! Images: imports from object storage, changes and deletions.

use serde_json::{Value, json};

use super::{Cloud, code, pass, refused, text};

fn body(name: &str) -> Value {
    json!({
        "name": name, "file": {"href": "cos://us-south/bucket/npimage.qcow2"},
        "operating_system": {"name": "debian-12-amd64"},
    })
}

#[tokio::test(start_paused = true)]
async fn an_import_is_pending_then_available() {
    let cloud = Cloud::new(&["--image-s", "3", "--image-gb", "20"]);
    let created = cloud.post("images", body("npimage0000000001")).await;
    assert_eq!((&created["status"], &created["minimum_provisioned_size"]), (&json!("pending"), &Value::Null));
    let path = format!("images/{}", text(&created["id"]));
    let early = cloud.create("one", json!({"image": {"id": created["id"]}})).await;
    assert_eq!(code(early), refused(400, "bad_field"), "a pending image cannot be used");
    assert_eq!(code(cloud.delete(&path).await), refused(409, "invalid_state"));
    pass(3.5).await;
    let found = cloud.get(&path).await;
    assert_eq!((&found["status"], &found["minimum_provisioned_size"]), (&json!("available"), &json!(20)));
    assert_eq!(cloud.create("one", json!({"image": {"id": created["id"]}})).await.0, 201);
    assert_eq!(cloud.delete(&path).await, (202, Value::Null));
    assert_eq!(cloud.get(&path).await["status"], "deleting");
    assert_eq!(code(cloud.delete(&path).await), refused(409, "invalid_state"));
    pass(1.0).await;
    assert_eq!(code(cloud.delete(&path).await), refused(404, "not_found"));
}

#[tokio::test(start_paused = true)]
async fn an_image_fault_fails_an_import_with_its_reason() {
    let cloud = Cloud::new(&["--image-fault", "image_data_corrupted every=2"]);
    for (name, status) in [("one", "available"), ("two", "failed")] {
        let id = text(&cloud.post("images", body(name)).await["id"]);
        pass(2.0).await;
        let image = cloud.get(&format!("images/{id}")).await;
        assert_eq!(image["status"], status);
        assert_eq!(image["status_reasons"][0]["code"] == "image_data_corrupted", status == "failed");
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_imports_are_refused() {
    let cloud = Cloud::new(&["--quotas", "images=1"]);
    cloud.post("images", body("one")).await;
    for (field, value, expected) in [
        ("name", json!("one"), refused(400, "validation_unique_failed")),
        ("name", json!("ibm-mine"), refused(400, "validation_invalid_name")),
        ("file", json!({"href": "https://host/file"}), refused(400, "validation_invalid_ref")),
        ("file", json!({"href": "cos://us-south/bucket"}), refused(400, "validation_invalid_ref")),
        ("operating_system", json!({"name": "plan-9"}), refused(400, "bad_field")),
        ("operating_system", json!({"name": "ibm-restricted-amd64"}), refused(400, "operating_system_restricted")),
        ("operating_system", Value::Null, refused(400, "validation_required_field")),
        ("size", json!(1), refused(400, "invalid_request_field")),
        ("name", json!("two"), refused(403, "over_quota")),
    ] {
        let mut body = body("two");
        body[field] = value;
        assert_eq!(code(cloud.vpc("POST", "images", body.clone()).await), expected, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn public_images_cannot_be_changed() {
    let cloud = Cloud::new(&[]);
    let path = format!("images/{}", cloud.id("images", "ibm-debian-12-9-minimal-amd64-2").await);
    assert_eq!(code(cloud.delete(&path).await), refused(400, "invalid_action_for_public_image"));
    let answer = cloud.vpc("PATCH", &path, json!({"name": "mine"})).await;
    assert_eq!(code(answer), refused(400, "invalid_action_for_public_image"));
}

#[tokio::test(start_paused = true)]
async fn lists_of_images_show_the_newest_first() {
    let cloud = Cloud::new(&[]);
    cloud.sim("POST", "image?name=ibm-debian-12-newest&os=debian-12-amd64").await;
    let images = cloud.get("images?visibility=public&status=available,deprecated").await;
    assert_eq!(images["images"][0]["name"], "ibm-debian-12-newest");
    assert!(images["images"][0]["resource_group"]["name"].is_string());
    cloud.knobs(json!({"unnamed_groups": true})).await;
    let image = cloud.get("images").await["images"][0].clone();
    assert!(image["resource_group"]["name"].is_null() && image["resource_group"]["id"].is_string());
    let alone = cloud.get(&format!("images/{}", text(&image["id"]))).await;
    assert_eq!(alone["resource_group"]["name"], "Default");
}
