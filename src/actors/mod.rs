//! The cast: actors carry messages and do the I/O that the brains in `policy` asked for.
pub mod clock;
pub mod config_files;
pub mod messages;
pub mod registry;
pub mod dump;
pub mod samples;
pub mod panics;
pub mod shared;
pub mod log;
pub mod pidfile;
pub mod daemon;
pub mod jobs;
pub mod tasks;
pub mod task_manager;
pub mod providers;
