//! Work that asks the disk, on threads that may wait for it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static RUN_INLINE: Cell<bool> = const { Cell::new(false) };
}

/// From here on what this thread asks the disk it waits for itself: a simulation is the same each time, and threads never are.
pub fn run_blocking_inline() {
    RUN_INLINE.set(true);
}

pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    if RUN_INLINE.get() {
        return work();
    }
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
