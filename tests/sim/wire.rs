//! The wire between a process and its server of ZooKeeper, which keeps the order of what is on it, and may be slow.
//!
//! A server may be behind the leader as well. Then it shows everything a while later: what it is asked, its events, and what came of
//! writes, each in the order in which it happened. What is read was true when the events that have been heard by then happened.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::channel::mpsc;
use futures::stream::{BoxStream, StreamExt};
use nodepool_zk::Reply;
use nodepool_zk::memory::Listener;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use zookeeper_server::types::{WatchEvent, ZkError};

/// Clones are the same wire.
#[derive(Clone)]
pub struct Wire(Arc<Mutex<State>>);

struct State {
    dice: StdRng,
    /// The longest time for one way; none where it takes no time.
    slowness: Duration,
    /// By how much the server is behind.
    lag: Duration,
    /// When the last event of a server that is behind gets back.
    told: Instant,
    /// When the last request gets there, and the last answer or event back.
    there: Instant,
    back: Instant,
    requests: mpsc::UnboundedSender<(Instant, Errand)>,
}

type Errand = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Wire {
    pub fn new(seed: u64) -> Self {
        let (requests, mut waiting) = mpsc::unbounded::<(Instant, Errand)>();
        // One after the other, as they were written.
        tokio::spawn(async move {
            while let Some((at, errand)) = waiting.next().await {
                sleep_until(at).await;
                errand.await;
            }
        });
        let now = Instant::now();
        let dice = StdRng::seed_from_u64(seed);
        let state =
            State { dice, slowness: Duration::ZERO, lag: Duration::ZERO, told: now, there: now, back: now, requests };
        Self(Arc::new(Mutex::new(state)))
    }

    pub fn set_slowness(&self, slowness: Duration) {
        self.0.lock().unwrap().slowness = slowness;
    }

    /// From now on the server is so much behind; who sets it lets what is read be as old.
    pub fn set_lag(&self, lag: Duration) {
        let mut state = self.0.lock().unwrap();
        state.told = state.told.max(state.back);
        state.back = state.told;
        state.lag = lag;
    }

    /// Nothing takes any time on it.
    pub fn is_quick(&self) -> bool {
        let state = self.0.lock().unwrap();
        state.slowness.is_zero() && state.lag.is_zero()
    }

    pub fn lag(&self) -> Duration {
        self.0.lock().unwrap().lag
    }

    /// It takes no time any more, if it took as much as that.
    pub fn end_slowness(&self, slowness: Duration) {
        let mut state = self.0.lock().unwrap();
        if state.slowness == slowness {
            state.slowness = Duration::ZERO;
        }
    }

    /// Makes a request when it gets there, and hands its answer on when that gets back. What is on its way goes on though nobody waits.
    pub fn carry<T: Send + 'static>(&self, kind: Kind, ask: impl FnOnce() -> Reply<T> + Send + 'static) -> Reply<T> {
        let Some(there) = self.0.lock().unwrap().next_there() else { return ask() };
        let (answer, answered) = oneshot::channel();
        let wire = self.clone();
        let errand = async move {
            let after = wire.0.lock().unwrap().after(kind);
            sleep_until(after).await;
            // It takes effect here, and the next one after it; its answer is another matter.
            let earliest = wire.0.lock().unwrap().earliest(kind);
            let reply = ask();
            tokio::spawn(async move {
                let result = reply.await;
                let back = wire.0.lock().unwrap().next_back(earliest);
                sleep_until(back).await;
                let _ = answer.send(result);
            });
        };
        let _ = self.0.lock().unwrap().requests.unbounded_send((there, Box::pin(errand)));
        Box::pin(async move { answered.await.unwrap_or(Err(ZkError::SessionExpired)) })
    }

    /// Who hears of events when they are sent, and the events as they get back.
    pub fn events(&self) -> (Listener, BoxStream<'static, WatchEvent>) {
        let (stamped, arriving) = mpsc::unbounded();
        let wire = self.clone();
        let listener = Box::new(move |event| {
            let back = wire.0.lock().unwrap().next_event();
            stamped.unbounded_send((back, event)).is_ok()
        });
        let arrive = |(back, event)| async move {
            if back > Instant::now() {
                sleep_until(back).await;
            }
            event
        };
        (listener, arriving.then(arrive).boxed())
    }
}

/// What a request is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Answered by the server itself.
    Read,
    /// Answered when the server has heard from the leader what came of it.
    Write,
}

/// After a moment a server that was behind shows what happened then.
const TICK: Duration = Duration::from_millis(1);

impl State {
    fn is_behind(&self) -> bool {
        !self.lag.is_zero()
    }

    /// When a server that is behind gets to a request: a read waits for what came of the writes before it.
    fn after(&self, kind: Kind) -> Instant {
        if self.is_behind() && kind == Kind::Read { self.back } else { Instant::now() }
    }

    /// When it may be answered.
    fn earliest(&mut self, kind: Kind) -> Instant {
        let now = Instant::now();
        if self.is_behind() && kind == Kind::Write {
            self.back = self.back.max(now + self.lag + TICK);
            return self.back;
        }
        now
    }

    fn next_event(&mut self) -> Instant {
        if !self.is_behind() {
            return self.next_back(Instant::now());
        }
        self.told = self.told.max(self.way(Instant::now() + self.lag + TICK));
        self.told
    }

    fn way(&mut self, now: Instant) -> Instant {
        if self.slowness.is_zero() { now } else { now + self.slowness.mul_f64(self.dice.r#gen()) }
    }

    /// None where nothing is on the wire, and it takes no time.
    fn next_there(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.there = self.there.max(self.way(now));
        (self.there > now || self.is_behind()).then_some(self.there)
    }

    fn next_back(&mut self, earliest: Instant) -> Instant {
        if !self.is_behind() {
            self.back = self.back.max(self.told);
        }
        self.back = self.back.max(self.way(earliest));
        self.back
    }
}
