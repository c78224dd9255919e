//! The state of the cloud: its resources, their history, and counters.

pub mod cloud;
pub mod counters;
pub mod fixtures;
pub mod history;
pub mod loopback_addresses;
pub mod simulation;
pub mod state;
