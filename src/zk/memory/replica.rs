//! A lagging server: applies every change after a delay.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use zookeeper_server::tree::{Session, Tree, Write};

/// One change of the tree, which a replica applies later.
#[derive(Clone)]
pub enum LogEntry {
    Opened(Session),
    Closed(i64),
    Written { session: i64, now_ms: i64, write: Write },
}

/// The tree as it was `lag` ago.
pub struct Replica {
    tree: Tree,
    lag: Duration,
    pending: VecDeque<(Instant, LogEntry)>,
}

impl Replica {
    pub fn new(tree: &Tree, lag: Duration) -> Self {
        Self { tree: tree.clone(), lag, pending: VecDeque::new() }
    }

    /// Records a change that happens now and becomes visible after the lag.
    pub fn append(&mut self, entry: LogEntry) {
        self.pending.push_back((Instant::now(), entry));
    }

    /// Catches up with the leader.
    pub fn sync(&mut self) {
        while let Some((_, entry)) = self.pending.pop_front() {
            self.apply(entry);
        }
    }

    fn apply(&mut self, entry: LogEntry) {
        // The result is dropped, because the leader has already returned it to the client.
        match entry {
            LogEntry::Opened(session) => drop(self.tree.open_session(session)),
            LogEntry::Closed(session) => drop(self.tree.close_session(session)),
            LogEntry::Written { session, now_ms, write } => drop(self.tree.apply(session, now_ms, write)),
        }
    }

    /// The visible tree: all changes that are older than the lag.
    pub fn view(&mut self) -> &Tree {
        let now = Instant::now();
        while self.pending.front().is_some_and(|(at, _)| *at + self.lag < now)
            && let Some((_, entry)) = self.pending.pop_front()
        {
            self.apply(entry);
        }
        &self.tree
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::Connection;
    use crate::memory::MemoryZooKeeper;
    use zookeeper_server::types::{CreateMode, ZkError};

    #[tokio::test(start_paused = true)]
    async fn a_lagging_server_shows_earlier_state() {
        let zookeeper = MemoryZooKeeper::new();
        let (behind, other) = (zookeeper.connect(), zookeeper.connect());
        let lag = Duration::from_secs(1);
        zookeeper.lag(behind.session_id(), Some(lag));
        other.create("/a", Bytes::from("1"), CreateMode::Persistent).await.unwrap();
        assert_eq!(behind.get("/a").await, Err(ZkError::NoNode));
        tokio::time::sleep(lag / 2).await;
        other.set("/a", Bytes::from("2"), -1).await.unwrap();
        tokio::time::sleep(lag / 2 + Duration::from_millis(1)).await;
        assert_eq!(behind.get("/a").await.unwrap().0, "1");
        assert_eq!(other.get("/a").await.unwrap().0, "2");
        // Its writes are checked against the leader's state.
        assert_eq!(behind.set("/a", Bytes::from("3"), 0).await, Err(ZkError::BadVersion));
        behind.sync("/").await.unwrap();
        assert_eq!(behind.get("/a").await.unwrap().0, "2");
        other.set("/a", Bytes::from("4"), -1).await.unwrap();
        assert_eq!(behind.get("/a").await.unwrap().0, "2");
        zookeeper.lag(behind.session_id(), None);
        assert_eq!(behind.get("/a").await.unwrap().0, "4");
    }
}
