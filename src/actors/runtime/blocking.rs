//! Blocking work: file operations, on threads that may block.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static RUN_INLINE: Cell<bool> = const { Cell::new(false) };
}

/// From now on, blocking work of this thread runs inline: threads would make a simulation non-deterministic.
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
    done.unwrap_or_else(|error| Err(format!("blocking task failed: {error}")))
}

/// Signals work on a thread to stop when its result is no longer awaited.
#[derive(Default)]
pub struct StopOnDrop(pub Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
