//! The embedded server: its wire, its files, and who speaks to it.

#[path = "embedded/client.rs"]
mod client;
mod coordinator;
#[path = "embedded/kazoo.rs"]
mod kazoo;
#[path = "embedded/store.rs"]
mod store;
mod support;
#[path = "embedded/wire.rs"]
mod wire;
