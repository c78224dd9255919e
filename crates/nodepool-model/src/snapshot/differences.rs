//! Differences between two snapshots. Parts that both share are not compared.

use std::collections::BTreeSet;

use imbl::ordmap::DiffItem;

use super::{LockState, Snapshot};
use crate::records::ids::{NodeId, RequestId};

/// A lock that changed between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockChange<I> {
    pub id: I,
    pub before: LockState,
    pub after: LockState,
}

impl Snapshot {
    /// Nodes whose record or lock was created, changed or deleted since an older snapshot.
    pub fn nodes_changed_since(&self, older: &Snapshot) -> BTreeSet<NodeId> {
        let records = older.nodes.diff(&self.nodes).map(key_of);
        records.chain(older.node_locks.diff(&self.node_locks).map(key_of)).collect()
    }

    pub fn requests_changed_since(&self, older: &Snapshot) -> BTreeSet<RequestId> {
        older.requests.diff(&self.requests).map(key_of).collect()
    }

    pub fn node_locks_changed_since(&self, older: &Snapshot) -> Vec<LockChange<NodeId>> {
        let changed = older.node_locks.diff(&self.node_locks).map(key_of);
        let change = |id| LockChange { before: older.node_lock(&id).clone(), after: self.node_lock(&id).clone(), id };
        changed.map(change).collect()
    }

    pub fn request_locks_changed_since(&self, older: &Snapshot) -> Vec<LockChange<RequestId>> {
        let changed = older.request_locks.diff(&self.request_locks).map(key_of);
        let change =
            |id| LockChange { before: older.request_lock(&id).clone(), after: self.request_lock(&id).clone(), id };
        changed.map(change).collect()
    }
}

fn key_of<K: Clone, V>(item: DiffItem<'_, '_, K, V>) -> K {
    match item {
        DiffItem::Add(key, _) | DiffItem::Remove(key, _) | DiffItem::Update { new: (key, _), .. } => key.clone(),
    }
}
