//! Launcher: the root of the tree of actors that lives as long as one ZooKeeper session.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::error;

use super::config_files::Loaded;
use super::shared::{SessionEnd, Shared, VERSION};
use crate::model::component::{Component, ComponentKind};
use crate::model::json;
use crate::zk::mirror::Mirror;
use crate::zk::{CreateMode, SessionState, Zk, ZkError, paths};

/// Runs until the session is over, an actor panicked or the process is told to stop.
pub async fn run_session(zk: Zk, shared: Arc<Shared>, _loaded: Loaded) -> SessionEnd {
    let mut session = zk.session();
    let mut shutdown = shared.shutdown.clone();
    let started = start(&zk, &shared).await;
    shared.ready.store(true, Ordering::Release);
    let _mirror = match started {
        Ok(mirror) => mirror,
        Err(error) => {
            error!(%error, "cannot start");
            return SessionEnd::Expired;
        }
    };
    tokio::select! {
        // Both senders live longer than this; one that is gone ends the session as well.
        _ = shutdown.wait_for(Option::is_some) => SessionEnd::Stopped,
        _ = session.wait_for(|state| *state == SessionState::Expired) => SessionEnd::Expired,
    }
}

async fn start(zk: &Zk, shared: &Shared) -> Result<Mirror, ZkError> {
    let mirror = Mirror::start(zk.clone()).await?;
    let component = Component {
        hostname: shared.hostname.clone(),
        kind: ComponentKind::Launcher,
        model_api: 0,
        state: "running".to_owned(),
        version: Some(VERSION.to_owned()),
        webapp: shared.webapp.clone(),
    };
    let prefix = paths::component_prefix(component.kind, &shared.hostname);
    zk.create(&prefix, json::to_bytes(&component).into(), CreateMode::EphemeralSequential).await?;
    Ok(mirror)
}
