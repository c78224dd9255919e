//! The HTTP side: receives calls, tells services apart, checks signatures and sends responses.

pub mod call;
pub mod credentials;
pub mod encoding;
pub mod form;
pub mod http;
pub mod response;
pub mod signature;
