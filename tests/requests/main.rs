//! Node requests, from submission to fulfilment or failure: in whole launchers, and in their decisions alone.
//!
//! ZooKeeper and the clouds are in memory and time is paused, unless a module says otherwise.

mod adoption;
mod capacity;
mod decisions;
mod eviction;
mod fake_nodes;
mod hostile_requests;
mod late_write_replies;
mod launched_nodes;
mod min_ready;
mod node_records;
mod pool_harness;
mod pools;
mod quotas;
mod reload;
mod reload_in_place;
mod static_nodes;
mod transactions;
