//! The keys of each driver's section, as tables.

pub mod azure;
pub mod common;
pub mod pods;
pub mod virtual_machines;
