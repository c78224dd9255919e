//! Panics: notifies the root of an actor tree of a panicked actor, and counts panics to detect too many.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use nodepool_model::records::time::{MonotonicTime, Seconds};

/// Number of panics in the window at which the process exits instead of restarting the tree. The service manager then
/// takes over.
pub const MAX_PANICS: usize = 5;
const PANIC_WINDOW: Seconds = Seconds(600.0);

/// Detects panics of the actors of one tree. The root awaits it, the actors hold its guards.
#[derive(Clone)]
pub struct PanicWatch {
    first: watch::Sender<Option<String>>,
}

/// A field of every long-lived actor. Actix drops a panicked actor without notification; the guard notifies the root.
pub struct PanicGuard {
    actor: String,
    first: watch::Sender<Option<String>>,
}

impl PanicWatch {
    pub fn new() -> Self {
        Self { first: watch::Sender::new(None) }
    }

    pub fn guard(&self, actor: impl Into<String>) -> PanicGuard {
        PanicGuard { actor: actor.into(), first: self.first.clone() }
    }

    /// Resolves with the name of the actor that panicked first; the tree must be stopped then.
    pub async fn panicked(&self) -> String {
        let mut receiver = self.first.subscribe();
        let name = receiver.wait_for(Option::is_some).await.expect("this watch holds a sender");
        name.clone().expect("wait_for returned a name")
    }
}

impl Default for PanicWatch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let actor = std::mem::take(&mut self.actor);
            self.first.send_if_modified(|first| match first {
                Some(_) => false,
                None => {
                    *first = Some(actor);
                    true
                }
            });
        }
    }
}

/// Panics of the process, over all sessions.
#[derive(Default)]
pub struct PanicCounter {
    times: Mutex<VecDeque<MonotonicTime>>,
    total: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Start a new actor tree.
    Restart,
    /// After five panics in ten minutes: end the process.
    Exit,
}

impl PanicCounter {
    pub fn record(&self, now: MonotonicTime) -> Recovery {
        self.total.fetch_add(1, Ordering::Relaxed);
        let mut at = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        at.push_back(now);
        while at.front().is_some_and(|first| now - *first > PANIC_WINDOW) {
            at.pop_front();
        }
        if at.len() >= MAX_PANICS { Recovery::Exit } else { Recovery::Restart }
    }

    /// Number of panics since the start.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Number of panics in the ten minutes before the latest one.
    pub fn count(&self) -> usize {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix::{Actor, Context, Handler};

    use crate::actors::runtime::messages::Dump;

    struct PanickingActor {
        _guard: PanicGuard,
    }
    impl Actor for PanickingActor {
        type Context = Context<Self>;
    }
    impl Handler<Dump> for PanickingActor {
        type Result = Option<serde_json::Value>;

        fn handle(&mut self, _: Dump, _: &mut Self::Context) -> Self::Result {
            panic!("a broken assertion")
        }
    }

    #[tokio::test]
    async fn the_root_receives_the_name_of_the_panicked_actor() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let watch = PanicWatch::new();
                let actor = PanickingActor { _guard: watch.guard("PoolWorker cloud-a/main") }.start();
                assert!(actor.send(Dump).await.is_err());
                assert_eq!(watch.panicked().await, "PoolWorker cloud-a/main");
            })
            .await;
    }

    #[test]
    fn normal_stop_is_not_reported() {
        let watch = PanicWatch::new();
        drop(watch.guard("PoolWorker cloud-a/main"));
        assert_eq!(*watch.first.borrow(), None);
    }

    #[test]
    fn five_panics_in_ten_minutes_are_too_many() {
        let counter = PanicCounter::default();
        let verdicts = [0.0, 100.0, 200.0, 300.0].map(|at| counter.record(MonotonicTime::at(at)));
        assert_eq!(verdicts, [Recovery::Restart; 4]);
        // The first has left the window of ten minutes, the fifth in the window follows.
        assert_eq!(counter.record(MonotonicTime::at(601.0)), Recovery::Restart);
        assert_eq!(counter.record(MonotonicTime::at(602.0)), Recovery::Exit);
    }
}
