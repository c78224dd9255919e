//! Marks of a node's objects: labels that say whose they are, and a value by which a launch recognises its own.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::common::python_format;
use crate::kubernetes::config::PodLabel;
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::names::is_label_value;
use nodepool_driver::job::LaunchOrder;

/// The labels of a node's objects. Those of the configuration cannot replace the ones that identify the node.
pub fn labels(context: &ProviderContext, order: &LaunchOrder, label: &PodLabel) -> BTreeMap<String, String> {
    let mut labels = label.labels.clone();
    let root = |name: &str| (name == "request").then(|| Value::clone(&order.request));
    for (key, text) in &label.dynamic_labels {
        match python_format::interpolate(text, root) {
            Ok(value) if is_label_value(&value) => drop(labels.insert(key.clone(), value)),
            Ok(value) => {
                warn!(provider = %context.provider, label = %label.name, key, value, "Kubernetes accepts no label of this value; it is left out")
            }
            Err(error) => {
                warn!(provider = %context.provider, label = %label.name, key, error, "cannot expand dynamic-labels")
            }
        }
    }
    labels.insert("nodepool_node_label".to_owned(), label.name.to_string());
    labels.extend(order.metadata.clone());
    labels
}

/// A value that only the launch of this request knows, also in another process, and that another installation with the
/// same node ids does not have.
pub fn launch_id(order: &LaunchOrder) -> String {
    let request = ["id", "created_time", "event_id", "requestor", "tenant_name"].map(|key| order.request.get(key));
    let text = json!([order.metadata, request]).to_string();
    let digest = Sha256::digest(text.as_bytes());
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Id of the node to launch.
pub fn node_id(order: &LaunchOrder) -> &str {
    order.metadata.get("nodepool_node_id").map(String::as_str).unwrap_or_default()
}
