//! The section of a gce provider: project, zones, images and the labels of its pools.

use std::collections::BTreeMap;

use crate::common::server_section;
use nodepool_driver::facts::{LabelImage, LaunchConfig, LaunchLabel, Login, Unavailable};
use nodepool_driver::state_machine::Spacing;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::{LabelName, PoolName};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use python_yaml::tree::YamlNode;

/// Calls per second, unless `rate-limit` or `rate` says another.
const DEFAULT_RATE: f64 = 2.0;
/// Size in GB of a boot disk, unless `volume-size` says another.
const DEFAULT_VOLUME_SIZE: i64 = 10;

/// A parsed section.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub project: String,
    pub region: String,
    /// Zones of the instances, in the order in which they are tried.
    pub zones: Vec<String>,
    pub spacing: Spacing,
    attempts: u32,
    launch_timeout: Seconds,
    boot_timeout: Seconds,
    labels: BTreeMap<PoolName, BTreeMap<LabelName, GceLabel>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct GceLabel {
    image: LabelImage,
    pub source: ImageSource,
    login: Login,
    host_key_checking: bool,
    /// Public key for the first login.
    pub key: Option<String>,
    pub machine_type: String,
    pub volume_type: String,
    pub volume_gb: i64,
    pub use_internal_ip: bool,
    pub subnetwork: Option<String>,
    /// Network tags, which firewall rules refer to.
    pub tags: Vec<String>,
    /// Account of the programs on the node.
    pub service_account: Option<String>,
    pub is_spot: bool,
    /// Why no node of this label can be launched, according to the configuration.
    problem: Option<String>,
}

/// The image of a boot disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageSource {
    /// A URL, or its end from `projects/` or `global/` on.
    Id(String),
    /// The newest image of a family.
    Family { project: String, family: String },
}

impl GceLabel {
    /// Part of a zone's capacity that a node takes.
    pub fn capacity(&self) -> String {
        format!("{}{}", self.machine_type, if self.is_spot { " spot" } else { "" })
    }

    pub fn username(&self) -> &str {
        self.login.username.as_deref().unwrap_or_default()
    }
}

impl Settings {
    pub fn label(&self, pool: &PoolName, label: &LabelName) -> Option<&GceLabel> {
        self.labels.get(pool)?.get(label)
    }

    pub fn labels(&self) -> impl Iterator<Item = &GceLabel> {
        self.labels.values().flat_map(BTreeMap::values)
    }

    pub fn has_spot(&self) -> bool {
        self.labels().any(|label| label.is_spot)
    }

    /// The launch configuration. `need` returns the resources of one node of a label, if they are known, or why none
    /// can be launched.
    pub fn launch_config(&self, need: impl Fn(&GceLabel) -> Result<Option<Resources>, Unavailable>) -> LaunchConfig {
        let launch_label = |label: &GceLabel| {
            let (need, unavailable) = match need(label) {
                Ok(need) => (need, None),
                Err(unavailable) => (None, Some(unavailable)),
            };
            LaunchLabel {
                need,
                image: Some(label.image.clone()),
                login: label.login.clone(),
                host_key_checking: label.host_key_checking,
                console_log: false,
                unavailable: label.problem.clone().map(Unavailable::Permanent).or(unavailable),
                backing: None,
            }
        };
        let pools = self.labels.iter().map(|(pool, labels)| {
            (pool.clone(), labels.iter().map(|(name, label)| (name.clone(), launch_label(label))).collect())
        });
        LaunchConfig {
            attempts: self.attempts,
            timeout: self.launch_timeout,
            boot_timeout: self.boot_timeout,
            zones: Vec::new(),
            resource_kinds: Vec::new(),
            labels: pools.collect(),
        }
    }
}

pub fn read(provider: &ProviderConfig, diagnostics: &mut Diagnostics) -> Settings {
    let node = &provider.section;
    let mut text = |key: &str| diagnostics.required(node, key, "a gce provider").unwrap_or_default();
    let (project, region) = (text("project"), text("region"));
    let zones = match diagnostics.or_default(node.texts("zones")) {
        zones if zones.is_empty() => diagnostics.required(node, "zone", "a gce provider").into_iter().collect(),
        zones => zones,
    };
    for zone in zones.iter().filter(|zone| *region_of(zone) != *region) {
        let at = node.get("zones").or(node.get("zone")).map_or(node.at, |value| value.at);
        let help = "its quota is not the one that counts; use zones of one region per provider";
        diagnostics.warning(at, format!("zone {zone} is not in region {region}"), help);
    }
    let images = cloud_images(node, &project, diagnostics);
    let labels = provider.pools.values().map(|pool| (pool.name.clone(), labels(pool, &images, provider, diagnostics)));
    let labels = labels.collect();
    let mut positive = |key: &str, default: i64| diagnostics.or_default(node.integer(key)).unwrap_or(default).max(0);
    let (attempts, launch_timeout) = (positive("launch-retries", 3), positive("launch-timeout", 3600));
    let boot_timeout = positive("boot-timeout", 60);
    // Nodepool 11 has both keys in its documents and code, and reads the second one.
    let rate = match diagnostics.or_default(node.number("rate-limit")) {
        Some(rate) => rate,
        None => diagnostics.or_default(node.number("rate")).unwrap_or(DEFAULT_RATE),
    };
    let interval = if rate > 0.0 { Seconds(1.0 / rate) } else { Seconds::ZERO };
    Settings {
        project,
        region,
        zones,
        // Google counts reads and changes apart.
        spacing: Spacing::Apart { changes: interval, reads: interval },
        attempts: attempts.clamp(1, 1000) as u32,
        launch_timeout: Seconds(launch_timeout as f64),
        boot_timeout: Seconds(boot_timeout as f64),
        labels,
    }
}

/// The region of a zone: `us-central1` of `us-central1-a`.
pub fn region_of(zone: &str) -> &str {
    zone.rsplit_once('-').map_or(zone, |(region, _)| region)
}

/// A cloud image: what is booted, the login of its nodes, and the public key for the first login.
type CloudImage = (Option<ImageSource>, Login, Option<String>);

fn cloud_images(node: &YamlNode, project: &str, diagnostics: &mut Diagnostics) -> BTreeMap<String, CloudImage> {
    let mut images = BTreeMap::new();
    for image in diagnostics.mappings(node, "cloud-images", "a cloud image") {
        let Some(name) = diagnostics.required(image, "name", "a cloud image") else { continue };
        let mut text = |key: &str| diagnostics.or_default(image.text(key)).filter(|text| !text.is_empty());
        let (id, family, key) = (text("image-id"), text("image-family"), text("key"));
        let owner = text("image-project").unwrap_or_else(|| project.to_owned());
        let family = family.map(|family| ImageSource::Family { project: owner, family });
        let source = id.map(ImageSource::Id).or(family);
        if source.is_none() {
            let help = "add `image-id` or `image-family`; its labels are out of service";
            diagnostics.warning(image.at, format!("cloud image {name} names no image"), help);
        }
        let username = diagnostics.or_default(image.text("username"));
        let login = server_section::image_login(image, username, diagnostics);
        images.insert(name, (source, login, key));
    }
    images
}

fn labels(
    pool: &PoolConfig,
    images: &BTreeMap<String, CloudImage>,
    provider: &ProviderConfig,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<LabelName, GceLabel> {
    let mut labels = BTreeMap::new();
    for node in diagnostics.mappings(&pool.section, "labels", "a label") {
        let Some(name) = diagnostics.required(node, "name", "a label").map(LabelName::from) else { continue };
        let Some(machine_type) = diagnostics.required(node, "instance-type", "a label") else { continue };
        let image = diagnostics.or_default(node.text("cloud-image")).unwrap_or_default();
        let (problem, (source, login, key)) = match images.get(&image) {
            Some(found) => (problem_of(&name, &image, found), found.clone()),
            None => (Some(unknown_image(node, &name, &image, provider, diagnostics)), (None, Login::default(), None)),
        };
        if let (Some(problem), Some((Some(_), ..))) = (&problem, images.get(&image)) {
            diagnostics.warning(node.at, problem.clone(), "the label is out of service");
        }
        let mut text = |key: &str| diagnostics.or_default(node.text(key)).filter(|text| !text.is_empty());
        let (volume_type, service_account) = (text("volume-type"), text("service-account"));
        let is_spot = text("provisioning-model").as_deref() == Some("spot");
        let label = GceLabel {
            image: LabelImage::Cloud(image),
            source: source.unwrap_or(ImageSource::Id(String::new())),
            login,
            host_key_checking: pool.section.boolean("host-key-checking").unwrap_or(true),
            key,
            machine_type,
            volume_type: volume_type.unwrap_or_else(|| "pd-standard".to_owned()),
            volume_gb: diagnostics.or_default(node.integer("volume-size")).unwrap_or(DEFAULT_VOLUME_SIZE),
            use_internal_ip: pool.section.boolean("use-internal-ip").unwrap_or(false),
            subnetwork: diagnostics.or_default(pool.section.text("subnetwork")).filter(|text| !text.is_empty()),
            tags: diagnostics.or_default(node.texts("tags")),
            service_account,
            is_spot,
            problem,
        };
        labels.insert(name, label);
    }
    labels
}

/// Why no node of a label can boot this image.
fn problem_of(label: &LabelName, image: &str, (source, login, key): &CloudImage) -> Option<String> {
    if source.is_none() {
        return Some(format!("cloud image {image} names no image"));
    }
    let lacks_user = key.is_some() && login.username.as_deref().is_none_or(str::is_empty);
    lacks_user.then(|| format!("label {label}: cloud image {image} has a key, but no username that it is for"))
}

fn unknown_image(
    node: &YamlNode,
    label: &LabelName,
    image: &str,
    provider: &ProviderConfig,
    diagnostics: &mut Diagnostics,
) -> String {
    if image.is_empty() {
        let problem = format!("label {label} names no cloud-image");
        diagnostics.warning(node.at, problem.clone(), "add `cloud-image`; the label is out of service");
        return problem;
    }
    server_section::unknown_image(node, "cloud-image", image, label, provider, diagnostics)
}
