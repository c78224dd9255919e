//! Load: requests by the thousand over few sessions, with the transactions that Zuul issues. The soak test and the
//! benchmarks share it.

pub mod consumer;
pub mod process;
