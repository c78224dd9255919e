//! Compute: virtual machines, disks, images, usages and SKUs.

pub mod disks;
pub mod images;
pub mod quotas;
pub mod vm_create;
pub mod vm_image;
pub mod vm_json;
pub mod vm_life;
pub mod vm_os_profile;
pub mod vm_parts;
pub mod vm_properties;
