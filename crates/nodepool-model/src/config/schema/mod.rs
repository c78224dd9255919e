//! The schema of `nodepool.yaml`: tables of keys, the check against them, and their JSON Schema.

pub mod check;
pub mod descriptions;
pub mod driver_rules;
pub mod dsl;
pub mod json_schema;
pub mod tables;
