//! Crashes: real launchers and builders are killed at random moments under load, and restarted, on Apache ZooKeeper and
//! the simulated cloud.
//!
//! NODEPOOL_KILLS sets the number of kills; NODEPOOL_SEED repeats the random draws of an earlier run.

mod builder;
mod clouds;
mod launcher;
