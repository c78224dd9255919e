//! The request for a new server: image, flavor, networks, metadata and what else a label asks for.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tracing::warn;

use super::catalog::catalog::Stock;
use super::config::Wanted;
use crate::common::format;
use nodepool_driver::facts::Unavailable;
use nodepool_driver::job::LaunchOrder;
use nodepool_model::records::ids::ProviderName;

/// From this microversion on a server without networks must say that it wants what the cloud chooses.
const NETWORKS_REQUIRED_MICROVERSION: (u16, u16) = (2, 37);

pub fn server(order: &LaunchOrder, wanted: &Wanted, stock: &Stock, provider: &ProviderName) -> Result<Value, Unavailable> {
    let flavor = stock.flavor(wanted)?;
    let image = match &order.image {
        Some(uploaded) => uploaded.to_string(),
        None => stock.image(wanted)?.to_owned(),
    };
    let mut server = json!({
        "name": order.hostname,
        "flavorRef": flavor.id,
        "imageRef": image,
        "min_count": 1,
        "max_count": 1,
        "metadata": metadata(order, wanted, provider),
    });
    if let Some(size) = wanted.volume {
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
    if let Some(key) = &wanted.key_name {
        server["key_name"] = key.as_str().into();
    }
    if let Some(zone) = &order.zone {
        server["availability_zone"] = zone.as_str().into();
    }
    if let Some(drive) = wanted.config_drive {
        server["config_drive"] = drive.into();
    }
    if let Some(data) = &wanted.userdata {
        server["user_data"] = STANDARD.encode(data).into();
    }
    if !wanted.security_groups.is_empty() {
        let groups = wanted.security_groups.iter().map(|name| json!({"name": name}));
        server["security_groups"] = groups.collect();
    }
    let networks = stock.network_ids(wanted)?;
    let default = stock.default_network();
    if !networks.is_empty() {
        server["networks"] = networks.iter().map(|id| json!({"uuid": id})).collect();
    } else if let Some(id) = default {
        server["networks"] = json!([{"uuid": id}]);
    } else if stock.services.microversion.is_some_and(|version| version >= NETWORKS_REQUIRED_MICROVERSION) {
        server["networks"] = "auto".into();
    }
    Ok(server)
}

/// The file's own properties first, so that nothing hides whose server it is.
fn metadata(order: &LaunchOrder, wanted: &Wanted, provider: &ProviderName) -> BTreeMap<String, String> {
    let mut metadata = BTreeMap::from([
        ("groups".to_owned(), format!("{provider},{},{}", wanted.image_name, wanted.label)),
        ("nodepool_image_name".to_owned(), wanted.image_name.clone()),
        ("nodepool_node_label".to_owned(), wanted.label.to_string()),
    ]);
    metadata.extend(wanted.properties.clone());
    for (key, text) in &wanted.dynamic_properties {
        match format::filled(text, |name| (name == "request").then(|| Value::clone(&order.request))) {
            Ok(value) => {
                metadata.insert(key.clone(), value);
            }
            Err(error) => warn!(%provider, label = %wanted.label, key, error, "dynamic-instance-properties"),
        }
    }
    metadata.extend(order.metadata.clone());
    metadata
}
