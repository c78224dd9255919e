//! Images: create, upload, find, delete.

use std::sync::Arc;

use super::UNKNOWN_ID;
use crate::cloud::{Answer, Cloud, PREFIX};
use crate::contract::shape::{JsonType, check};
use reqwest::Method;
use serde_json::{Value, json};

/// Creates the record of an image without content, and returns its path. Clean-up deletes it.
async fn create(cloud: &Cloud, name: &str) -> String {
    let body = json!({
        "name": format!("{PREFIX}-{name}"), "disk_format": "raw", "container_format": "bare", "visibility": "private",
        "nodepool_build_id": name, "min_disk": 1,
    });
    let answer = cloud.post("image", "/images", &body).await.expect(201);
    assert_eq!((&answer.body["status"], &answer.body["nodepool_build_id"]), (&json!("queued"), &json!(name)));
    let path = format!("/images/{}", answer.body["id"].as_str().unwrap());
    cloud.delete_at_clean_up("image", path.clone());
    path
}

fn upload(cloud: &Cloud, path: &str, content: &'static str) -> impl Future<Output = Answer> {
    let request = cloud.request(Method::PUT, "image", &format!("{path}/file"));
    Answer::of(request.header("Content-Type", "application/octet-stream").body(content))
}

pub async fn lifecycle(cloud: Arc<Cloud>) {
    let path = create(&cloud, "image").await;
    upload(&cloud, &path, "hello world").await.expect(204);
    let shown = cloud.get("image", &path).await.expect(200).body;
    let shape = [
        ("id", JsonType::Text),
        ("name", JsonType::Text),
        ("status", JsonType::Text),
        ("size", JsonType::Number),
        ("checksum", JsonType::Text),
        ("min_disk", JsonType::Number),
        ("min_ram", JsonType::Number),
        ("created_at", JsonType::Text),
        ("visibility", JsonType::Text),
        ("tags", JsonType::List),
        ("protected", JsonType::Bool),
    ];
    check("an image", &shown, &shape);
    assert_eq!((&shown["status"], &shown["size"], &shown["min_disk"]), (&json!("active"), &json!(11), &json!(1)));
    assert_eq!(shown["checksum"], "5eb63bbbe01eeed093cb22bb8f5acdc3");
    assert_eq!(shown["os_hash_algo"], "sha512");
    assert!(shown["os_hash_value"].as_str().unwrap().starts_with("309ecc489c12d6eb4cc40f50c902f2b4"), "{shown}");
    upload(&cloud, &path, "once more").await.expect(409);
    cloud.delete("image", &path).await.expect(204);
    for answer in [cloud.get("image", &path).await, cloud.delete("image", &path).await] {
        answer.expect(404);
    }
    upload(&cloud, &path, "too late").await.expect(404);
    cloud.get("image", &format!("/images/{UNKNOWN_ID}")).await.expect(404);
    let wrong = json!({"name": format!("{PREFIX}-wrong"), "disk_format": "no-such-format"});
    cloud.post("image", "/images", &wrong).await.expect(400);
}

pub async fn lists(cloud: Arc<Cloud>) {
    let one = create(&cloud, "listed-1").await;
    let other = create(&cloud, "listed-2").await;
    let found = async |query: &str| -> Value {
        let answer = cloud.get("image", &format!("/images?{query}")).await.expect(200);
        answer.get("images").clone()
    };
    let by_name = found(&format!("name={PREFIX}-listed-1")).await;
    assert_eq!(by_name.as_array().unwrap().len(), 1);
    assert_eq!(format!("/images/{}", by_name[0]["id"].as_str().unwrap()), one);
    assert_eq!(found("nodepool_build_id=listed-2").await[0]["name"], format!("{PREFIX}-listed-2"));
    assert_eq!(found("nodepool_build_id=nothing").await, json!([]));

    let page = cloud.get("image", "/images?limit=1").await.expect(200);
    let last = page.get("images")[0]["id"].as_str().unwrap();
    assert_eq!(page.get("next"), &json!(format!("/v2/images?limit=1&marker={last}")));
    cloud.get("image", "/images?marker=nothing").await.expect(400);
    for path in [one, other] {
        cloud.delete("image", &path).await.expect(204);
    }
}
