//! Slots of one metastatic provider, between its driver and the BackingWorker: launches tell which nodes need a slot,
//! and the worker tells what has become of them. Which node has which slot is recorded in ZooKeeper alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::{Instance, InstanceLogin};
use nodepool_drivers::metastatic::{SlotState, Slots, need};
use nodepool_model::records::backing::{Slot, is_backing_state};
use nodepool_model::records::ids::{ExternalId, LabelName, NodeId};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::snapshot::{LockedChange, Snapshot, WriteError};
use nodepool_zk::txn::store::Store;

pub struct SlotBoard {
    store: Store,
    state: Mutex<BoardState>,
    /// Changes when nodes that need a slot are to look again.
    progress: watch::Sender<()>,
    /// Wakes the worker.
    pub(crate) demand: Notify,
}

#[derive(Default)]
struct BoardState {
    needing: Arc<BTreeSet<NodeId>>,
    /// Nodes whose attempt fails, with the reason.
    failed: BTreeMap<NodeId, String>,
    /// Backing nodes on which an attempt failed.
    failed_backing_nodes: Vec<NodeId>,
    /// Obstacles of the waiting nodes, by label.
    obstacles: BTreeMap<LabelName, String>,
}

impl SlotBoard {
    pub fn new(store: Store) -> Self {
        Self { store, state: Mutex::default(), progress: watch::Sender::default(), demand: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, BoardState> {
        // Its content is valid after a panic, too: every change is a single one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nodes that are being launched and need a slot.
    pub fn needing(&self) -> Arc<BTreeSet<NodeId>> {
        self.state().needing.clone()
    }

    pub fn take_failed_backing_nodes(&self) -> Vec<NodeId> {
        std::mem::take(&mut self.state().failed_backing_nodes)
    }

    /// The attempts of these nodes fail.
    pub fn fail(&self, nodes: &[NodeId], reason: &str) {
        self.state().failed.extend(nodes.iter().map(|node| (node.clone(), reason.to_owned())));
        self.progress.send_replace(());
    }

    pub fn set_obstacles(&self, obstacles: BTreeMap<LabelName, String>) {
        let mut state = self.state();
        if state.obstacles != obstacles {
            state.obstacles = obstacles;
            self.progress.send_replace(());
        }
    }

    /// Nodes have got slots.
    pub fn slots_taken(&self) {
        self.progress.send_replace(());
    }
}

impl Slots for SlotBoard {
    fn request(&self, node: &NodeId) {
        let mut state = self.state();
        state.failed.remove(node);
        Arc::make_mut(&mut state.needing).insert(node.clone());
        self.demand.notify_one();
    }

    fn withdraw(&self, node: &NodeId) {
        let mut state = self.state();
        state.failed.remove(node);
        Arc::make_mut(&mut state.needing).remove(node);
        self.demand.notify_one();
    }

    fn state_of(&self, id: &NodeId) -> SlotState {
        if let Some(reason) = self.state().failed.get(id) {
            return SlotState::Failed(reason.clone());
        }
        let found = self.store.mirror().with_snapshot(|snapshot| {
            let slot = Slot::of(&snapshot.node(id)?.record)?;
            Some(taken(id, &slot, snapshot))
        });
        found.unwrap_or_else(|| self.waiting(id))
    }

    fn attempt_failed(&self, node: &NodeId) {
        let slot = |snapshot: &Snapshot| snapshot.node(node).and_then(|stored| Slot::of(&stored.record));
        if let Some(slot) = self.store.mirror().with_snapshot(slot) {
            self.state().failed_backing_nodes.push(slot.backing_node);
            self.demand.notify_one();
        }
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.progress.subscribe()
    }

    async fn free(&self, id: &NodeId) -> Result<(), CloudError> {
        let change = self.store.mirror().with_snapshot(|snapshot| {
            let stored = snapshot.node(id).filter(|stored| stored.record.state == NodeState::Building)?;
            Slot::of(&stored.record)?;
            let holder = snapshot.node_lock(id).holder()?.clone();
            Some(LockedChange { node: stored.change(id.clone(), Slot::clear), holder })
        });
        let Some(change) = change else { return Ok(()) };
        let written = self.store.save_locked(vec![change]).await;
        written.map_err(|error| CloudError::Failed { kind: kind_of(&error), detail: error.to_string() })
    }
}

impl SlotBoard {
    fn waiting(&self, id: &NodeId) -> SlotState {
        let label = |snapshot: &Snapshot| snapshot.node(id).and_then(|stored| stored.record.labels.first().cloned());
        let label = self.store.mirror().with_snapshot(label);
        let obstacle = label.and_then(|label| self.state().obstacles.get(&label).cloned());
        SlotState::Waiting(obstacle.unwrap_or_else(|| "waiting for a slot".to_owned()))
    }
}

fn kind_of(error: &WriteError) -> FailureKind {
    match error {
        WriteError::SessionOver => FailureKind::Session,
        WriteError::Conflict | WriteError::Contended | WriteError::Failed(_) => FailureKind::Nodepool,
    }
}

/// The node in its slot, with the connection data of its backing node.
fn taken(id: &NodeId, slot: &Slot, snapshot: &Snapshot) -> SlotState {
    let backing = snapshot.node(&slot.backing_node).map(|stored| &*stored.record);
    let Some(backing) = backing.filter(|backing| is_backing_state(backing.state)) else {
        return SlotState::Failed(format!("backing node {} is gone", slot.backing_node));
    };
    SlotState::Taken(Box::new(instance(id, backing)))
}

fn instance(id: &NodeId, backing: &Node) -> Instance {
    let mut instance = Instance::new(ExternalId::text(id.as_str()));
    instance.interface_ip.clone_from(&backing.interface_ip);
    instance.public_ipv4.clone_from(&backing.public_ipv4);
    instance.public_ipv6.clone_from(&backing.public_ipv6);
    instance.private_ipv4.clone_from(&backing.private_ipv4);
    instance.cloud.clone_from(&backing.cloud);
    instance.zone.clone_from(&backing.az);
    instance.region.clone_from(&backing.region);
    instance.resources = need();
    instance.login = Some(Arc::new(InstanceLogin {
        username: backing.username.clone(),
        connection_type: backing.connection_type.clone(),
        connection_port: (*backing.connection_port).clone(),
        python_path: backing.python_path.clone(),
        shell_type: backing.shell_type.clone(),
        host_keys: backing.host_keys.clone(),
    }));
    instance.attributes = backing.attributes.as_object().cloned().unwrap_or_default();
    instance
}
