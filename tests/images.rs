//! The actors of a builder, with ZooKeeper and the clouds in memory.

#[path = "images/builds.rs"]
mod builds;
#[path = "images/cleanup.rs"]
mod cleanup;
mod in_process_builder;
mod in_process_launcher;
#[path = "images/uploads.rs"]
mod uploads;
