//! ZooKeeper as Nodepool sees it: the port (`Connection`) in ZooKeeper's own primitives, and what stands on it.
//!
//! Two things implement the port: the real client (`session.rs`) and a tree in memory (`memory.rs`). Everything
//! above the port is written once and runs on both.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::BoxStream;
use tokio::time::Instant;

pub mod paths;
pub mod records;
mod bulk_images;
pub mod bulk;
mod echoes;
pub mod bell;
pub mod mirror;
pub mod lock;
pub mod removal;
mod declines;
pub mod txn;
pub mod builds;
pub mod uploads;
mod large;
pub mod launches;
pub mod scan;
pub mod transfer;
pub mod tree;
pub mod memory;
pub mod embedded;
pub mod session;
pub mod election;

/// An answer that is under way. The request is sent when the method is called, not when this is polled, so several
/// calls made one after another reach the server in that order without waiting for each other.
pub type Reply<T> = BoxFuture<'static, Result<T, ZkError>>;

/// Bytes of records, paths and proofs of nodes in one transaction, with room for the request: servers refuse 1 MiB.
pub const LARGEST_TRANSACTION: usize = 900_000;

/// ZooKeeper's primitives on one session. All paths are absolute and relative to the chroot.
pub trait Connection: Send + Sync + 'static {
    fn get(&self, path: &str) -> Reply<(Bytes, Stat)>;
    /// What `get` says of each, in their order; one request, where the connection is to a server. For paths that are
    /// known to be well formed.
    fn get_many(&self, paths: &[String]) -> Reply<Vec<Result<(Bytes, Stat), ZkError>>> {
        let replies: Vec<_> = paths.iter().map(|path| self.get(path)).collect();
        join_all(replies).map(Ok).boxed()
    }
    fn exists(&self, path: &str) -> Reply<Option<Stat>>;
    /// Names of the children, in no particular order.
    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)>;
    /// The created path, with its sequence number where the mode asks for one.
    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> Reply<(String, Stat)>;
    /// `version` -1 means any.
    fn set(&self, path: &str, data: Bytes, version: i32) -> Reply<Stat>;
    fn delete(&self, path: &str, version: i32) -> Reply<()>;
    /// All or nothing. A failure names the operation that failed: `ZkError::Multi`.
    fn multi(&self, ops: Vec<Op>) -> Reply<Vec<OpReply>>;
    /// Bytes beyond which a write is cut into steps.
    fn largest_transaction(&self) -> usize {
        LARGEST_TRANSACTION
    }
    /// A persistent recursive watch on a path, which need not exist. The stream ends with the session.
    fn watch(&self, path: &str) -> Reply<BoxStream<'static, WatchEvent>>;
    /// A one-shot watch: the stat now, and a future that resolves at the next change of the znode (its data, its
    /// creation or its removal), or when the session changes its state.
    fn exists_and_watch(&self, path: &str) -> Reply<(Option<Stat>, BoxFuture<'static, ()>)>;
    /// Waits until this server has caught up with the leader.
    fn sync(&self, path: &str) -> Reply<()>;
    /// Until when the session lives, whatever becomes of us: a leader has answered what was sent one session timeout before.
    /// `None` without a connection, or where it has answered nothing yet; a `sync` changes that.
    fn lives_until(&self) -> Option<Instant>;
    fn session_id(&self) -> i64;
    /// The state of the session, now and as it changes.
    fn session(&self) -> tokio::sync::watch::Receiver<SessionState>;
}

/// What actors and tools hold: one session, shared.
pub type Zk = Arc<dyn Connection>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    Connected,
    /// No server answers; the session may still live.
    Suspended,
    /// Over for good: its ephemerals are gone.
    Expired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CreateMode {
    Persistent,
    PersistentSequential,
    Ephemeral,
    EphemeralSequential,
}

impl CreateMode {
    pub fn is_ephemeral(self) -> bool {
        matches!(self, CreateMode::Ephemeral | CreateMode::EphemeralSequential)
    }

    pub fn is_sequential(self) -> bool {
        matches!(self, CreateMode::PersistentSequential | CreateMode::EphemeralSequential)
    }
}

/// ZooKeeper's own bookkeeping of a znode. Times are milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    pub czxid: i64,
    pub mzxid: i64,
    pub pzxid: i64,
    pub ctime: i64,
    pub mtime: i64,
    pub version: i32,
    pub cversion: i32,
    pub aversion: i32,
    /// Session id of the owner of an ephemeral znode, otherwise 0.
    pub ephemeral_owner: i64,
    pub data_length: i32,
    pub num_children: i32,
}

impl Stat {
    /// That of a znode that a transaction has just made: its version is the first, and nobody has said by which transaction it is. So it
    /// counts as older than whatever is read of it.
    pub fn of_new() -> Self {
        Self { czxid: -1, mzxid: -1, pzxid: -1, ..Self::default() }
    }
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create { path: String, data: Bytes, mode: CreateMode },
    Set { path: String, data: Bytes, version: i32 },
    Delete { path: String, version: i32 },
    Check { path: String, version: i32 },
}

impl Op {
    pub fn create(path: impl Into<String>, data: impl Into<Bytes>, mode: CreateMode) -> Self {
        Op::Create { path: path.into(), data: data.into(), mode }
    }

    pub fn set(path: impl Into<String>, data: impl Into<Bytes>, version: i32) -> Self {
        Op::Set { path: path.into(), data: data.into(), version }
    }

    pub fn delete(path: impl Into<String>, version: i32) -> Self {
        Op::Delete { path: path.into(), version }
    }

    pub fn check(path: impl Into<String>, version: i32) -> Self {
        Op::Check { path: path.into(), version }
    }

    pub fn path(&self) -> &str {
        match self {
            Op::Create { path, .. } | Op::Set { path, .. } | Op::Delete { path, .. } | Op::Check { path, .. } => path,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpReply {
    /// Servers tell no more of it, unlike for a creation by itself: [`Stat::of_new`] is what is known.
    Created {
        path: String,
    },
    Set(Stat),
    Deleted,
    Checked,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    pub kind: EventKind,
    pub path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Created,
    Deleted,
    DataChanged,
    /// Only one-shot child watches report this; recursive ones report the child itself.
    ChildrenChanged,
    /// Events may have been missed (a reconnect): read everything below the path again.
    Resync,
}

/// What can go wrong, by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZkError {
    #[error("no such znode")]
    NoNode,
    #[error("znode exists already")]
    NodeExists,
    #[error("znode has another version")]
    BadVersion,
    #[error("znode has children")]
    NotEmpty,
    #[error("ephemeral znodes cannot have children")]
    NoChildrenForEphemerals,
    #[error("operation {index} of the transaction failed: {source}")]
    Multi { index: usize, source: Box<ZkError> },
    #[error("bad argument: {0}")]
    BadArguments(String),
    #[error("the data is larger than ZooKeeper takes ({size} bytes, at most {limit})")]
    TooLarge { size: usize, limit: usize },
    #[error("not permitted: {0}")]
    NotPermitted(String),
    #[error("the server is read-only")]
    ReadOnly,
    /// The request may or may not have been carried out.
    #[error("connection to ZooKeeper lost, outcome unknown: {0}")]
    Unknown(String),
    #[error("the ZooKeeper session is over")]
    SessionExpired,
    #[error("operation not supported by the server")]
    Unimplemented,
    #[error("the connection does not answer as ZooKeeper does: {0}")]
    Protocol(String),
}

impl ZkError {
    /// The failure itself, without the place in a transaction.
    pub fn root(&self) -> &ZkError {
        match self {
            ZkError::Multi { source, .. } => source.root(),
            other => other,
        }
    }
}

/// Names of lock contenders; the set that decides who holds a lock.
pub type Contenders = BTreeSet<String>;
