//! State machines of the jobs.

pub mod delete;
pub mod launch;
pub mod listing;
pub mod watch;
