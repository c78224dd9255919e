//! ZooKeeper model: records of nodes, a mirror that lags behind, and a backup.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use nodepool_model::records::ids::NodeId;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::{Snapshot, Versioned};

/// A node's record with the index of its lifetime: numbers may be reissued, lifetimes are unique.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRecord {
    pub lifetime: usize,
    pub state: NodeState,
    pub external_id: Option<String>,
}

impl NodeRecord {
    pub fn node(&self) -> Node {
        let mut node = Node::new(self.state, Timestamp(1.0));
        node.provider = Some(super::cloud::PROVIDER.into());
        if let Some(id) = &self.external_id {
            node.external_id = id.as_str().into();
        }
        node
    }
}

pub fn id_of(number: u64) -> NodeId {
    NodeId::from(format!("{number:010}"))
}

/// The current state, or a backup.
#[derive(Clone, Debug, Default)]
pub struct StoreState {
    pub records: BTreeMap<u64, NodeRecord>,
    /// The number of the next node.
    pub next_number: u64,
}

/// ZooKeeper and a lagging mirror of it.
#[derive(Default)]
pub struct ZooKeeperModel {
    pub state: StoreState,
    pub mirror: Snapshot,
    changes: VecDeque<(u64, Option<NodeRecord>)>,
    zxid: i64,
}

impl ZooKeeperModel {
    pub fn create(&mut self, record: NodeRecord) -> u64 {
        let number = self.state.next_number;
        self.state.next_number += 1;
        self.set(number, record);
        number
    }

    pub fn set(&mut self, number: u64, record: NodeRecord) {
        self.state.records.insert(number, record.clone());
        self.changes.push_back((number, Some(record)));
    }

    pub fn remove(&mut self, number: u64) {
        self.state.records.remove(&number);
        self.changes.push_back((number, None));
    }

    /// Applies up to this many changes to the mirror.
    pub fn deliver_changes(&mut self, max_changes: usize) {
        for _ in 0..max_changes {
            let Some((number, record)) = self.changes.pop_front() else { return };
            self.zxid += 1;
            match record {
                Some(record) => {
                    let stored =
                        Versioned { record: Arc::new(record.node()), version: 0, mzxid: self.zxid, mtime_ms: 0 };
                    self.mirror.put_node(id_of(number), stored);
                }
                None => self.mirror.remove_node(&id_of(number)),
            }
        }
    }

    /// Starts a new session with a current snapshot.
    pub fn connect(&mut self) {
        self.changes.clear();
        self.mirror = Snapshot::default();
        self.mirror.connected = true;
        let records = self.state.records.iter().map(|(number, record)| (*number, Some(record.clone())));
        self.changes.extend(records);
        self.deliver_changes(usize::MAX);
    }
}
