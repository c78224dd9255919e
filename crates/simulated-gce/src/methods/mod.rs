//! The methods of the API.

pub mod details;
pub mod disks;
pub mod fields;
pub mod images;
pub mod insert;
pub mod instances;
pub mod interfaces;
pub mod known_fields;
pub mod operations;
pub mod places;
pub mod requests;
pub mod scheduling;
pub mod spec;
