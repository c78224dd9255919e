//! Session whose transactions and sequential creations take effect at once, while the test delays the replies to them.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use nodepool_zk::{Connection, Reply, SessionState, Zk};
use tokio::sync::watch;
use tokio::time::Instant;
use zookeeper_server::types::{CreateMode, Op, OpReply, Stat, WatchEvent, ZkError};

struct DelayedReplies {
    zk: Zk,
    release: watch::Receiver<bool>,
}

/// Wraps a session. Replies to transactions and sequential creations are delayed while the channel has `false`.
pub fn delayed_replies(zk: Zk, released: bool) -> (Zk, watch::Sender<bool>) {
    let (sender, release) = watch::channel(released);
    (Arc::new(DelayedReplies { zk, release }), sender)
}

impl DelayedReplies {
    fn delay<T: Send + 'static>(&self, reply: Reply<T>) -> Reply<T> {
        let mut release = self.release.clone();
        async move {
            release.wait_for(|released| *released).await.map_err(|_| ZkError::SessionExpired)?;
            reply.await
        }
        .boxed()
    }
}

impl Connection for DelayedReplies {
    fn get(&self, path: &str) -> Reply<(Bytes, Stat)> {
        self.zk.get(path)
    }
    fn exists(&self, path: &str) -> Reply<Option<Stat>> {
        self.zk.exists(path)
    }
    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        self.zk.children(path)
    }
    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> Reply<(String, Stat)> {
        let reply = self.zk.create(path, data, mode);
        if mode.is_sequential() { self.delay(reply) } else { reply }
    }
    fn set(&self, path: &str, data: Bytes, version: i32) -> Reply<Stat> {
        self.zk.set(path, data, version)
    }
    fn delete(&self, path: &str, version: i32) -> Reply<()> {
        self.zk.delete(path, version)
    }
    fn multi(&self, ops: Vec<Op>) -> Reply<Vec<OpReply>> {
        self.delay(self.zk.multi(ops))
    }
    fn watch(&self, path: &str) -> Reply<BoxStream<'static, WatchEvent>> {
        self.zk.watch(path)
    }
    fn exists_and_watch(&self, path: &str) -> Reply<(Option<Stat>, BoxFuture<'static, ()>)> {
        self.zk.exists_and_watch(path)
    }
    fn sync(&self, path: &str) -> Reply<()> {
        self.zk.sync(path)
    }
    fn session_valid_until(&self) -> Option<Instant> {
        self.zk.session_valid_until()
    }

    fn session_id(&self) -> i64 {
        self.zk.session_id()
    }
    fn session(&self) -> watch::Receiver<SessionState> {
        self.zk.session()
    }
}
