//! BackingWorker: imperative shell of `BackingPlanner`, for all metastatic providers of the launcher.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};
use tracing::{debug, info, warn};

use super::slot_board::SlotBoard;
use crate::actors::provider::jobs::ProviderHandle;
use crate::actors::runtime::actor_tasks::ActorTasks;
use crate::actors::runtime::messages::{Dump, Shutdown};
use crate::actors::runtime::panics::PanicGuard;
use crate::actors::runtime::reconcile::{Reconcile, Triggers, cooldown_after};
use crate::actors::runtime::registry::Registration;
use crate::actors::runtime::snapshot_feed::SnapshotFeed;
use crate::actors::runtime::{clock, profile};
use nodepool_model::records::backing::BACKING_PRIORITY;
use nodepool_model::records::ids::{NodeId, ProviderName, RequestId};
use nodepool_model::snapshot::WriteError;
use nodepool_policy::backing::planner::{
    ActionKey, BackingAction, BackingInputs, BackingOrder, BackingPlanner, request,
};
use nodepool_zk::txn::store::Store;

/// Interval at which the backing nodes are published for the page.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);

pub struct BackingWorkerDeps {
    pub store: Store,
    pub guard: PanicGuard,
    pub dumps: crate::actors::runtime::dump::DumpRegistry,
    /// Receives the backing nodes, for the page.
    pub feed: SnapshotFeed,
}

pub struct BackingWorker {
    deps: BackingWorkerDeps,
    providers: BTreeMap<ProviderName, ManagedProvider>,
    triggers: Triggers,
    actor_tasks: ActorTasks<Self>,
    /// Set with the first provider.
    is_publishing: bool,
    registration: Option<Registration>,
}

/// A metastatic provider with its planner. The planner outlives the driver, which a reload may replace.
struct ManagedProvider {
    planner: BackingPlanner,
    provider: BackingProvider,
    /// Not part of the configuration any more; it ends with the launches that it still has.
    is_removed: bool,
}

/// A metastatic provider, as the launcher has started it.
#[derive(Clone)]
pub struct BackingProvider {
    pub handle: ProviderHandle,
    pub board: Arc<SlotBoard>,
}

/// The metastatic providers in service, after each reload.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SetBackingProviders(pub BTreeMap<ProviderName, BackingProvider>);

impl BackingWorker {
    pub fn new(deps: BackingWorkerDeps) -> Self {
        Self {
            triggers: Triggers::new(deps.store.mirror().clone()),
            deps,
            providers: BTreeMap::new(),
            actor_tasks: ActorTasks::default(),
            is_publishing: false,
            registration: None,
        }
    }

    fn set_providers(&mut self, providers: BTreeMap<ProviderName, BackingProvider>, ctx: &mut Context<Self>) {
        for (name, managed) in &mut self.providers {
            managed.is_removed = !providers.contains_key(name);
        }
        for (name, provider) in providers {
            match self.providers.get_mut(&name) {
                Some(managed) => managed.provider = provider,
                None => {
                    self.await_demand(provider.board.clone(), ctx);
                    let worker = nodepool_rng::uuid().simple().to_string();
                    let planner = BackingPlanner::new(name.clone(), worker);
                    self.providers.insert(name, ManagedProvider { planner, provider, is_removed: false });
                }
            }
        }
        if !self.is_publishing && !self.providers.is_empty() {
            self.is_publishing = true;
            self.actor_tasks.spawn_interval(ctx, PUBLISH_INTERVAL, |act, _| act.publish());
        }
        let facts = self.providers.values().map(|managed| managed.provider.handle.facts.clone());
        self.triggers.watch_facts(facts.collect());
    }

    /// Runs whenever a launch needs a slot.
    fn await_demand(&mut self, board: Arc<SlotBoard>, ctx: &mut Context<Self>) {
        let waiting = async move {
            board.demand.notified().await;
            board
        };
        self.actor_tasks.spawn(ctx, waiting, |board, act, ctx| {
            act.triggers.requeue_now();
            if act.providers.values().any(|managed| Arc::ptr_eq(&managed.provider.board, &board)) {
                act.await_demand(board, ctx);
            }
        });
    }

    /// Publishes the backing nodes. Their times of release change without an event.
    fn publish(&self) {
        let (now, monotonic_now) = (clock::now(), clock::monotonic_now());
        let nodes = |managed: &ManagedProvider| managed.planner.status(now, monotonic_now).nodes;
        self.deps
            .feed
            .set_backing_nodes(self.providers.iter().map(|(name, managed)| (name.clone(), nodes(managed))).collect());
    }

    fn plan(&mut self, name: &ProviderName, ctx: &mut Context<Self>) {
        let (snapshot, unread) = self.triggers.snapshot_and_unread_nodes();
        let Some(ManagedProvider { planner, provider, is_removed }) = self.providers.get_mut(name) else { return };
        let Some(launch_config) = provider.handle.facts.borrow().launch_config.clone() else { return };
        for node in provider.board.take_failed_backing_nodes() {
            planner.attempt_failed(&node);
        }
        let own = provider.board.needing();
        let inputs = BackingInputs {
            snapshot: &snapshot,
            unread: &unread,
            launch_config: &launch_config,
            own: &own,
            now: clock::now(),
            monotonic_now: clock::monotonic_now(),
        };
        let mut actions = planner.plan(&inputs);
        provider.board.set_obstacles(planner.obstacles());
        if *is_removed && own.is_empty() {
            actions.extend(planner.discard_all());
            if planner.is_settled() {
                self.providers.remove(name);
            }
        }
        for action in actions {
            self.perform(name, action, ctx);
        }
    }

    fn perform(&mut self, name: &ProviderName, action: BackingAction, ctx: &mut Context<Self>) {
        let Some(managed) = self.providers.get(name) else { return };
        let (store, board) = (self.deps.store.clone(), managed.provider.board.clone());
        let Some(key) = action.key() else {
            if let BackingAction::Fail { nodes, reason } = action {
                board.fail(&nodes, &reason);
            }
            return;
        };
        let (owner, worker) = (managed.planner.owner().to_owned(), managed.planner.worker().to_owned());
        let name = name.clone();
        let performing = perform(store, owner, worker, action);
        self.actor_tasks.spawn(ctx, performing, move |done, act, _| {
            let result = done.as_ref().map(drop).map_err(WriteError::clone);
            log_result(&name, &key, &done);
            let now = clock::monotonic_now();
            if let Some(managed) = act.providers.get_mut(&name) {
                match done {
                    Ok(Done::Verified { node, holder, data }) => managed.planner.verified(&node, holder, &data, now),
                    Ok(Done::Adopted { node, holder, owner, .. }) => {
                        managed.planner.verified(&node, holder, owner.as_bytes(), now);
                    }
                    Ok(Done::SlotsTaken(_)) => board.slots_taken(),
                    _ => {}
                }
                managed.planner.ended(&key, &result, now);
            }
            act.triggers.requeue_now();
        });
    }
}

/// End of an action that succeeded.
enum Done {
    Verified { node: NodeId, holder: String, data: Vec<u8> },
    SlotsTaken(usize),
    Requested(RequestId, BackingOrder),
    Adopted { node: NodeId, request: RequestId, holder: String, owner: String },
    Discarded(&'static str),
    Retired(String),
    Released,
    Unlocked,
}

async fn perform(store: Store, owner: String, worker: String, action: BackingAction) -> Result<Done, WriteError> {
    match action {
        BackingAction::Verify { node, holder } => {
            let data = store.holder_data(&node, &holder).await?.to_vec();
            Ok(Done::Verified { node, holder, data })
        }
        BackingAction::Take { backing, nodes } => {
            let count = nodes.len();
            let changes = std::iter::once(backing).chain(nodes).collect();
            store.save_locked(changes).await.map(|()| Done::SlotsTaken(count))
        }
        BackingAction::Request(order) => {
            let event = nodepool_rng::uuid().simple().to_string();
            let record = request(&owner, &order, &worker, event, clock::now());
            let id = store.submit_own_request(BACKING_PRIORITY, record).await?;
            Ok(Done::Requested(id, order))
        }
        BackingAction::Adopt { request, node } => {
            let id = node.id.clone();
            let holder = store.adopt_backing_node(&request, node, &owner).await?;
            Ok(Done::Adopted { node: id, request, holder, owner })
        }
        BackingAction::Discard { request, reason } => {
            store.remove_request(&request).await.map(|()| Done::Discarded(reason))
        }
        BackingAction::Retire { backing, reason } => {
            store.save_locked(vec![backing]).await.map(|()| Done::Retired(reason))
        }
        BackingAction::Release { backing } => store.release_backing_node(backing).await.map(|()| Done::Released),
        BackingAction::Unlock { node, holder } => store.remove_holder(&node, &holder).await.map(|()| Done::Unlocked),
        BackingAction::Fail { .. } => unreachable!("it has no answer"),
    }
}

fn log_result(provider: &ProviderName, key: &ActionKey, done: &Result<Done, WriteError>) {
    let id = match key {
        ActionKey::Node(id) => id.as_str(),
        ActionKey::Request(id) => id.as_str(),
        ActionKey::Order(label) => label.as_str(),
    };
    match done {
        Ok(Done::Verified { .. }) => debug!(%provider, node_id = id, "read the holder of a lock"),
        Ok(Done::SlotsTaken(count)) => debug!(%provider, node_id = id, count, "put nodes into slots"),
        Ok(Done::Requested(request, order)) => {
            let (label, backing_label) = (&order.label, &order.backing_label);
            info!(%provider, node_request_id = %request, %label, %backing_label, "requested a backing node");
        }
        Ok(Done::Adopted { node, request, .. }) => {
            info!(%provider, node_request_id = %request, node_id = %node, "acquired a backing node");
        }
        Ok(Done::Discarded(reason)) => {
            info!(%provider, node_request_id = id, reason, "request for a backing node deleted")
        }
        Ok(Done::Retired(reason)) => {
            warn!(%provider, node_id = id, reason, "backing node retired: it gets no more nodes")
        }
        Ok(Done::Released) => info!(%provider, node_id = id, "released a backing node"),
        Ok(Done::Unlocked) => info!(%provider, node_id = id, "unlocked a backing node that is not in use"),
        Err(WriteError::Conflict | WriteError::Contended) => {
            debug!(%provider, id, "lost a race: the record changed since the snapshot");
        }
        Err(error) => warn!(%provider, id, %error, "a step with a backing node failed; it is repeated"),
    }
}

impl Reconcile for BackingWorker {
    fn triggers(&mut self) -> &mut Triggers {
        &mut self.triggers
    }

    fn reconcile(&mut self, ctx: &mut Context<Self>) {
        let names: Vec<ProviderName> = self.providers.keys().cloned().collect();
        for name in names {
            self.plan(&name, ctx);
        }
        let now = clock::monotonic_now();
        let due = self.providers.values().filter_map(|managed| managed.planner.due(now)).min();
        self.triggers.requeue_at(due);
    }

    fn cooldown(took: Duration) -> Option<Duration> {
        cooldown_after(took)
    }
}

impl Actor for BackingWorker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let address = ctx.address().downgrade().recipient();
        self.registration = Some(self.deps.dumps.register("BackingWorker", "", address));
        Self::start_reconciler(ctx);
    }
}

impl Handler<SetBackingProviders> for BackingWorker {
    type Result = ();

    fn handle(&mut self, message: SetBackingProviders, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("SetBackingProviders");
        self.set_providers(message.0, ctx);
    }
}

impl Handler<Shutdown> for BackingWorker {
    type Result = ();

    fn handle(&mut self, _: Shutdown, ctx: &mut Context<Self>) {
        let _measured = profile::time_handler::<Self>("Shutdown");
        ctx.stop();
    }
}

impl Handler<Dump> for BackingWorker {
    type Result = Option<serde_json::Value>;

    fn handle(&mut self, _: Dump, _: &mut Context<Self>) -> Option<serde_json::Value> {
        let _measured = profile::time_handler::<Self>("Dump");
        let (now, monotonic_now) = (clock::now(), clock::monotonic_now());
        let status = |managed: &ManagedProvider| managed.planner.status(now, monotonic_now);
        let providers: BTreeMap<_, _> =
            self.providers.iter().map(|(name, managed)| (name.to_string(), status(managed))).collect();
        serde_json::to_value(providers).ok()
    }
}
