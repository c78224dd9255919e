//! Persistent watches that outlive a connection: one list per session, added again on every new connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures::stream::{BoxStream, StreamExt};
use tokio::sync::mpsc;

use zookeeper_server::types::{EventKind, WatchEvent};

/// Maximum backlog of a reader. A slower one receives one `Resync` in place of the events that no longer fit.
const MAX_BACKLOG: usize = 100_000;

/// The sending half of one watch's stream.
#[derive(Clone)]
pub struct Events {
    path: Arc<str>,
    sender: mpsc::Sender<WatchEvent>,
    missed: Arc<AtomicBool>,
    established: Arc<AtomicBool>,
}

impl Events {
    pub fn channel(path: &str) -> (Events, BoxStream<'static, WatchEvent>) {
        Self::with_limit(path, MAX_BACKLOG)
    }

    fn with_limit(path: &str, limit: usize) -> (Events, BoxStream<'static, WatchEvent>) {
        let (sender, mut receiver) = mpsc::channel(limit);
        let missed = Arc::new(AtomicBool::new(false));
        let events = Events { path: path.into(), sender, missed: missed.clone(), established: Arc::default() };
        let path = path.to_owned();
        let stream = futures::stream::poll_fn(move |context| {
            if missed.swap(false, Ordering::AcqRel) {
                // The reader re-reads everything; older events would be mistaken for later changes.
                while receiver.try_recv().is_ok() {}
                return std::task::Poll::Ready(Some(resync(&path)));
            }
            receiver.poll_recv(context)
        });
        (events, stream.boxed())
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn push(&self, event: WatchEvent) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(event) {
            // The queue is full, so the reader polls again and observes the flag.
            self.missed.store(true, Ordering::Release);
        }
    }

    /// Records that the server has the watch. Every later connection adds it before any other request.
    pub fn set_established(&self) {
        self.established.store(true, Ordering::Release);
    }

    pub fn is_established(&self) -> bool {
        self.established.load(Ordering::Acquire)
    }

    pub fn resync(&self) {
        self.push(resync(&self.path));
    }

    /// Resolves when the stream is dropped.
    pub async fn reader_dropped(&self) {
        self.sender.closed().await;
    }

    pub fn is_reader_dropped(&self) -> bool {
        self.sender.is_closed()
    }
}

fn resync(path: &str) -> WatchEvent {
    WatchEvent { kind: EventKind::Resync, path: path.to_owned() }
}

/// All persistent watches of a session.
#[derive(Default)]
pub struct Watches {
    list: Mutex<Vec<Events>>,
}

impl Watches {
    pub fn add(&self, events: Events) {
        let mut list = self.lock();
        list.retain(|watch| !watch.is_reader_dropped());
        list.push(events);
    }

    pub fn current(&self) -> Vec<Events> {
        let mut list = self.lock();
        list.retain(|watch| !watch.is_reader_dropped());
        list.clone()
    }

    /// Ends every stream after its last queued event, because the session has ended.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Events>> {
        // A panic while the list is locked leaves a valid list.
        self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(path: &str) -> WatchEvent {
        WatchEvent { kind: EventKind::Created, path: path.to_owned() }
    }

    #[tokio::test]
    async fn a_slow_reader_receives_a_resync() {
        let (events, mut stream) = Events::with_limit("/w", 2);
        for name in ["/w/1", "/w/2", "/w/3"] {
            events.push(created(name));
        }
        assert_eq!(stream.next().await, Some(resync("/w")));
        events.push(created("/w/4"));
        assert_eq!(stream.next().await, Some(created("/w/4")));
    }

    #[tokio::test]
    async fn streams_end_with_the_session_and_unread_ones_are_forgotten() {
        let watches = Watches::default();
        let (events, mut stream) = Events::channel("/w");
        watches.add(events);
        let (unread, dropped) = Events::channel("/v");
        watches.add(unread);
        drop(dropped);
        assert_eq!(watches.current().len(), 1);
        watches.current()[0].resync();
        watches.clear();
        assert_eq!(stream.next().await, Some(resync("/w")));
        assert_eq!(stream.next().await, None);
    }
}
