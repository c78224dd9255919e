//! Locks and elections, compatible with kazoo's.

pub mod election;
pub mod lock;
