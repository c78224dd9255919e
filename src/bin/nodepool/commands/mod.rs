//! The subcommands of `nodepool`, one file each.

pub mod admin;
pub mod backing;
pub mod clouds;
pub mod dump;
pub mod generate;
pub mod images;
pub mod launchers;
pub mod nodes;
pub mod request;
pub mod standalone;
pub mod validate;
pub mod watch;
pub mod why;
