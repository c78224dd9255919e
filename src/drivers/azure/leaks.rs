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

/// The machine whose operating system a disk has, by the name that Azure gives it: `np0000000001_OsDisk_1_…` or
/// `np0000000001_disk1_…` with a number of 32 hexadecimal digits.
pub fn machine_of_disk(name: &str) -> Option<&str> {
    let (machine, number) = name.split_once("_OsDisk_1_").or_else(|| name.split_once("_disk1_"))?;
    let is_number = number.len() == 32 && number.bytes().all(|digit| digit.is_ascii_hexdigit());
    (!machine.is_empty() && is_number).then_some(machine)
}

/// The node of a machine with this name.
pub fn node_of_machine(name: &str) -> Option<&str> {
    name.strip_prefix("np").filter(|node| !node.is_empty() && node.bytes().all(|digit| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_disks_and_machines_are_understood() {
        let number = "0123456789abcdef0123456789ABCDEF";
        assert_eq!(machine_of_disk(&format!("np0000000001_OsDisk_1_{number}")), Some("np0000000001"));
        assert_eq!(machine_of_disk(&format!("np0000000001_disk1_{number}")), Some("np0000000001"));
        assert_eq!(machine_of_disk("np0000000001_OsDisk_1_backup"), None);
        assert_eq!((node_of_machine("np0000000001"), node_of_machine("np1x")), (Some("0000000001"), None));
    }
}
