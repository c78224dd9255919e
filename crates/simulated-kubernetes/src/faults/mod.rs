//! Fault injection: the faults, and the knobs that control them.

pub mod fault;
pub mod knobs;
