//! ZooKeeper access of Nodepool: the port (`Connection`) with ZooKeeper's own primitives, and the layers above it.
//!
//! The real client (`client`) and the tree in memory (`memory`) implement the port. Everything above the port is
//! written once and runs on both.

pub mod client;
pub mod locks;
pub mod memory;
pub mod mirror;
pub mod paths;
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

/// A pending reply. The request is sent when the method is called, not when the future is polled, so several calls made
/// one after another reach the server in that order without waiting for each other.
pub type Reply<T> = BoxFuture<'static, Result<T, ZkError>>;

/// Maximum bytes of records, paths and unlocked proofs of nodes in one transaction. Leaves space for the rest of the
/// request, because servers refuse 1 MiB.
pub const MAX_TRANSACTION_BYTES: usize = 900_000;

/// ZooKeeper's primitives on one session. All paths are absolute and relative to the chroot.
pub trait Connection: Send + Sync + 'static {
    fn get(&self, path: &str) -> Reply<(Bytes, Stat)>;
    /// The result of `get` for each path, in the order of the paths. A connection to a server sends one request. The
    /// paths must be well formed.
    fn get_many(&self, paths: &[String]) -> Reply<Vec<Result<(Bytes, Stat), ZkError>>> {
        let replies: Vec<_> = paths.iter().map(|path| self.get(path)).collect();
        join_all(replies).map(Ok).boxed()
    }
    fn exists(&self, path: &str) -> Reply<Option<Stat>>;
    /// Names of the children, in no particular order.
    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)>;
    /// The created path, with its sequence number if the mode is sequential.
    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> Reply<(String, Stat)>;
    /// `version` -1 means any.
    fn set(&self, path: &str, data: Bytes, version: i32) -> Reply<Stat>;
    fn delete(&self, path: &str, version: i32) -> Reply<()>;
    /// Applies all operations or none. A failure names the failed operation: `ZkError::Multi`.
    fn multi(&self, ops: Vec<Op>) -> Reply<Vec<OpReply>>;
    /// A write of more bytes than this is chunked.
    fn max_transaction_bytes(&self) -> usize {
        MAX_TRANSACTION_BYTES
    }
    /// Sets a persistent recursive watch on a path, which need not exist. The stream ends with the session.
    fn watch(&self, path: &str) -> Reply<BoxStream<'static, WatchEvent>>;
    /// Sets a one-shot watch. Returns the current stat and a future, which resolves at the next change of the znode
    /// (its data, its creation or its removal) or of the session's state.
    fn exists_and_watch(&self, path: &str) -> Reply<(Option<Stat>, BoxFuture<'static, ()>)>;
    /// Waits until this server has caught up with the leader.
    fn sync(&self, path: &str) -> Reply<()>;
    /// Time until which the session is certainly alive, even if this process stops: at most one session timeout after
    /// this process sent the newest request that a leader has answered. `None` without a connection or without such an
    /// answer; a `sync` provides one.
    fn session_valid_until(&self) -> Option<Instant>;
    fn session_id(&self) -> i64;
    /// The state of the session, now and as it changes.
    fn session(&self) -> tokio::sync::watch::Receiver<SessionState>;
}

/// The shared handle to one session, as actors and tools hold it.
pub type Zk = Arc<dyn Connection>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    Connected,
    /// No server answers; the session may still be alive.
    Suspended,
    /// Ended permanently: its ephemeral znodes are deleted.
    Expired,
}

/// Names of lock contenders; the set determines the holder of a lock.
pub type Contenders = BTreeSet<String>;
