//! Work that asks the disk, on threads that may wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub async fn on_a_thread_that_may_wait<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(format!("the thread for files ended: {error}")))
}

/// Tells work on a thread to stop when nobody waits for it any more.
#[derive(Default)]
pub struct StopOnDrop(pub Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
