//! Resource groups, and the instance of Cloud Object Storage.

use serde_json::{Value, json};

use super::{Cloud, text};

async fn create(cloud: &Cloud, name: &str) -> (u16, Value) {
    cloud.call("POST", "/v2/resource_groups", json!({"name": name}).to_string().as_bytes()).await
}

#[tokio::test(start_paused = true)]
async fn groups_are_created_once_and_found_by_name() {
    let cloud = Cloud::new(&[]);
    let (status, created) = create(&cloud, "np_ibm_main").await;
    assert_eq!((status, created.as_object().unwrap().len()), (201, 2), "the response has an id and a CRN only");
    assert_eq!(create(&cloud, "np_ibm_main").await.0, 409);
    assert_eq!(create(&cloud, "a/b").await.0, 400);
    let found = cloud.call("GET", "/v2/resource_groups?name=np_ibm_main", b"").await.1;
    assert_eq!((&found["resources"][0]["id"], &found["resources"][0]["state"]), (&created["id"], &json!("ACTIVE")));
    let default = cloud.call("GET", "/v2/resource_groups?default=true", b"").await.1;
    assert_eq!(default["resources"][0]["name"], "Default");
    let path = format!("/v2/resource_groups/{}", text(&created["id"]));
    assert_eq!(cloud.call("PATCH", &path, br#"{"name": "new"}"#).await.1["name"], "new");
    assert_eq!(cloud.call("DELETE", &path, b"").await.0, 204);
    assert_eq!(cloud.call("GET", &path, b"").await.1["status_code"], 404);
}

#[tokio::test(start_paused = true)]
async fn a_group_with_resources_stays() {
    let cloud = Cloud::new(&[]);
    cloud.sim("POST", "foreign?kind=volume&group=busy").await;
    let found = cloud.call("GET", "/v2/resource_groups?name=busy", b"").await.1;
    let path = format!("/v2/resource_groups/{}", text(&found["resources"][0]["id"]));
    assert_eq!(cloud.call("DELETE", &path, b"").await.0, 400);
    cloud.sim("POST", "remove?kind=volume&name=foreign-0001").await;
    assert_eq!(cloud.call("DELETE", &path, b"").await.0, 204);
}

#[tokio::test(start_paused = true)]
async fn object_storage_is_found_by_name_and_type() {
    let cloud = Cloud::new(&["--object-storage", "cos"]);
    let list = async |query: &str| {
        cloud.call("GET", &format!("/v2/resource_instances?{query}"), b"").await.1["resources"].clone()
    };
    let found = list("name=cos&type=service_instance").await;
    assert_eq!(text(&found[0]["crn"]).split(':').nth(4), Some("cloud-object-storage"));
    assert_eq!((list("name=none").await, list("type=alias").await), (json!([]), json!([])));
    let path = format!("/v2/resource_instances/{}", text(&found[0]["guid"]));
    assert_eq!(cloud.call("GET", &path, b"").await.1["name"], "cos");
}

#[tokio::test(start_paused = true)]
async fn keys_are_created_and_deleted() {
    let cloud = Cloud::new(&[]);
    let created = cloud.post("keys", json!({"name": "mine", "public_key": "ssh-rsa AAAA me"})).await;
    assert_eq!((&created["type"], &created["name"]), (&json!("rsa"), &json!("mine")));
    let path = format!("keys/{}", text(&created["id"]));
    assert_eq!(cloud.get(&path).await["public_key"], "ssh-rsa AAAA me");
    assert_eq!(cloud.vpc("POST", "keys", json!({"name": "mine", "public_key": "ssh-rsa A"})).await.0, 400);
    assert_eq!(cloud.vpc("POST", "keys", json!({"public_key": "none"})).await.0, 400);
    assert_eq!((cloud.delete(&path).await.0, cloud.delete(&path).await.0), (204, 404));
}
