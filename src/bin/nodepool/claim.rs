//! Whether what we hold is still ours: as long as the ZooKeeper session lives, and not longer.

use std::time::Duration;

use nodepool::zk::{SessionState, Zk};

/// Resolves when the session must be taken for lost: a server said so, or none has answered for a whole session timeout,
/// after which the others give what we hold to somebody else.
pub async fn lost(zk: &Zk, session_timeout: Duration) {
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
            return; // Nobody keeps the session any more.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use nodepool::zk::memory::MemoryZooKeeper;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_server_that_comes_back_in_time_costs_nothing_and_one_that_does_not_costs_the_claim() {
        let server = MemoryZooKeeper::new();
        let zk: Zk = server.connect();
        let mut lost = std::pin::pin!(lost(&zk, TIMEOUT));
        for _ in 0..3 {
            server.suspend(zk.session_id());
            assert!(tokio::time::timeout(TIMEOUT - Duration::from_secs(1), &mut lost).await.is_err());
            server.resume(zk.session_id());
            assert!(tokio::time::timeout(TIMEOUT * 2, &mut lost).await.is_err());
        }
        server.suspend(zk.session_id());
        assert!((&mut lost).now_or_never().is_none());
        tokio::time::timeout(TIMEOUT + Duration::from_secs(1), lost).await.expect("lost after the timeout");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_says_counts_at_once() {
        let server = MemoryZooKeeper::new();
        let zk: Zk = server.connect();
        server.expire(zk.session_id());
        tokio::time::timeout(Duration::from_secs(1), lost(&zk, TIMEOUT)).await.expect("the session has expired");
    }
}
