//! HTTP: receiving requests, their targets, versions of the API, and responses.

pub mod call;
pub mod http;
pub mod response;
pub mod target;
pub mod versions;
