//! The API: faults before and after calls, dispatch to the actions of EC2, filters, pages, and `/sim`.

pub mod control;
pub mod dispatch;
pub mod filters;
pub mod pages;
pub mod simulation;
pub mod xml;
