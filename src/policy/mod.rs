//! What to do about it: one file per decision, then the brains that the actors carry.
//!
//! The order below is the order of dependency: a file uses only files above it.

pub mod machine;
pub mod taskqueue;
pub mod surveys;
pub mod reason;
pub mod matching;
pub mod tenants;
pub mod board;
pub mod bidder;
pub mod room;
pub mod allocate;
pub mod verdicts;
pub mod launch;
pub mod reload;
pub mod request_handler;
pub mod left;
mod node_changes;
mod part;
pub mod assembly;
pub mod pool;
mod taking;
mod eviction;
mod waiting;
mod builds;
mod adoption;
mod pool_view;
pub mod ready;
pub mod slots;
pub mod standing;
pub mod sweep;
pub mod upkeep;
pub mod leaks;
pub mod bake;
pub mod spread;
pub mod retire;
pub mod invariants;
pub mod image_invariants;
