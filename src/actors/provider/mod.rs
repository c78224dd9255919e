//! The actors between workers and a driver: one TaskManager per provider, and its clients.

pub(crate) mod failed_providers;
pub(crate) mod fence;
pub mod jobs;
pub mod one_shot_provider;
pub mod provider_client;
pub mod providers;
pub mod task_manager;
pub mod tasks;
mod tasks_view;
