//! ZooKeeper: the client, locks, the in-memory store and the embedded server, which fulfil one contract. `tests/run`
//! provides Apache ZooKeeper and kazoo for the tests that need them.

mod client_limits;
mod huge_trees;
mod locks_in_memory;
mod locks_on_zookeeper;
mod memory_store;
mod misbehaving_servers;
mod python_registry;
mod server;
mod session;
mod store_contract;
mod tls;
