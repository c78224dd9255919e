//! Timers: work that is due at a time after the start of the simulation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

pub struct Timers<W> {
    heap: BinaryHeap<Reverse<(Duration, u64, W)>>,
    count: u64,
}

impl<W: Ord> Default for Timers<W> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), count: 0 }
    }
}

impl<W: Ord> Timers<W> {
    pub fn add(&mut self, due: Duration, work: W) {
        self.count += 1;
        self.heap.push(Reverse((due, self.count, work)));
    }

    pub fn next_due(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse((due, _, _))| *due)
    }

    /// The next work that is due, with its time.
    pub fn pop_due(&mut self, now: Duration) -> Option<(Duration, W)> {
        if self.next_due()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((due, _, work))| (due, work))
    }

    /// Removes all work that `is_obsolete`.
    pub fn remove(&mut self, is_obsolete: impl Fn(&W) -> bool) {
        self.heap.retain(|Reverse((_, _, work))| !is_obsolete(work));
    }

    pub fn clear(&mut self) {
        self.heap.clear();
    }
}
