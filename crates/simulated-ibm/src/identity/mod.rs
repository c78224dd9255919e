//! Tokens and the token endpoint.

pub mod token_endpoint;
pub mod tokens;
