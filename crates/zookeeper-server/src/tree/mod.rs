//! A znode tree by ZooKeeper's rules. Pure: no clock, no I/O; every write returns its changed keys and its events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::types::{CreateMode, EventKind, Op, Stat, WatchEvent, ZkError};

mod apply;
pub mod path;
mod record;
mod restore;
mod watches;

pub use record::{Acl, Record, Session};
pub use restore::Inconsistent;
use watches::Watches;
pub use watches::{Fired, WatchFilter, WatchKind};

/// Maximum size of a znode's data. (A request over the wire has slightly less space, as with ZooKeeper.)
pub const DATA_LIMIT: usize = 1024 * 1024;

#[derive(Clone, Debug)]
pub struct Tree {
    znodes: BTreeMap<String, Znode>,
    ephemerals: BTreeMap<i64, BTreeSet<String>>,
    sessions: BTreeMap<i64, Session>,
    watches: Watches,
    zxid: i64,
    last_session: i64,
}

#[derive(Clone, Debug)]
struct Znode {
    record: Record,
    children: BTreeSet<String>,
}

/// One write of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Create { path: String, data: Bytes, acl: Arc<[Acl]>, mode: CreateMode },
    Set { path: String, data: Bytes, version: i32 },
    Delete { path: String, version: i32 },
    Check { path: String, version: i32 },
    SetAcl { path: String, acl: Arc<[Acl]>, version: i32 },
    Multi(Vec<Write>),
}

impl From<Op> for Write {
    fn from(op: Op) -> Self {
        match op {
            Op::Create { path, data, mode } => Write::Create { path, data, acl: Acl::open(), mode },
            Op::Set { path, data, version } => Write::Set { path, data, version },
            Op::Delete { path, version } => Write::Delete { path, version },
            Op::Check { path, version } => Write::Check { path, version },
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteResult {
    Created { path: String, stat: Stat },
    Set(Stat),
    Deleted,
    Checked(Stat),
    AclSet(Stat),
    Multi(Vec<WriteResult>),
}

/// Result of a write. A failed one takes a transaction id too, as in ZooKeeper, and changes nothing else.
#[derive(Clone, Debug)]
#[must_use]
pub struct Applied {
    pub zxid: i64,
    pub result: Result<WriteResult, Failure>,
    /// The changed keys for durable storage: a key that is not in the tree is deleted.
    pub dirty_keys: Vec<DirtyKey>,
    /// In the order in which they happened.
    pub events: Vec<Fired>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DirtyKey {
    Znode(Arc<str>),
    Session(i64),
}

/// Reason for which ZooKeeper refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
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
    #[error("{0}")]
    BadArguments(String),
    #[error("data of {size} bytes, limit {DATA_LIMIT}")]
    TooLarge { size: usize },
    #[error("access list is not valid")]
    InvalidAcl,
    #[error("no such watch")]
    NoWatcher,
    #[error("no such session")]
    SessionExpired,
    #[error("operation {index} failed: {source}")]
    Multi { index: usize, source: Box<Failure> },
}

impl From<Failure> for ZkError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoNode => ZkError::NoNode,
            Failure::NodeExists => ZkError::NodeExists,
            Failure::BadVersion => ZkError::BadVersion,
            Failure::NotEmpty => ZkError::NotEmpty,
            Failure::NoChildrenForEphemerals => ZkError::NoChildrenForEphemerals,
            Failure::BadArguments(reason) => ZkError::BadArguments(reason),
            Failure::TooLarge { size } => ZkError::TooLarge { size, limit: DATA_LIMIT },
            Failure::InvalidAcl | Failure::NoWatcher => ZkError::BadArguments(failure.to_string()),
            Failure::SessionExpired => ZkError::SessionExpired,
            Failure::Multi { index, source } => ZkError::Multi { index, source: Box::new((*source).into()) },
        }
    }
}

/// The watches that a client sets again after a reconnect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchList {
    /// Newest transaction that the client has observed. Watches on znodes that changed later fire at once.
    pub last_zxid_seen: i64,
    pub data: Vec<String>,
    /// Data watches on znodes that did not exist.
    pub exist: Vec<String>,
    pub children: Vec<String>,
    pub persistent: Vec<String>,
    pub recursive: Vec<String>,
}

// Reading, watching and sessions. Writing is in `apply.rs`.
impl Tree {
    pub fn last_zxid(&self) -> i64 {
        self.zxid
    }

    /// The highest session id ever assigned here.
    pub fn last_session(&self) -> i64 {
        self.last_session
    }

    pub fn len(&self) -> usize {
        self.znodes.len()
    }

    pub fn is_empty(&self) -> bool {
        false // the root always exists
    }

    pub fn watch_count(&self) -> usize {
        self.watches.len()
    }

    /// Watches of one session.
    pub fn watches_of(&self, session: i64) -> usize {
        self.watches.count_of(session)
    }

    pub fn ephemeral_count(&self) -> usize {
        self.ephemerals.values().map(BTreeSet::len).sum()
    }

    pub fn get(&self, path: &str) -> Result<(Bytes, Stat), Failure> {
        let znode = self.find(path)?;
        Ok((znode.record.data.clone(), znode.stat()))
    }

    /// Unlike the other reads, this one refuses an invalid path instead of reporting a missing znode.
    pub fn stat(&self, path: &str) -> Result<Stat, Failure> {
        if path.contains('\0') {
            return Err(Failure::BadArguments(format!("path {path:?}: has the character U+0000")));
        }
        self.find(path).map(Znode::stat)
    }

    pub fn children(&self, path: &str) -> Result<(impl ExactSizeIterator<Item = &String>, Stat), Failure> {
        let znode = self.find(path)?;
        Ok((znode.children.iter(), znode.stat()))
    }

    pub fn acl(&self, path: &str) -> Result<(Arc<[Acl]>, Stat), Failure> {
        let znode = self.find(path)?;
        Ok((znode.record.acl.clone(), znode.stat()))
    }

    /// The znode as it must be stored, or `None` if it is deleted.
    pub fn record(&self, path: &str) -> Option<&Record> {
        self.znodes.get(path).map(|znode| &znode.record)
    }

    pub fn records(&self) -> impl Iterator<Item = (&String, &Record)> {
        self.znodes.iter().map(|(path, znode)| (path, &znode.record))
    }

    pub fn session(&self, id: i64) -> Option<&Session> {
        self.sessions.get(&id)
    }

    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    pub fn ephemerals(&self, session: i64) -> impl Iterator<Item = &String> {
        self.ephemerals.get(&session).into_iter().flatten()
    }

    pub fn add_watch(&mut self, session: i64, path: &str, kind: WatchKind) {
        self.watches.add(session, path::key(path), kind);
    }

    pub fn has_watch(&self, session: i64, path: &str, filter: WatchFilter) -> Result<(), Failure> {
        if self.watches.has(session, path, filter) { Ok(()) } else { Err(Failure::NoWatcher) }
    }

    pub fn remove_watch(&mut self, session: i64, path: &str, filter: WatchFilter) -> Result<(), Failure> {
        if self.watches.remove(session, path, filter) { Ok(()) } else { Err(Failure::NoWatcher) }
    }

    /// Removes all watches of a session: its connection has ended, and the next one sets its own list.
    pub fn forget_watches(&mut self, session: i64) {
        self.watches.remove_all_of(session);
    }

    /// Restores a client's watches. One-shot watches that would have fired meanwhile fire now; events that persistent
    /// ones missed are not sent, as in ZooKeeper.
    pub fn set_watches(&mut self, session: i64, list: WatchList) -> Vec<Fired> {
        let mut fired = Vec::new();
        let mut fire = |kind, path: String| fired.push(Fired { session, event: WatchEvent { kind, path } });
        for path in list.data {
            match self.znodes.get(&path) {
                None => fire(EventKind::Deleted, path),
                Some(znode) if znode.record.mzxid > list.last_zxid_seen => fire(EventKind::DataChanged, path),
                Some(_) => self.watches.add(session, &path, WatchKind::Data),
            }
        }
        for path in list.exist {
            match self.znodes.get(&path) {
                Some(_) => fire(EventKind::Created, path),
                None => self.watches.add(session, &path, WatchKind::Data),
            }
        }
        for path in list.children {
            match self.znodes.get(&path) {
                None => fire(EventKind::Deleted, path),
                Some(znode) if znode.record.pzxid > list.last_zxid_seen => fire(EventKind::ChildrenChanged, path),
                Some(_) => self.watches.add(session, &path, WatchKind::Children),
            }
        }
        for path in list.persistent {
            self.watches.add(session, &path, WatchKind::Persistent);
        }
        for path in list.recursive {
            self.watches.add(session, &path, WatchKind::Recursive);
        }
        fired
    }

    fn find(&self, path: &str) -> Result<&Znode, Failure> {
        self.znodes.get(path::key(path)).ok_or(Failure::NoNode)
    }
}

impl Znode {
    fn stat(&self) -> Stat {
        self.record.stat(self.children.len())
    }
}

#[cfg(test)]
mod tests;
