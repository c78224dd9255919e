//! What there is: records, configuration and the picture of ZooKeeper; pure data, std and serde only.
//!
//! The order below is the order of dependency: a file uses only files above it.

pub mod metrics;
pub mod records;
pub mod report;

pub mod config;
pub mod snapshot;
