//! Crashes: real launchers and builders are killed at random moments under load, and restarted, on Apache ZooKeeper,
//! the simulated cloud and the simulated cluster.
//!
//! NODEPOOL_KILLS sets the number of kills; NODEPOOL_SEED repeats the random draws of an earlier run.

mod builder;
mod clouds;
mod containers;
mod launcher;
mod metastatic;
