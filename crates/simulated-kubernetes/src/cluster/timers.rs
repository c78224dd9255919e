//! The timers of the controllers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Work that is due at a time. Names are those of objects, and the uid tells a later object of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    FillSecret {
        namespace: String,
        name: String,
        uid: String,
    },
    /// The token secret that the cluster itself creates for an account.
    CreateAccountSecret {
        namespace: String,
        account: String,
        uid: String,
    },
    CreateDefaultAccounts {
        namespace: String,
        uid: String,
    },
    /// The step with this number of the plan of a pod.
    PodStep {
        uid: String,
        number: u64,
    },
    ClearNamespace {
        name: String,
        uid: String,
    },
    FinishNamespace {
        name: String,
        uid: String,
    },
}

#[derive(Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(Duration, u64, Work)>>,
    count: u64,
}

impl Timers {
    pub fn add(&mut self, due: Duration, work: Work) {
        self.count += 1;
        self.heap.push(Reverse((due, self.count, work)));
    }

    pub fn next_due(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse((due, _, _))| *due)
    }

    /// The next work that is due, with its time.
    pub fn pop_due(&mut self, now: Duration) -> Option<(Duration, Work)> {
        if self.next_due()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((due, _, work))| (due, work))
    }

    /// Removes all work that `is_obsolete`.
    pub fn remove(&mut self, is_obsolete: impl Fn(&Work) -> bool) {
        self.heap.retain(|Reverse((_, _, work))| !is_obsolete(work));
    }

    pub fn clear(&mut self) {
        self.heap.clear();
    }
}
