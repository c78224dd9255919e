//! The HTTP side: receiving calls, telling operations apart, responses and errors.

pub mod call;
pub mod http;
pub mod response;
pub mod routes;
