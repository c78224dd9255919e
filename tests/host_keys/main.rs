//! Host keys: scans of SSH servers, checks of static hosts, and the keys in the records of nodes.
//!
//! ZooKeeper is in memory, and time is real unless all hosts are fake. Tests on a real sshd run only with `tests/run`.

mod connection_types;
mod openstack;
mod scan;
mod static_hosts;
