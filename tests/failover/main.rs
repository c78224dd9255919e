//! Failover: another launcher or ZooKeeper server continues the work of one that fails. Real processes: launchers,
//! Apache ZooKeeper and the simulated cloud.

mod launcher;
mod two_launchers;
mod zookeeper;
