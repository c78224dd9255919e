//! Watch of a consumer's ZooKeeper session: its request and its nodes are lost when the session expires.

use std::time::Duration;

use nodepool_zk::{SessionState, Zk, paths};
use tokio::time::{Instant, sleep, sleep_until};

/// Fraction of the session's remaining time after which a `sync` is sent. While a leader responds, that is every sixth
/// of the timeout.
const SYNC_FRACTION: (u32, u32) = (2, 5);
/// Minimum time between two `sync` requests, which may fail at once.
const MIN_SYNC_INTERVAL: Duration = Duration::from_millis(200);
/// Fraction of its timeout for which a session is certainly alive; `doc/decisions/0025-fence.md` explains why.
const SAFE_FRACTION: (u32, u32) = (5, 12);

/// Resolves when the nodes must be considered lost: the session expired, or no leader has responded for so long that
/// the session may expire before their users stop. It does not wait for an unreachable server: the nodes could be
/// reassigned before a reply.
pub async fn wait_until_nodes_lost(zk: &Zk, session_timeout: Duration) {
    let mut session = zk.session();
    // Without a connection, the deadline counts from now, because the nodes were locked a moment ago.
    let mut deadline = zk
        .session_valid_until()
        .unwrap_or_else(|| Instant::now() + session_timeout * SAFE_FRACTION.0 / SAFE_FRACTION.1);
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let sync = async {
            sleep((remaining * SYNC_FRACTION.0 / SYNC_FRACTION.1).max(MIN_SYNC_INTERVAL)).await;
            // The result shows in `session_valid_until` below.
            let _ = zk.sync(paths::ROOT).await;
        };
        tokio::select! {
            biased;
            // An expired session, or a dropped client, holds no nodes.
            _ = session.wait_for(|state| *state == SessionState::Expired) => return,
            () = sync => {}
            () = sleep_until(deadline) => {}
        }
        deadline = zk.session_valid_until().map_or(deadline, |newer| newer.max(deadline));
        if deadline <= Instant::now() {
            return;
        }
    }
}

/// Resolves when a request must be considered lost: a server reported that the session expired, or no server has
/// responded for a whole session timeout. A waiting request holds no nodes that could be reassigned, so the full
/// timeout is safe.
pub async fn wait_until_request_lost(zk: &Zk, session_timeout: Duration) {
    let mut session = zk.session();
    loop {
        let state = *session.borrow_and_update();
        let changed = match state {
            SessionState::Expired => return,
            SessionState::Connected => session.changed().await,
            SessionState::Suspended => match tokio::time::timeout(session_timeout, session.changed()).await {
                Ok(changed) => changed,
                Err(_) => return,
            },
        };
        if changed.is_err() {
            return; // The client was dropped.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use futures::stream::BoxStream;
    use nodepool_zk::memory::MemoryZooKeeper;
    use nodepool_zk::{Connection, Reply};
    use std::pin::Pin;
    use std::sync::{Arc, Mutex};
    use tokio::sync::watch;
    use zookeeper_server::types::{CreateMode, Op, OpReply, Stat, WatchEvent};

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// A session whose server is connected and sends no replies.
    struct SilentServer {
        state: watch::Receiver<SessionState>,
        until: Mutex<Instant>,
        replies_to_sync: bool,
    }

    /// Time for which the session is valid after a reply.
    const SESSION_EXTENSION: Duration = Duration::from_secs(4);

    fn silent_connection(replies_to_sync: bool) -> (watch::Sender<SessionState>, Zk) {
        let (sender, state) = watch::channel(SessionState::Connected);
        (
            sender,
            Arc::new(SilentServer { state, until: Mutex::new(Instant::now() + SESSION_EXTENSION), replies_to_sync }),
        )
    }

    fn no_reply<T: Send + 'static>() -> Reply<T> {
        futures::future::pending().boxed()
    }

    impl Connection for SilentServer {
        fn get(&self, _path: &str) -> Reply<(Bytes, Stat)> {
            no_reply()
        }
        fn exists(&self, _path: &str) -> Reply<Option<Stat>> {
            no_reply()
        }
        fn children(&self, _path: &str) -> Reply<(Vec<String>, Stat)> {
            no_reply()
        }
        fn create(&self, _path: &str, _data: Bytes, _mode: CreateMode) -> Reply<(String, Stat)> {
            no_reply()
        }
        fn set(&self, _path: &str, _data: Bytes, _version: i32) -> Reply<Stat> {
            no_reply()
        }
        fn delete(&self, _path: &str, _version: i32) -> Reply<()> {
            no_reply()
        }
        fn multi(&self, _ops: Vec<Op>) -> Reply<Vec<OpReply>> {
            no_reply()
        }
        fn watch(&self, _path: &str) -> Reply<BoxStream<'static, WatchEvent>> {
            no_reply()
        }
        fn exists_and_watch(&self, _path: &str) -> Reply<(Option<Stat>, BoxFuture<'static, ()>)> {
            no_reply()
        }
        fn sync(&self, _path: &str) -> Reply<()> {
            if !self.replies_to_sync {
                return no_reply();
            }
            *self.until.lock().unwrap() = Instant::now() + SESSION_EXTENSION;
            futures::future::ready(Ok(())).boxed()
        }
        fn session_valid_until(&self) -> Option<Instant> {
            Some(*self.until.lock().unwrap())
        }
        fn session_id(&self) -> i64 {
            1
        }
        fn session(&self) -> watch::Receiver<SessionState> {
            self.state.clone()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_are_lost_before_the_session_can_expire_on_an_open_connection() {
        let (_state, zk) = silent_connection(false);
        let started = Instant::now();
        tokio::time::timeout(TIMEOUT, wait_until_nodes_lost(&zk, TIMEOUT)).await.expect("no leader responds");
        // Timers count in milliseconds.
        assert_eq!(started.elapsed().as_millis() / 10, SESSION_EXTENSION.as_millis() / 10);
        let (_state, zk) = silent_connection(true);
        assert!(
            tokio::time::timeout(TIMEOUT * 5, wait_until_nodes_lost(&zk, TIMEOUT)).await.is_err(),
            "a leader responds"
        );
    }

    /// Asserts that several outages of this length lose nothing.
    async fn survives_outages(
        mut lost: Pin<&mut impl Future<Output = ()>>,
        server: &MemoryZooKeeper,
        zk: &Zk,
        outage: Duration,
    ) {
        for _ in 0..3 {
            server.suspend(zk.session_id());
            assert!(tokio::time::timeout(outage, &mut lost).await.is_err());
            server.resume(zk.session_id());
            assert!(tokio::time::timeout(TIMEOUT * 2, &mut lost).await.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_outlasts_outages_shorter_than_the_session_timeout_only() {
        let server = MemoryZooKeeper::new();
        let zk: Zk = server.connect();
        let mut lost = std::pin::pin!(wait_until_request_lost(&zk, TIMEOUT));
        survives_outages(lost.as_mut(), &server, &zk, TIMEOUT - Duration::from_secs(1)).await;
        server.suspend(zk.session_id());
        assert!((&mut lost).now_or_never().is_none());
        tokio::time::timeout(TIMEOUT + Duration::from_secs(1), lost).await.expect("lost after the timeout");
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_session_loses_request_and_nodes_at_once() {
        let server = MemoryZooKeeper::new();
        let zk: Zk = server.connect();
        server.expire(zk.session_id());
        tokio::time::timeout(Duration::from_secs(1), wait_until_nodes_lost(&zk, TIMEOUT))
            .await
            .expect("the session has expired");
        tokio::time::timeout(Duration::from_secs(1), wait_until_request_lost(&zk, TIMEOUT))
            .await
            .expect("the session has expired");
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_outlast_short_outages_only() {
        let server = MemoryZooKeeper::new();
        let zk: Zk = server.connect();
        let mut lost = std::pin::pin!(wait_until_nodes_lost(&zk, TIMEOUT));
        survives_outages(lost.as_mut(), &server, &zk, TIMEOUT / 2).await;
        server.suspend(zk.session_id());
        tokio::time::timeout(TIMEOUT + Duration::from_secs(1), lost).await.expect("the session may have expired");
    }
}
