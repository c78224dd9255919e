//! A process from flags to exit: configuration files, daemon, signals, one actor tree per ZooKeeper session.

pub mod config_files;
pub(crate) mod config_status;
pub(crate) mod config_watch;
pub mod context;
pub mod daemon;
pub(crate) mod file_watch;
pub mod files;
pub mod flags;
pub mod identity;
pub mod logger_names;
pub mod pidfile;
pub mod process;
pub(crate) mod registration;
pub(crate) mod sd_notify;
pub mod signals;
pub mod standalone;
