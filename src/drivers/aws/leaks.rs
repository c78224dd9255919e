//! Resources that launches and uploads may leave behind: volumes, hosts, launch templates, AMIs, snapshots, objects.

use super::config::Settings;
use super::request_body::TEMPLATE_PREFIX;
use nodepool_driver::cloud_resource::{ResourceKind, ResourceOwner};
use nodepool_model::records::time::Seconds;

pub const VOLUMES: &str = "volumes";
pub const HOSTS: &str = "hosts";
pub const TEMPLATES: &str = "launch_templates";
pub const IMAGES: &str = "amis";
pub const SNAPSHOTS: &str = "snapshots";
pub const OBJECTS: &str = "objects";
/// Kinds that uploads make, in the order of deletion: an AMI holds its snapshots.
pub const OF_UPLOADS: &[&str] = &[IMAGES, SNAPSHOTS, OBJECTS];

const INTERVAL: Seconds = Seconds(600.0);
/// A launch template that was not in use for this time is deleted.
const TEMPLATE_INTERVAL: Seconds = Seconds(3600.0);

/// The kinds of a provider, in the order of deletion.
pub fn kinds(settings: &Settings) -> Vec<ResourceKind> {
    let kind = |name, owner, unused| ResourceKind { name, interval: INTERVAL, owner, unused };
    // A host costs money also after its last label was removed.
    let mut kinds =
        vec![kind(VOLUMES, ResourceOwner::Node, "not attached"), kind(HOSTS, ResourceOwner::Node, "without a node")];
    if settings.labels().any(|label| label.fleet.is_some()) {
        let interval = TEMPLATE_INTERVAL;
        kinds.push(ResourceKind { interval, ..kind(TEMPLATES, ResourceOwner::Unmarked, "not configured") });
    }
    if !settings.disk_images.is_empty() {
        let of_upload = |name| kind(name, ResourceOwner::Upload, "of no upload");
        kinds.extend([of_upload(IMAGES), of_upload(SNAPSHOTS)]);
        kinds.extend(settings.bucket.is_some().then(|| of_upload(OBJECTS)));
    }
    kinds
}

/// Whether a kind is made by uploads.
pub fn is_of_uploads(kind: &str) -> bool {
    OF_UPLOADS.contains(&kind)
}

/// Whether a launch template has a name as the driver gives it.
pub fn is_template_name(name: &str) -> bool {
    name.strip_prefix(TEMPLATE_PREFIX).is_some_and(|hash| hash.len() == 64)
}
