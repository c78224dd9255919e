//! Records, configuration, metrics and the snapshot of ZooKeeper: pure data without I/O, clock or random numbers.

pub mod metrics;
pub mod records;
pub mod report;

pub mod config;
pub mod snapshot;
