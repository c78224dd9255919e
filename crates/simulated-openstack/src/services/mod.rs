//! The API of each service, with the checks of the real service in the same order and with the same messages.

pub mod catalog;
pub mod compute;
pub mod create_server;
pub mod discovery;
pub mod identity;
pub mod identity_v2;
pub mod image;
pub mod listing;
pub mod network;
pub mod server;
pub mod volume;
