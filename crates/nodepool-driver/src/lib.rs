//! The API between Nodepool and its drivers: jobs, provider facts, and the state machines that a driver returns for
//! jobs.
//!
//! A driver needs this crate and `nodepool-model`, and no other part of Nodepool.

pub mod call_guard;
pub mod cloud_resource;
pub mod driver;
pub mod error;
pub mod facts;
pub mod full_places;
pub mod health;
pub mod instance;
pub mod job;
pub mod simple;
pub mod simple_adapter;
mod simple_launch;
mod simple_machine;
pub mod state_machine;
