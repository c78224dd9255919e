//! Records, configuration, metrics and the snapshot of ZooKeeper: pure data without I/O, clock or random numbers.

pub mod config;
pub mod metrics;
pub mod records;
pub mod report;
pub mod snapshot;
