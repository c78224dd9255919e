//! The section of an azure provider: location, resource group, images and the labels of its pools.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::api::credentials;
use super::label::{AzureLabel, ImageAccess, ImageSource, PoolNetwork, read_label};
use crate::common::python_format::texts;
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

/// The name of an uploaded image.
const IMAGE_NAME: &str = "{image_name}-{timestamp}";
const IMAGE_FORMAT: &str = "vhd";
/// Azure allows ten times as many reads as changes.
const READS_PER_CHANGE: f64 = 10.0;
/// An upload that takes longer has failed: its URL is valid for so long.
const UPLOAD_TIMEOUT: Seconds = Seconds(24.0 * 3600.0);

/// A parsed section.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub location: String,
    pub group: String,
    pub auth_file: Option<PathBuf>,
    pub subnet: Subnet,
    pub spacing: Spacing,
    pub attempts: u32,
    pub launch_timeout: Seconds,
    pub boot_timeout: Seconds,
    pub pools: BTreeMap<PoolName, BTreeMap<LabelName, Arc<AzureLabel>>>,
    pub post_upload_hook: Option<String>,
    pub disk_images: BTreeMap<ImageName, UploadEntry>,
}

/// The subnet of the nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum Subnet {
    Id(String),
    Named { group: String, network: String, subnet: String },
}

impl Settings {
    pub fn label(&self, pool: &PoolName, label: &LabelName) -> Option<&Arc<AzureLabel>> {
        self.pools.get(pool)?.get(label)
    }

    pub fn labels(&self) -> impl Iterator<Item = &Arc<AzureLabel>> {
        self.pools.values().flat_map(BTreeMap::values)
    }

    pub fn upload_config(&self) -> UploadConfig {
        UploadConfig {
            format: IMAGE_FORMAT.to_owned(),
            name_format: IMAGE_NAME.to_owned(),
            hook: self.post_upload_hook.clone(),
            timeout: UPLOAD_TIMEOUT,
            images: self.disk_images.clone(),
        }
    }

    /// The launch configuration. `facts` returns the resources of one node of a label, if they are known, and why none
    /// can be launched.
    pub fn launch_config(
        &self,
        facts: impl Fn(&AzureLabel) -> (Option<Resources>, Option<Unavailable>),
    ) -> LaunchConfig {
        let launch_label = |label: &Arc<AzureLabel>| {
            let (need, found) = facts(label);
            LaunchLabel {
                need,
                image: Some(label.image.clone()),
                login: label.login.clone(),
                host_key_checking: label.network.host_key_checking,
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
            resource_kinds: super::leaks::kinds(self),
            labels: pools.collect(),
        }
    }
}

/// The authentication file of a section, whether or not it exists.
pub fn auth_file(provider: &ProviderConfig) -> Option<PathBuf> {
    credentials::file(provider.section.text("auth-path").ok().flatten().as_deref())
}

pub fn read(provider: &ProviderConfig, diagnostics: &mut Diagnostics) -> Settings {
    let node = &provider.section;
    let rate = diagnostics.or_default(node.number("rate")).unwrap_or(1.0);
    let changes = if rate > 0.0 { Seconds(1.0 / rate) } else { Seconds::ZERO };
    let mut positive = |key: &str, default: i64| diagnostics.or_default(node.integer(key)).unwrap_or(default).max(0);
    let (attempts, launch_timeout) = (positive("launch-retries", 3), positive("launch-timeout", 3600));
    let boot_timeout = positive("boot-timeout", 120);
    let mut required = |key: &str| {
        let text = diagnostics.required(node, key, "an azure provider").unwrap_or_default();
        if let Some(value) = node.given(key).filter(|_| text.is_empty()) {
            diagnostics.error(
                value.at,
                format!("`{key}` is empty"),
                format!("set `{key}` to the name of an existing one"),
            );
        }
        text
    };
    let (location, group) = (required("location"), required("resource-group"));
    let subnet = subnet(node, &group, diagnostics);
    let default_key = diagnostics.or_default(node.text("zuul-public-key"));
    let disk_images = disk_images(provider, diagnostics);
    let images = cloud_images(node, default_key.as_deref(), diagnostics);
    let pools = provider.pools.values();
    let pools = pools.map(|pool| {
        (pool.name.clone(), labels(pool, provider, (&images, &disk_images), subnet.is_some(), diagnostics))
    });
    let pools = pools.collect();
    Settings {
        subnet: subnet.unwrap_or_else(|| Subnet::Id(String::new())),
        location,
        group,
        auth_file: auth_file(provider),
        spacing: Spacing::Apart { changes, reads: Seconds(changes.0 / READS_PER_CHANGE) },
        attempts: attempts.clamp(1, 1000) as u32,
        launch_timeout: Seconds(launch_timeout as f64),
        boot_timeout: Seconds(boot_timeout as f64),
        pools,
        post_upload_hook: diagnostics.or_default(node.text("post-upload-hook")),
        disk_images: disk_images.into_iter().map(|(name, (entry, ..))| (name, entry)).collect(),
    }
}

/// The subnet of a section; `None` puts its labels out of service.
fn subnet(node: &YamlNode, group: &str, diagnostics: &mut Diagnostics) -> Option<Subnet> {
    if let Some(id) = diagnostics.or_default(node.text("subnet-id")).filter(|id| !id.is_empty()) {
        return Some(Subnet::Id(id));
    }
    let network = node.given("network").filter(|network| network.as_text().is_none_or(|name| !name.is_empty()));
    let Some(network) = network else {
        let help = "add `subnet-id` or `network`; its labels are out of service";
        diagnostics.warning(node.at, "the provider has no subnet".to_owned(), help);
        return None;
    };
    if let Some(name) = network.as_text() {
        let (group, network) = (group.to_owned(), name.to_owned());
        return Some(Subnet::Named { group, network, subnet: "default".to_owned() });
    }
    let name = diagnostics.required(network, "network", "a network").unwrap_or_default();
    let mut text = |key: &str| diagnostics.or_default(network.text(key)).filter(|text| !text.is_empty());
    Some(Subnet::Named {
        group: text("resource-group").unwrap_or_else(|| group.to_owned()),
        network: name,
        subnet: text("subnet").unwrap_or_else(|| "default".to_owned()),
    })
}

/// Cloud images by name: what is booted, how nodes are reached, and the access for the first login.
type CloudImages = BTreeMap<String, (ImageSource, Login, ImageAccess)>;
/// Images of the builder by name.
type DiskImages = BTreeMap<ImageName, (UploadEntry, Login, ImageAccess)>;

fn access(node: &YamlNode, default_key: Option<&str>, diagnostics: &mut Diagnostics) -> ImageAccess {
    let mut text = |key: &str| diagnostics.or_default(node.text(key)).filter(|text| !text.is_empty());
    ImageAccess {
        key: text("key").or(default_key.map(str::to_owned)),
        password: text("password"),
        generates_password: node.boolean("generate-password").unwrap_or(false),
    }
}

fn cloud_images(node: &YamlNode, default_key: Option<&str>, diagnostics: &mut Diagnostics) -> CloudImages {
    let mut images = CloudImages::new();
    for image in diagnostics.mappings(node, "cloud-images", "a cloud image") {
        let Some(name) = diagnostics.required(image, "name", "a cloud image") else { continue };
        let username = diagnostics.or_default(image.text("username"));
        let source = ImageSource::read(image, diagnostics);
        if source == ImageSource::Missing {
            let help = "add `image-reference`, `image-filter`, `image-id` or an image of a gallery; \
                        its labels are out of service";
            diagnostics.warning(image.at, format!("cloud image {name} names no image"), help);
        }
        let login = server_section::image_login(image, username, diagnostics);
        images.insert(name, (source, login, access(image, default_key, diagnostics)));
    }
    images
}

fn disk_images(provider: &ProviderConfig, diagnostics: &mut Diagnostics) -> DiskImages {
    let mut images = DiskImages::new();
    for node in diagnostics.mappings(&provider.section, "diskimages", "a provider's diskimage") {
        let Some(name) = diagnostics.required(node, "name", "a provider's diskimage").map(ImageName::from) else {
            continue;
        };
        let meta = texts(node, "tags").into_iter().map(|(key, value)| (key, value.into())).collect();
        let entry = UploadEntry { paused: node.boolean("pause").unwrap_or(false), meta };
        let top = provider.label_images.get(&name).map(|image| image.username.clone());
        let username = diagnostics.or_default(node.text("username")).or(top);
        let login = server_section::image_login(node, username, diagnostics);
        images.insert(name, (entry, login, access(node, None, diagnostics)));
    }
    images
}

fn labels(
    pool: &PoolConfig,
    provider: &ProviderConfig,
    (images, disk_images): (&CloudImages, &DiskImages),
    has_subnet: bool,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<LabelName, Arc<AzureLabel>> {
    let network = PoolNetwork::read(pool, provider);
    let mut labels = BTreeMap::new();
    for node in diagnostics.mappings(&pool.section, "labels", "a label") {
        let Some(name) = diagnostics.required(node, "name", "a label").map(LabelName::from) else { continue };
        let image = image_of(node, &name, images, disk_images, provider, diagnostics);
        let mut label = read_label(node, name.clone(), image, &network, diagnostics);
        if !has_subnet {
            label.problem.get_or_insert_with(|| "the provider has no subnet".to_owned());
        }
        labels.insert(name, Arc::new(label));
    }
    labels
}

/// The image of a label.
pub type LabelSource = (LabelImage, ImageSource, Login, ImageAccess);

/// The image of a label, or why it has none.
fn image_of(
    node: &YamlNode,
    label: &LabelName,
    images: &CloudImages,
    disk_images: &DiskImages,
    provider: &ProviderConfig,
    diagnostics: &mut Diagnostics,
) -> Result<LabelSource, String> {
    // Nodepool 11 boots the diskimage of a label that has both.
    if let Some(name) = diagnostics.or_default(node.text("diskimage")) {
        let image = ImageName::from(name.clone());
        return match disk_images.get(&image) {
            Some((_, login, access)) => {
                Ok((LabelImage::Disk(image), ImageSource::Uploaded, login.clone(), access.clone()))
            }
            None => Err(server_section::unknown_image(node, "diskimage", &name, label, provider, diagnostics)),
        };
    }
    if let Some(name) = diagnostics.or_default(node.text("cloud-image")) {
        return match images.get(&name) {
            Some((ImageSource::Missing, ..)) => Err(format!("cloud image {name} names no image")),
            Some((source, login, access)) => {
                Ok((LabelImage::Cloud(name), source.clone(), login.clone(), access.clone()))
            }
            None => Err(server_section::unknown_image(node, "cloud-image", &name, label, provider, diagnostics)),
        };
    }
    let problem = format!("label {label} names neither cloud-image nor diskimage");
    diagnostics.warning(node.at, problem.clone(), "add one of them; the label is out of service");
    Err(problem)
}
