//! The HTTP side: receiving calls, telling methods apart, responses and errors.

pub mod call;
pub mod http;
pub mod response;
