//! Fault injection: the faults, the codes of errors, and the knobs that control them.

pub mod codes;
pub mod fault;
pub mod knobs;
pub mod places;
