//! CleanupWorker: deletion of instances. The node stays locked during the deletion, and its record is deleted last.

use std::collections::BTreeMap;
use std::time::Duration;

use actix::{AsyncContext, Context, Recipient};
use tokio::time::Instant;
use tracing::{info, warn};

use super::cleanup_worker::CleanupWorker;
use crate::actors::provider::jobs::{Abandon, JobId, JobUpdate, Notify, ProviderHandle, Submit};
use crate::actors::runtime::log_context::LogContext;
use crate::actors::runtime::snapshot_feed::SlowDeletions;
use crate::actors::runtime::{clock, invariant_guard};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::{Job, JobEvent, Notification};
use nodepool_model::records::ids::{ExternalId, NodeId, ProviderName};
use nodepool_model::records::time::Seconds;
use nodepool_model::snapshot::{NodeChange, Snapshot, WriteError};
use nodepool_policy::invariants::nodes::check_node_deletion;
use nodepool_zk::locks::lock::Lock;

/// Time after which a deletion is cancelled. It is started again shortly afterwards.
pub const DELETE_TIMEOUT: Duration = Duration::from_secs(600);

/// A deletion: the key of its repair, its node, and the lock held for it.
struct Deletion {
    key: String,
    node: NodeId,
    log_context: LogContext,
    provider: ProviderName,
    lock: Lock,
}

/// A deletion whose job is submitted, with the recipient that cancels the job.
pub struct InFlightDeletion {
    deletion: Deletion,
    began: Instant,
    /// The obstacle that holds the deletion up, in the cloud's own words.
    obstacle: Option<String>,
    /// Whether the obstacle was logged.
    is_logged: bool,
    abandon: Recipient<Abandon>,
    notify: Option<Recipient<Notify>>,
}

/// The obstacle of a deletion is logged after this time; short ones are usual.
const SLOW_DELETION: Duration = Duration::from_secs(60);

/// Deletions in flight, by the id of their job.
pub type Deletions = BTreeMap<JobId, InFlightDeletion>;

/// Obstacles of deletions by node, for dumps.
pub fn obstacles(deletions: &Deletions) -> serde_json::Map<String, serde_json::Value> {
    let known = deletions.values().filter_map(|in_flight| Some((&in_flight.deletion, in_flight.obstacle.as_ref()?)));
    known.map(|(deletion, obstacle)| (format!("node {}", deletion.node), obstacle.clone().into())).collect()
}

impl CleanupWorker {
    pub(crate) fn delete(
        &mut self,
        key: String,
        log_context: LogContext,
        change: NodeChange,
        provider: ProviderName,
        external_id: ExternalId,
        ctx: &mut Context<Self>,
    ) {
        let (store, node) = (self.deps.store.clone(), change.id.clone());
        // Only an unchanged node is checked. If it changed since the decision (an old node may have been assigned),
        // ZooKeeper rejects the write.
        let is_unchanged =
            |snapshot: &Snapshot| snapshot.node(&node).is_some_and(|known| known.version == change.version);
        let violation = store
            .mirror()
            .with_snapshot(|snapshot| is_unchanged(snapshot).then(|| check_node_deletion(&node, snapshot)).flatten());
        if let Err(error) = invariant_guard::enforce(violation) {
            return self.on_repaired(key, &log_context, Err(error), ctx);
        }
        let writing = async move { store.begin(vec![change]).await };
        self.actor_tasks.spawn(ctx, writing, move |result, act, ctx| match result {
            Ok(mut locks) => {
                let Some(lock) = locks.pop() else {
                    let error = WriteError::Failed("no lock was returned".to_owned());
                    return act.on_repaired(key, &log_context, Err(error), ctx);
                };
                act.delete_instance(Deletion { key, node, log_context, provider, lock }, external_id, ctx);
            }
            Err(error) => act.on_repaired(key, &log_context, Err(error), ctx),
        });
    }

    fn delete_instance(&mut self, deletion: Deletion, external_id: ExternalId, ctx: &mut Context<Self>) {
        let (log_context, provider) = (&deletion.log_context, &deletion.provider);
        let Some(handle) = self.deps.providers.get(provider).cloned() else {
            let error = WriteError::Failed("the provider was removed".to_owned());
            return self.on_repaired(deletion.key, log_context, Err(error), ctx);
        };
        let (event_id, node_request_id, node_id) =
            (log_context.event_id(), log_context.request_id(), log_context.node_id());
        info!(target: "nodepool.DeletedNodeWorker", event_id, node_request_id, node_id, %provider, %external_id, "deleting");
        let (job_id, reply) = (self.next_job_id(), ctx.address().recipient());
        handle
            .submit
            .do_send(Submit::new(job_id, Job::Delete(external_id), reply).with_log_context(log_context.clone()));
        let in_flight = InFlightDeletion {
            deletion,
            began: Instant::now(),
            obstacle: None,
            is_logged: false,
            abandon: handle.abandon.clone(),
            notify: handle.notify.clone(),
        };
        self.deletions.insert(job_id, in_flight);
    }

    /// Publishes deletions that are held up, for the page and `nodepool info`.
    fn publish_slow_deletions(&self) {
        let mut slow = SlowDeletions::new();
        for InFlightDeletion { deletion, began, obstacle, .. } in self.deletions.values() {
            if let Some(obstacle) = obstacle {
                let since = clock::now() + Seconds(-began.elapsed().as_secs_f64());
                let text = format!("the deletion of node {} waits: {obstacle}", deletion.node);
                slow.entry(deletion.provider.clone()).or_default().push((since, text));
            }
        }
        self.deps.feed.set_slow_deletions(slow);
    }

    /// Cancels deletions that take too long. The duration of an outage of the cloud does not count.
    pub(crate) fn abandon_overdue_deletions(&mut self, ctx: &mut Context<Self>) {
        let reply = ctx.address().recipient();
        for (job_id, in_flight) in &mut self.deletions {
            let provider = self.deps.providers.get(&in_flight.deletion.provider);
            if provider.is_some_and(ProviderHandle::is_down) {
                in_flight.began = Instant::now();
            }
            let is_slow = in_flight.began.elapsed() >= SLOW_DELETION && !in_flight.is_logged;
            if let Some(obstacle) = in_flight.obstacle.as_ref().filter(|_| is_slow) {
                in_flight.is_logged = true;
                let Deletion { node, provider, .. } = &in_flight.deletion;
                warn!(target: "nodepool.StateMachineNodeDeleter", %provider, node_id = %node, obstacle, "deletion does not end");
            }
            if in_flight.began.elapsed() >= DELETE_TIMEOUT {
                in_flight.abandon.do_send(Abandon { job_id: *job_id, reply: reply.clone() });
            }
        }
    }

    /// Returns false for an update of another job.
    pub(crate) fn on_deletion_update(&mut self, message: &JobUpdate, ctx: &mut Context<Self>) -> bool {
        if !self.deletions.contains_key(&message.job_id) {
            return false;
        }
        let result = match &message.event {
            JobEvent::Finished(result) => result,
            JobEvent::Waiting(obstacle) => {
                if let Some(in_flight) = self.deletions.get_mut(&message.job_id) {
                    in_flight.obstacle.clone_from(obstacle);
                }
                self.publish_slow_deletions();
                return true;
            }
            JobEvent::InstanceKnown(_) | JobEvent::NoInstance => return true,
        };
        let Some(InFlightDeletion { deletion, notify, obstacle, .. }) = self.deletions.remove(&message.job_id) else {
            return true;
        };
        if obstacle.is_some() {
            self.publish_slow_deletions();
        }
        let Deletion { key, node, log_context, provider, lock } = deletion;
        let _span = log_context.span().entered();
        match result {
            Ok(_) | Err(CloudError::NotFound(_)) => {
                let store = self.deps.store.clone();
                let removing = async move { (store.remove_held(lock, &node).await, node) };
                self.actor_tasks.spawn(ctx, removing, move |(result, node), act, ctx| {
                    if result.is_ok() {
                        let (event_id, node_request_id) = (log_context.event_id(), log_context.request_id());
                        info!(target: "nodepool.StateMachineNodeDeleter", %provider, event_id, node_request_id, node_id = %node, "deleted");
                        if let Some(notify) = notify {
                            notify.do_send(Notify(Notification::NodeDeleted(node)));
                        }
                    }
                    act.on_repaired(key, &log_context, result, ctx);
                });
            }
            Err(error) => {
                warn!(target: "nodepool.StateMachineNodeDeleter", %provider, %error, "cannot delete its instance; trying again");
                let error = WriteError::Failed(error.to_string());
                let releasing = async move {
                    // A failed release is retried in the background.
                    let _ = lock.release().await;
                };
                self.actor_tasks
                    .spawn(ctx, releasing, move |(), act, ctx| act.on_repaired(key, &log_context, Err(error), ctx));
            }
        }
        true
    }
}
