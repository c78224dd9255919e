//! Writes: each one transaction that carries its own conditions, or a chunked write if one transaction is too small.

pub mod backing;
pub(crate) mod chunked_writes;
pub(crate) mod decline_batch;
pub mod delete_tree;
pub mod image_build;
pub mod image_upload;
pub mod launch;
pub mod store;
