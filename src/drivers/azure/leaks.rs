//! Resources that launches and uploads may leave behind: interfaces, addresses, disks, images.

use super::api::calls::Kind;
use super::config::Settings;
use nodepool_driver::cloud_resource::{ResourceKind, ResourceOwner};
use nodepool_model::records::time::Seconds;

pub const INTERFACES: &str = "nics";
pub const ADDRESSES: &str = "pips";
pub const DISKS: &str = "disks";
/// Kinds that uploads make: an image, and the disk that it is made from.
pub const IMAGES: &str = "images";
pub const UPLOAD_DISKS: &str = "upload_disks";

const INTERVAL: Seconds = Seconds(600.0);

/// The kinds of a provider, in the order of deletion.
pub fn kinds(settings: &Settings) -> Vec<ResourceKind> {
    let kind = |name, owner, unused| ResourceKind { name, interval: INTERVAL, owner, unused };
    let mut kinds: Vec<ResourceKind> =
        [INTERFACES, ADDRESSES, DISKS].map(|name| kind(name, ResourceOwner::Node, "not attached")).to_vec();
    if !settings.disk_images.is_empty() {
        kinds.extend([IMAGES, UPLOAD_DISKS].map(|name| kind(name, ResourceOwner::Upload, "of no upload")));
    }
    kinds
}

pub fn kind_of(name: &str) -> Option<Kind> {
    match name {
        INTERFACES => Some(Kind::Interface),
        ADDRESSES => Some(Kind::Address),
        DISKS | UPLOAD_DISKS => Some(Kind::Disk),
        IMAGES => Some(Kind::Image),
        _ => None,
    }
}

/// The machine whose operating system a disk has, by the name that Azure gives it: `np0000000001_OsDisk_1_…`.
pub fn machine_of_disk(name: &str) -> Option<&str> {
    let machine = name.split_once("_OsDisk_").or_else(|| name.split_once("_disk1_"))?.0;
    (!machine.is_empty()).then_some(machine)
}
