//! Imperative shell: actors that exchange messages and perform the effects of the functional core (`nodepool-policy`).

pub mod builder;
pub mod launcher;
pub mod process;
pub mod provider;
pub mod runtime;
pub mod telemetry;
pub mod web;
