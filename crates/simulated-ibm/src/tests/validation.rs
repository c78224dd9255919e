//! Checks of bodies and of the parameters that every call has.

use serde_json::{Value, json};

use super::{Cloud, code, refused};

#[tokio::test(start_paused = true)]
async fn creations_with_wrong_fields_are_refused_and_create_nothing() {
    let cloud = Cloud::new(&[]);
    let (other, second) = (cloud.id("subnets", "other-1").await, cloud.id("subnets", "nodepool-2").await);
    let interface = |subnet: &str| json!({"primary_network_interface": {"subnet": {"id": subnet}}});
    let boot = |volume: Value| json!({"boot_volume_attachment": {"volume": volume}});
    for (changes, expected) in [
        (json!({"name": "One"}), "validation_invalid_name"),
        (json!({"name": "np_1"}), "validation_invalid_name"),
        (json!({"profile": {"name": "zx9-1x1"}}), "bad_field"),
        (json!({"image": {"id": "none"}}), "bad_field"),
        (json!({"image": {}}), "validation_required_field"),
        (json!({"image": null}), "validation_required_field"),
        (json!({"zone": {"name": "us-south-9"}}), "bad_field"),
        (json!({"keys": [{"id": "none"}]}), "bad_field"),
        (json!({"resource_group": {"id": "none"}}), "bad_field"),
        (json!({"vpc": {"id": "none"}}), "bad_field"),
        (json!({"primary_network_interface": null}), "validation_required_field"),
        (json!({"user_data": 7}), "validation_invalid_field_type"),
        (json!({"flavor": "small"}), "invalid_request_field"),
        (interface("none"), "bad_field"),
        (interface(&other), "bad_field"),
        (interface(&second), "invalid_zone"),
        (boot(json!({"name": "x"})), "validation_required_field"),
        (boot(json!({"profile": {"name": "fast"}})), "volume_profile_not_found"),
        (boot(json!({"profile": {"name": "general-purpose"}, "capacity": 9})), "volume_capacity_invalid"),
    ] {
        assert_eq!(code(cloud.create("one", changes.clone()).await), refused(400, expected), "{changes}");
    }
    assert_eq!((cloud.count("instances").await, cloud.count("volumes").await), (0, 0));
    assert_eq!(
        code(cloud.call("POST", "/v1/instances?version=2025-06-03&generation=2", b"{").await),
        refused(400, "validation_failure")
    );
}

#[tokio::test(start_paused = true)]
async fn names_of_instances_and_of_boot_volumes_are_unique() {
    let cloud = Cloud::new(&[]);
    cloud.created("one").await;
    assert_eq!(code(cloud.create("one", json!({})).await), refused(400, "validation_unique_failed"));
    let volume = json!({"volume": {"name": "one", "profile": {"name": "general-purpose"}}});
    let answer = cloud.create("two", json!({"boot_volume_attachment": volume})).await;
    assert_eq!(answer.1["errors"][0]["target"]["name"], "boot_volume_attachment.volume.name");
    assert_eq!(code(answer), refused(400, "validation_unique_failed"));
    let (status, json) = cloud.create("two", json!({"name": null, "boot_volume_attachment": null})).await;
    assert_eq!((status, json["name"].is_string()), (201, true), "names are optional");
}

#[tokio::test(start_paused = true)]
async fn every_call_names_a_version_and_the_generation() {
    let cloud = Cloud::new(&[]);
    for (query, expected) in [
        ("", "missing_version"),
        ("version=2025-6-3&generation=2", "invalid_version"),
        ("version=2018-12-31&generation=2", "invalid_version_range"),
        ("version=2999-01-01&generation=2", "invalid_version_range"),
        ("version=2025-06-03", "missing_generation_parameter"),
        ("version=2025-06-03&generation=1", "invalid_generation_parameter"),
    ] {
        let answer = cloud.call("GET", &format!("/v1/regions?{query}"), b"").await;
        assert_eq!(code(answer), refused(400, expected), "{query}");
    }
    assert_eq!(cloud.call("GET", "/v1/regions?version=2025-06-03&generation=2", b"").await.0, 200);
    assert_eq!(code(cloud.call("GET", "/v1/none", b"").await), refused(404, "invalid_route"));
}

#[tokio::test(start_paused = true)]
async fn references_may_be_crns_and_hrefs() {
    let cloud = Cloud::new(&[]);
    let body = cloud.body("one", json!({})).await;
    let image = cloud.get(&format!("images/{}", body["image"]["id"].as_str().unwrap())).await;
    for (name, reference) in [("two", json!({"crn": image["crn"]})), ("three", json!({"href": image["href"]}))] {
        let (status, json) = cloud.create(name, json!({"image": reference})).await;
        assert_eq!((status, &json["image"]["id"]), (201, &image["id"]), "{json}");
    }
}
