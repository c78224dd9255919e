//! The actions of EC2.

pub mod fleets;
pub mod hosts;
pub mod images;
pub mod import_tasks;
pub mod instances;
pub mod key_pairs;
pub mod launch;
pub mod launch_templates;
pub mod places;
pub mod resource_tags;
pub mod run_instances;
pub mod snapshots;
pub mod types;
pub mod volumes;
