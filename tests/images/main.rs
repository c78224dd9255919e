//! Images: builds, uploads and retention, in whole builders.
//!
//! ZooKeeper is in memory. Time is real, because builds run commands. Unless a module says otherwise, the cloud is in
//! memory, and a script that records its arguments replaces disk-image-create.

mod builds;
mod diskimage_builder;
mod openstack;
mod openstack_import;
mod reload;
mod retention;
mod uploads;
