//! The operations of the APIs, and the checks of their bodies.

pub mod actions;
pub mod attachments;
pub mod boot_volume;
pub mod fields;
pub mod floating_ip_targets;
pub mod floating_ips;
pub mod images;
pub mod instance_create;
pub mod instance_json;
pub mod instance_spec;
pub mod instances;
pub mod keys;
pub mod places;
pub mod references;
pub mod resources;
