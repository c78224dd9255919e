//! Processes: start, stop, signals, daemons, service managers, packages, logs and panics. Most tests run the real
//! programs, with an embedded coordinator in the test's process as ZooKeeper. `tests/run` provides the programs that
//! some tests need.

mod config_changes;
mod daemonize;
mod full_disks;
mod lifecycle;
mod log_lifecycle;
mod package;
mod package_systemd;
mod panics;
mod standalone;
mod systemd_notify;
