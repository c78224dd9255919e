//! Which API call of a provider starts next, and when its facts are refreshed.

pub mod refresh_schedule;
pub mod task_queue;
