//! Single-task wake-up, cheaper than a channel when many tasks are notified of each new snapshot.

use std::task::Waker;

use futures::task::AtomicWaker;

#[derive(Debug, Default)]
pub struct WakeSignal(AtomicWaker);

impl WakeSignal {
    /// The task checks its condition after this call, and registers again before each further wait.
    pub fn register(&self, waker: &Waker) {
        self.0.register(waker);
    }

    pub fn wake(&self) {
        self.0.wake();
    }
}
