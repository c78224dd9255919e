//! OpenStack driver: nodes, faults and the contract of the API. Launchers run in the test's process, on a ZooKeeper in
//! memory and in real time; the simulated cloud is a process of its own.
//!
//! OS_CLIENT_CONFIG_FILE and OS_CLOUD name a real cloud for the cases that can run on one. Without both variables, only
//! the simulated cloud is used.

mod bad_hour;
mod cloud;
mod contract;
mod faults;
mod limits;
mod logins;
mod nodes;
mod oddities;
mod rejections;
mod simulated;
mod timings;
mod uploads;
