//! PoolWorker: its registration in the component registry.

use actix::Context;
use tracing::warn;

use super::pool_worker::PoolWorker;
use crate::actors::runtime::reconcile::DEBOUNCE;
use nodepool_model::records::component::{ComponentKind, DEFAULT_PRIORITY, PoolComponent};
use nodepool_model::records::json;
use nodepool_model::snapshot::WriteError;

/// Registration of this pool: its znode once it exists, and the record written last.
#[derive(Default)]
pub(super) struct ComponentState {
    pub(super) path: Option<String>,
    pub(super) last_written: Option<PoolComponent>,
    /// A snapshot has contained the registration.
    pub(super) is_visible: bool,
    pub(super) writing: bool,
    /// The `paused` of the record, and whether a change of it is being debounced.
    pub(super) paused: bool,
    pub(super) is_debouncing: bool,
    /// An attempt has failed, but may have created the znode.
    pub(super) failed: bool,
    /// The registration is being deleted: nothing is written any more.
    pub(super) is_unregistering: bool,
    pub(super) is_unregistered: bool,
}

impl PoolWorker {
    /// The record of this pool in the component registry.
    fn component_record(&self) -> PoolComponent {
        let section = self.deps.config.providers.get(&self.deps.id.provider);
        let pool = section.and_then(|section| section.pools.get(&self.deps.id.pool));
        PoolComponent {
            hostname: self.deps.hostname.clone(),
            id: Some(self.deps.launcher.clone()),
            kind: ComponentKind::Pool,
            model_api: 0,
            name: Some(self.deps.id.pool.clone()),
            paused: self.component.paused,
            priority: pool.map_or(DEFAULT_PRIORITY, |pool| pool.priority),
            provider_name: Some(self.deps.id.provider.clone()),
            state: "running".to_owned(),
            supported_labels: pool.map(|pool| pool.labels.clone()).unwrap_or_default(),
            version: Some(self.deps.version.to_owned()),
            webapp: self.deps.webapp.clone(),
            extra: Default::default(),
        }
    }

    /// Detects a registration that was deleted manually, so that another one is written. Without a registration, no
    /// pool of this process would decide anything.
    fn reset_if_removed(&mut self) {
        let snapshot = self.triggers.latest();
        let is_ours = |pool: &PoolComponent| pool.id.as_ref() == Some(&self.deps.launcher);
        if !snapshot.connected || self.component.is_unregistering || self.component.path.is_none() {
            return;
        }
        if snapshot.pools.pools().any(|(_, pool)| is_ours(&pool.record)) {
            self.component.is_visible = true;
        } else if std::mem::take(&mut self.component.is_visible) {
            warn!(target: "nodepool.Component", pool = %self.deps.id, "registration was deleted; registering again");
            (self.component.path, self.component.last_written) = (None, None);
        }
    }

    /// Registers this pool, or writes what changed; one write at a time, the last one wins.
    pub(super) fn register(&mut self, ctx: &mut Context<Self>) {
        self.reset_if_removed();
        let record = self.component_record();
        let is_known = self.component.last_written.as_ref() == Some(&record);
        if self.component.is_unregistering || self.component.writing || is_known {
            return;
        }
        self.component.writing = true;
        let (store, path, hostname) =
            (self.deps.store.clone(), self.component.path.clone(), self.deps.hostname.clone());
        let (data, again) = (json::to_bytes(&record), self.component.failed);
        let writing = async move {
            match path {
                Some(path) => store.update_component(&path, data).await.map(|()| path),
                None => store.register_component(ComponentKind::Pool, &hostname, data, again).await,
            }
        };
        self.actor_tasks.spawn(ctx, writing, move |result, act, ctx| {
            act.component.writing = false;
            match result {
                Ok(path) => {
                    act.component.path = Some(path);
                    act.component.last_written = Some(record);
                    act.register(ctx);
                }
                // The next tick retries.
                Err(error) => {
                    act.component.failed = true;
                    warn!(target: "nodepool.Component", pool = %act.deps.id, %error, "cannot register");
                }
            }
            if act.component.is_unregistering {
                act.unregister(ctx);
            }
        });
    }

    /// Writes a change of `paused` only if it lasts, because all watchers of components receive it. A pool that accepts
    /// a request and finds capacity at once is paused only for a moment, which needs no write.
    pub(super) fn update_paused(&mut self, ctx: &mut Context<Self>) {
        if self.component.is_debouncing || self.component.paused == self.pool.is_paused() {
            return;
        }
        self.component.is_debouncing = true;
        self.actor_tasks.spawn(ctx, tokio::time::sleep(DEBOUNCE), |(), act, ctx| {
            act.component.is_debouncing = false;
            if act.component.paused != act.pool.is_paused() {
                act.component.paused = act.pool.is_paused();
                act.register(ctx);
            }
        });
    }

    /// Deletes the registration. A remaining registration would keep requests open: a request fails only after all
    /// registered pools declined it, and other pools yield requests to a registered one.
    pub(super) fn unregister(&mut self, ctx: &mut Context<Self>) {
        self.component.is_unregistering = true;
        if self.component.writing {
            return; // The write in progress may create the registration.
        }
        let (store, path, may_exist) = (self.deps.store.clone(), self.component.path.clone(), self.component.failed);
        let (hostname, id) = (self.deps.hostname.clone(), self.deps.launcher.clone());
        let removing = async move {
            match path {
                Some(path) => store.remove_component(&path).await,
                None if may_exist => store.remove_own_component(ComponentKind::Pool, &hostname, id.as_str()).await,
                None => Ok(()),
            }
        };
        self.actor_tasks.spawn(ctx, removing, |result, act, ctx| match result {
            // The end of the session deletes the registration.
            Ok(()) | Err(WriteError::SessionOver) => act.component.is_unregistered = true,
            Err(error) => {
                warn!(target: "nodepool.Component", pool = %act.deps.id, %error, "cannot unregister; retrying");
                act.actor_tasks.spawn(ctx, tokio::time::sleep(DEBOUNCE), |(), act, ctx| act.unregister(ctx));
            }
        });
    }
}
