//! Provider sections with the keys of the OpenStack driver, which the fake driver reads as well: images, pools and
//! their labels. The example driver uses only the parser of cloud images.

use std::collections::BTreeMap;

use nodepool_driver::cloud_resource::{ResourceKind, ResourceOwner};
use nodepool_driver::facts::{LabelImage, LaunchConfig, LaunchLabel, Login, Unavailable};
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::config::upload_config::{UploadConfig, UploadEntry};
use nodepool_model::config::{DiskImage, PoolConfig, ProviderConfig};
use nodepool_model::records::ids::{ImageName, LabelName, PoolName};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use python_yaml::tree::{Position, YamlNode};

/// The default name of an uploaded image.
const IMAGE_NAME: &str = "{image_name}-{timestamp}";

/// A parsed section; the cloud has not been queried yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// Time between two calls; zero if `rate` is missing.
    pub spacing: Seconds,
    attempts: u32,
    launch_timeout: Seconds,
    boot_timeout: Seconds,
    /// Interval of the clean-up of unused ports; `None` if the configured interval is 0.
    pub port_cleanup_interval: Option<Seconds>,
    labels: BTreeMap<PoolName, BTreeMap<LabelName, Label>>,
    /// The images to upload, by name.
    uploads: BTreeMap<ImageName, UploadEntry>,
    image_name_format: String,
    /// Timeout of an import task of the cloud.
    pub upload_timeout: Seconds,
    post_upload_hook: Option<String>,
}

/// One label of one pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    pub at: Position,
    pub image: LabelImage,
    /// The image as the cloud identifies it.
    pub image_ref: ImageRef,
    pub login: Login,
    pub flavor: Option<String>,
    pub min_ram: i64,
    /// The label's own networks, or those of the pool.
    pub networks: Vec<String>,
    /// Size in GB of the boot volume, if there is one.
    pub volume: Option<i64>,
    pub host_key_checking: bool,
    pub console_log: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageRef {
    /// Used without a lookup.
    Id(String),
    /// Looked up by name; an id is accepted as well.
    Name(String),
    /// Uploaded by the builder.
    Uploaded,
}

impl Section {
    /// All labels, with their positions in the file.
    pub fn labels(&self) -> impl Iterator<Item = &Label> {
        self.labels.values().flat_map(BTreeMap::values)
    }

    pub fn label(&self, pool: &PoolName, label: &LabelName) -> Option<&Label> {
        self.labels.get(pool)?.get(label)
    }

    /// The upload configuration, with the image format of the cloud.
    pub fn uploading(&self, format: &str) -> UploadConfig {
        UploadConfig {
            format: format.to_owned(),
            name_format: self.image_name_format.clone(),
            hook: self.post_upload_hook.clone(),
            timeout: self.upload_timeout,
            images: self.uploads.clone(),
        }
    }

    /// The launch configuration. `need` returns the resources of one node of a label, or the reason why it cannot be
    /// launched.
    pub fn launching(
        &self,
        need: impl Fn(&PoolName, &LabelName, &Label) -> Result<Resources, Unavailable>,
    ) -> LaunchConfig {
        let launch_label = |pool: &PoolName, name: &LabelName, label: &Label| {
            let (need, unavailable) = match need(pool, name, label) {
                Ok(need) => (Some(need), None),
                Err(unavailable) => (None, Some(unavailable)),
            };
            let Label { image, login, host_key_checking, console_log, .. } = label.clone();
            LaunchLabel { need, image: Some(image), login, host_key_checking, console_log, unavailable, backing: None }
        };
        let pools = self.labels.iter().map(|(pool, labels)| {
            (pool.clone(), labels.iter().map(|(name, label)| (name.clone(), launch_label(pool, name, label))).collect())
        });
        LaunchConfig {
            attempts: self.attempts,
            timeout: self.launch_timeout,
            boot_timeout: self.boot_timeout,
            zones: Vec::new(),
            resource_kinds: self.ports().into_iter().collect(),
            labels: pools.collect(),
        }
    }
}

impl Section {
    /// Ports of deleted servers, if they are to be deleted.
    pub fn ports(&self) -> Option<ResourceKind> {
        let unused = "down and without a server";
        self.port_cleanup_interval.map(|interval| ResourceKind {
            name: PORTS,
            interval,
            owner: ResourceOwner::Unmarked,
            unused,
        })
    }
}

/// Name of the kind in metrics.
pub const PORTS: &str = "ports";

pub fn section(provider: &ProviderConfig, diagnostics: &mut Diagnostics) -> Section {
    let node = &provider.section;
    let images = cloud_images(node, diagnostics);
    let labels = provider.pools.values().map(|pool| (pool.name.clone(), labels(pool, &images, provider, diagnostics)));
    let labels = labels.collect();
    let port_cleanup = diagnostics.or_default(node.integer("port-cleanup-interval")).unwrap_or(600);
    Section {
        spacing: Seconds(diagnostics.or_default(node.number("rate")).unwrap_or(0.0)),
        attempts: diagnostics.or_default(node.integer("launch-retries")).unwrap_or(3).clamp(1, 1000) as u32,
        launch_timeout: Seconds(diagnostics.or_default(node.integer("launch-timeout")).unwrap_or(3600) as f64),
        boot_timeout: Seconds(diagnostics.or_default(node.integer("boot-timeout")).unwrap_or(60) as f64),
        port_cleanup_interval: (port_cleanup > 0).then_some(Seconds(port_cleanup as f64)),
        labels,
        uploads: uploads(node, diagnostics),
        image_name_format: diagnostics
            .or_default(node.text("image-name-format"))
            .unwrap_or_else(|| IMAGE_NAME.to_owned()),
        upload_timeout: Seconds(diagnostics.or_default(node.integer("image-upload-timeout")).unwrap_or(3600) as f64),
        post_upload_hook: diagnostics.or_default(node.text("post-upload-hook")),
    }
}

/// The top-level images that a provider uploads.
fn uploads(node: &YamlNode, diagnostics: &mut Diagnostics) -> BTreeMap<ImageName, UploadEntry> {
    let mut uploads = BTreeMap::new();
    for entry in diagnostics.mappings(node, "diskimages", "a provider's diskimage") {
        let Some(name) = diagnostics.required(entry, "name", "a provider's diskimage") else { continue };
        let meta = diagnostics.or_default(entry.map("meta").map(<[_]>::to_vec));
        let meta = meta.iter().map(|(key, value)| (key.text.clone(), value.to_json())).collect();
        let paused = entry.boolean("pause").unwrap_or(false);
        uploads.insert(ImageName::from(name), UploadEntry { paused, meta });
    }
    uploads
}

/// The cloud images of a provider by name: their ids or names in the cloud, and the login parameters of their nodes.
pub type CloudImages = BTreeMap<String, (ImageRef, Login)>;

pub fn cloud_images(node: &YamlNode, diagnostics: &mut Diagnostics) -> CloudImages {
    let mut images = BTreeMap::new();
    for image in diagnostics.mappings(node, "cloud-images", "a cloud image") {
        let Some(name) = diagnostics.required(image, "name", "a cloud image") else { continue };
        let username = diagnostics.or_default(image.text("username"));
        let login = image_login(image, username, diagnostics);
        let id = diagnostics.or_default(image.text("image-id")).map(ImageRef::Id);
        let image_name = diagnostics.or_default(image.text("image-name")).unwrap_or_else(|| name.clone());
        images.insert(name, (id.unwrap_or(ImageRef::Name(image_name)), login));
    }
    images
}

/// Login of the nodes of an image.
pub fn image_login(node: &YamlNode, username: Option<String>, diagnostics: &mut Diagnostics) -> Login {
    Login {
        username,
        python_path: Some(diagnostics.or_default(node.text("python-path")).unwrap_or_else(|| "auto".to_owned())),
        shell_type: diagnostics.or_default(node.text("shell-type")),
        ..connection(node, diagnostics)
    }
}

/// Reports that a label names an image which its provider lacks; returns the message.
pub fn unknown_image(
    node: &YamlNode,
    key: &str,
    name: &str,
    label: &LabelName,
    provider: &ProviderConfig,
    diagnostics: &mut Diagnostics,
) -> String {
    let at = node.get(key).map_or(node.at, |value| value.at);
    let provider = &provider.name;
    let message = format!("{key} {name} does not exist in provider {provider} but is referenced in label {label}");
    diagnostics.error(at, message.clone(), format!("define it in `{key}s` of the provider"));
    message
}

/// Connection type and port of the nodes of an image.
pub fn connection(image: &YamlNode, diagnostics: &mut Diagnostics) -> Login {
    let kind = diagnostics.or_default(image.text("connection-type")).unwrap_or_else(|| "ssh".to_owned());
    let default_port = if kind == "winrm" { 5986 } else { 22 };
    let port = diagnostics.or_default(image.integer("connection-port")).unwrap_or(default_port);
    let connection_port = u16::try_from(port).ok().filter(|port| *port > 0).unwrap_or_else(|| {
        let at = image.get("connection-port").map_or(image.at, |value| value.at);
        diagnostics.error(
            at,
            "connection-port is out of range".to_owned(),
            format!("it is {port}, expected 1 to 65535"),
        );
        22
    });
    Login { connection_type: Some(kind), connection_port, ..Login::default() }
}

fn labels(
    pool: &PoolConfig,
    images: &CloudImages,
    provider: &ProviderConfig,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<LabelName, Label> {
    let host_key_checking = pool.section.boolean("host-key-checking").unwrap_or(true);
    let networks = diagnostics.or_default(pool.section.texts("networks"));
    let mut labels = BTreeMap::new();
    for node in diagnostics.mappings(&pool.section, "labels", "a label") {
        let Some(name) = diagnostics.required(node, "name", "a label") else { continue };
        let Some((image, image_ref, login)) = image(node, images, provider, diagnostics) else { continue };
        let flavor = diagnostics.or_default(node.text("flavor-name"));
        let min_ram = diagnostics.or_default(node.integer("min-ram")).unwrap_or(0);
        let host_key_checking = node.boolean("host-key-checking").unwrap_or(host_key_checking);
        let console_log = node.boolean("console-log").unwrap_or(false);
        let own_networks = node.given("networks").map(|_| diagnostics.or_default(node.texts("networks")));
        let size = diagnostics.or_default(node.integer("volume-size")).unwrap_or(50);
        let label = Label {
            at: node.at,
            image,
            image_ref,
            login,
            flavor,
            min_ram,
            networks: own_networks.unwrap_or_else(|| networks.clone()),
            volume: node.boolean("boot-from-volume").unwrap_or(false).then_some(size),
            host_key_checking,
            console_log,
        };
        labels.insert(LabelName::from(name), label);
    }
    labels
}

fn image(
    node: &YamlNode,
    images: &CloudImages,
    provider: &ProviderConfig,
    diagnostics: &mut Diagnostics,
) -> Option<(LabelImage, ImageRef, Login)> {
    if let Some(name) = diagnostics.or_default(node.text("cloud-image")) {
        let Some((image_ref, login)) = images.get(&name) else {
            let at = node.get("cloud-image").map_or(node.at, |value| value.at);
            let help = "define it in `cloud-images` of the provider".to_owned();
            diagnostics.error(at, format!("cloud-image {name} does not exist in provider {}", provider.name), help);
            return None;
        };
        return Some((LabelImage::Cloud(name), image_ref.clone(), login.clone()));
    }
    let name = diagnostics.or_default(node.text("diskimage"))?;
    let image = ImageName::from(name);
    let own = diagnostics.mappings(&provider.section, "diskimages", "a diskimage");
    let own = own.into_iter().find(|own| own.get("name").and_then(YamlNode::as_text) == Some(image.as_str()));
    let connection_login = connection(own.unwrap_or(node), diagnostics);
    let top: Option<&DiskImage> = provider.label_images.get(&image);
    let login = Login {
        username: top.map(|image| image.username.clone()),
        python_path: top.map(|image| image.python_path.clone()),
        shell_type: top.and_then(|image| image.shell_type.clone()),
        ..connection_login
    };
    Some((LabelImage::Disk(image), ImageRef::Uploaded, login))
}
