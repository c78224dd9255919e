//! The state: projects with their instances and operations, images, quotas, timers, history and counters.

pub mod counters;
pub mod history;
pub mod images;
pub mod instance;
pub mod instance_steps;
pub mod machine_types;
pub mod operation;
pub mod places;
pub mod project;
pub mod quotas;
pub mod work;
pub mod world;
