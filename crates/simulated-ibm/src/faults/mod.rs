//! Fault injection: faults of calls, of launches and of image imports, the codes of errors, and the knobs that control
//! them.

pub mod codes;
pub mod fault;
pub mod knobs;
pub mod outcome_fault;
pub mod places;
