//! ZooKeeper's data model: the contents of requests and of their replies. Shared with clients.

use bytes::Bytes;

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

/// ZooKeeper's metadata of a znode. Times are milliseconds since the Unix epoch.
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
    /// The stat of a znode that a transaction has just created: its version is 0, and its zxid is unknown. So it counts
    /// as older than every read of the znode.
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
    /// Servers return no stat here, unlike for a single create; only [`Stat::of_new`] is known.
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
    /// Events may have been missed, for example during a reconnect. The receiver must re-read everything below the
    /// path.
    Resync,
}

/// Errors of requests, by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZkError {
    #[error("no such znode")]
    NoNode,
    #[error("znode already exists")]
    NodeExists,
    #[error("znode version does not match")]
    BadVersion,
    #[error("znode has children")]
    NotEmpty,
    #[error("ephemeral znodes cannot have children")]
    NoChildrenForEphemerals,
    #[error("operation {index} of the transaction failed: {source}")]
    Multi { index: usize, source: Box<ZkError> },
    #[error("bad argument: {0}")]
    BadArguments(String),
    #[error("data too large for ZooKeeper ({size} bytes, limit {limit})")]
    TooLarge { size: usize, limit: usize },
    #[error("not permitted: {0}")]
    NotPermitted(String),
    #[error("the server is read-only")]
    ReadOnly,
    /// The request may or may not have been executed; if it certainly was not, the text says so.
    #[error("connection to ZooKeeper lost: {0}")]
    Unknown(String),
    #[error("ZooKeeper session expired")]
    SessionExpired,
    #[error("operation not supported by the server")]
    Unimplemented,
    #[error("ZooKeeper protocol error: {0}")]
    Protocol(String),
}

impl ZkError {
    /// The failure itself, without its position in a transaction.
    pub fn root(&self) -> &ZkError {
        match self {
            ZkError::Multi { source, .. } => source.root(),
            other => other,
        }
    }
}
