//! Identity: the key of the service account, tokens, the token endpoint, and the metadata server.

pub mod metadata;
pub mod service_account;
pub mod token_endpoint;
pub mod tokens;
