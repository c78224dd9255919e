//! A record with its version, a change of one, and who contends for a lock: what pictures of ZooKeeper are made of.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::records::ids::{NodeId, RequestId};
use crate::records::node::Node;
use crate::records::request::NodeRequest;

/// A record with what ZooKeeper knows about its znode.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned<T> {
    pub record: Arc<T>,
    pub version: i32,
    /// Transaction that wrote it last.
    pub mzxid: i64,
    /// When that was, in milliseconds since the epoch by ZooKeeper's clock.
    pub mtime_ms: i64,
}

/// A record as it shall be, and the version it was made from: the write fails if somebody else was faster.
#[derive(Clone, Debug, PartialEq)]
pub struct Change<I, T> {
    pub id: I,
    pub record: T,
    pub version: i32,
}

pub type NodeChange = Change<NodeId, Node>;
pub type RequestChange = Change<RequestId, NodeRequest>;

impl<T: Clone> Versioned<T> {
    /// A copy to be changed and written back.
    pub fn change<I>(&self, id: I, edit: impl FnOnce(&mut T)) -> Change<I, T> {
        let mut record = T::clone(&self.record);
        edit(&mut record);
        Change { id, record, version: self.version }
    }
}

/// Why a write of ours did not happen, by what follows from it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The picture it was decided on was old. Nothing was written; decide again.
    #[error("somebody else changed it first")]
    Conflict,
    /// Nothing was written; the holder of the lock will be done some time.
    #[error("locked by somebody else")]
    Contended,
    /// Perhaps written, perhaps not; the next picture tells.
    #[error("{0}")]
    Failed(String),
    #[error("the ZooKeeper session is over")]
    SessionOver,
}

/// A lock directory: absent, or there with its contenders. Empty and there is not the same as absent for a
/// transaction that has to prove that nobody contends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockState {
    pub exists: bool,
    /// One or none, mostly, for which a persistent set takes a page.
    pub contenders: BTreeSet<String>,
    /// Milliseconds since the epoch at which the directory changed last, where it was read.
    pub mtime_ms: i64,
}

static ABSENT: LockState = LockState { exists: false, contenders: BTreeSet::new(), mtime_ms: 0 };

impl LockState {
    /// Of a directory that is not there.
    pub fn absent() -> &'static Self {
        &ABSENT
    }

    pub fn is_held(&self) -> bool {
        !self.contenders.is_empty()
    }
}
