//! Sinks of log lines: files with rotation, streams, syslog.

pub mod file;
pub mod schedule;
pub mod sink;
pub mod syslog;
