//! The keys of a provider section that only this driver reads: the cloud, and the specification of servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use crate::common::server_section::ImageRef;
use crate::common::server_section::{self, Section};
use nodepool_driver::cloud_resource::{ResourceKind, ResourceOwner};
use nodepool_driver::facts::LabelImage;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::{LabelName, PoolName};
use nodepool_model::records::time::Seconds;
use python_yaml::tree::YamlNode;

#[derive(Clone, Debug)]
pub struct Settings {
    pub section: Section,
    pub cloud: Option<String>,
    pub region: Option<String>,
    /// Unattached floating addresses are deleted.
    pub clean_floating_ips: bool,
    /// At least one pool names no zones, so the refresh queries those of the cloud.
    pub needs_zones: bool,
    pub servers: BTreeMap<PoolName, BTreeMap<LabelName, Arc<ServerSpec>>>,
    /// Pools that respect the limits of the cloud.
    pub quota_pools: BTreeSet<PoolName>,
}

/// Name of the kind in metrics.
pub const FLOATING_IPS: &str = "floatingips";

impl Settings {
    /// Every pool ignores the limits of the cloud.
    pub fn ignores_quota(&self) -> bool {
        self.quota_pools.is_empty()
    }

    /// Kinds of resources besides servers that are deleted once they are unused.
    pub fn resource_kinds(&self) -> Vec<ResourceKind> {
        let floating_ips = ResourceKind {
            name: FLOATING_IPS,
            interval: Seconds::ZERO,
            owner: ResourceOwner::Unmarked,
            unused: "not attached",
        };
        self.clean_floating_ips.then_some(floating_ips).into_iter().chain(self.section.ports()).collect()
    }
}

/// Specification of a label's servers.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSpec {
    pub label: LabelName,
    pub flavor: Option<String>,
    pub min_ram: i64,
    /// The image's name in the configuration.
    pub image_name: String,
    pub image: ImageRef,
    pub networks: Vec<String>,
    pub security_groups: Vec<String>,
    pub key_name: Option<String>,
    pub config_drive: Option<bool>,
    pub userdata: Option<String>,
    /// Size in GB of the boot volume, if there is one.
    pub volume: Option<i64>,
    pub properties: BTreeMap<String, String>,
    /// Format strings with fields of the request.
    pub dynamic_properties: BTreeMap<String, String>,
    pub floating_ip: bool,
}

pub fn read(provider: &ProviderConfig, diagnostics: &mut Diagnostics) -> Settings {
    let section = server_section::section(provider, diagnostics);
    let node = &provider.section;
    let drives = ConfigDrives::read(node, diagnostics);
    let pools = provider.pools.values();
    let limited = pools.clone().filter(|pool| !pool.ignore_provider_quota).map(|pool| pool.name.clone()).collect();
    let servers = pools.map(|pool| (pool.name.clone(), server_specs(pool, &section, &drives, diagnostics))).collect();
    Settings {
        section,
        cloud: diagnostics.or_default(node.text("cloud")),
        region: diagnostics.or_default(node.text("region-name")),
        clean_floating_ips: node.boolean("clean-floating-ips").unwrap_or(false),
        needs_zones: provider.pools.values().any(|pool| pool.availability_zones.is_empty()),
        servers,
        quota_pools: limited,
    }
}

/// `config-drive` of the images that labels name.
struct ConfigDrives {
    cloud: BTreeMap<String, bool>,
    /// Images of the builder.
    disk: BTreeMap<String, bool>,
}

impl ConfigDrives {
    fn read(node: &YamlNode, diagnostics: &mut Diagnostics) -> Self {
        let mut flags_of = |key: &str, what: &str| {
            let images = diagnostics.mappings(node, key, what).into_iter();
            let entry = |image: &YamlNode| Some((image.text("name").ok()??, image.boolean("config-drive")?));
            images.filter_map(entry).collect()
        };
        Self { cloud: flags_of("cloud-images", "a cloud image"), disk: flags_of("diskimages", "a diskimage") }
    }
}

fn server_specs(
    pool: &PoolConfig,
    section: &Section,
    drives: &ConfigDrives,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<LabelName, Arc<ServerSpec>> {
    let node = &pool.section;
    let security_groups = diagnostics.or_default(node.texts("security-groups"));
    let floating_ip = node.boolean("auto-floating-ip").unwrap_or(true);
    let mut all = BTreeMap::new();
    for node in diagnostics.mappings(node, "labels", "a label") {
        let Some(name) = diagnostics.or_default(node.text("name")).map(LabelName::from) else { continue };
        // Labels without a known image are missing here; validation has reported them.
        let Some(label) = section.label(&pool.name, &name) else { continue };
        let (image_name, config_drive) = match &label.image {
            LabelImage::Cloud(name) => (name.clone(), drives.cloud.get(name)),
            LabelImage::Disk(name) => (name.to_string(), drives.disk.get(name.as_str())),
        };
        let spec = ServerSpec {
            label: name,
            flavor: label.flavor.clone(),
            min_ram: label.min_ram,
            image_name,
            image: label.image_ref.clone(),
            networks: label.networks.clone(),
            security_groups: security_groups.clone(),
            key_name: diagnostics.or_default(node.text("key-name")),
            config_drive: config_drive.copied(),
            userdata: diagnostics.or_default(node.text("userdata")),
            volume: label.volume,
            properties: texts(node, "instance-properties"),
            dynamic_properties: texts(node, "dynamic-instance-properties"),
            floating_ip,
        };
        all.insert(spec.label.clone(), Arc::new(spec));
    }
    all
}

/// A mapping of strings. Other scalars become strings, because metadata has no other values.
fn texts(node: &YamlNode, key: &str) -> BTreeMap<String, String> {
    let value = node.get(key).map(YamlNode::to_json);
    let entries = value.as_ref().and_then(|value| value.as_object()).into_iter().flatten();
    entries.map(|(key, value)| (key.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned))).collect()
}
