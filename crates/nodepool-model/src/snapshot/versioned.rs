//! Elements of snapshots: a record with its version, a change of a record, and the state of a lock.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::records::ids::{NodeId, RequestId};
use crate::records::node::Node;
use crate::records::request::NodeRequest;

/// A record with its znode's version and times.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned<T> {
    pub record: Arc<T>,
    pub version: i32,
    /// Transaction that wrote it last.
    pub mzxid: i64,
    /// Time of that write, in milliseconds since the epoch by ZooKeeper's clock.
    pub mtime_ms: i64,
}

/// The new record, and the version that it is based on: the write fails if the record changed since.
#[derive(Clone, Debug, PartialEq)]
pub struct Change<I, T> {
    pub id: I,
    pub record: T,
    pub version: i32,
}

pub type NodeChange = Change<NodeId, Node>;
pub type RequestChange = Change<RequestId, NodeRequest>;

/// The change of a node whose lock has this holder, by the name of its contender.
#[derive(Clone, Debug, PartialEq)]
pub struct LockedChange {
    pub node: NodeChange,
    pub holder: String,
}

impl<T: Clone> Versioned<T> {
    /// A copy to be changed and written back.
    pub fn change<I>(&self, id: I, edit: impl FnOnce(&mut T)) -> Change<I, T> {
        let mut record = T::clone(&self.record);
        edit(&mut record);
        Change { id, record, version: self.version }
    }
}

/// Reason of a failed write, by its consequence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The decision was based on a stale snapshot. Nothing was written; decide again.
    #[error("the record changed since it was read")]
    Conflict,
    /// Nothing was written; retry after the lock is released.
    #[error("locked by another process")]
    Contended,
    /// The outcome is unknown; the next snapshot shows it.
    #[error("{0}")]
    Failed(String),
    #[error("the ZooKeeper session has expired")]
    SessionOver,
}

/// A lock directory: absent, or existing with its contenders. An empty directory differs from an absent one for a
/// transaction that has to prove that the lock is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockState {
    pub exists: bool,
    /// Usually one or none. A persistent set would allocate a whole tree node even for one.
    pub contenders: BTreeSet<String>,
    /// Time of the last change of the directory, in milliseconds since the epoch, if it was read.
    pub mtime_ms: i64,
}

static ABSENT: LockState = LockState { exists: false, contenders: BTreeSet::new(), mtime_ms: 0 };

impl LockState {
    /// The state of an absent directory.
    pub fn absent() -> &'static Self {
        &ABSENT
    }

    pub fn is_held(&self) -> bool {
        !self.contenders.is_empty()
    }

    /// Name of the contender that holds the lock: the one with the lowest sequence number.
    pub fn holder(&self) -> Option<&String> {
        self.contenders.iter().min_by_key(|name| name.rsplit("__lock__").next())
    }
}
