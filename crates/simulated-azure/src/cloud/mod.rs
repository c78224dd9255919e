//! The state: resources, operations, usages, addresses, history and counters.

pub mod cloud;
pub mod counters;
pub mod history;
pub mod operations;
pub mod resources;
pub mod sizes;
pub mod table;
pub mod tokens;
pub mod usage;
pub mod work;
