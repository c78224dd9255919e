//! The thread that owns tree and store: takes the queued messages, applies them, commits once, sends the replies.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::client_connection::SendHandle;
use crate::coordinator::{Action, Coordinator, Input, LinkId, OpTime, Output};
use crate::store::{Store, StoreError};

/// Maximum messages per commit, so that replies do not accumulate in a flood of requests.
const BATCH_LIMIT: usize = 4_096;

/// Messages to the engine.
pub enum Message {
    Opened { link: LinkId, send_handle: SendHandle },
    Input(Input),
    Stats(oneshot::Sender<ServerStats>),
}

/// Statistics for the four-letter words.
#[derive(Clone, Debug, Default)]
pub struct ServerStats {
    pub zxid: i64,
    pub znodes: usize,
    pub watches: usize,
    pub ephemerals: usize,
    pub sessions: usize,
    pub connections: usize,
    pub received: u64,
    pub sent: u64,
    pub commits: u64,
}

pub struct Engine {
    coordinator: Coordinator,
    store: Store,
    send_handles: BTreeMap<LinkId, SendHandle>,
    now_ms: fn() -> i64,
    start: Instant,
    received: u64,
    sent: u64,
    commits: u64,
}

impl Engine {
    pub fn new(store: Store, tree: crate::tree::Tree, now_ms: fn() -> i64) -> Self {
        let start = Instant::now();
        let coordinator = Coordinator::new(tree, OpTime { wall_ms: now_ms(), passed_ms: 0 });
        Self { coordinator, store, send_handles: BTreeMap::new(), now_ms, start, received: 0, sent: 0, commits: 0 }
    }

    /// Runs until every sender of the inbox is dropped or the disk fails. After a failure no request is answered:
    /// memory is ahead of the disk, and only a restart makes them consistent.
    pub fn run(mut self, mut inbox: mpsc::Receiver<Message>) -> Result<(), StoreError> {
        while let Some(first) = inbox.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < BATCH_LIMIT
                && let Ok(next) = inbox.try_recv()
            {
                batch.push(next);
            }
            self.received += batch.len() as u64;
            self.process_batch(batch)?;
        }
        Ok(())
    }

    fn process_batch(&mut self, batch: Vec<Message>) -> Result<(), StoreError> {
        let now = self.now();
        // Reads that follow no write of their connection in this batch are answered first and do not wait for the disk.
        let mut writers = BTreeSet::new();
        let (mut later, mut ticks) = (Vec::new(), 0);
        for message in batch {
            match message {
                Message::Opened { link, send_handle } => drop(self.send_handles.insert(link, send_handle)),
                Message::Stats(reply) => drop(reply.send(self.stats())),
                Message::Input(input) => match input {
                    Input::Call { link, ref call } if !call.request.changes() && !writers.contains(&link) => {
                        self.coordinator.handle(input, now);
                    }
                    Input::Connect { link, .. } | Input::Call { link, .. } | Input::Disconnected { link } => {
                        writers.insert(link);
                        later.push(input);
                    }
                    // Handled last, so that every message received until now extends its session.
                    Input::Tick => ticks += 1,
                },
            }
        }
        self.send_outputs();
        for input in later {
            let disconnected = if let Input::Disconnected { link } = input { Some(link) } else { None };
            self.coordinator.handle(input, now);
            if let Some(link) = disconnected {
                self.send_handles.remove(&link);
            }
        }
        if ticks > 0 {
            self.coordinator.handle(Input::Tick, now);
        }
        let dirty_keys = self.coordinator.take_dirty_keys();
        if !dirty_keys.is_empty() {
            self.store.commit(self.coordinator.tree(), &dirty_keys)?;
            self.commits += 1;
        }
        self.send_outputs();
        Ok(())
    }

    fn send_outputs(&mut self) {
        for Output { link, action } in self.coordinator.take_outputs() {
            let Some(send_handle) = self.send_handles.get(&link) else { continue };
            self.sent += 1;
            let flow = match action {
                Action::Reply(frame) => send_handle.reply(frame),
                Action::Event(frame) => send_handle.event(frame),
                Action::LastReply(frame) => send_handle.last_reply(frame),
                Action::Disconnect(reason) => send_handle.disconnect(reason),
            };
            if flow.is_break() {
                self.send_handles.remove(&link);
            }
        }
    }

    fn now(&self) -> OpTime {
        let passed_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        OpTime { wall_ms: (self.now_ms)(), passed_ms }
    }

    fn stats(&self) -> ServerStats {
        let tree = self.coordinator.tree();
        ServerStats {
            zxid: tree.last_zxid(),
            znodes: tree.len(),
            watches: tree.watch_count(),
            ephemerals: tree.ephemeral_count(),
            sessions: tree.sessions().count(),
            connections: self.coordinator.connections(),
            received: self.received,
            sent: self.sent,
            commits: self.commits,
        }
    }
}
