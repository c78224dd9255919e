//! A provider: the order of its API calls, the refreshes of its facts, and the health of its cloud.

pub mod health;
pub mod refresh_schedule;
pub mod task_queue;
