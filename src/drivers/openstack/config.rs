//! What only this driver understands of a provider section: the cloud, and what servers are made of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::servers::{self, Section};
use crate::model::config::{PoolConfig, ProviderConfig};
use crate::model::findings::Findings;
use crate::model::ids::{LabelName, PoolName};
use crate::model::tidying::Tidy;
use crate::model::time::Span;
use crate::model::yaml::YamlNode;

#[derive(Clone, Debug)]
pub struct Settings {
    pub section: Section,
    pub cloud: Option<String>,
    pub region: Option<String>,
    /// Unattached floating addresses are deleted.
    pub clean_floating_ips: bool,
    /// Between two looks for unused ports; none where the file says 0.
    pub port_cleanup: Option<Span>,
    /// A pool names no zones, so the cloud is asked for its own.
    pub wants_zones: bool,
    pub servers: BTreeMap<PoolName, BTreeMap<LabelName, Arc<Wanted>>>,
    /// Pools that heed the limits of the cloud.
    pub limited: BTreeSet<PoolName>,
}

impl Settings {
    /// Nobody minds what limits the cloud has.
    pub fn ignores_limits(&self) -> bool {
        self.limited.is_empty()
    }

    pub fn tidy(&self) -> Tidy {
        Tidy { floating_ips: self.clean_floating_ips, ports: self.port_cleanup }
    }
}

/// What a label's servers shall be.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    pub label: LabelName,
    pub flavor: Option<String>,
    pub min_ram: i64,
    /// The image's name in this file.
    pub image_name: String,
    pub image: Image,
    pub networks: Vec<String>,
    pub security_groups: Vec<String>,
    pub key_name: Option<String>,
    pub config_drive: Option<bool>,
    pub userdata: Option<String>,
    /// The size of the volume in GB, where it boots from one.
    pub volume: Option<i64>,
    pub properties: BTreeMap<String, String>,
    /// Texts in which parts of the request are filled in.
    pub dynamic_properties: BTreeMap<String, String>,
    pub floating_ip: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Image {
    /// Taken as it is.
    Id(String),
    /// Looked up; an id is accepted as well.
    Name(String),
    /// Uploaded by the builder.
    Uploaded,
}

pub fn read(provider: &ProviderConfig, findings: &mut Findings) -> Settings {
    let section = servers::section(provider, findings);
    let node = &provider.section;
    let interval = findings.keep(node.integer("port-cleanup-interval")).unwrap_or(600);
    let images = Images::of(node, findings);
    let pools = provider.pools.values();
    let limited = pools.clone().filter(|pool| !pool.ignore_provider_quota).map(|pool| pool.name.clone()).collect();
    Settings {
        section,
        cloud: findings.keep(node.text("cloud")),
        region: findings.keep(node.text("region-name")),
        clean_floating_ips: node.boolean("clean-floating-ips").unwrap_or(false),
        port_cleanup: (interval > 0).then_some(Span(interval as f64)),
        wants_zones: provider.pools.values().any(|pool| pool.availability_zones.is_empty()),
        servers: pools.map(|pool| (pool.name.clone(), wanted(pool, &images, findings))).collect(),
        limited,
    }
}

/// What a provider says of the images that its labels name: which it is, and its `config-drive`.
struct Images {
    cloud: BTreeMap<String, (Image, Option<bool>)>,
    /// Those of the builder.
    disk: BTreeMap<String, Option<bool>>,
}

impl Images {
    fn of(node: &YamlNode, findings: &mut Findings) -> Self {
        let (mut cloud, mut disk) = (BTreeMap::new(), BTreeMap::new());
        for image in findings.mappings(node, "cloud-images", "a cloud image") {
            let Some(name) = findings.keep(image.text("name")) else { continue };
            let id = findings.keep(image.text("image-id")).map(Image::Id);
            let named = findings.keep(image.text("image-name")).unwrap_or_else(|| name.clone());
            cloud.insert(name, (id.unwrap_or(Image::Name(named)), image.boolean("config-drive")));
        }
        for image in findings.mappings(node, "diskimages", "a diskimage") {
            let Some(name) = findings.keep(image.text("name")) else { continue };
            disk.insert(name, image.boolean("config-drive"));
        }
        Self { cloud, disk }
    }
}

fn wanted(pool: &PoolConfig, images: &Images, findings: &mut Findings) -> BTreeMap<LabelName, Arc<Wanted>> {
    let node = &pool.section;
    let networks = findings.keep(node.texts("networks"));
    let security_groups = findings.keep(node.texts("security-groups"));
    let floating_ip = node.boolean("auto-floating-ip").unwrap_or(true);
    let mut all = BTreeMap::new();
    for label in findings.mappings(node, "labels", "a label") {
        let Some(name) = findings.keep(label.text("name")) else { continue };
        let (image_name, (image, config_drive)) = match findings.keep(label.text("cloud-image")) {
            Some(name) => {
                let known = images.cloud.get(&name).cloned();
                (name.clone(), known.unwrap_or((Image::Name(name), None)))
            }
            None => {
                let name = findings.keep(label.text("diskimage")).unwrap_or_default();
                let config_drive = images.disk.get(&name).copied().flatten();
                (name, (Image::Uploaded, config_drive))
            }
        };
        let boots_from_volume = label.boolean("boot-from-volume").unwrap_or(false);
        let size = findings.keep(label.integer("volume-size")).unwrap_or(50);
        let own_networks = label.given("networks").map(|_| findings.keep(label.texts("networks")));
        let wanted = Wanted {
            label: LabelName::from(name.clone()),
            flavor: findings.keep(label.text("flavor-name")),
            min_ram: findings.keep(label.integer("min-ram")).unwrap_or(0),
            image_name,
            image,
            networks: own_networks.unwrap_or_else(|| networks.clone()),
            security_groups: security_groups.clone(),
            key_name: findings.keep(label.text("key-name")),
            config_drive,
            userdata: findings.keep(label.text("userdata")),
            volume: boots_from_volume.then_some(size),
            properties: texts(label, "instance-properties"),
            dynamic_properties: texts(label, "dynamic-instance-properties"),
            floating_ip,
        };
        all.insert(wanted.label.clone(), Arc::new(wanted));
    }
    all
}

/// A mapping of texts. Whatever else is in it is taken as it is written: metadata has no other values.
fn texts(node: &YamlNode, key: &str) -> BTreeMap<String, String> {
    let value = node.get(key).map(YamlNode::to_json);
    let entries = value.as_ref().and_then(|value| value.as_object()).into_iter().flatten();
    entries.map(|(key, value)| (key.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned))).collect()
}
