//! State machines of the jobs.

pub mod delete;
pub mod delete_pod;
pub mod launch;
pub mod launch_pod;
pub mod listing;
mod lost;
mod marks;
mod pod_wait;
pub mod refresh;
pub mod watch;
