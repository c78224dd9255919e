//! Request body of a server creation: image, flavor, networks, metadata and the other options of a label.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tracing::warn;

use super::catalog::catalog::CloudCatalog;
use super::config::ServerSpec;
use crate::common::python_format;
use nodepool_driver::facts::Unavailable;
use nodepool_driver::job::LaunchOrder;
use nodepool_model::records::ids::ProviderName;

/// From this microversion on, a request without networks must say `auto`.
const NETWORKS_REQUIRED_MICROVERSION: (u16, u16) = (2, 37);

pub fn server(
    order: &LaunchOrder,
    spec: &ServerSpec,
    catalog: &CloudCatalog,
    provider: &ProviderName,
) -> Result<Value, Unavailable> {
    let flavor = catalog.flavor(spec)?;
    let image = match &order.image {
        Some(uploaded) => uploaded.to_string(),
        None => catalog.image(spec)?.to_owned(),
    };
    let mut server = json!({
        "name": order.hostname,
        "flavorRef": flavor.id,
        "imageRef": image,
        "min_count": 1,
        "max_count": 1,
        "metadata": metadata(order, spec, provider),
    });
    if let Some(size) = spec.volume {
        server["imageRef"] = "".into();
        server["block_device_mapping_v2"] = json!([{
            "boot_index": "0",
            "delete_on_termination": true,
            "destination_type": "volume",
            "source_type": "image",
            "uuid": image,
            "volume_size": size.to_string(),
        }]);
    }
    if let Some(key) = &spec.key_name {
        server["key_name"] = key.as_str().into();
    }
    if let Some(zone) = &order.zone {
        server["availability_zone"] = zone.as_str().into();
    }
    if let Some(drive) = spec.config_drive {
        server["config_drive"] = drive.into();
    }
    if let Some(data) = &spec.userdata {
        server["user_data"] = STANDARD.encode(data).into();
    }
    if !spec.security_groups.is_empty() {
        let groups = spec.security_groups.iter().map(|name| json!({"name": name}));
        server["security_groups"] = groups.collect();
    }
    let networks = catalog.network_ids(spec)?;
    let default = catalog.default_network();
    if !networks.is_empty() {
        server["networks"] = networks.iter().map(|id| json!({"uuid": id})).collect();
    } else if let Some(id) = default {
        server["networks"] = json!([{"uuid": id}]);
    } else if catalog.services.microversion.is_some_and(|version| version >= NETWORKS_REQUIRED_MICROVERSION) {
        server["networks"] = "auto".into();
    }
    Ok(server)
}

/// Inserts the properties of the configuration first, so that they cannot replace the metadata that identifies the
/// server.
fn metadata(order: &LaunchOrder, spec: &ServerSpec, provider: &ProviderName) -> BTreeMap<String, String> {
    let mut metadata = BTreeMap::from([
        ("groups".to_owned(), format!("{provider},{},{}", spec.image_name, spec.label)),
        ("nodepool_image_name".to_owned(), spec.image_name.clone()),
        ("nodepool_node_label".to_owned(), spec.label.to_string()),
    ]);
    metadata.extend(spec.properties.clone());
    for (key, text) in &spec.dynamic_properties {
        match python_format::interpolate(text, |name| (name == "request").then(|| Value::clone(&order.request))) {
            Ok(value) => {
                metadata.insert(key.clone(), value);
            }
            Err(error) => {
                warn!(%provider, label = %spec.label, key, error, "cannot expand dynamic-instance-properties")
            }
        }
    }
    metadata.extend(order.metadata.clone());
    metadata
}
