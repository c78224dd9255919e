//! State machines of the jobs.

pub mod delete;
pub mod images;
pub mod launch;
pub mod listing;
pub mod operation;
pub mod refresh;
pub mod unused_resources;
pub mod upload;
