//! The state behind the APIs: resources in tables, their lives, quotas, timers, history and counters.

pub mod counters;
pub mod fixtures;
pub mod floating_ip_steps;
pub mod history;
pub mod ids;
pub mod image_steps;
pub mod instance;
pub mod instance_steps;
pub mod operating_systems;
pub mod profiles;
pub mod table;
pub mod volume;
pub mod work;
pub mod world;
