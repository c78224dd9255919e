//! Requests to IBM Cloud and their responses: the VPC API, resource groups, tokens, and Cloud Object Storage.

pub mod api_types;
pub mod calls;
pub mod client;
pub mod credentials;
pub mod errors;
pub mod properties;
pub mod transfer;
