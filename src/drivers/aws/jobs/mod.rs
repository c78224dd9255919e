//! State machines of the jobs of an aws provider.

pub mod delete;
pub mod images;
pub mod import_wait;
pub mod launch;
pub mod listing;
pub mod refresh;
pub mod unused_resources;
pub mod upload;
