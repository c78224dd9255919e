//! What to do about it: one file per decision, then the brains that the actors carry.
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
