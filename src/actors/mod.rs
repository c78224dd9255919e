//! The cast: actors carry messages and do the I/O that the brains in `policy` asked for.

pub mod builder;
pub mod launcher;
pub mod process;
pub mod provider;
pub mod runtime;
pub mod telemetry;
pub mod web;
