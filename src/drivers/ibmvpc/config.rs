//! The section of an ibmvpc provider: VPC, region, images and the labels of its pools.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::leaks;
use super::names;
use crate::common::python_format::python_str;
use crate::common::server_section;
use nodepool_driver::facts::{LabelImage, LaunchConfig, LaunchLabel, Login, Unavailable};
use nodepool_driver::state_machine::Spacing;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::upload_config::{UploadConfig, UploadEntry};
use nodepool_model::config::{PoolConfig, ProviderConfig};
use nodepool_model::records::ids::{ImageName, LabelName, PoolName};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use python_yaml::tree::YamlNode;

/// The recorded name of an upload. That of its image in the cloud has more parts.
const IMAGE_NAME: &str = "npimage{upload_id}";
/// Reads are this many times as fast as changes. Nodepool 11 counts all pages of a list as one call.
const READS_PER_CHANGE: f64 = 10.0;
/// An import that takes longer has failed.
pub const IMPORT_TIMEOUT: Seconds = Seconds(4.0 * 3600.0);

/// A parsed section.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub region: String,
    pub vpc: String,
    pub credentials_file: Option<PathBuf>,
    pub spacing: Spacing,
    attempts: u32,
    launch_timeout: Seconds,
    boot_timeout: Seconds,
    pub limits: Resources,
    pub pools: BTreeMap<PoolName, BTreeMap<LabelName, Arc<IbmLabel>>>,
    pub storage: Option<Storage>,
    pub image_format: String,
    post_upload_hook: Option<String>,
    pub disk_images: BTreeMap<ImageName, DiskImageSpec>,
}

/// The bucket from which images are imported.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    pub endpoint: String,
    pub bucket: String,
}

/// Settings of an image of the builder.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskImageSpec {
    is_paused: bool,
    pub operating_system: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct IbmLabel {
    pub name: LabelName,
    image: LabelImage,
    pub source: ImageSource,
    /// Names of the keys for the first login.
    pub keys: Vec<String>,
    login: Login,
    host_key_checking: bool,
    pub profile: String,
    pub user_data: Option<String>,
    pub place: Place,
    pub public_ipv4: bool,
    pub use_internal_ip: bool,
    /// Why no node of this label can be launched, according to the configuration.
    problem: Option<String>,
}

/// Zone and subnet of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    pub zone: String,
    pub subnet: String,
}

/// The image of a boot volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageSource {
    Id(String),
    Href(String),
    /// The newest image with this name.
    Name(String),
    /// The newest image that matches.
    Filter(ImageFilter),
    Uploaded,
    Missing,
}

/// Properties that an image must have.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageFilter {
    /// Fields of the operating system, as IBM names them, with their values as texts.
    pub operating_system: BTreeMap<String, String>,
    pub owner_type: Option<String>,
    pub status: Option<String>,
}

impl IbmLabel {
    /// Part of a zone's capacity that a node takes.
    pub fn capacity(&self) -> String {
        format!("{} in {}", self.profile, self.place.zone)
    }
}

impl Settings {
    pub fn label(&self, pool: &PoolName, label: &LabelName) -> Option<&Arc<IbmLabel>> {
        self.pools.get(pool)?.get(label)
    }

    pub fn labels(&self) -> impl Iterator<Item = &Arc<IbmLabel>> {
        self.pools.values().flat_map(BTreeMap::values)
    }

    /// Whether nodes of some pool have floating IPs.
    pub fn has_public_ipv4(&self) -> bool {
        self.labels().any(|label| label.public_ipv4)
    }

    pub fn upload_config(&self) -> UploadConfig {
        let entry = |image: &DiskImageSpec| UploadEntry { paused: image.is_paused, meta: BTreeMap::new() };
        UploadConfig {
            format: self.image_format.clone(),
            name_format: IMAGE_NAME.to_owned(),
            hook: self.post_upload_hook.clone(),
            timeout: IMPORT_TIMEOUT,
            images: self.disk_images.iter().map(|(name, image)| (name.clone(), entry(image))).collect(),
        }
    }

    /// The launch configuration. `facts` returns the resources of one node of a label, if they are known, and why none
    /// can be launched.
    pub fn launch_config(&self, facts: impl Fn(&IbmLabel) -> (Option<Resources>, Option<Unavailable>)) -> LaunchConfig {
        let launch_label = |label: &Arc<IbmLabel>| {
            let (need, found) = facts(label);
            LaunchLabel {
                need,
                image: Some(label.image.clone()),
                login: label.login.clone(),
                host_key_checking: label.host_key_checking,
                console_log: false,
                unavailable: label.problem.clone().map(Unavailable::Permanent).or(found),
                backing: None,
            }
        };
        let pools = self.pools.iter().map(|(pool, labels)| {
            (pool.clone(), labels.iter().map(|(name, label)| (name.clone(), launch_label(label))).collect())
        });
        LaunchConfig {
            attempts: self.attempts,
            timeout: self.launch_timeout,
            boot_timeout: self.boot_timeout,
            zones: Vec::new(),
            resource_kinds: leaks::kinds(self),
            labels: pools.collect(),
        }
    }
}

pub fn read(provider: &ProviderConfig, diagnostics: &mut Diagnostics) -> Settings {
    let node = &provider.section;
    let mut required_key = |key: &str| required(node, key, "an ibmvpc provider", diagnostics).unwrap_or_default();
    let (vpc, region) = (required_key("vpc"), required_key("region"));
    // Nodepool 11 documents seconds between operations, and reads operations per second.
    let rate = diagnostics.or_default(node.number("rate")).unwrap_or(1.0);
    let changes = if rate > 0.0 { Seconds(1.0 / rate) } else { Seconds::ZERO };
    let mut positive = |key: &str, default: i64| diagnostics.or_default(node.integer(key)).unwrap_or(default).max(0);
    let (attempts, launch_timeout) = (positive("launch-retries", 3), positive("launch-timeout", 3600));
    let boot_timeout = positive("boot-timeout", 120);
    let storage = node.given("object-storage").and_then(|storage| {
        let endpoint = required(storage, "endpoint", "object-storage", diagnostics)?;
        let bucket = required(storage, "bucket-name", "object-storage", diagnostics)?;
        Some(Storage { endpoint, bucket })
    });
    let disk_images = disk_images(provider, storage.is_some(), diagnostics);
    let images = cloud_images(node, diagnostics);
    let pools = provider.pools.values();
    let pools = pools.map(|pool| (pool.name.clone(), labels(pool, provider, &images, &disk_images, diagnostics)));
    let pools = pools.collect();
    Settings {
        region,
        vpc,
        credentials_file: diagnostics.or_default(node.text("credentials-file")).map(PathBuf::from),
        spacing: Spacing::Apart { changes, reads: Seconds(changes.0 / READS_PER_CHANGE) },
        attempts: attempts.clamp(1, 1000) as u32,
        launch_timeout: Seconds(launch_timeout as f64),
        boot_timeout: Seconds(boot_timeout as f64),
        limits: limits(node, diagnostics),
        pools,
        storage,
        image_format: diagnostics.or_default(node.text("image-format")).unwrap_or_else(|| "qcow2".to_owned()),
        post_upload_hook: diagnostics.or_default(node.text("post-upload-hook")),
        disk_images: disk_images.into_iter().map(|(name, (spec, _))| (name, spec)).collect(),
    }
}

/// The text of a required key. An empty text names nothing.
fn required(node: &YamlNode, key: &str, what: &str, diagnostics: &mut Diagnostics) -> Option<String> {
    let text = diagnostics.required(node, key, what)?;
    if text.trim().is_empty() {
        diagnostics.missing_key(node.at, key, format!("{what} needs `{key}`, which is empty"));
        return None;
    }
    Some(text)
}

/// IBM reports no quotas, so the section has them.
fn limits(node: &YamlNode, diagnostics: &mut Diagnostics) -> Resources {
    let mut limits = Resources::unlimited();
    let Some(quota) = node.given("quota") else { return limits };
    for name in ["instances", "cores", "ram"] {
        if let Some(limit) = diagnostics.or_default(quota.integer(name)) {
            limits.set(name, limit as f64);
        }
    }
    limits
}

/// Cloud images by name: what is booted, the login of its nodes, and the names of their keys.
type CloudImages = BTreeMap<String, (ImageSource, Login, Vec<String>)>;
/// Images of the builder by name.
type DiskImages = BTreeMap<ImageName, (DiskImageSpec, Login)>;

fn cloud_images(node: &YamlNode, diagnostics: &mut Diagnostics) -> CloudImages {
    let mut images = CloudImages::new();
    for image in diagnostics.mappings(node, "cloud-images", "a cloud image") {
        let Some(name) = diagnostics.required(image, "name", "a cloud image") else { continue };
        let mut text = |key: &str| diagnostics.or_default(image.text(key)).filter(|text| !text.is_empty());
        let (username, id, href) = (text("username"), text("image-id"), text("image-href"));
        let image_name = text("image-name");
        let filter = image.given("image-filter").map(|filter| image_filter(filter, diagnostics));
        // Nodepool 11 lets the last one of these win.
        let source = filter.map(ImageSource::Filter).or(image_name.map(ImageSource::Name));
        let source = source.or(href.map(ImageSource::Href)).or(id.map(ImageSource::Id)).unwrap_or_else(|| {
            let help = "add `image-filter`, `image-href`, `image-id` or `image-name`; its labels are out of service";
            diagnostics.warning(image.at, format!("cloud image {name} names no image"), help);
            ImageSource::Missing
        });
        let keys = diagnostics.or_default(image.texts("keys"));
        let login = server_section::image_login(image, username, diagnostics);
        images.insert(name, (source, login, keys));
    }
    images
}

fn image_filter(filter: &YamlNode, diagnostics: &mut Diagnostics) -> ImageFilter {
    let entries = filter.given("operating-system").map(YamlNode::entries).unwrap_or_default();
    // A boolean is compared with IBM's, which is written in small letters.
    let text = |value: &YamlNode| match value.to_json() {
        serde_json::Value::Bool(value) => value.to_string(),
        value => python_str(&value),
    };
    let system = entries.iter().map(|(key, value)| (key.text.replace('-', "_"), text(value)));
    ImageFilter {
        operating_system: system.collect(),
        owner_type: diagnostics.or_default(filter.text("owner-type")),
        status: diagnostics.or_default(filter.text("status")),
    }
}

fn disk_images(provider: &ProviderConfig, has_bucket: bool, diagnostics: &mut Diagnostics) -> DiskImages {
    let mut images = DiskImages::new();
    for node in diagnostics.mappings(&provider.section, "diskimages", "a provider's diskimage") {
        let what = "a provider's diskimage";
        let Some(name) = diagnostics.required(node, "name", what).map(ImageName::from) else { continue };
        let Some(operating_system) = required(node, "operating-system", what, diagnostics) else { continue };
        let group = names::image_group(&provider.name);
        if group.len() > names::MAX_GROUP_NAME {
            let problem =
                format!("the name of the resource group {group} has more than {} signs", names::MAX_GROUP_NAME);
            diagnostics.warning(node.at, problem, "use a shorter name of the provider; its uploads fail");
        }
        if !has_bucket {
            let help = "add `object-storage`; its uploads fail";
            diagnostics.warning(node.at, format!("diskimage {name} has no bucket to be imported from"), help);
        }
        let spec = DiskImageSpec { is_paused: node.boolean("pause").unwrap_or(false), operating_system };
        let username = provider.label_images.get(&name).map(|image| image.username.clone());
        let login = server_section::image_login(node, username, diagnostics);
        images.insert(name, (spec, login));
    }
    images
}

fn labels(
    pool: &PoolConfig,
    provider: &ProviderConfig,
    images: &CloudImages,
    disk_images: &DiskImages,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<LabelName, Arc<IbmLabel>> {
    let section = &provider.section;
    let mut inherited = |key: &str| {
        let own = diagnostics.or_default(pool.section.text(key)).filter(|text| !text.is_empty());
        own.or_else(|| diagnostics.or_default(section.text(key)).filter(|text| !text.is_empty())).unwrap_or_default()
    };
    let place = Place { zone: inherited("zone"), subnet: inherited("subnet") };
    let flag = |key: &str, default: bool| pool.section.boolean(key).or(section.boolean(key)).unwrap_or(default);
    let public_ipv4 = flag("public-ipv4", false);
    let pool_problem = pool_problem(pool, provider, &place, diagnostics);
    if public_ipv4 {
        let help = "IBM bills each for a whole month; use `public-ipv4` only where nodes need public addresses";
        diagnostics.warning(pool.section.at, format!("each node of pool {} gets a floating IP", pool.name), help);
    }
    let mut labels = BTreeMap::new();
    for node in diagnostics.mappings(&pool.section, "labels", "a label") {
        let Some(name) = diagnostics.required(node, "name", "a label").map(LabelName::from) else { continue };
        let Some(profile) = required(node, "profile", "a label", diagnostics) else { continue };
        let (image, problem) = match image_of(node, &name, images, disk_images, provider, diagnostics) {
            Ok(image) => (image, None),
            Err(problem) => {
                ((LabelImage::Cloud(String::new()), ImageSource::Missing, Login::default(), Vec::new()), Some(problem))
            }
        };
        let (image, source, login, keys) = image;
        let label = IbmLabel {
            name: name.clone(),
            image,
            source,
            keys,
            login,
            host_key_checking: flag("host-key-checking", true),
            profile,
            user_data: diagnostics.or_default(node.text("user-data")).filter(|text| !text.is_empty()),
            place: place.clone(),
            public_ipv4,
            use_internal_ip: flag("use-internal-ip", false),
            problem: pool_problem.clone().or(problem),
        };
        labels.insert(name, Arc::new(label));
    }
    labels
}

/// Why a pool can have no nodes: the names of its resources would not show whose they are.
fn pool_problem(
    pool: &PoolConfig,
    provider: &ProviderConfig,
    place: &Place,
    diagnostics: &mut Diagnostics,
) -> Option<String> {
    let group = names::pool_group(&provider.name, &pool.name);
    let at = pool.section.at;
    let mut report = |problem: String, help: &str| {
        diagnostics.warning(at, problem.clone(), help);
        Some(problem)
    };
    if !names::is_plain(provider.name.as_str()) || !names::is_plain(pool.name.as_str()) {
        let problem = format!("the resource group {group} would not show whose its instances are");
        return report(problem, "use letters, digits and `-` for the names of provider and pool; it is out of service");
    }
    if group.len() > names::MAX_GROUP_NAME {
        let problem = format!("the name of the resource group {group} has more than {} signs", names::MAX_GROUP_NAME);
        return report(problem, "use shorter names of provider and pool; the pool is out of service");
    }
    // The loader reports these itself.
    let missing = [("zone", &place.zone), ("subnet", &place.subnet)].into_iter().find(|(_, value)| value.is_empty());
    missing.map(|(key, _)| format!("pool {} has no {key}", pool.name))
}

/// The image of a label, or why it has none.
fn image_of(
    node: &YamlNode,
    label: &LabelName,
    images: &CloudImages,
    disk_images: &DiskImages,
    provider: &ProviderConfig,
    diagnostics: &mut Diagnostics,
) -> Result<(LabelImage, ImageSource, Login, Vec<String>), String> {
    // Nodepool 11 boots the diskimage of a label that has both.
    if let Some(name) = diagnostics.or_default(node.text("diskimage")) {
        let image = ImageName::from(name.clone());
        return match disk_images.get(&image) {
            Some((_, login)) => Ok((LabelImage::Disk(image), ImageSource::Uploaded, login.clone(), Vec::new())),
            None => Err(server_section::unknown_image(node, "diskimage", &name, label, provider, diagnostics)),
        };
    }
    if let Some(name) = diagnostics.or_default(node.text("cloud-image")) {
        return match images.get(&name) {
            Some((ImageSource::Missing, ..)) => Err(format!("cloud image {name} names no image")),
            Some((source, login, keys)) => Ok((LabelImage::Cloud(name), source.clone(), login.clone(), keys.clone())),
            None => Err(server_section::unknown_image(node, "cloud-image", &name, label, provider, diagnostics)),
        };
    }
    let problem = format!("label {label} names neither cloud-image nor diskimage");
    diagnostics.warning(node.at, problem.clone(), "add one of them; the label is out of service");
    Err(problem)
}
