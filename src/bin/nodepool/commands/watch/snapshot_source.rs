//! Snapshots of ZooKeeper as a watch channel that outlives sessions.

use std::sync::Arc;
use std::time::Duration;

use nodepool_model::config::Config;
use nodepool_model::snapshot::Snapshot;
use nodepool_zk::client::RealConnection;
use nodepool_zk::mirror::mirror::Mirror;
use nodepool_zk::{SessionState, Zk};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::connect;

/// Pause after a failed attempt. Final errors are retried as well: an operator may fix their cause meanwhile.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Timeout for closing the session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

pub struct SnapshotSource {
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    follower: JoinHandle<()>,
}

impl SnapshotSource {
    /// Returns with the first snapshot. Failing to open the first session is an error; later sessions are retried
    /// forever.
    pub async fn open(config: Arc<Config>, limit: Option<Duration>) -> anyhow::Result<Self> {
        let session = connect::session(&config, limit).await?;
        let mirror = mirror(&session).await?;
        let (publish, snapshots) = watch::channel(mirror.snapshot());
        let follower = tokio::spawn(follow(config, session, mirror, publish));
        Ok(Self { snapshots, follower })
    }

    /// Stops following and closes the session.
    pub async fn close(self) {
        drop(self.snapshots);
        // If the server does not respond, the session expires.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.follower).await;
    }
}

async fn mirror(session: &Arc<RealConnection>) -> anyhow::Result<Mirror> {
    let zk: Zk = session.clone();
    Ok(Mirror::start_read_only(zk, &Handle::current()).await?)
}

async fn follow(
    config: Arc<Config>,
    mut session: Arc<RealConnection>,
    mut mirror: Mirror,
    publish: watch::Sender<Arc<Snapshot>>,
) {
    loop {
        tokio::select! {
            () = forward_snapshots(&session, &mirror, &publish) => {}
            () = publish.closed() => {
                session.close().await;
                return;
            }
        }
        let mut last = Snapshot::clone(&mirror.snapshot());
        last.connected = false;
        publish.send_replace(Arc::new(last));
        (session, mirror) = tokio::select! {
            next = next_session(&config) => next,
            () = publish.closed() => return,
        };
        publish.send_replace(mirror.snapshot());
    }
}

/// Publishes the mirror's snapshots until the session ends.
async fn forward_snapshots(session: &Arc<RealConnection>, mirror: &Mirror, publish: &watch::Sender<Arc<Snapshot>>) {
    let zk: Zk = session.clone();
    let (mut states, mut snapshots) = (zk.session(), mirror.subscribe());
    loop {
        tokio::select! {
            changed = states.changed() => {
                if changed.is_err() || *states.borrow_and_update() == SessionState::Expired {
                    return;
                }
            }
            changed = snapshots.changed() => {
                if changed.is_err() {
                    return;
                }
                publish.send_replace(snapshots.latest_and_mark_seen());
            }
            // The restored state is read by a new session.
            () = mirror.store_rolled_back() => return session.close().await,
        }
    }
}

async fn next_session(config: &Config) -> (Arc<RealConnection>, Mirror) {
    loop {
        let attempt = async {
            let session = connect::session(config, None).await?;
            let mirror = mirror(&session).await?;
            anyhow::Ok((session, mirror))
        };
        match attempt.await {
            Ok(next) => return next,
            Err(error) => tracing::warn!(target: "nodepool.zk.ZooKeeperClient", "{error:#}; retrying"),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}
