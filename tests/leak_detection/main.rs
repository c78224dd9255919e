//! Leak detection: instances and ports without a record are deleted, and nothing else is.
//!
//! ZooKeeper and the clouds are in memory and time is paused, unless a module says otherwise.

mod decisions;
mod launcher;
mod leaked_ports;
mod model;
mod openstack;
