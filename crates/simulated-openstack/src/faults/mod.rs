//! What can be made to go wrong, and the knobs that do it.

pub mod corrupt;
pub mod fault;
pub mod knobs;
pub mod latency;
