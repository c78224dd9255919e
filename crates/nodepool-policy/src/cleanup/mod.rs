//! Clean-up: static hosts, deletions, leaked instances, and the rules of garbage collection.

pub mod leaks;
pub mod planner;
pub mod rules;
pub mod slots;
pub mod static_hosts;
pub mod unused_resources;
