//! Resources that launches and uploads may leave behind: floating IPs, boot volumes, images and objects.

use super::config::Settings;
use nodepool_driver::cloud_resource::{ResourceKind, ResourceOwner};
use nodepool_model::records::time::Seconds;

/// As in the metrics of Nodepool 11.
pub const FLOATING_IPS: &str = "floatingips";
pub const VOLUMES: &str = "volumes";
pub const IMAGES: &str = "images";
pub const OBJECTS: &str = "objects";
/// Kinds that uploads make.
pub const OF_UPLOADS: &[&str] = &[IMAGES, OBJECTS];

const INTERVAL: Seconds = Seconds(600.0);

/// The kinds of a provider, in the order of deletion.
pub fn kinds(settings: &Settings) -> Vec<ResourceKind> {
    let kind = |name, owner, unused| ResourceKind { name, interval: INTERVAL, owner, unused };
    // A floating IP costs money also after the last pool with `public-ipv4` was removed.
    let mut kinds = vec![
        kind(FLOATING_IPS, ResourceOwner::Node, "without a node"),
        kind(VOLUMES, ResourceOwner::Node, "not attached"),
    ];
    if !settings.disk_images.is_empty() {
        kinds.push(kind(IMAGES, ResourceOwner::Upload, "of no upload"));
        if settings.storage.is_some() {
            kinds.push(kind(OBJECTS, ResourceOwner::Upload, "of no upload"));
        }
    }
    kinds
}

/// Whether a kind is made by uploads.
pub fn is_of_uploads(kind: &str) -> bool {
    OF_UPLOADS.contains(&kind)
}
