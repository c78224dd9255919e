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
pub struct SimLink(Arc<Mutex<State>>);

struct State {
    rng: StdRng,
    /// The longest time for one way; none where it takes no time.
    max_delay: Duration,
    /// By how much the server is behind.
    lag: Duration,
    /// When the last event of a server that is behind gets back.
    last_event: Instant,
    /// When the last request gets there, and the last answer or event back.
    last_request: Instant,
    last_reply: Instant,
    requests: mpsc::UnboundedSender<(Instant, Delivery)>,
}

type Delivery = Pin<Box<dyn Future<Output = ()> + Send>>;

impl SimLink {
    pub fn new(seed: u64) -> Self {
        let (requests, mut waiting) = mpsc::unbounded::<(Instant, Delivery)>();
        // One after the other, as they were written.
        tokio::spawn(async move {
            while let Some((at, delivery)) = waiting.next().await {
                sleep_until(at).await;
                delivery.await;
            }
        });
        let now = Instant::now();
        let rng = StdRng::seed_from_u64(seed);
        let state = State {
            rng,
            max_delay: Duration::ZERO,
            lag: Duration::ZERO,
            last_event: now,
            last_request: now,
            last_reply: now,
            requests,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    pub fn set_max_delay(&self, max_delay: Duration) {
        self.0.lock().unwrap().max_delay = max_delay;
    }

    /// From now on the server is so much behind; who sets it lets what is read be as old.
    pub fn set_lag(&self, lag: Duration) {
        let mut state = self.0.lock().unwrap();
        state.last_event = state.last_event.max(state.last_reply);
        state.last_reply = state.last_event;
        state.lag = lag;
    }

    /// Nothing takes any time on it.
    pub fn is_undelayed(&self) -> bool {
        let state = self.0.lock().unwrap();
        state.max_delay.is_zero() && state.lag.is_zero()
    }

    pub fn lag(&self) -> Duration {
        self.0.lock().unwrap().lag
    }

    /// It takes no time any more, if it took as much as that.
    pub fn clear_delay(&self, slowness: Duration) {
        let mut state = self.0.lock().unwrap();
        if state.max_delay == slowness {
            state.max_delay = Duration::ZERO;
        }
    }

    /// Makes a request when it gets there, and hands its answer on when that gets back. What is on its way goes on though nobody waits.
    pub fn transmit<T: Send + 'static>(
        &self,
        kind: RequestKind,
        send: impl FnOnce() -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let Some(arrival) = self.0.lock().unwrap().next_request_arrival() else { return send() };
        let (reply_sender, reply_receiver) = oneshot::channel();
        let wire = self.clone();
        let delivery = async move {
            let processed_at = wire.0.lock().unwrap().processed_at(kind);
            sleep_until(processed_at).await;
            // It takes effect here, and the next one after it; its answer is another matter.
            let earliest = wire.0.lock().unwrap().earliest_reply(kind);
            let reply = send();
            tokio::spawn(async move {
                let result = reply.await;
                let back = wire.0.lock().unwrap().next_reply_arrival(earliest);
                sleep_until(back).await;
                let _ = reply_sender.send(result);
            });
        };
        let _ = self.0.lock().unwrap().requests.unbounded_send((arrival, Box::pin(delivery)));
        Box::pin(async move { reply_receiver.await.unwrap_or(Err(ZkError::SessionExpired)) })
    }

    /// Who hears of events when they are sent, and the events as they get back.
    pub fn events(&self) -> (Listener, BoxStream<'static, WatchEvent>) {
        let (stamped, arriving) = mpsc::unbounded();
        let wire = self.clone();
        let listener = Box::new(move |event| {
            let back = wire.0.lock().unwrap().next_event_arrival();
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
pub enum RequestKind {
    /// Answered by the server itself.
    Read,
    /// Answered when the server has heard from the leader what came of it.
    Write,
}

/// After a moment a server that was behind shows what happened then.
const TICK: Duration = Duration::from_millis(1);

impl State {
    fn is_lagging(&self) -> bool {
        !self.lag.is_zero()
    }

    /// When a server that is behind gets to a request: a read waits for what came of the writes before it.
    fn processed_at(&self, kind: RequestKind) -> Instant {
        if self.is_lagging() && kind == RequestKind::Read { self.last_reply } else { Instant::now() }
    }

    /// When it may be answered.
    fn earliest_reply(&mut self, kind: RequestKind) -> Instant {
        let now = Instant::now();
        if self.is_lagging() && kind == RequestKind::Write {
            self.last_reply = self.last_reply.max(now + self.lag + TICK);
            return self.last_reply;
        }
        now
    }

    fn next_event_arrival(&mut self) -> Instant {
        if !self.is_lagging() {
            return self.next_reply_arrival(Instant::now());
        }
        self.last_event = self.last_event.max(self.delayed(Instant::now() + self.lag + TICK));
        self.last_event
    }

    fn delayed(&mut self, now: Instant) -> Instant {
        if self.max_delay.is_zero() { now } else { now + self.max_delay.mul_f64(self.rng.r#gen()) }
    }

    /// None where nothing is on the wire, and it takes no time.
    fn next_request_arrival(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.last_request = self.last_request.max(self.delayed(now));
        (self.last_request > now || self.is_lagging()).then_some(self.last_request)
    }

    fn next_reply_arrival(&mut self, earliest: Instant) -> Instant {
        if !self.is_lagging() {
            self.last_reply = self.last_reply.max(self.last_event);
        }
        self.last_reply = self.last_reply.max(self.delayed(earliest));
        self.last_reply
    }
}
