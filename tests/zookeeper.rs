//! The client, its locks and its stores, on Apache ZooKeeper, the embedded server and the in-memory store.

mod embedded_zk;
#[path = "zookeeper/huge_trees.rs"]
mod huge_trees;
#[path = "zookeeper/locks_in_memory.rs"]
mod locks_in_memory;
#[path = "zookeeper/locks_on_zookeeper.rs"]
mod locks_on_zookeeper;
#[path = "zookeeper/memory_store.rs"]
mod memory_store;
#[path = "zookeeper/misbehaving_servers.rs"]
mod misbehaving_servers;
#[path = "zookeeper/session.rs"]
mod session;
#[path = "zookeeper/store_contract.rs"]
mod store_contract;
mod support;
#[path = "zookeeper/tls.rs"]
mod tls;
mod zk_contract;
