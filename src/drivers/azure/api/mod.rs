//! Requests to the Resource Manager: as data, their credentials, and the errors and parts of the answers.

pub mod api_types;
pub mod calls;
pub mod client;
pub mod credentials;
pub mod errors;
