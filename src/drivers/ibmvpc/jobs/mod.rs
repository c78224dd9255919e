//! State machines of this driver, one per kind of job.

pub mod delete;
pub mod images;
pub mod launch;
pub mod listing;
pub mod refresh;
pub mod unused_resources;
pub mod upload;
