//! The common parts of simulated clouds: ports, connections, networks, knobs, faults, latencies, times and timers.

pub mod effects;
pub mod faults;
pub mod knobs;
pub mod latency;
pub mod network;
pub mod port;
pub mod seconds;
pub mod server;
pub mod throttle;
pub mod timers;
