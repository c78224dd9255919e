//! The request that creates a machine with its interface, addresses and disk.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tracing::warn;

use super::api::api_types::Tags;
use super::api::calls::{self, Kind, Scope};
use super::config::Subnet;
use super::context::ProviderContext;
use super::label::AzureLabel;
use crate::common::python_format::interpolate;
use nodepool_driver::job::LaunchOrder;

/// The tag with the mark of a node's creation. Names and node ids repeat in other installations.
pub const CREATION: &str = "nodepool_creation";
const PASSWORD_LENGTH: usize = 64;

/// The mark of a node's creation, which all its attempts share.
pub fn creation_mark(order: &LaunchOrder) -> String {
    URL_SAFE_NO_PAD.encode(&Sha256::digest(order.identity.as_bytes())[..16])
}

/// The tags of everything that a launch creates.
pub fn tags(context: &ProviderContext, label: &AzureLabel, order: &LaunchOrder) -> Tags {
    let mut tags = label.tags.clone();
    for (key, text) in &label.dynamic_tags {
        match interpolate(text, |name| (name == "request").then(|| Value::clone(&order.request))) {
            Ok(value) => drop(tags.insert(key.clone(), value)),
            Err(error) => {
                warn!(provider = %context.provider, label = %label.name, key, error, "cannot expand dynamic-tags")
            }
        }
    }
    tags.extend(order.metadata.clone());
    tags.insert(CREATION.to_owned(), creation_mark(order));
    tags
}

pub fn machine(
    context: &ProviderContext,
    label: &AzureLabel,
    order: &LaunchOrder,
    image: &Value,
    tags: &Tags,
) -> Value {
    let mut disk = json!({"createOption": "FromImage", "deleteOption": "Delete"});
    if let Some(size) = label.volume_gb {
        disk["diskSizeGB"] = size.into();
    }
    let name = &order.hostname;
    let mut body = json!({
        "location": context.settings.location,
        "tags": tags,
        "properties": {
            "osProfile": os_profile(label, name),
            "hardwareProfile": {"vmSize": label.size},
            "storageProfile": {"imageReference": image, "osDisk": disk},
            "networkProfile": {
                "networkApiVersion": calls::PARTS,
                "networkInterfaceConfigurations": [{
                    "name": format!("{name}-nic"),
                    "tags": tags,
                    "properties": {
                        "deleteOption": "Delete",
                        "primary": true,
                        "ipConfigurations": ip_configurations(context, label, name, tags),
                    },
                }],
            },
        },
    });
    if let Some(data) = &label.user_data {
        body["properties"]["userData"] = data.0.as_str().into();
    }
    body
}

fn os_profile(label: &AzureLabel, name: &str) -> Value {
    let mut profile = json!({"computerName": name});
    let username = label.login.username.as_deref().unwrap_or_default();
    if let Some(key) = &label.access.key {
        let path = format!("/home/{username}/.ssh/authorized_keys");
        profile["linuxConfiguration"] = json!({
            "ssh": {"publicKeys": [{"path": path, "keyData": key}]},
            "disablePasswordAuthentication": true,
        });
    }
    if !username.is_empty() {
        profile["adminUsername"] = username.into();
    }
    if let Some(password) = &label.access.password {
        profile["adminPassword"] = password.as_str().into();
    } else if label.access.generates_password {
        profile["adminPassword"] = generate_password().into();
    }
    if let Some(data) = &label.custom_data {
        profile["customData"] = data.0.as_str().into();
    }
    profile
}

fn ip_configurations(context: &ProviderContext, label: &AzureLabel, name: &str, tags: &Tags) -> Vec<Value> {
    let subnet = subnet(&context.scope, &context.settings.subnet);
    let network = &label.network;
    let versions =
        [(network.ipv4, network.public_ipv4, "v4", "IPv4"), (network.ipv6, network.public_ipv6, "v6", "IPv6")];
    let wanted = versions.into_iter().filter(|(is_wanted, ..)| *is_wanted);
    wanted
        .enumerate()
        .map(|(index, (_, is_public, short, version))| {
            let mut properties =
                json!({"privateIPAddressVersion": version, "primary": index == 0, "subnet": {"id": subnet}});
            if is_public {
                // Addresses of the SKU Basic are retired, and Standard has static ones only.
                properties["publicIPAddressConfiguration"] = json!({
                    "name": format!("{name}-{short}-ip"),
                    "tags": tags,
                    "sku": {"name": "Standard"},
                    "properties": {
                        "deleteOption": "Delete",
                        "publicIPAllocationMethod": "Static",
                        "publicIPAddressVersion": version,
                    },
                });
            }
            json!({"name": format!("{name}-{short}-config"), "properties": properties})
        })
        .collect()
}

fn subnet(scope: &Scope, subnet: &Subnet) -> String {
    match subnet {
        Subnet::Id(id) => id.clone(),
        Subnet::Named { group, network, subnet } => scope.subnet(group, network, subnet),
    }
}

/// The id of an uploaded image.
pub fn uploaded_image(scope: &Scope, name: &str) -> Value {
    json!({"id": scope.id(Kind::Image, name)})
}

/// Letters and digits, with at least one of each kind that Azure demands.
fn generate_password() -> String {
    loop {
        let text = format!("{}{}", nodepool_rng::uuid(), nodepool_rng::uuid()).replace('-', "");
        let hash = Sha256::digest(text.as_bytes());
        let random = format!("{}{}", STANDARD_TEXT.encode(hash), STANDARD_TEXT.encode(Sha256::digest(hash)));
        let password: String = random.chars().filter(char::is_ascii_alphanumeric).take(PASSWORD_LENGTH).collect();
        let has = |is: fn(&char) -> bool| password.chars().any(|letter| is(&letter));
        if has(char::is_ascii_lowercase) && has(char::is_ascii_uppercase) && has(char::is_ascii_digit) {
            return password;
        }
    }
}

const STANDARD_TEXT: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD_NO_PAD;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_passwords_are_long_and_differ() {
        let (one, other) = (generate_password(), generate_password());
        assert!(one.len() > 48 && one != other);
        assert!(one.chars().all(|letter| letter.is_ascii_alphanumeric()));
    }
}
