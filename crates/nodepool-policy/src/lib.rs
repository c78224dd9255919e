//! Nodepool's decisions: one file per decision, and the state machines, planners and schedulers that the actors drive.

pub mod cleanup;
pub mod images;
pub mod inputs;
pub mod invariants;
pub mod pool;
pub mod provider;
pub mod reload;
pub mod request;
pub mod scheduler;
