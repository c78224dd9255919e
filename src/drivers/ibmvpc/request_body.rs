//! Bodies of the requests that create instances, floating IPs and images.

use serde_json::{Value, json};

use super::config::IbmLabel;
use super::names;
use nodepool_driver::job::LaunchOrder;

/// Ids of what an instance refers to.
pub struct InstanceRefs {
    pub vpc: String,
    pub subnet: String,
    pub group: String,
    pub keys: Vec<String>,
    /// The image by its id or href.
    pub image: Value,
}

pub fn instance(label: &IbmLabel, order: &LaunchOrder, refs: &InstanceRefs) -> Value {
    let keys: Vec<Value> = refs.keys.iter().map(|id| json!({"id": id})).collect();
    let mut body = json!({
        "keys": keys,
        "name": order.hostname,
        "profile": {"name": label.profile},
        "resource_group": {"id": refs.group},
        "vpc": {"id": refs.vpc},
        "image": refs.image,
        "primary_network_interface": {"name": "eth0", "subnet": {"id": refs.subnet}},
        "zone": {"name": label.place.zone},
        "boot_volume_attachment": {
            "name": names::creation_mark(order),
            "volume": {
                "name": names::volume(order),
                "profile": {"name": "general-purpose"},
                "resource_group": {"id": refs.group},
            },
            "delete_volume_on_instance_delete": true,
        },
    });
    if let Some(user_data) = &label.user_data {
        body["user_data"] = user_data.as_str().into();
    }
    body
}

/// A floating IP that is attached from the beginning.
pub fn floating_ip(name: &str, group: &str, interface: &str) -> Value {
    json!({"name": name, "resource_group": {"id": group}, "target": {"id": interface}})
}

pub fn image(name: &str, group: &str, object: &str, operating_system: &str) -> Value {
    json!({
        "name": name,
        "resource_group": {"id": group},
        "file": {"href": object},
        "operating_system": {"name": operating_system},
    })
}
