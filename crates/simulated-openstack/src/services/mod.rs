//! The API of each service, with its checks in its order and with its messages.

pub mod compute;
pub mod create_server;
pub mod discovery;
pub mod identity;
pub mod image;
pub mod listing;
pub mod network;
pub mod server;
pub mod volume;
