//! An instance: what the API does not show of it, its statuses, and its JSON for old versions of the API.

use serde_json::{Value, json};

pub struct Instance {
    pub zone: String,
    pub profile: String,
    pub vcpus: u64,
    pub memory_gib: u64,
    /// The subnet, and the number of its address there.
    pub subnet: String,
    pub address: u32,
    /// The id of the primary network interface or attachment.
    pub interface: String,
    /// Ids of the security groups of its creation.
    pub security_groups: Vec<String>,
    /// The id of the virtual network interface of an instance with network attachments.
    pub virtual_interface: Option<String>,
    pub volume: String,
    pub deletes_volume: bool,
    /// References to the keys of its creation.
    pub keys: Value,
    /// Count of the changes of its status.
    pub change: u64,
    /// Seconds from starting to running.
    pub boot_rest_s: f64,
    /// The reason for which it will not start.
    pub fate: Option<LaunchFailure>,
    /// Provider and id of the node that it was created for.
    pub node: Option<String>,
}

#[derive(Clone, Debug)]
pub struct LaunchFailure {
    pub code: String,
    /// The instance ends stopped instead of failed.
    pub is_stopped: bool,
}

pub const STATUSES: [&str; 8] =
    ["pending", "starting", "running", "stopping", "stopped", "restarting", "deleting", "failed"];

/// The lifecycle state of an instance with this status.
pub fn lifecycle_state(status: &str) -> &'static str {
    match status {
        "pending" => "pending",
        "deleting" => "deleting",
        "failed" => "failed",
        _ => "stable",
    }
}

/// The fields of network interfaces in an API version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFields {
    /// `primary_ip`, from 2022-03-29 on.
    Current,
    /// `primary_ipv4_address`, before.
    Old,
    /// Both, by the knob `legacy_fields`.
    Both,
}

/// The JSON of an instance with these fields in its network interfaces.
pub fn with_addresses(instance: &Value, fields: AddressFields) -> Value {
    let mut instance = instance.clone();
    change_addresses(&mut instance["primary_network_interface"], fields);
    if let Some(interfaces) = instance["network_interfaces"].as_array_mut() {
        for interface in interfaces {
            change_addresses(interface, fields);
        }
    }
    instance
}

fn change_addresses(interface: &mut Value, fields: AddressFields) {
    if fields == AddressFields::Current {
        return;
    }
    interface["primary_ipv4_address"] = json!(interface["primary_ip"]["address"]);
    if fields == AddressFields::Old
        && let Some(interface) = interface.as_object_mut()
    {
        interface.shift_remove("primary_ip");
    }
}

/// Provider and node id of an instance, as the drivers of Nodepool 11 and of this project name resource groups
/// (`np_PROVIDER_POOL`) and instances (`npID`).
pub fn node_of(group: &str, name: &str) -> (Option<String>, Option<String>) {
    let provider = group.strip_prefix("np_").and_then(|rest| rest.split_once('_')).map(|(name, _)| name.to_owned());
    let digits = name.strip_prefix("np").map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    (provider, digits.filter(|digits| !digits.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_provider_and_node() {
        let of = |group, name| node_of(group, name);
        assert_eq!(of("np_ibm_main", "np0000000012"), (Some("ibm".to_owned()), Some("0000000012".to_owned())));
        assert_eq!(of("Default", "foreign-1"), (None, None));
        assert_eq!(of("np_ibm_main", "np12-a"), (Some("ibm".to_owned()), Some("12".to_owned())));
    }
}
