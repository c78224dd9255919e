//! Command `nodepool`: its output, its exit statuses, and its effects on ZooKeeper.

mod clouds;
mod commands;
mod completions_and_man;
mod golden;
mod reference;
mod watch;
