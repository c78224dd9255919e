//! The one thread that owns tree and store: takes what is queued, applies it, commits once, lets the answers go.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::client_connection::Outbox;
use crate::coordinator::{Action, Coordinator, Input, LinkId, Moment, Output};
use crate::store::{Store, StoreError};

/// The most that goes into one commit; it keeps the answers of a flood from piling up.
const BATCH_LIMIT: usize = 4_096;

/// What reaches the engine.
pub enum Message {
    Opened { link: LinkId, outbox: Outbox },
    Input(Input),
    Stats(oneshot::Sender<ServerStats>),
}

/// Figures for the four-letter words.
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
    outboxes: BTreeMap<LinkId, Outbox>,
    now_ms: fn() -> i64,
    start: Instant,
    received: u64,
    sent: u64,
    commits: u64,
}

impl Engine {
    pub fn new(store: Store, tree: crate::tree::Tree, now_ms: fn() -> i64) -> Self {
        let start = Instant::now();
        let coordinator = Coordinator::new(tree, Moment { wall_ms: now_ms(), passed_ms: 0 });
        Self { coordinator, store, outboxes: BTreeMap::new(), now_ms, start, received: 0, sent: 0, commits: 0 }
    }

    /// Runs until every sender of the inbox is gone, or the disk fails. After a failure nothing is answered any more:
    /// memory is ahead of the disk, and only a restart brings them together.
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
        // Who has nothing to write in this batch is answered first and does not wait for the disk.
        let mut writers = BTreeSet::new();
        let (mut later, mut ticks) = (Vec::new(), 0);
        for message in batch {
            match message {
                Message::Opened { link, outbox } => drop(self.outboxes.insert(link, outbox)),
                Message::Stats(reply) => drop(reply.send(self.stats())),
                Message::Input(input) => match input {
                    Input::Call { link, ref call } if !call.request.changes() && !writers.contains(&link) => {
                        self.coordinator.handle(input, now);
                    }
                    Input::Hello { link, .. } | Input::Call { link, .. } | Input::Gone { link } => {
                        writers.insert(link);
                        later.push(input);
                    }
                    // Whoever has sent something until now is not missing.
                    Input::Tick => ticks += 1,
                },
            }
        }
        self.send_outputs();
        for input in later {
            let gone = if let Input::Gone { link } = input { Some(link) } else { None };
            self.coordinator.handle(input, now);
            if let Some(link) = gone {
                self.outboxes.remove(&link);
            }
        }
        if ticks > 0 {
            self.coordinator.handle(Input::Tick, now);
        }
        let touched = self.coordinator.take_touched();
        if !touched.is_empty() {
            self.store.commit(self.coordinator.tree(), &touched)?;
            self.commits += 1;
        }
        self.send_outputs();
        Ok(())
    }

    fn send_outputs(&mut self) {
        for Output { link, action } in self.coordinator.take_outputs() {
            let Some(outbox) = self.outboxes.get(&link) else { continue };
            self.sent += 1;
            let flow = match action {
                Action::Reply(frame) => outbox.reply(frame),
                Action::Event(frame) => outbox.event(frame),
                Action::LastReply(frame) => outbox.last_reply(frame),
                Action::HangUp(reason) => outbox.hang_up(reason),
            };
            if flow.is_break() {
                self.outboxes.remove(&link);
            }
        }
    }

    fn now(&self) -> Moment {
        let passed_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        Moment { wall_ms: (self.now_ms)(), passed_ms }
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
