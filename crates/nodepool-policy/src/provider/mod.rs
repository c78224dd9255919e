//! Schedules of a provider: the order of its API calls, and the refreshes of its facts.

pub mod refresh_schedule;
pub mod task_queue;
