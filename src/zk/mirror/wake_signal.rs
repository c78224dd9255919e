//! A bell that wakes one task, as often as it is rung; cheaper than a channel where many are told that there is something new to see.

use std::task::Waker;

use futures::task::AtomicWaker;

#[derive(Debug, Default)]
pub struct WakeSignal(AtomicWaker);

impl WakeSignal {
    /// Whoever listens looks after this, and before it sleeps again.
    pub fn register(&self, waker: &Waker) {
        self.0.register(waker);
    }

    pub fn wake(&self) {
        self.0.wake();
    }
}
