//! The state of the cloud: its resources, their history, and what has been counted.

pub mod cloud;
pub mod counters;
pub mod fixtures;
pub mod history;
pub mod loopback_addresses;
pub mod simulation;
pub mod state;
