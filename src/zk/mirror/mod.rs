//! The local copy of ZooKeeper's state: bulk reads, then one persistent recursive watch.

pub mod bulk;
pub(crate) mod bulk_images;
pub(crate) mod follower;
pub mod mirror;
pub(crate) mod own_writes;
pub mod records;
