//! The section of an aws provider: region, images and the labels of its pools.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::label::{AwsLabel, ImageSource, Market, PoolNetwork, read_label};
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
/// Reads are this many times as fast as changes.
const READS_PER_CHANGE: f64 = 10.0;
/// Tags of an object in S3; three of them are marks.
pub const MAX_OBJECT_TAGS: usize = 10;
const MARKS: usize = 3;
/// An import that takes longer has failed.
pub const IMPORT_TIMEOUT: Seconds = Seconds(4.0 * 3600.0);

/// A parsed section.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub region: String,
    /// The profile of the credentials; `None` is the default chain.
    pub profile: Option<String>,
    pub spacing: Spacing,
    pub attempts: u32,
    pub launch_timeout: Seconds,
    pub boot_timeout: Seconds,
    pub pools: BTreeMap<PoolName, BTreeMap<LabelName, Arc<AwsLabel>>>,
    /// The bucket for imports.
    pub bucket: Option<String>,
    pub image_format: String,
    /// Time for which an import waits for other imports, and for a snapshot that is written directly; `None` does not
    /// wait for other imports.
    pub import_wait: Option<Seconds>,
    pub post_upload_hook: Option<String>,
    pub disk_images: BTreeMap<ImageName, Arc<DiskImageSpec>>,
}

/// Settings for the AMI of an image of the builder.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskImageSpec {
    pub is_paused: bool,
    pub method: ImportMethod,
    pub architecture: String,
    pub ena_support: bool,
    pub imds_v2: bool,
    pub volume: VolumeSpec,
    pub tags: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportMethod {
    Snapshot,
    Image,
    EbsDirect,
}

/// Settings of a root volume; `None` leaves them to AWS or the AMI.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeSpec {
    pub kind: Option<String>,
    pub size_gib: Option<i64>,
    pub iops: Option<i64>,
    pub throughput: Option<i64>,
}

impl VolumeSpec {
    pub fn read(node: &YamlNode, diagnostics: &mut Diagnostics) -> Self {
        let mut integer = |key: &str| diagnostics.or_default(node.integer(key)).filter(|value| *value != 0);
        let (size_gib, iops, throughput) = (integer("volume-size"), integer("iops"), integer("throughput"));
        Self { kind: diagnostics.or_default(node.text("volume-type")), size_gib, iops, throughput }
    }
}

impl Settings {
    pub fn label(&self, pool: &PoolName, label: &LabelName) -> Option<&Arc<AwsLabel>> {
        self.pools.get(pool)?.get(label)
    }

    pub fn labels(&self) -> impl Iterator<Item = &Arc<AwsLabel>> {
        self.pools.values().flat_map(BTreeMap::values)
    }

    pub fn has_spot(&self) -> bool {
        self.labels().any(|label| label.market != Market::OnDemand)
    }

    pub fn upload_config(&self) -> UploadConfig {
        let entry = |image: &DiskImageSpec| {
            let meta = image.tags.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
            UploadEntry { paused: image.is_paused, meta }
        };
        UploadConfig {
            format: self.image_format.clone(),
            name_format: IMAGE_NAME.to_owned(),
            hook: self.post_upload_hook.clone(),
            timeout: Seconds(IMPORT_TIMEOUT.0 + self.import_wait.unwrap_or(Seconds::ZERO).0),
            images: self.disk_images.iter().map(|(name, image)| (name.clone(), entry(image))).collect(),
        }
    }

    /// The launch configuration. `facts` returns the resources of one node of a label, if they are known, and why none
    /// can be launched.
    pub fn launch_config(&self, facts: impl Fn(&AwsLabel) -> (Option<Resources>, Option<Unavailable>)) -> LaunchConfig {
        let launch_label = |label: &Arc<AwsLabel>| {
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
            resource_kinds: super::leaks::kinds(self),
            labels: pools.collect(),
        }
    }
}

pub fn read(provider: &ProviderConfig, diagnostics: &mut Diagnostics) -> Settings {
    let node = &provider.section;
    let rate = diagnostics.or_default(node.number("rate")).unwrap_or(2.0);
    let changes = if rate > 0.0 { Seconds(1.0 / rate) } else { Seconds::ZERO };
    let mut positive = |key: &str, default: i64| diagnostics.or_default(node.integer(key)).unwrap_or(default).max(0);
    let (attempts, launch_timeout) = (positive("launch-retries", 3), positive("launch-timeout", 3600));
    let boot_timeout = positive("boot-timeout", 180);
    let storage = node.given("object-storage");
    let bucket = storage.and_then(|storage| diagnostics.or_default(storage.text("bucket-name")));
    let disk_images = disk_images(provider, bucket.is_some(), diagnostics);
    let images = cloud_images(node, diagnostics);
    let region = diagnostics.required(node, "region-name", "an aws provider").unwrap_or_default();
    let pools = provider.pools.values();
    let pools = pools.map(|pool| (pool.name.clone(), labels(pool, provider, &images, &disk_images, diagnostics)));
    let pools = pools.collect();
    Settings {
        region,
        profile: diagnostics.or_default(node.text("profile-name")),
        spacing: Spacing::Apart { changes, reads: Seconds(changes.0 / READS_PER_CHANGE) },
        attempts: attempts.clamp(1, 1000) as u32,
        launch_timeout: Seconds(launch_timeout as f64),
        boot_timeout: Seconds(boot_timeout as f64),
        pools,
        bucket,
        image_format: diagnostics.or_default(node.text("image-format")).unwrap_or_else(|| "raw".to_owned()),
        import_wait: diagnostics
            .or_default(node.integer("image-import-timeout"))
            .map(|seconds| Seconds(seconds as f64)),
        post_upload_hook: diagnostics.or_default(node.text("post-upload-hook")),
        disk_images: disk_images.into_iter().map(|(name, (spec, _))| (name, spec)).collect(),
    }
}

/// Cloud images by name: how their AMIs are found, and the login of their nodes.
pub type CloudImages = BTreeMap<String, (ImageSource, Login)>;
/// Images of the builder by name.
pub type DiskImages = BTreeMap<ImageName, (Arc<DiskImageSpec>, Login)>;

fn cloud_images(node: &YamlNode, diagnostics: &mut Diagnostics) -> CloudImages {
    let mut images = CloudImages::new();
    for image in diagnostics.mappings(node, "cloud-images", "a cloud image") {
        let Some(name) = diagnostics.required(image, "name", "a cloud image") else { continue };
        let username = diagnostics.or_default(image.text("username"));
        let id = diagnostics.or_default(image.text("image-id"));
        let filters = image_filters(image, diagnostics);
        let source = match (id, filters) {
            (Some(id), _) => ImageSource::Id(id),
            (None, Some(filters)) => ImageSource::Filters(filters),
            (None, None) => {
                let help = "add `image-id` or `image-filters`; its labels are out of service";
                diagnostics.warning(image.at, format!("cloud image {name} names no AMI"), help);
                ImageSource::Missing
            }
        };
        let login = server_section::image_login(image, username, diagnostics);
        images.insert(name, (source, login));
    }
    images
}

/// Filters as EC2 has them. Both spellings of their keys are valid.
fn image_filters(image: &YamlNode, diagnostics: &mut Diagnostics) -> Option<Vec<(String, Vec<String>)>> {
    image.given("image-filters")?;
    let mut filters = Vec::new();
    for filter in diagnostics.mappings(image, "image-filters", "an image filter") {
        let either = |low: &'static str, high: &'static str| if filter.given(low).is_some() { low } else { high };
        let Some(name) = diagnostics.or_default(filter.text(either("name", "Name"))) else { continue };
        filters.push((name, diagnostics.or_default(filter.texts(either("values", "Values")))));
    }
    Some(filters)
}

fn disk_images(provider: &ProviderConfig, has_bucket: bool, diagnostics: &mut Diagnostics) -> DiskImages {
    let mut images = DiskImages::new();
    for node in diagnostics.mappings(&provider.section, "diskimages", "a provider's diskimage") {
        let Some(name) = diagnostics.required(node, "name", "a provider's diskimage").map(ImageName::from) else {
            continue;
        };
        let method = match diagnostics.or_default(node.text("import-method")).as_deref() {
            Some("ebs-direct") => ImportMethod::EbsDirect,
            Some("image") => ImportMethod::Image,
            _ => ImportMethod::Snapshot,
        };
        let mut volume = VolumeSpec::read(node, diagnostics);
        volume.kind.get_or_insert_with(|| "gp3".to_owned());
        let spec = DiskImageSpec {
            is_paused: node.boolean("pause").unwrap_or(false),
            method,
            architecture: diagnostics.or_default(node.text("architecture")).unwrap_or_else(|| "x86_64".to_owned()),
            ena_support: node.boolean("ena-support").unwrap_or(true),
            imds_v2: diagnostics.or_default(node.text("imds-support")).as_deref() == Some("v2.0"),
            volume,
            tags: texts(node, "tags"),
        };
        let format = provider.section.get("image-format").and_then(YamlNode::as_text).unwrap_or("raw");
        if method == ImportMethod::EbsDirect && format != "raw" {
            let help = "remove `image-format`, or use `import-method: snapshot`; its uploads make no bootable image";
            diagnostics.warning(node.at, format!("diskimage {name} is written block by block, but not raw"), help);
        }
        if method != ImportMethod::EbsDirect && !has_bucket {
            let help = "add `object-storage: {bucket-name: …}`, or use `import-method: ebs-direct`; its uploads fail";
            diagnostics.warning(node.at, format!("diskimage {name} has no bucket to be imported from"), help);
        }
        if method != ImportMethod::EbsDirect && spec.tags.len() + MARKS > MAX_OBJECT_TAGS {
            let at = node.get("tags").map_or(node.at, |tags| tags.at);
            let help = format!("use at most {}; its uploads fail", MAX_OBJECT_TAGS - MARKS);
            diagnostics.warning(at, format!("diskimage {name} has {} tags", spec.tags.len()), help);
        }
        let top = provider.label_images.get(&name).map(|image| image.username.clone());
        let username = diagnostics.or_default(node.text("username")).or(top);
        let login = server_section::image_login(node, username, diagnostics);
        images.insert(name, (Arc::new(spec), login));
    }
    images
}

fn labels(
    pool: &PoolConfig,
    provider: &ProviderConfig,
    images: &CloudImages,
    disk_images: &DiskImages,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<LabelName, Arc<AwsLabel>> {
    let network = PoolNetwork::read(pool, provider, diagnostics);
    let mut labels = BTreeMap::new();
    for node in diagnostics.mappings(&pool.section, "labels", "a label") {
        let Some(name) = diagnostics.required(node, "name", "a label").map(LabelName::from) else { continue };
        let image = image_of(node, &name, images, disk_images, provider, diagnostics);
        let mut label = read_label(node, name.clone(), image, &network, diagnostics);
        if let LabelImage::Disk(image) = &label.image {
            label.image_volume = disk_images.get(image).map(|(spec, _)| spec.volume.clone()).unwrap_or_default();
        }
        labels.insert(name, Arc::new(label));
    }
    labels
}

/// The image of a label, or why it has none.
fn image_of(
    node: &YamlNode,
    label: &LabelName,
    images: &CloudImages,
    disk_images: &DiskImages,
    provider: &ProviderConfig,
    diagnostics: &mut Diagnostics,
) -> Result<(LabelImage, ImageSource, Login), String> {
    if let Some(name) = diagnostics.or_default(node.text("cloud-image")) {
        return match images.get(&name) {
            Some((ImageSource::Missing, _)) => Err(format!("cloud image {name} names no AMI")),
            Some((source, login)) => Ok((LabelImage::Cloud(name), source.clone(), login.clone())),
            None => Err(server_section::unknown_image(node, "cloud-image", &name, label, provider, diagnostics)),
        };
    }
    if let Some(name) = diagnostics.or_default(node.text("diskimage")) {
        let image = ImageName::from(name.clone());
        return match disk_images.get(&image) {
            Some((_, login)) => Ok((LabelImage::Disk(image), ImageSource::Uploaded, login.clone())),
            None => Err(server_section::unknown_image(node, "diskimage", &name, label, provider, diagnostics)),
        };
    }
    let problem = format!("label {label} names neither cloud-image nor diskimage");
    diagnostics.warning(node.at, problem.clone(), "add one of them; the label is out of service");
    Err(problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::test_settings::{label, settings};

    #[test]
    fn nodes_of_a_diskimage_have_the_user_of_the_top_level_image() {
        let label = label("diskimage: built");
        assert_eq!((label.login.username.as_deref(), label.login.python_path.as_deref()), (Some("me"), Some("auto")));
    }

    #[test]
    fn what_an_import_would_refuse_is_reported() {
        let problems = |keys: &str| settings(keys, "", "").1.join("; ");
        assert!(problems("").contains("diskimage built has no bucket"));
        let storage = "object-storage: {bucket-name: b}";
        assert_eq!(problems(storage), "");
        assert_eq!(
            settings("rate: 4", "", "").0.spacing,
            Spacing::Apart { changes: Seconds(0.25), reads: Seconds(0.025) }
        );
    }
}
