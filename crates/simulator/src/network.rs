//! Link between a process and its ZooKeeper server: keeps the order of messages, and may delay them.
//!
//! The server may also lag behind the leader. Then reads, events and results of writes show an older state, each in the
//! order in which it happened. A read returns the state at the time of the last event that was delivered before it.

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

/// Clones share the link.
#[derive(Clone)]
pub struct SimLink(Arc<Mutex<State>>);

struct State {
    rng: StdRng,
    /// Maximum delay of one direction; zero disables delays.
    max_delay: Duration,
    /// Lag of the server behind the leader.
    lag: Duration,
    /// Arrival of the last event of a lagging server at the process.
    last_event: Instant,
    /// Arrival of the last request at the server, and of the last reply or event at the process.
    last_request: Instant,
    last_reply: Instant,
    requests: mpsc::UnboundedSender<(Instant, Delivery)>,
}

type Delivery = Pin<Box<dyn Future<Output = ()> + Send>>;

impl SimLink {
    pub fn new(seed: u64) -> Self {
        let (requests, mut waiting) = mpsc::unbounded::<(Instant, Delivery)>();
        // Delivers the requests one after the other, in the order in which they were sent.
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

    /// Sets the lag of the server. The caller makes reads return a state of that age.
    pub fn set_lag(&self, lag: Duration) {
        let mut state = self.0.lock().unwrap();
        state.last_event = state.last_event.max(state.last_reply);
        state.last_reply = state.last_event;
        state.lag = lag;
    }

    /// Whether the link has neither delay nor lag.
    pub fn is_undelayed(&self) -> bool {
        let state = self.0.lock().unwrap();
        state.max_delay.is_zero() && state.lag.is_zero()
    }

    pub fn lag(&self) -> Duration {
        self.0.lock().unwrap().lag
    }

    /// Ends the delay, if it is still `max_delay`.
    pub fn clear_delay(&self, max_delay: Duration) {
        let mut state = self.0.lock().unwrap();
        if state.max_delay == max_delay {
            state.max_delay = Duration::ZERO;
        }
    }

    /// Sends a request, which takes effect on arrival, and returns its reply after the way back. A request in flight
    /// takes effect even if its caller no longer waits.
    pub fn transmit<T: Send + 'static>(
        &self,
        kind: RequestKind,
        send: impl FnOnce() -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let Some(arrival) = self.0.lock().unwrap().next_request_arrival() else { return send() };
        let (reply_sender, reply_receiver) = oneshot::channel();
        let link = self.clone();
        let delivery = async move {
            let processed_at = link.0.lock().unwrap().processed_at(kind);
            sleep_until(processed_at).await;
            // The request takes effect here, before the next one; its reply may be later than theirs.
            let earliest = link.0.lock().unwrap().earliest_reply(kind);
            let reply = send();
            tokio::spawn(async move {
                let result = reply.await;
                let back = link.0.lock().unwrap().next_reply_arrival(earliest);
                sleep_until(back).await;
                let _ = reply_sender.send(result);
            });
        };
        let _ = self.0.lock().unwrap().requests.unbounded_send((arrival, Box::pin(delivery)));
        Box::pin(async move { reply_receiver.await.unwrap_or(Err(ZkError::SessionExpired)) })
    }

    /// A listener for the events of the server, and the stream of these events as they arrive at the process.
    pub fn events(&self) -> (Listener, BoxStream<'static, WatchEvent>) {
        let (stamped, arriving) = mpsc::unbounded();
        let link = self.clone();
        let listener = Box::new(move |event| {
            let back = link.0.lock().unwrap().next_event_arrival();
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

/// Kind of a request, which determines when the server answers it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Answered by the server itself.
    Read,
    /// Answered after the server received the result from the leader.
    Write,
}

/// Addition to the lag, so that a lagging server also shows changes from the time of a request.
const TICK: Duration = Duration::from_millis(1);

impl State {
    fn is_lagging(&self) -> bool {
        !self.lag.is_zero()
    }

    /// Time at which the server processes a request. On a lagging server a read waits for the results of earlier
    /// writes.
    fn processed_at(&self, kind: RequestKind) -> Instant {
        if self.is_lagging() && kind == RequestKind::Read { self.last_reply } else { Instant::now() }
    }

    /// Earliest time of the reply.
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

    /// `None` if the link is empty in both directions and undelayed: the request takes effect and is answered at once.
    fn next_request_arrival(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.last_request = self.last_request.max(self.delayed(now));
        let is_empty = self.last_request.max(self.last_reply).max(self.last_event) <= now;
        (!is_empty || self.is_lagging()).then_some(self.last_request)
    }

    fn next_reply_arrival(&mut self, earliest: Instant) -> Instant {
        if !self.is_lagging() {
            self.last_reply = self.last_reply.max(self.last_event);
        }
        self.last_reply = self.last_reply.max(self.delayed(earliest));
        self.last_reply
    }
}
