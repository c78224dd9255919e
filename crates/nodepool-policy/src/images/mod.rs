//! Images: which are built, which uploads are due, what is deleted.

pub mod build_schedule;
pub mod pending_uploads;
pub mod retention;
