//! The embedded server: protocol, files, and clients.

#[path = "zookeeper_server/client.rs"]
mod client;
mod embedded_zk;
#[path = "zookeeper_server/kazoo.rs"]
mod kazoo;
#[path = "zookeeper_server/store.rs"]
mod store;
mod support;
#[path = "zookeeper_server/wire.rs"]
mod wire;
