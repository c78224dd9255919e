//! The common parts of simulated clouds: ports, connections, knobs, faults, latencies, throttling and timers.

pub mod faults;
pub mod knobs;
pub mod latency;
pub mod port;
pub mod server;
pub mod throttle;
pub mod timers;
