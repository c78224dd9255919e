//! The builder: its root actor, the workers that build, upload and delete images, and their shared work queue.

pub mod build_job;
pub mod build_worker;
pub mod builder;
pub(crate) mod fake_dib;
pub mod image_cleanup_worker;
pub(crate) mod image_deletion;
pub(crate) mod upload_job;
pub mod upload_worker;
pub mod work_queue;
pub(crate) mod write_retry;
