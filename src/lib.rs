//! Nodepool: hands short-lived test machines to CI systems.
//!
//! Workers think in plain functions; actors only carry messages and do the I/O that the thinking
//! asked for. The layers, from the top: `actors` (the only place that knows actix), then `drivers`
//! and `zk` (the outside world, blind to each other), then `policy` (decisions), then `model`
//! (data). Dependencies point down only; `tests/tidy.rs` enforces it. See `doc/architecture.md`.

pub mod model;
pub mod policy;
pub mod chance;
pub mod drivers;
pub mod zk;
pub mod actors;
