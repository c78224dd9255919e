//! The example driver's section: the cloud, and the image and type of each label's VMs.

use std::collections::BTreeMap;

use crate::common::server_section::{self, CloudImages, ImageRef};
use nodepool_driver::facts::{LabelImage, LaunchConfig, LaunchLabel};
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::{LabelName, PoolName};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;

pub struct Settings {
    pub project: String,
    pub region: String,
    /// Time between two calls.
    pub spacing: Seconds,
    pub vms: BTreeMap<(PoolName, LabelName), VmType>,
    /// The same labels in the form that the framework expects.
    pub launching: LaunchConfig,
}

/// Image and type of a label's VMs.
#[derive(Clone, Debug)]
pub struct VmType {
    pub instance_type: String,
    pub image: ImageRef,
    pub use_internal_ip: bool,
}

/// Reads the whole section, and reports all errors instead of stopping at the first.
pub fn read(provider: &ProviderConfig, diagnostics: &mut Diagnostics) -> Settings {
    let node = &provider.section;
    let mut required = |key| diagnostics.required(node, key, "an example provider").unwrap_or_default();
    let (project, region) = (required("project"), required("region"));
    let rate = diagnostics.or_default(node.number("rate-limit")).unwrap_or(1.0);
    if rate <= 0.0 {
        let at = node.get("rate-limit").map_or(node.at, |value| value.at);
        diagnostics.error(
            at,
            "rate-limit is out of range",
            format!("it is {rate}, expected calls per second, more than 0"),
        );
    }
    let images = server_section::cloud_images(node, diagnostics);
    let (mut vms, mut labels) = (BTreeMap::new(), BTreeMap::new());
    for pool in provider.pools.values() {
        labels.insert(pool.name.clone(), read_pool(pool, &images, &mut vms, diagnostics));
    }
    let launching = LaunchConfig {
        attempts: diagnostics.or_default(node.integer("launch-retries")).unwrap_or(3).clamp(1, 1000) as u32,
        timeout: Seconds(3600.0),
        boot_timeout: Seconds(diagnostics.or_default(node.integer("boot-timeout")).unwrap_or(60) as f64),
        zones: Vec::new(),
        resource_kinds: Vec::new(),
        labels,
    };
    Settings { project, region, spacing: Seconds(1.0 / rate), vms, launching }
}

fn read_pool(
    pool: &PoolConfig,
    images: &CloudImages,
    vms: &mut BTreeMap<(PoolName, LabelName), VmType>,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<LabelName, LaunchLabel> {
    let use_internal_ip = pool.section.boolean("use-internal-ip").unwrap_or(false);
    let host_key_checking = pool.section.boolean("host-key-checking").unwrap_or(true);
    let mut labels = BTreeMap::new();
    for node in diagnostics.mappings(&pool.section, "labels", "a label") {
        let mut required = |key| diagnostics.required(node, key, "a label of an example pool");
        let (name, image, kind) = (required("name"), required("cloud-image"), required("instance-type"));
        let (Some(name), Some(image), Some(instance_type)) = (name, image, kind) else { continue };
        let Some((source, login)) = images.get(&image) else {
            diagnostics.error(node.at, format!("cloud-image {image} does not exist"), "define it in `cloud-images`");
            continue;
        };
        let name = LabelName::from(name);
        let vm = VmType { instance_type, image: source.clone(), use_internal_ip };
        vms.insert((pool.name.clone(), name.clone()), vm);
        let label = LaunchLabel {
            need: Some(Resources::none().with("instances", 1.0)),
            image: Some(LabelImage::Cloud(image)),
            login: login.clone(),
            host_key_checking,
            console_log: false,
            unavailable: None,
            backing: None,
        };
        labels.insert(name, label);
    }
    labels
}
