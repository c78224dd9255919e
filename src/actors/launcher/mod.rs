//! The launcher: its root actor and one worker per duty.

pub mod backing_worker;
pub mod cleanup_worker;
pub(crate) mod deletions;
pub(crate) mod label_status_log;
pub mod launcher;
pub mod leak_worker;
pub(crate) mod pool_launches;
mod pool_registration;
pub mod pool_worker;
pub(crate) mod request_lease;
pub mod slot_board;
pub mod stats_worker;
