//! Create requests that a cloud rejects: unknown references, malformed bodies, exceeded quotas, ambiguous networks.

use std::sync::Arc;

use super::UNKNOWN_ID;
use crate::cloud::{Answer, Cloud};
use reqwest::Method;
use serde_json::{Value, json};

/// The error message for a create request with one key changed.
async fn refusal(cloud: &Cloud, key: &str, value: Value) -> String {
    let mut body = cloud.server_request("refused").await;
    body[key] = value;
    let answer = cloud.post("compute", "/servers", &json!({"server": body})).await;
    if let Some(id) = answer.body["server"]["id"].as_str() {
        cloud.delete_at_clean_up("compute", format!("/servers/{id}"));
    }
    let answer = answer.expect(400);
    answer.get("badRequest")["message"].as_str().expect("a rejection has a reason").to_owned()
}

pub async fn unknown_references(cloud: Arc<Cloud>) {
    let unknown = [
        ("flavorRef", json!("no-such-flavor"), "Flavor no-such-flavor could not be found."),
        ("imageRef", json!(UNKNOWN_ID), "Can not find requested image"),
        ("availability_zone", json!("mars"), "The requested availability zone is not available"),
        ("key_name", json!("no-such-key"), "Invalid key_name provided."),
        ("security_groups", json!([{"name": "no-group"}]), "Unable to find security_group with name or id 'no-group'"),
    ];
    for (key, value, message) in unknown {
        assert_eq!(refusal(&cloud, key, value).await, message);
    }
    let message = refusal(&cloud, "networks", json!([{"uuid": UNKNOWN_ID}])).await;
    assert_eq!(message, format!("Network {UNKNOWN_ID} could not be found."));
}

pub async fn malformed(cloud: Arc<Cloud>) {
    let malformed = [
        ("imageRef", json!("no-id"), "Invalid input for field/attribute imageRef. Value: no-id."),
        ("imageRef", json!(""), "Missing imageRef attribute"),
        ("networks", json!([{"uuid": "no-id"}]), "Bad networks format: network uuid is not in proper format (no-id)"),
        ("networks", json!("auto"), "Invalid input for field/attribute networks. Value: auto."),
        ("metadata", json!({"a": 1}), "Invalid input for field/attribute a. Value: 1. 1 is not of type 'string'"),
        ("no_such_key", json!(1), "Invalid input for field/attribute server."),
        ("name", json!(""), "Invalid input for field/attribute name."),
    ];
    for (key, value, begin) in malformed {
        let message = refusal(&cloud, key, value).await;
        assert!(message.starts_with(begin), "{key}: {message}");
    }
    let request = cloud.request(Method::POST, "compute", "/servers").header("Content-Type", "application/json");
    let answer = Answer::of(request.body("no JSON")).await.expect(400);
    assert_eq!(answer.get("badRequest")["message"], "Malformed request body");
}

pub async fn quota(cloud: Arc<Cloud>) {
    let limits = cloud.get("compute", "/limits").await.expect(200);
    let Some(max) = limits.get("limits")["absolute"]["maxTotalInstances"].as_u64() else { return };
    let mut body = cloud.server_request("quota").await;
    // More instances than the quota allows: Nova rejects the request and creates none.
    body["min_count"] = json!(max + 1);
    body["max_count"] = json!(max + 1);
    let answer = cloud.post("compute", "/servers", &json!({"server": body})).await.expect(403);
    let message = answer.get("forbidden")["message"].as_str().unwrap();
    assert!(message.starts_with("Quota exceeded for ") && message.contains("instances"), "{message}");
    assert!(message.contains(&format!("of {max}")) || message.contains(&format!(", {max}")), "{message}");
}

pub async fn networks(cloud: Arc<Cloud>) {
    let mut body = cloud.server_request("networks").await;
    body.as_object_mut().unwrap().remove("networks");
    let modern = |body: Value| {
        let request =
            cloud.request(Method::POST, "compute", "/servers").header("OpenStack-API-Version", "compute 2.37");
        Answer::of(request.json(&json!({"server": body})))
    };
    let answer = modern(body.clone()).await.expect(400);
    assert!(answer.text.contains("'networks' is a required property"), "{}", answer.text);

    // With several networks, Nova rejects "auto" as ambiguous.
    let known = cloud.get("network", "/networks").await.expect(200);
    let networks = known.get("networks").as_array().unwrap();
    let own = networks.iter().filter(|network| network["router:external"] == false).count();
    body["networks"] = json!("auto");
    let answer = modern(body.clone()).await;
    if own > 1 {
        let answer = answer.expect(409);
        assert!(answer.text.contains("Multiple possible networks found"), "{}", answer.text);
    } else {
        remove(&cloud, &answer.expect(202)).await;
    }
    body["networks"] = json!("none");
    let answer = modern(body).await.expect(202);
    let id = answer.get("server")["id"].as_str().unwrap();
    cloud.delete_at_clean_up("compute", format!("/servers/{id}"));
    assert_eq!(cloud.active(id).await["addresses"], json!({}));
    cloud.remove(id).await;
}

async fn remove(cloud: &Cloud, answer: &Answer) {
    let id = answer.get("server")["id"].as_str().unwrap();
    cloud.delete_at_clean_up("compute", format!("/servers/{id}"));
    let server = cloud.active(id).await;
    assert_ne!(server["addresses"], json!({}));
    cloud.remove(id).await;
}
