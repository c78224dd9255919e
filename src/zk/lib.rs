//! ZooKeeper as Nodepool sees it: the port (`Connection`) in ZooKeeper's own primitives, and what stands on it.
//!
//! Two things implement the port: the real client (`session.rs`) and a tree in memory (`memory.rs`). Everything
//! above the port is written once and runs on both.

pub mod client;
pub mod locks;
pub mod mirror;
pub mod tools;
pub mod txn;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::BoxStream;
use tokio::time::Instant;
use zookeeper_server::types::{CreateMode, Op, OpReply, Stat, WatchEvent, ZkError};

pub mod paths;
pub mod memory;

/// An answer that is under way. The request is sent when the method is called, not when this is polled, so several
/// calls made one after another reach the server in that order without waiting for each other.
pub type Reply<T> = BoxFuture<'static, Result<T, ZkError>>;

/// Bytes of records, paths and proofs of nodes in one transaction, with room for the request: servers refuse 1 MiB.
pub const MAX_TRANSACTION_BYTES: usize = 900_000;

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
    fn max_transaction_bytes(&self) -> usize {
        MAX_TRANSACTION_BYTES
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
    fn session_valid_until(&self) -> Option<Instant>;
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

/// Names of lock contenders; the set that decides who holds a lock.
pub type Contenders = BTreeSet<String>;
