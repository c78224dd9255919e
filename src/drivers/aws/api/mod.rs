//! The API of AWS: its calls as data, their responses and errors, and the client that signs and sends them.

pub mod api_types;
pub mod calls;
pub mod client;
pub mod credentials;
pub mod errors;
pub mod form;
pub mod transfer;
