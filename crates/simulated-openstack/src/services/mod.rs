//! The API of each service: what it checks, in its order and words.

pub mod compute;
pub mod create_server;
pub mod discovery;
pub mod identity;
pub mod image;
pub mod listing;
pub mod network;
pub mod server;
pub mod volume;
