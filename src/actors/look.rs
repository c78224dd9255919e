//! When to look: after a change of the snapshot or the facts, but never so often that looking is all there is to do.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::model::cloud::Facts;
use crate::model::snapshot::Snapshot;
use crate::policy::board::Board;
use crate::zk::mirror::Mirror;

/// After a look that took some time, so many times that time belongs to others: under load changes gather, and one look
/// takes in all of them.
const REST: u32 = 3;

/// Timers end on whole milliseconds: a shorter rest would become ten times as long, and delay whoever asks next.
const WORTH_A_TIMER: Duration = Duration::from_micros(500);

/// The rest of an actor whose work nobody waits for by the millisecond, but for which many changes come together.
pub const A_MOMENT: Duration = Duration::from_millis(1);

/// The least rest of an actor for which nobody waits: the first change is looked at when it comes, those that follow
/// it closely are looked at together, or each of them would wake a thread.
pub const UNHURRIED: Duration = Duration::from_millis(20);

/// The changes that an actor looks at.
#[derive(Clone)]
pub struct Changes {
    mirror: Arc<Mirror>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    facts: Vec<watch::Receiver<Arc<Facts>>>,
    /// What the pools show each other, for those who mind.
    board: Option<watch::Receiver<Board>>,
    nudge: Arc<Notify>,
}

impl Changes {
    pub fn new(mirror: Arc<Mirror>) -> Self {
        Self { snapshots: mirror.subscribe(), mirror, facts: Vec::new(), board: None, nudge: Arc::new(Notify::new()) }
    }

    /// Looks at these facts from now on, and at once.
    pub fn follow(&mut self, facts: Vec<watch::Receiver<Arc<Facts>>>) {
        self.facts = facts;
        self.nudge();
    }

    /// Looks at what the pools show each other, too, and at what is there already.
    pub fn follow_board(&mut self, mut board: watch::Receiver<Board>) {
        board.mark_changed();
        self.board = Some(board);
    }

    /// What the pools show each other, if that changed since this was last asked.
    pub fn new_board(&mut self) -> Option<watch::Ref<'_, Board>> {
        let board = self.board.as_mut().filter(|board| board.has_changed().unwrap_or(false))?;
        Some(board.borrow_and_update())
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.mirror.snapshot()
    }

    /// A short look at the picture as it is now.
    pub fn look<T>(&self, at: impl FnOnce(&Snapshot) -> T) -> T {
        self.mirror.look(at)
    }

    /// As of the last publication, perhaps without the newest of our own writes.
    pub fn published(&self) -> Arc<Snapshot> {
        self.snapshots.borrow().clone()
    }

    /// What is there now is about to be looked at; only what comes later is a change.
    pub fn mark_seen(&mut self) {
        // What was folded in since the last publication is part of what is looked at.
        self.mirror.snapshot();
        self.snapshots.mark_unchanged();
        for facts in &mut self.facts {
            facts.mark_unchanged();
        }
    }

    /// An answer came, which may have freed something.
    pub fn nudge(&self) {
        self.nudge.notify_one();
    }

    /// Resolves when there is something to look at that was not marked as seen when this was called. A source that has
    /// ended is silent.
    pub async fn next(mut self) {
        let nudge = self.nudge.clone();
        let facts = self.facts.iter_mut().map(|facts| {
            Box::pin(async move {
                if facts.changed().await.is_err() {
                    futures::future::pending::<()>().await;
                }
            })
        });
        let facts: Vec<_> = facts.collect();
        let any_shown = async {
            let Some(board) = &mut self.board else { return futures::future::pending().await };
            if board.changed().await.is_err() {
                futures::future::pending::<()>().await;
            }
        };
        let any_facts = async {
            if facts.is_empty() {
                futures::future::pending::<()>().await;
            } else {
                futures::future::select_all(facts).await;
            }
        };
        tokio::select! {
            biased;
            changed = self.snapshots.changed() => if changed.is_err() {
                futures::future::pending::<()>().await;
            },
            () = any_facts => {}
            () = any_shown => {}
            () = nudge.notified() => {}
        }
    }
}

/// How long to rest after a look that began then; `None` where that is not worth a timer.
pub fn rest_after(began: Instant) -> Option<Duration> {
    Some(began.elapsed() * REST).filter(|rest| *rest >= WORTH_A_TIMER)
}
