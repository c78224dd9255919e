//! Readability of records for other processes: the keys and lists that Zuul or Nodepool 11 requires.

use super::nodes::Violation;

/// Keys that Zuul or Nodepool 11 requires in each record.
pub const KEYS_OF_NODES: &[&str] = &[
    "state",
    "state_time",
    "cloud",
    "provider",
    "pool",
    "type",
    "allocated_to",
    "az",
    "region",
    "public_ipv4",
    "private_ipv4",
    "public_ipv6",
    "host_id",
    "interface_ip",
    "connection_port",
    "ssh_port",
    "image_id",
    "launcher",
    "created_time",
    "external_id",
    "hostname",
    "comment",
    "user_data",
    "hold_job",
    "host_keys",
    "username",
    "connection_type",
    "shell_type",
    "hold_expiration",
    "resources",
    "slot",
    "attributes",
    "python_path",
    "tenant_name",
    "driver_data",
    "requestor",
    "node_properties",
];
pub const KEYS_OF_REQUESTS: &[&str] =
    &["state", "state_time", "requestor", "requestor_data", "node_types", "provider", "event_id"];
pub const KEYS_OF_COMPONENTS: &[&str] = &["hostname", "kind", "model_api", "state"];
pub const KEYS_OF_BUILDS: &[&str] = &["state", "state_time", "username", "python_path", "shell_type"];
pub const KEYS_OF_UPLOADS: &[&str] =
    &["state", "state_time", "external_id", "external_name", "format", "username", "python_path", "shell_type"];

/// Checks that a peer can read a record: it is a JSON object with all required keys, and keys that are iterated are
/// lists.
pub fn check_readable(what: &str, keys: &[&str], data: &[u8]) -> Vec<Violation> {
    let record = match serde_json::from_slice::<serde_json::Value>(data) {
        Ok(record) => record,
        Err(error) => return vec![Violation(format!("{what} is not JSON: {error}"))],
    };
    let missing = keys.iter().filter(|key| record.get(**key).is_none());
    let mut found: Vec<String> = missing.map(|key| format!("{what} lacks {key}, which its readers need")).collect();
    let lists = ["type", "host_keys", "declined_by", "node_types", "nodes", "supported_labels"];
    let odd = lists.iter().filter(|key| record.get(**key).is_some_and(|value| !value.is_array()));
    found.extend(odd.map(|key| format!("{what} has a {key} that is not a list")));
    found.into_iter().map(Violation).collect()
}
