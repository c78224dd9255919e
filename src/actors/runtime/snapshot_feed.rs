//! Watch channel of the newest snapshot over all sessions, for read-only consumers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};

use nodepool_driver::facts::ProviderFacts;
use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::Snapshot;
use nodepool_policy::backing::status::BackingNodeStatus;
use nodepool_zk::mirror::mirror::{Mirror, Subscription, TransitionBatch};

/// Maximum number of batches that a subscriber of transitions may lag behind.
const MAX_TRANSITION_BATCHES: usize = 4096;

/// Feed to which each session attaches its mirror. Between two sessions, the last snapshot of the previous one stays
/// available.
#[derive(Clone)]
pub struct SnapshotFeed {
    published: watch::Sender<Option<Subscription>>,
    transitions: Arc<Mutex<Option<mpsc::Sender<TransitionBatch>>>>,
    facts: Arc<Mutex<FactsReceivers>>,
    backing_nodes: Arc<Mutex<BackingNodes>>,
    slow_deletions: Arc<Mutex<SlowDeletions>>,
}

/// Deletions that something in the cloud holds up: since when, and by what.
pub type SlowDeletions = BTreeMap<ProviderName, Vec<(Timestamp, String)>>;

/// Backing nodes of the metastatic providers.
pub type BackingNodes = BTreeMap<ProviderName, Vec<BackingNodeStatus>>;

type FactsReceivers = BTreeMap<ProviderName, watch::Receiver<Arc<ProviderFacts>>>;

impl Default for SnapshotFeed {
    fn default() -> Self {
        Self {
            published: watch::Sender::new(None),
            transitions: Arc::default(),
            facts: Arc::default(),
            backing_nodes: Arc::default(),
            slow_deletions: Arc::default(),
        }
    }
}

impl SnapshotFeed {
    /// Called at the start of a session.
    pub fn attach_session(&self, mirror: &Mirror) {
        if let Some(sender) = &*self.transitions.lock().unwrap_or_else(PoisonError::into_inner) {
            mirror.stream_transitions(sender.clone());
        }
        self.publish(mirror.subscribe());
    }

    fn publish(&self, published: Subscription) {
        self.published.send_replace(Some(published));
    }

    /// Every transition of every session that starts from now on. Only the latest subscriber receives them.
    pub fn subscribe_transitions(&self) -> mpsc::Receiver<TransitionBatch> {
        let (sender, receiver) = mpsc::channel(MAX_TRANSITION_BATCHES);
        *self.transitions.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Called when the set of running providers changes.
    pub fn set_facts(&self, facts: FactsReceivers) {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = facts;
    }

    /// The current facts of each running provider.
    pub fn facts(&self) -> BTreeMap<ProviderName, Arc<ProviderFacts>> {
        let facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        facts.iter().map(|(name, facts)| (name.clone(), facts.borrow().clone())).collect()
    }

    pub fn set_backing_nodes(&self, backing_nodes: BackingNodes) {
        *self.backing_nodes.lock().unwrap_or_else(PoisonError::into_inner) = backing_nodes;
    }

    pub fn set_slow_deletions(&self, deletions: SlowDeletions) {
        *self.slow_deletions.lock().unwrap_or_else(PoisonError::into_inner) = deletions;
    }

    pub fn slow_deletions(&self) -> SlowDeletions {
        self.slow_deletions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn backing_nodes(&self) -> BackingNodes {
        self.backing_nodes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `None` before the first session.
    pub fn latest(&self) -> Option<Arc<Snapshot>> {
        self.published.borrow().as_ref().map(|published| published.latest())
    }

    pub fn subscribe(&self) -> SnapshotStream {
        SnapshotStream { sessions: self.published.subscribe(), published: None }
    }
}

/// Snapshots over all sessions, one after each change.
pub struct SnapshotStream {
    sessions: watch::Receiver<Option<Subscription>>,
    published: Option<Subscription>,
}

impl SnapshotStream {
    /// Waits for a snapshot that was not returned before; changes in quick succession are coalesced.
    pub async fn next(&mut self) -> Arc<Snapshot> {
        loop {
            let Some(published) = &mut self.published else {
                self.wait_for_session().await;
                break;
            };
            tokio::select! {
                biased;
                changed = published.changed() => match changed {
                    Ok(()) => break,
                    // The mirror has stopped; the next session attaches another one.
                    Err(_) => self.published = None,
                },
                _ = self.sessions.changed() => {
                    self.published = None;
                    self.sessions.mark_changed();
                }
            }
        }
        let published = self.published.as_mut().expect("the loop ends only with a subscription");
        published.latest_and_mark_seen()
    }

    async fn wait_for_session(&mut self) {
        while self.published.is_none() {
            if self.sessions.changed().await.is_err() {
                // The feed was dropped: no session can be attached any more.
                std::future::pending::<()>().await;
            }
            self.published = self.sessions.borrow_and_update().clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::runtime::Handle;

    use super::*;
    use nodepool_model::records::json;
    use nodepool_model::records::node::{Node, NodeState};
    use nodepool_model::records::time::Timestamp;
    use nodepool_zk::memory::MemoryZooKeeper;
    use nodepool_zk::{Zk, paths};
    use zookeeper_server::types::CreateMode;

    async fn session(zookeeper: &MemoryZooKeeper) -> Mirror {
        Mirror::start(zookeeper.connect(), &Handle::current()).await.unwrap()
    }

    async fn add_node(zk: &Zk) {
        let record = Bytes::from(json::to_bytes(&Node::new(NodeState::Ready, Timestamp(1.0))));
        zk.create(&paths::node_prefix(), record, CreateMode::PersistentSequential).await.unwrap();
    }

    async fn wait_for_nodes(stream: &mut SnapshotStream, number: usize) {
        while stream.next().await.node_count() != number {}
    }

    #[tokio::test]
    async fn stream_follows_each_session_and_its_changes() {
        let zookeeper = MemoryZooKeeper::new();
        let other: Zk = zookeeper.connect();
        let feed = SnapshotFeed::default();
        let mut stream = feed.subscribe();
        assert!(feed.latest().is_none());
        let first = session(&zookeeper).await;
        feed.attach_session(&first);
        wait_for_nodes(&mut stream, 0).await;
        add_node(&other).await;
        wait_for_nodes(&mut stream, 1).await;
        drop(first);
        add_node(&other).await;
        assert_eq!(feed.latest().unwrap().node_count(), 1, "the last snapshot stays available");
        let second = session(&zookeeper).await;
        feed.attach_session(&second);
        wait_for_nodes(&mut stream, 2).await;
        add_node(&other).await;
        wait_for_nodes(&mut stream, 3).await;
    }
}
