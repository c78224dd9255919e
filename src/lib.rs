//! Nodepool: hands short-lived test machines to CI systems.
//!
//! This crate contains the imperative shell: actors on actix. They feed events to the functional core
//! (`nodepool-policy`), which decides on the records of `nodepool-model`, and perform its effects through `nodepool-zk`
//! and `nodepool-drivers`. See `doc/architecture.md`.

pub mod actors;
