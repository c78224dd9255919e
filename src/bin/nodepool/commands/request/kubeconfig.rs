//! A kubeconfig for nodes that are namespaces, projects or pods of a cluster.

use nodepool_model::records::node::Node;
use serde_json::{Value, json};

use crate::commands::request::consumer::LockedNode;
use crate::commands::request::inventory::host_name;

/// The kubeconfig with one context per such node, `node1`, `node2` …; the first is the current one. `None` if there is
/// no such node.
pub fn kubeconfig(nodes: &[LockedNode]) -> Option<Value> {
    let nodes = nodes.iter().enumerate().filter(|(_, locked)| is_in_cluster(&locked.node));
    let entries: Vec<(String, &Value)> =
        nodes.map(|(index, locked)| (host_name(index), &*locked.node.connection_port)).collect();
    let (current, _) = entries.first()?;
    let named = |key: &str, value: &dyn Fn(&str, &Value) -> Value| -> Value {
        entries.iter().map(|(name, data)| json!({"name": name, key: value(name, data)})).collect()
    };
    Some(json!({
        "apiVersion": "v1", "kind": "Config", "current-context": current,
        "clusters": named("cluster", &|_, data| cluster(data)),
        "users": named("user", &|_, data| json!({"token": data["token"]})),
        "contexts": named("context", &|name, data| {
            json!({"cluster": name, "user": name, "namespace": data["namespace"]})
        }),
    }))
}

fn cluster(data: &Value) -> Value {
    let mut cluster = json!({"server": data["host"]});
    match (data["skiptls"].as_bool(), &data["ca_crt"]) {
        (Some(true), _) => cluster["insecure-skip-tls-verify"] = json!(true),
        (_, Value::Null) => {}
        (_, certificate) => cluster["certificate-authority-data"] = certificate.clone(),
    }
    cluster
}

/// Whether the connection data of a node name a cluster's API.
pub fn is_in_cluster(node: &Node) -> bool {
    node.connection_port["host"].is_string() && node.connection_port["namespace"].is_string()
}
