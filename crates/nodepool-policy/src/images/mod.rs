//! Images: build schedule, pending uploads and retention.

pub mod build_schedule;
pub mod pending_uploads;
pub mod retention;
