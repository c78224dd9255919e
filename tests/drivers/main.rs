//! Drivers: their common contract, each driver by itself, out-of-tree drivers, and the TaskManager that calls them.

mod contract;
mod example_driver;
mod fake_servers;
mod notifications;
mod out_of_tree;
mod static_driver;
mod task_manager;
