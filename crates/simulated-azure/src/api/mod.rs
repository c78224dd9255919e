//! The calls: faults before and after them, authentication, dispatch, lists, and `/sim`.

pub mod authentication;
pub mod control;
pub mod dispatch;
pub mod interventions;
pub mod lists;
pub mod simulation;
pub mod state;
