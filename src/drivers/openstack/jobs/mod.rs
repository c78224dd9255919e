//! One state machine per kind of job.

pub(crate) mod delete;
pub(crate) mod image_stream;
pub(crate) mod import;
pub(crate) mod launch;
pub(crate) mod listing;
pub(crate) mod refresh;
pub(crate) mod unused_resources;
pub(crate) mod upload;
