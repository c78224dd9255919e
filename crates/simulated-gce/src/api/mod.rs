//! The API: faults before and after calls, tokens, dispatch to methods, filters, pages, and `/sim`.

pub mod control;
pub mod dispatch;
pub mod filter;
pub mod lists;
pub mod simulation;
