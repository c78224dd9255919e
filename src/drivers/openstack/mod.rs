//! The OpenStack driver: nodes are servers of a cloud that clouds.yaml describes.

pub mod clouds;
