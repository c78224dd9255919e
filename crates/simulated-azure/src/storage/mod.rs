//! Storage: the page blobs behind disks that are uploaded.

pub mod blob;
pub mod pages;
