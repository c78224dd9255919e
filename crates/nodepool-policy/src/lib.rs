//! Functional core: Nodepool's decisions, one file per decision, and the state machines, planners and schedulers that
//! actors run. Nothing here performs I/O, reads a clock, uses random numbers or logs: all inputs are arguments.

pub mod backing;
pub mod cleanup;
pub mod images;
pub mod inputs;
pub mod invariants;
pub mod pool;
pub mod provider;
pub mod reload;
pub mod request;
pub mod scheduler;
