//! A builder's tree of actors, with its ZooKeeper and its clouds in memory.

#[path = "images/builds.rs"]
mod builds;
#[path = "images/cleanup.rs"]
mod cleanup;
mod in_process_launcher;
mod in_process_builder;
#[path = "images/uploads.rs"]
mod uploads;
