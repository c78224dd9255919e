//! Faults of calls and operations, the codes of errors, and the knobs.

pub mod codes;
pub mod fault;
pub mod knobs;
pub mod values;
