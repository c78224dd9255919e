//! The cluster: its objects and their events, and the controllers that change them over time.

pub mod accounts;
pub mod cluster;
pub mod controllers;
pub mod counters;
pub mod fixtures;
pub mod history;
pub mod kubelet;
pub mod namespaces;
pub mod pod_plan;
pub mod quantity;
pub mod quotas;
pub mod resources;
pub mod store;
pub mod timers;
