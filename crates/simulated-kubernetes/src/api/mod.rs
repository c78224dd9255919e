//! The API: routes, verbs, validation, access rules, and the calls to the simulation itself.

pub mod control;
pub mod discovery;
pub mod dispatch;
pub mod openshift;
pub mod pods;
pub mod read;
pub mod scope;
pub mod selectors;
pub mod simulation;
pub mod validation;
pub mod watch;
pub mod write;
