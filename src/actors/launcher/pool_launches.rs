//! PoolWorker: launches of nodes, with the locks held for them, their provider jobs and their scans for host keys.

use std::collections::BTreeMap;
use std::time::Duration;

use actix::{AsyncContext, Context, Handler, Message, Recipient};
use tracing::{Instrument, debug, info, warn};

use super::pool_worker::PoolWorker;
use super::request_lease::RequestLease;
use crate::actors::provider::jobs::{Abandon, JobId, JobUpdate, Notify, Submit};
use crate::actors::runtime::log_context::LogContext;
use crate::actors::runtime::{clock, invariant_guard, profile};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::{Job, JobEvent, Notification, Outcome};
use nodepool_drivers::common::keyscan::{self, ScanMode};
use nodepool_model::metrics::prometheus_metrics;
use nodepool_model::metrics::statsd_metrics::{LaunchAttempt, image_of};
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::RequestState;
use nodepool_model::records::time::{Seconds, Timestamp};
use nodepool_model::snapshot::{NodeChange, Snapshot, Versioned, WriteError};
use nodepool_policy::invariants::nodes::check_fulfilled;
use nodepool_policy::pool::Event;
use nodepool_policy::request::fulfillment::{Adoption, Claim, Finish};
use nodepool_policy::request::launch::ScanTarget;
use nodepool_zk::locks::lock::Lock;
use nodepool_zk::txn::launch::HeldNode;
use nodepool_zk::txn::store::Store;

/// Interval between two attempts to release a node.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Locks and jobs that a PoolWorker holds for its launches.
#[derive(Default)]
pub struct HeldLocks {
    requests: BTreeMap<RequestId, Lock>,
    nodes: BTreeMap<NodeId, Lock>,
    jobs: BTreeMap<JobId, NodeId>,
    /// The last submitted job of each node, and the recipient that cancels it.
    last_job: BTreeMap<NodeId, (JobId, Recipient<Abandon>)>,
    /// Log contexts of the nodes.
    log_contexts: BTreeMap<NodeId, LogContext>,
    /// Event ids of the requests.
    event_ids: BTreeMap<RequestId, String>,
    /// Requests whose end would violate an invariant.
    violations: BTreeMap<RequestId, WriteError>,
}

impl HeldLocks {
    pub fn log_context(&self, node: &NodeId) -> LogContext {
        let node_only = || LogContext { node: Some(node.clone()), ..LogContext::default() };
        self.log_contexts.get(node).cloned().unwrap_or_else(node_only)
    }

    pub fn request_log_context(&self, request: &RequestId) -> LogContext {
        LogContext::request(request, self.event_ids.get(request).map(String::as_str))
    }

    /// Attaches the request's ids to the log lines of these nodes from now on.
    fn assign_to_request(&mut self, request: &LogContext, nodes: &[NodeId]) {
        if let (Some(id), Some(event)) = (&request.request, &request.event) {
            self.event_ids.insert(id.clone(), event.clone());
        }
        let log_context = |node: &NodeId| (node.clone(), LogContext { node: Some(node.clone()), ..request.clone() });
        self.log_contexts.extend(nodes.iter().map(log_context));
    }

    fn forget(&mut self, node: &NodeId) {
        self.last_job.remove(node);
        self.log_contexts.remove(node);
    }
}

/// A scan for host keys has ended.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ScanEnded {
    node: NodeId,
    attempt: u32,
    found: Result<Vec<String>, String>,
}

impl PoolWorker {
    pub(crate) fn claim(&mut self, claim: Claim, ctx: &mut Context<Self>) {
        let (id, store) = (claim.request.id.clone(), self.deps.store.clone());
        let record = self.traces.clone_if_traced(&claim.request.record);
        let log_context = LogContext::request(&id, claim.request.record.event_id.as_deref());
        let reused: Vec<NodeId> = claim.reuse.iter().map(|node| node.id.clone()).collect();
        let writing = async move { store.claim(claim.request, claim.reuse, claim.create).await };
        let lease = RequestLease::acquire(&self.deps.shared_pools, &self.deps.id, &id);
        self.actor_tasks.spawn(ctx, writing, move |result, act, ctx| {
            lease.release(result.is_ok());
            let answer = result.map(|claimed| {
                act.notify_reused(&reused);
                act.held_locks.requests.insert(id.clone(), claimed.lock);
                act.held_locks.assign_to_request(&log_context, &claimed.nodes);
                act.held_locks.assign_to_request(&log_context, &reused);
                act.traces.request_accepted(&id, record.as_ref(), &act.deps.id);
                claimed.nodes
            });
            let outcome = answer.as_ref().map(drop).map_err(WriteError::clone);
            let nodes = answer.as_deref().unwrap_or_default();
            act.log_write("claim", &log_context, format_args!("launching {nodes:?}, reusing {reused:?}"), &outcome);
            act.handle_event_on_latest(Event::Claimed(id, answer), ctx);
        });
    }

    /// Adds nodes to a request whose lock is held.
    pub(crate) fn extend(&mut self, id: RequestId, reuse: Vec<NodeChange>, create: Vec<Node>, ctx: &mut Context<Self>) {
        let Some(lock) = self.held_locks.requests.remove(&id) else {
            debug_assert!(false, "only requests whose lock is held are extended");
            return;
        };
        let store = self.deps.store.clone();
        let reused: Vec<NodeId> = reuse.iter().map(|node| node.id.clone()).collect();
        let writing = async move {
            let result = store.extend(&lock, reuse, create).await;
            (lock, result)
        };
        self.actor_tasks.spawn(ctx, writing, move |(lock, result), act, ctx| {
            act.held_locks.requests.insert(id.clone(), lock);
            let log_context = act.held_locks.request_log_context(&id);
            if let Ok(nodes) = &result {
                act.notify_reused(&reused);
                act.held_locks.assign_to_request(&log_context, nodes);
                act.held_locks.assign_to_request(&log_context, &reused);
            }
            let outcome = result.as_ref().map(drop).map_err(WriteError::clone);
            let nodes = result.as_deref().unwrap_or_default();
            act.log_write(
                "capacity available",
                &log_context,
                format_args!("launching {nodes:?}, reusing {reused:?}"),
                &outcome,
            );
            act.handle_event_on_latest(Event::Claimed(id, result), ctx);
        });
    }

    pub(crate) fn notify_reused(&self, nodes: &[NodeId]) {
        let Some(notify) = &self.deps.provider.notify else { return };
        nodes.iter().for_each(|node| notify.do_send(Notify(Notification::NodeReused(node.clone()))));
    }

    /// Releases nodes of a request that continues.
    pub(crate) fn release(&mut self, nodes: Vec<(NodeId, Option<NodeChange>)>, ctx: &mut Context<Self>) {
        let mut held = Vec::new();
        for (node, change) in nodes {
            self.traces.launch_abandoned(&node);
            self.held_locks.forget(&node);
            held.extend(self.held_locks.nodes.remove(&node).map(|lock| HeldNode { lock, change }));
        }
        let store = self.deps.store.clone();
        let changes: Vec<NodeChange> = held.iter().filter_map(|node| node.change.clone()).collect();
        let writing = async move {
            if let Err(error) = store.finish(None, held).await {
                warn!(target: "nodepool.NodeLauncher", %error, "cannot release nodes; retrying");
                // The failed write has dropped their locks.
                retry_release(&store, changes).await;
            }
        };
        self.actor_tasks.spawn(ctx, writing, |(), _, _| {});
    }

    pub(crate) fn adopt(&mut self, adoption: Adoption, ctx: &mut Context<Self>) {
        let (id, store) = (adoption.request.id.clone(), self.deps.store.clone());
        let record = self.traces.clone_if_traced(&adoption.request.record);
        let log_context = LogContext::request(&id, adoption.request.record.event_id.as_deref());
        let nodes: Vec<NodeId> = adoption.nodes.iter().map(|node| node.id.clone()).collect();
        let writing = async move { store.adopt(adoption.request, adoption.nodes).await };
        self.actor_tasks.spawn(ctx, writing, move |result, act, ctx| {
            let answer = result.map(|(lock, locks)| {
                act.held_locks.requests.insert(id.clone(), lock);
                act.held_locks.nodes.extend(nodes.iter().cloned().zip(locks));
                act.held_locks.assign_to_request(&log_context, &nodes);
                act.traces.request_accepted(&id, record.as_ref(), &act.deps.id);
                nodes.iter().for_each(|node| act.traces.launch_started(&id, node, &act.deps.id.provider));
            });
            act.log_write("resume", &log_context, format_args!("{nodes:?}"), &answer);
            act.handle_event_on_latest(Event::Adopted(id, answer), ctx);
        });
    }

    pub(crate) fn begin(&mut self, request: RequestId, nodes: Vec<NodeChange>, ctx: &mut Context<Self>) {
        let store = self.deps.store.clone();
        let ids: Vec<NodeId> = nodes.iter().map(|node| node.id.clone()).collect();
        let writing = async move { store.begin(nodes).await };
        self.actor_tasks.spawn(ctx, writing, move |result, act, ctx| {
            let answer = result.map(|locks| {
                act.log_launches(&request, &ids);
                act.held_locks.nodes.extend(ids.into_iter().zip(locks));
            });
            if let Err(error) = &answer {
                let (pool, log_context) = (&act.deps.id, act.held_locks.request_log_context(&request));
                let (event_id, node_request_id) = (log_context.event_id(), log_context.request_id());
                warn!(target: "nodepool.PoolWorker", %pool, event_id, node_request_id, %error, "cannot start launches");
            }
            act.handle_event_on_latest(Event::Begun(request, answer), ctx);
        });
    }

    pub(crate) fn save(&mut self, change: NodeChange, ctx: &mut Context<Self>) {
        let id = change.id.clone();
        let Some(lock) = self.held_locks.nodes.remove(&id) else {
            debug_assert!(false, "only nodes whose lock is held are saved");
            return;
        };
        let store = self.deps.store.clone();
        let writing = async move {
            let result = store.save_held(&lock, change).await;
            (lock, result)
        };
        self.actor_tasks.spawn(ctx, writing, move |(lock, result), act, ctx| {
            act.held_locks.nodes.insert(id.clone(), lock);
            if let Err(error) = &result {
                let (log_context, provider) = (act.held_locks.log_context(&id), &act.deps.id.provider);
                let (event_id, node_request_id, node_id) = (log_context.event_id(), log_context.request_id(), log_context.node_id());
                warn!(target: "nodepool.StateMachineNodeLauncher", %provider, event_id, node_request_id, node_id, %error, "cannot save");
            }
            act.handle_event_on_latest(Event::Saved(id, result), ctx);
        });
    }

    /// Checks the invariants for the end of a request: on the snapshot of its decision, with its own changes applied.
    pub(crate) fn check_invariants(&mut self, id: &RequestId, finish: &Finish, snapshot: &Snapshot) {
        let Some(request) = &finish.request else { return };
        if request.record.state != RequestState::Fulfilled {
            return;
        }
        let changes = finish.nodes.iter().filter_map(|(_, change)| change.as_ref());
        let changed: BTreeMap<&NodeId, &Node> = changes.map(|change| (&change.id, &change.record)).collect();
        let current = |node: &NodeId| snapshot.node(node).map(|stored| &*stored.record);
        let found = check_fulfilled(id, &request.record, |node| changed.get(node).copied().or_else(|| current(node)));
        if let Err(error) = invariant_guard::enforce(found) {
            self.held_locks.violations.insert(id.clone(), error);
        }
    }

    pub(crate) fn finish(&mut self, id: RequestId, finish: Finish, ctx: &mut Context<Self>) {
        let store = self.deps.store.clone();
        let checked = self.held_locks.violations.remove(&id).map_or(Ok(()), Err);
        let (mut held, mut unlocked) = (Vec::new(), Vec::new());
        for (node, change) in finish.nodes {
            self.held_locks.forget(&node);
            match (self.held_locks.nodes.remove(&node), change) {
                (Some(lock), change) => held.push(HeldNode { lock, change }),
                (None, Some(change)) => unlocked.push(change),
                (None, None) => {}
            }
        }
        let state = finish.request.as_ref().map_or("deleted", |request| request.record.state.as_str());
        let fulfilled = finish.request.as_ref().filter(|request| request.record.state == RequestState::Fulfilled);
        let fulfilled = fulfilled.map(|request| request.record.created_time);
        let log_context = self.held_locks.request_log_context(&id);
        self.held_locks.event_ids.remove(&id);
        let request = self.held_locks.requests.remove(&id).map(|lock| (lock, finish.request));
        let writing = async move {
            checked?;
            // Deallocated nodes are saved last, so that no pool assigns a node that the request still names.
            store.finish(request, held).await?;
            let mut saved = Ok(());
            for change in unlocked {
                saved = saved.and(store.save(change).await);
            }
            saved
        };
        self.actor_tasks.spawn(ctx, writing, move |result, act, ctx| {
            if let (Some(created), Ok(())) = (fulfilled, &result) {
                act.record_fulfilled(created);
            }
            act.traces.request_ended(&id, if result.is_ok() { state } else { "not recorded" });
            act.log_write("finish", &log_context, format_args!("{state}"), &result);
            act.handle_write_result(Event::Finished(id, result), ctx);
        });
    }

    pub(crate) fn submit(&mut self, node: NodeId, job: Job, ctx: &mut Context<Self>) {
        let job_id = self.next_job_id();
        let (log_context, provider, job_name) =
            (self.held_locks.log_context(&node), &self.deps.id.provider, job.name());
        let (event_id, node_request_id, node_id) =
            (log_context.event_id(), log_context.request_id(), log_context.node_id());
        debug!(target: "nodepool.StateMachineNodeLauncher", %provider, event_id, node_request_id, node_id, job = job_name, "submitted");
        if matches!(job, Job::Launch(_)) {
            self.traces.boot_started(&node);
        }
        self.held_locks.jobs.insert(job_id, node.clone());
        self.held_locks.last_job.insert(node, (job_id, self.deps.provider.abandon.clone()));
        // Bounded by the nodes in flight. A stopped provider answers by dropping the job.
        self.deps
            .provider
            .submit
            .do_send(Submit::new(job_id, job, ctx.address().recipient()).with_log_context(log_context));
    }

    pub(crate) fn abandon(&mut self, node: &NodeId, ctx: &mut Context<Self>) {
        if let Some((job_id, recipient)) = self.held_locks.last_job.get(node) {
            recipient.do_send(Abandon { job_id: *job_id, reply: ctx.address().recipient() });
        }
    }

    /// Handles an update of a launch's job; returns false for an update of another job.
    pub(crate) fn on_launch_update(&mut self, message: &JobUpdate, ctx: &mut Context<Self>) -> bool {
        let Some(node) = self.held_locks.jobs.get(&message.job_id).cloned() else { return false };
        if let JobEvent::Finished(result) = &message.event {
            self.held_locks.jobs.remove(&message.job_id);
            self.log_job_end(&node, result);
            if result.is_err() {
                // A suspended launch continues in a pass; the facts may have changed before its job ended.
                self.triggers.requeue_now();
            }
        }
        self.handle_event_on_latest(Event::JobUpdate(node, message.event.clone()), ctx);
        true
    }

    pub(crate) fn scan(&mut self, node: NodeId, target: ScanTarget, ctx: &mut Context<Self>) {
        let attempt = target.attempt;
        let (scanner, reply) = (self.deps.provider.scanner.clone(), ctx.address().recipient());
        let mode = if target.gathers_keys { ScanMode::Keys } else { ScanMode::ConnectOnly };
        let target = keyscan::ScanTarget { host: target.address, port: target.port, timeout: target.timeout, mode };
        let log_context = self.held_locks.log_context(&node);
        self.traces.keyscan_started(&node);
        let span = log_context.span();
        let scanning = async move {
            debug!(target: "nodepool.utils", host = target.host, port = target.port, attempt, "scanning for host keys");
            let found = if target.host.is_empty() {
                Err("the instance has no address".to_owned())
            } else {
                scanner.scan(&target).await.map(|scan| scan.host_keys).map_err(|error| error.to_string())
            };
            match &found {
                Ok(keys) => debug!(target: "nodepool.utils", keys = keys.len(), attempt, "host keys found"),
                Err(error) => info!(target: "nodepool.utils", attempt, error, "no host keys"),
            }
            reply.do_send(ScanEnded { node, attempt, found });
        };
        self.deps.cloud_arbiter.spawn(scanning.instrument(span));
    }

    /// Submits a refresh of the provider facts. The facts are published, so the end of the job is not awaited.
    pub(crate) fn refresh(&mut self, ctx: &mut Context<Self>) {
        let job_id = self.next_job_id();
        self.deps.provider.submit.do_send(Submit::new(job_id, Job::Refresh, ctx.address().recipient()));
    }

    /// Records the time from creation to fulfilment of a request.
    pub(crate) fn record_fulfilled(&self, created: Option<Timestamp>) {
        let Some(created) = created else { return };
        let labels = [self.deps.id.provider.as_str(), self.deps.id.pool.as_str()].map(str::to_owned);
        let took = (clock::now() - created).0.max(0.0);
        self.deps.samples.record(&prometheus_metrics::REQUEST_TIME, labels.into(), took);
    }

    fn log_launches(&mut self, request: &RequestId, nodes: &[NodeId]) {
        let log_context = self.held_locks.request_log_context(request);
        let provider = &self.deps.id.provider;
        for node in nodes {
            let (event_id, node_request_id) = (log_context.event_id(), log_context.request_id());
            info!(target: "nodepool.StateMachineNodeLauncher", %provider, event_id, node_request_id, node_id = %node, "launching");
            self.traces.launch_started(request, node, provider);
        }
    }

    fn log_job_end(&mut self, node: &NodeId, result: &Result<Outcome, CloudError>) {
        let (log_context, provider) = (self.held_locks.log_context(node), &self.deps.id.provider);
        let (event_id, node_request_id, node_id) =
            (log_context.event_id(), log_context.request_id(), log_context.node_id());
        match result {
            Ok(_) => {
                self.traces.boot_ended(node, None);
                debug!(target: "nodepool.StateMachineNodeLauncher", %provider, event_id, node_request_id, node_id, "job ended");
            }
            Err(error) => {
                self.traces.boot_ended(node, Some(&error.to_string()));
                info!(target: "nodepool.StateMachineNodeLauncher", %provider, event_id, node_request_id, node_id, %error, "job failed");
            }
        }
    }

    pub(crate) fn report_launch(&mut self, node: &NodeId, result: &str, took: Seconds, zone: Option<String>) {
        let (log_context, provider) = (self.held_locks.log_context(node), &self.deps.id.provider);
        let (event_id, node_request_id, node_id) =
            (log_context.event_id(), log_context.request_id(), log_context.node_id());
        let took_s = (took.0 * 1000.0).round() / 1000.0;
        info!(target: "nodepool.StateMachineNodeLauncher", %provider, event_id, node_request_id, node_id, result, took_s, "launch attempt ended");
        self.traces.attempt_ended(node, result);
        if let (Some(notify), true) = (&self.deps.provider.notify, result != "ready") {
            notify.do_send(Notify(Notification::AttemptFailed(node.clone())));
        }
        if !self.deps.samples.is_enabled() {
            return;
        }
        let snapshot = self.triggers.latest();
        let record = snapshot.node(node).map(|stored| stored.record.clone());
        let end = LaunchAttempt {
            result,
            milliseconds: took.0 * 1000.0,
            provider: &self.deps.id.provider,
            zone: zone.as_deref().or_else(|| record.as_ref()?.az.as_deref()),
            requestor: record.as_ref().and_then(|record| record.requestor.as_deref()),
            image: record.as_ref().and_then(|record| record.image_id.as_deref()).map(image_of),
        };
        end.samples().into_iter().for_each(|sample| self.deps.samples.send(sample));
    }
}

impl Handler<ScanEnded> for PoolWorker {
    type Result = ();

    fn handle(&mut self, message: ScanEnded, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("ScanEnded");
        self.traces.keyscan_ended(&message.node, message.found.as_ref().err().map(String::as_str));
        self.handle_event_on_latest(Event::Scanned(message.node, message.attempt, message.found), ctx);
    }
}

/// Writes the records of released nodes until the writes succeed or the session ends. As long as their request is
/// locked, these nodes count as building: no component deletes them, and they may use the capacity that the request
/// waits for.
async fn retry_release(store: &Store, mut nodes: Vec<NodeChange>) {
    while !nodes.is_empty() {
        tokio::time::sleep(RETRY_INTERVAL).await;
        let mut remaining = Vec::new();
        for node in nodes {
            let is_building = |stored: &&Versioned<Node>| stored.record.state == NodeState::Building;
            let mirror = store.mirror();
            let version = mirror
                .with_snapshot(|snapshot| snapshot.node(&node.id).filter(is_building).map(|stored| stored.version));
            let Some(version) = version else { continue };
            let written = store.save(NodeChange { version, ..node.clone() }).await;
            remaining.extend(matches!(written, Err(ref error) if *error != WriteError::SessionOver).then_some(node));
        }
        nodes = remaining;
    }
}
