//! Volumes: limits, and the boot volume of a server.

use std::sync::Arc;
use std::time::Duration;

use super::UNKNOWN_ID;
use crate::cloud::Cloud;
use crate::contract::shape::{JsonType, check};
use serde_json::{Value, json};
use testkit::wait;

const CLOUD_TIMEOUT: Duration = Duration::from_secs(120);

pub async fn limits(cloud: Arc<Cloud>) {
    if !cloud.has("volumev3") {
        return;
    }
    let limits = cloud.get("volumev3", "/limits").await.expect(200);
    let keys = ["maxTotalVolumes", "maxTotalVolumeGigabytes", "totalVolumesUsed", "totalGigabytesUsed"];
    check("limits", &limits.get("limits")["absolute"], &keys.map(|key| (key, JsonType::Number)));
    let path = format!("/volumes/{UNKNOWN_ID}");
    for answer in [cloud.get("volumev3", &path).await, cloud.delete("volumev3", &path).await] {
        check(
            "an error",
            answer.expect(404).get("itemNotFound"),
            &[("code", JsonType::Number), ("message", JsonType::Text)],
        );
    }
}

/// The volumes that are attached to a server.
async fn volumes_of(cloud: &Cloud, server: &str) -> Vec<Value> {
    let answer = cloud.get("volumev3", "/volumes/detail").await.expect(200);
    let all = answer.get("volumes").as_array().unwrap().clone();
    let attached = |volume: &Value| {
        volume["attachments"].as_array().unwrap().iter().any(|attachment| attachment["server_id"] == server)
    };
    all.into_iter().filter(attached).collect()
}

pub async fn boot_from_volume(cloud: Arc<Cloud>) {
    if !cloud.has("volumev3") {
        return;
    }
    let mut body = cloud.server_request("volume").await;
    // openstacksdk sends these numbers as strings.
    body["block_device_mapping_v2"] = json!([{
        "boot_index": "0", "delete_on_termination": true, "destination_type": "volume", "source_type": "image",
        "uuid": body["imageRef"], "volume_size": "3",
    }]);
    body["imageRef"] = json!("");
    let id = cloud.create(&body).await;
    let server = cloud.active(&id).await;
    assert_eq!(server["image"], "");
    let volumes = volumes_of(&cloud, &id).await;
    assert_eq!(volumes.len(), 1);
    let volume = &volumes[0];
    let shape = [
        ("id", JsonType::Text),
        ("status", JsonType::Text),
        ("size", JsonType::Number),
        ("attachments", JsonType::List),
    ];
    check("a volume", volume, &shape);
    assert_eq!(
        (&volume["status"], &volume["size"], &volume["bootable"]),
        (&json!("in-use"), &json!(3), &json!("true"))
    );
    assert_eq!(server["os-extended-volumes:volumes_attached"][0]["id"], volume["id"]);
    let attachments = cloud.get("compute", &format!("/servers/{id}/os-volume_attachments")).await.expect(200);
    check(
        "an attachment",
        &attachments.get("volumeAttachments")[0],
        &[("volumeId", JsonType::Text), ("serverId", JsonType::Text)],
    );
    let path = format!("/volumes/{}", volume["id"].as_str().unwrap());
    cloud.delete("volumev3", &path).await.expect(400);
    cloud.remove(&id).await;
    wait::until("the volume to be deleted", CLOUD_TIMEOUT, async || cloud.get("volumev3", &path).await.status == 404)
        .await;
}
