//! Embedded server: protocol, files, clients, crashes, and a comparison with Apache ZooKeeper.

mod client;
mod crash;
mod kazoo;
mod store;
mod traces;
mod wire;
