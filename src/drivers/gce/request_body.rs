//! The request that creates an instance, and the values by which its repetition is recognised.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::api_types::Image;
use super::config::GceLabel;
use nodepool_driver::job::LaunchOrder;

/// Metadata with the mark of a node's creation. Names and node ids repeat in other installations.
pub const CREATION: &str = "nodepool_creation";
/// Scope of the programs of a node: the roles of the account decide what they may do.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// The mark of a node's creation, which all its attempts share.
pub fn creation_mark(order: &LaunchOrder) -> String {
    URL_SAFE_NO_PAD.encode(&Sha256::digest(order.identity.as_bytes())[..16])
}

/// A UUID that names one attempt of a process in one zone: with the same one, Google repeats no creation. Another
/// process counts its attempts anew, so it has another id.
pub fn request_id(order: &LaunchOrder, zone: &str, process: &str) -> String {
    let text = format!("{} {} {zone} {process}", order.identity, order.attempt);
    let hash: [u8; 16] = Sha256::digest(text.as_bytes())[..16].try_into().expect("a hash has 32 bytes");
    uuid::Builder::from_random_bytes(hash).into_uuid().to_string()
}

/// The path of an image below `projects/`; `None` if the id has none of the forms that Google documents.
pub fn image_path(id: &str, project: &str) -> Option<String> {
    if let Some((_, path)) = id.split_once("projects/") {
        return Some(path.to_owned());
    }
    id.starts_with("global/images/").then(|| format!("{project}/{id}"))
}

pub fn instance(label: &GceLabel, order: &LaunchOrder, zone: &str, image: &Image) -> Value {
    let mut metadata = order.metadata.clone();
    metadata.insert(CREATION.to_owned(), creation_mark(order));
    if let Some(key) = &label.key {
        metadata.insert("ssh-keys".to_owned(), format!("{}:{key}", label.username()));
    }
    let items: Vec<Value> = metadata.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
    let mut interface = json!({"accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]});
    match &label.subnetwork {
        Some(subnetwork) => interface["subnetwork"] = subnetwork_path(subnetwork, zone).into(),
        None => interface["network"] = "global/networks/default".into(),
    }
    let accounts: Vec<Value> =
        label.service_account.iter().map(|email| json!({"email": email, "scopes": [SCOPE]})).collect();
    let mut body = json!({
        "name": order.hostname,
        "machineType": format!("zones/{zone}/machineTypes/{}", label.machine_type),
        "disks": [{
            "boot": true,
            "autoDelete": true,
            "initializeParams": {
                "sourceImage": image.self_link,
                "diskType": format!("zones/{zone}/diskTypes/{}", label.volume_type),
                "diskSizeGb": label.volume_gb.to_string(),
            },
        }],
        "networkInterfaces": [interface],
        "serviceAccounts": accounts,
        "metadata": {"items": items},
    });
    if !label.tags.is_empty() {
        body["tags"] = json!({"items": label.tags});
    }
    if label.is_spot {
        // A preempted instance that is stopped would still be billed for its disk until it is deleted.
        body["scheduling"] = json!({
            "provisioningModel": "SPOT",
            "instanceTerminationAction": "STOP",
            "onHostMaintenance": "TERMINATE",
            "automaticRestart": false,
        });
    }
    body
}

/// A name alone is a subnetwork of the project.
fn subnetwork_path(subnetwork: &str, zone: &str) -> String {
    match subnetwork.contains('/') {
        true => subnetwork.to_owned(),
        false => format!("regions/{}/subnetworks/{subnetwork}", super::config::region_of(zone)),
    }
}
