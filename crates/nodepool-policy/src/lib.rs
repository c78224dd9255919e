//! Nodepool's decisions: one file per decision, and the state machines, planners and schedulers that the actors drive.
//!
//! The order below is the order of dependency: a file uses only files above it.

pub mod cleanup;
pub mod images;
pub mod inputs;
pub mod invariants;
pub mod provider;
pub mod request;
pub mod scheduler;

pub mod reload;
pub mod pool;
