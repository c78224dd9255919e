//! The state: the objects of each region, the addresses, limits, history and counters.

pub mod counters;
pub mod fixtures;
pub mod history;
pub mod host_quotas;
pub mod instance;
pub mod instance_types;
pub mod limits;
pub mod objects;
pub mod quotas;
pub mod region;
pub mod table;
pub mod tags;
pub mod work;
pub mod world;
