//! The APIs: faults before and after calls, tokens, versions, dispatch to operations, pages, and `/sim`.

pub mod control;
pub mod dispatch;
pub mod interventions;
pub mod lists;
pub mod simulation;
pub mod versions;
