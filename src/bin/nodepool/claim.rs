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
