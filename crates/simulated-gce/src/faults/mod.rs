//! Fault injection: faults of calls and of operations, the reasons of errors, and the knobs that control them.

pub mod codes;
pub mod fault;
pub mod knobs;
pub mod operation_fault;
pub mod places;
