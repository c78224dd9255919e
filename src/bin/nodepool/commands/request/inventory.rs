//! Description of the nodes for their user: a table, JSON, an Ansible inventory, known hosts, environment variables.

use nodepool_model::records::node::Node;
use nodepool_model::report::list::{Cell, Column};
use nodepool_model::report::status::port_or_redacted;
use serde_json::{Map, Value, json};

use crate::commands::request::consumer::LockedNode;
use crate::commands::request::kubeconfig::is_in_cluster;

/// Columns of the table of nodes.
pub const COLUMNS: &[Column<Value>] = &[
    Column { key: "id", header: "ID", value: |node| (&node["id"]).into() },
    Column { key: "label", header: "Label", value: |node| (&node["label"]).into() },
    Column { key: "address", header: "Address", value: |node| (&node["address"]).into() },
    Column { key: "port", header: "Port", value: |node| (&node["port"]).into() },
    Column { key: "user", header: "User", value: |node| (&node["user"]).into() },
    Column { key: "connection_type", header: "Connection", value: |node| (&node["connection_type"]).into() },
    Column { key: "host_keys", header: "Host Keys", value: keys },
    Column { key: "attributes", header: "Attributes", value: |node| (&node["attributes"]).into() },
];

/// The host keys, one per line: on one line they would be wider than a terminal.
fn keys(node: &Value) -> Cell<'_> {
    let keys = node["host_keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    let keys: Vec<&str> = keys.iter().filter_map(Value::as_str).collect();
    keys.join("\n").into()
}

/// Whether the description includes credentials, which some drivers store in place of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    Hidden,
    Included,
}

/// Everything that a user needs to reach the node.
pub fn describe(locked: &LockedNode, credentials: Credentials) -> Value {
    let node = &locked.node;
    let port = match credentials {
        Credentials::Included if node.port().is_none() => Value::clone(&node.connection_port),
        _ => json!(port_or_redacted(node)),
    };
    json!({
        "id": locked.id,
        "label": locked.label,
        "address": address(node),
        "port": port,
        "user": node.username,
        "host_keys": node.host_keys,
        "attributes": node.attributes,
        "connection_type": node.connection_type,
        "shell_type": node.shell_type,
        "python_path": node.python_path,
        "provider": node.provider,
        "pool": node.pool,
        "cloud": node.cloud,
        "region": node.region,
        "az": node.az,
        "hostname": node.hostname,
        "public_ipv4": node.public_ipv4,
        "private_ipv4": node.private_ipv4,
        "public_ipv6": node.public_ipv6,
        "host_id": node.host_id,
        "external_id": node.external_id,
        "slot": node.slot,
    })
}

/// Address to connect to.
fn address(node: &Node) -> Option<&str> {
    let candidates = [&node.interface_ip, &node.public_ipv4, &node.public_ipv6, &node.private_ipv4, &node.hostname];
    candidates.into_iter().flatten().map(String::as_str).find(|address| !address.is_empty())
}

/// The text of a known_hosts file with all keys of all nodes.
pub fn known_hosts(nodes: &[LockedNode]) -> String {
    let mut lines = String::new();
    for locked in nodes {
        let Some(address) = address(&locked.node) else { continue };
        let host = match locked.node.port() {
            None | Some(22) => address.to_owned(),
            Some(port) => format!("[{address}]:{port}"),
        };
        for key in locked.node.host_keys.iter().filter(|key| !key.contains(char::is_control)) {
            lines.push_str(&format!("{host} {key}\n"));
        }
    }
    lines
}

/// The name of a node in the inventory and in the variables.
pub fn host_name(index: usize) -> String {
    format!("node{}", index + 1)
}

/// Files that an inventory refers to.
pub struct Paths {
    pub known_hosts: String,
    pub kubeconfig: String,
}

/// An Ansible inventory in YAML: the hosts `node1`, `node2` …, and a group for every label.
pub fn ansible(nodes: &[LockedNode], paths: &Paths) -> Value {
    let mut hosts = Map::new();
    let mut groups: Map<String, Value> = Map::new();
    for (index, locked) in nodes.iter().enumerate() {
        hosts.insert(host_name(index), host_variables(&host_name(index), locked, paths));
        let group = groups.entry(group_name(locked.label.as_str())).or_insert_with(|| json!({"hosts": {}}));
        group["hosts"][host_name(index)] = Value::Null;
    }
    json!({"all": {"hosts": hosts, "children": groups}})
}

/// Group names may contain only letters, digits and underscores, and do not start with a digit.
fn group_name(label: &str) -> String {
    let name: String = label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    match name.chars().next() {
        Some(first) if !first.is_ascii_digit() && !matches!(name.as_str(), "all" | "ungrouped") => name,
        _ => format!("label_{name}"),
    }
}

fn host_variables(name: &str, locked: &LockedNode, paths: &Paths) -> Value {
    let node = &locked.node;
    let mut variables = Map::new();
    let mut set = |name: &str, value: Value| {
        if !value.is_null() {
            variables.insert(name.to_owned(), value);
        }
    };
    set("ansible_host", json!(address(node)));
    set("ansible_port", json!(node.port()));
    set("ansible_user", json!(node.username));
    set("ansible_connection", json!(node.connection_type));
    set("ansible_shell_type", json!(node.shell_type));
    set("ansible_python_interpreter", json!(node.python_path));
    if matches!(node.connection_type.as_deref(), None | Some("ssh") | Some("network_cli")) {
        set("ansible_ssh_common_args", json!(ssh_arguments(node, &paths.known_hosts)));
    }
    // The variables of the connection plugin kubernetes.core.kubectl.
    if is_in_cluster(node) {
        set("ansible_kubectl_kubeconfig", json!(paths.kubeconfig));
        set("ansible_kubectl_context", json!(name));
        set("ansible_kubectl_namespace", node.connection_port["namespace"].clone());
        set("ansible_kubectl_pod", node.connection_port["pod"].clone());
    }
    let mut facts = describe(locked, Credentials::Hidden);
    if let Some(facts) = facts.as_object_mut() {
        facts.shift_remove("host_keys");
    }
    set("nodepool", facts);
    Value::Object(variables)
}

/// A host without recorded keys cannot be checked; Zuul does the same.
fn ssh_arguments(node: &Node, known_hosts_file: &str) -> String {
    if node.host_keys.is_empty() {
        "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null".to_owned()
    } else {
        format!("-o StrictHostKeyChecking=yes -o UserKnownHostsFile={known_hosts_file}")
    }
}

/// The environment variables `NODEPOOL_NODE_<n>_…`, counted from 1.
pub fn variables(nodes: &[LockedNode]) -> Vec<(String, String)> {
    let mut variables = vec![("NODEPOOL_NODE_COUNT".to_owned(), nodes.len().to_string())];
    for (index, locked) in nodes.iter().enumerate() {
        let node = &locked.node;
        let values = [
            ("ID", Some(locked.id.to_string())),
            ("LABEL", Some(locked.label.to_string())),
            ("ADDRESS", address(node).map(str::to_owned)),
            ("PORT", node.port().map(|port| port.to_string())),
            ("USER", node.username.clone()),
        ];
        for (name, value) in values {
            // Environment variables cannot contain a zero byte.
            let value = value.unwrap_or_default().replace('\0', "");
            variables.push((format!("NODEPOOL_NODE_{}_{name}", index + 1), value));
        }
    }
    variables
}
