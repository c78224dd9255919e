//! Model of a Nodepool 11 launcher as other launchers observe it.
//!
//! The model polls, locks as kazoo does, reads again under the lock, and writes without comparing versions. It launches
//! at its own provider. At the provider `middle`, where it has `max-servers: 0`, it declines requests and deletes nodes
//! of other launchers.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::cloud::{CloudConnection, Clouds};
use super::configuration::{LABELS, NODEPOOL11_LABEL, NODEPOOL11_PROVIDERS};
use super::history::RunHistory;
use super::process::{ProcessHandle, restart_delay};
use super::step_budget::StepBudget;
use bytes::Bytes;
use futures::future::join_all;
use nodepool::actors::runtime::clock;
use nodepool_driver::error::CloudError;
use nodepool_driver::instance::{Instance, InstanceState};
use nodepool_driver::job::LaunchOrder;
use nodepool_model::records::component::{ComponentKind, PoolComponent};
use nodepool_model::records::ids::{ExternalId, LabelName, LauncherId, NodeId, PoolId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_zk::locks::lock::{self, Lock};
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::txn::delete_tree;
use nodepool_zk::{Zk, paths};
use testkit::in_process_launcher::Consumer;
use tokio::time::Instant;
use zookeeper_server::types::{CreateMode, ZkError};

/// Server limit of the model's own provider.
pub const MAX_SERVERS: usize = 6;
const ATTEMPTS: u32 = 3;

/// One process of the launcher.
struct Nodepool11Model {
    /// Reads of ZooKeeper, as any client makes them.
    reader: Consumer,
    /// Replaces the cache that Nodepool 11 keeps with watches.
    view: StaleView,
    zk: Zk,
    own_cloud: CloudConnection,
    shared: CloudConnection,
    /// Ids of the pools, in the order of `NODEPOOL11_PROVIDERS`.
    pools: [LauncherId; 2],
    components: RefCell<Vec<String>>,
}

/// Age of the cache. Nodepool 11 processes watch events when it has nothing else to do. The processes of a run use
/// these delays in turn.
const VIEW_DELAYS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(700), Duration::from_secs(4)];

/// Cached nodes and requests, up to `delay` old.
struct StaleView {
    /// The current state.
    history: RunHistory,
    delay: Duration,
    polled: RefCell<Option<PolledState>>,
}

struct PolledState {
    polled_at: Instant,
    nodes: Vec<(NodeId, Node)>,
    requests: Vec<(RequestId, NodeRequest)>,
}

impl StaleView {
    fn new(history: RunHistory, run: u32) -> Self {
        Self { history, delay: VIEW_DELAYS[run as usize % VIEW_DELAYS.len()], polled: RefCell::default() }
    }

    fn nodes(&self, matches: impl Fn(&Node) -> bool) -> Vec<(NodeId, Node)> {
        self.read(|polled| polled.nodes.iter().filter(|(_, node)| matches(node)).cloned().collect())
    }

    /// Requests for which `matches` is true, in the order in which they are served.
    fn requests(&self, matches: impl Fn(&NodeRequest) -> bool) -> Vec<RequestId> {
        let ids = |polled: &PolledState| {
            let matching = polled.requests.iter().filter(|(_, request)| matches(request));
            matching.map(|(id, _)| id.clone()).collect()
        };
        self.read(ids)
    }

    fn read<T>(&self, read: impl Fn(&PolledState) -> T) -> T {
        let polled = &mut *self.polled.borrow_mut();
        let recent = polled.take().filter(|polled| polled.polled_at.elapsed() < self.delay);
        let all = || PolledState {
            polled_at: Instant::now(),
            nodes: self.history.nodes(|_| true),
            requests: self.history.requests(|_| true),
        };
        read(polled.insert(recent.unwrap_or_else(all)))
    }
}

/// Starts the launcher, and restarts it after each kill.
pub fn keep_running(zookeeper: &MemoryZooKeeper, clouds: &Clouds, history: &RunHistory) -> ProcessHandle {
    history.limit(&PoolId::new(NODEPOOL11_PROVIDERS[0], "main"), MAX_SERVERS, Duration::ZERO);
    let process = ProcessHandle::absent();
    let (handle, zookeeper, clouds, history) = (process.clone(), zookeeper.clone(), clouds.clone(), history.clone());
    actix_rt::spawn(async move {
        for run in 1.. {
            let budget = StepBudget::unlimited();
            let zk = handle.connect(&budget, &zookeeper);
            let (clouds, history, run_budget) = (clouds.clone(), history.clone(), budget.clone());
            actix_rt::spawn(async move { Nodepool11Model::run(zk, &clouds, history, &run_budget, run).await });
            budget.exhausted().await;
            tokio::time::sleep(restart_delay(run as usize)).await;
        }
    });
    process
}

/// Errors end the current action; those of a killed process are never handled.
type ZkResult<T> = Result<T, ZkError>;

impl Nodepool11Model {
    /// Registers its pools and works until it is killed.
    async fn run(zk: Zk, clouds: &Clouds, history: RunHistory, budget: &StepBudget, run: u32) {
        let pool = |provider: &str| LauncherId::from(format!("old-PoolWorker.{provider}-main-{run:032x}"));
        let model = Rc::new(Self {
            reader: Consumer { zk: zk.clone() },
            view: StaleView::new(history, run),
            zk,
            own_cloud: clouds.connect("nodepool11", NODEPOOL11_PROVIDERS[0].into(), budget),
            shared: clouds.connect("nodepool11", NODEPOOL11_PROVIDERS[1].into(), budget),
            pools: NODEPOOL11_PROVIDERS.map(pool),
            components: RefCell::default(),
        });
        for (provider, id) in NODEPOOL11_PROVIDERS.iter().zip(&model.pools) {
            model.register(provider, id).await.expect("a new session is alive");
        }
        futures::join!(model.delete_nodes(), model.clone().assign(), model.reset_lost(), model.delete_leaked());
    }

    async fn register(&self, provider: &str, id: &LauncherId) -> ZkResult<()> {
        lock::make_path(&self.zk, &paths::components(ComponentKind::Pool)).await?;
        let prefix = paths::component_prefix(ComponentKind::Pool, "old");
        let data = json::to_bytes(&component(provider, id, false));
        let (path, _) = self.zk.create(&prefix, data.into(), CreateMode::EphemeralSequential).await?;
        self.components.borrow_mut().push(path);
        Ok(())
    }

    /// Writes whether its own pool is paused, that is, waits for capacity.
    async fn pause(&self, paused: bool) -> ZkResult<()> {
        let path = self.components.borrow()[0].clone();
        let data = json::to_bytes(&component(NODEPOOL11_PROVIDERS[0], &self.pools[0], paused));
        self.zk.set(&path, data.into(), -1).await.map(drop)
    }

    /// Handles all open requests in their order, each second.
    async fn assign(self: Rc<Self>) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let declined = |request: &NodeRequest| self.pools.iter().all(|pool| request.declined_by.contains(pool));
            let is_open = |request: &NodeRequest| request.state == RequestState::Requested && !declined(request);
            for id in self.view.requests(is_open) {
                // An error ends the pass for this request, as an exception does in Nodepool 11.
                let _ = self.handle_request(&id).await;
            }
        }
    }

    async fn handle_request(self: &Rc<Self>, id: &RequestId) -> ZkResult<()> {
        let Some(unlocked) = self.reader.request(id).await else { return Ok(()) };
        for (at, pool) in self.pools.iter().enumerate() {
            let is_mine =
                |request: &NodeRequest| request.state == RequestState::Requested && !request.declined_by.contains(pool);
            let launches = at == 0;
            if !is_mine(&unlocked) {
                continue;
            }
            let Some(held) = lock::try_lock(&self.zk, &paths::request_lock(id), "").await? else { continue };
            match self.reader.request(id).await.filter(is_mine) {
                // A min-ready request does not wait for capacity.
                Some(request) if launches && (!request.is_min_ready() || self.capacity() > 0) => {
                    let nodes = self.accept(id, &request).await?;
                    let model = self.clone();
                    actix_rt::spawn(async move {
                        let _ = model.serve(held, nodes).await;
                    });
                    return Ok(());
                }
                Some(request) => {
                    self.decline(id, request, pool).await?;
                    held.release().await?;
                }
                None => held.release().await?,
            }
        }
        Ok(())
    }

    /// Declines a request; fails it when all registered pools declined.
    async fn decline(&self, id: &RequestId, mut request: NodeRequest, pool: &LauncherId) -> ZkResult<()> {
        request.declined_by.push(pool.clone());
        let declined = |launcher: &LauncherId| request.declined_by.contains(launcher);
        let is_over = self.registered().await?.iter().all(declined);
        self.store_request(id, request, if is_over { RequestState::Failed } else { RequestState::Requested }).await
    }

    async fn registered(&self) -> ZkResult<Vec<LauncherId>> {
        let root = paths::components(ComponentKind::Pool);
        let mut ids = Vec::new();
        for name in self.zk.children(&root).await?.0 {
            let Ok((data, _)) = self.zk.get(&format!("{root}/{name}")).await else { continue };
            let pool: PoolComponent = json::from_bytes(&data).expect("a component can be read");
            ids.extend(pool.id);
        }
        Ok(ids)
    }

    /// Accepts a request whose lock is held. Returns its nodes: all, or those obtained before the request was deleted.
    async fn accept(&self, id: &RequestId, request: &NodeRequest) -> ZkResult<Vec<(NodeId, Lock)>> {
        self.store_request(id, request.clone(), RequestState::Pending).await?;
        let mut nodes = Vec::new();
        for label in &request.node_types {
            loop {
                if let Some(reused) = self.reuse(id, request, label).await? {
                    nodes.push(reused);
                    break;
                }
                if self.capacity() > 0 {
                    nodes.push(self.new_node(id, request, label).await?);
                    break;
                }
                // While this request waits for capacity, all other requests wait, too.
                self.pause(true).await?;
                self.evict().await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
                if self.reader.request(id).await.is_none() {
                    self.pause(false).await?;
                    return Ok(nodes);
                }
            }
        }
        self.pause(false).await?;
        Ok(nodes)
    }

    /// Deletes the node that has been idle for longest.
    async fn evict(&self) -> ZkResult<()> {
        let is_idle = |node: &Node| node.is_idle() && Self::is_own(node);
        let mut idle = self.view.nodes(is_idle);
        idle.sort_by(|(_, one), (_, other)| one.state_time.0.total_cmp(&other.state_time.0));
        for (node, _) in idle {
            let Some((held, record)) = self.lock_node(&node).await? else { continue };
            if let Some(mut record) = record.filter(is_idle) {
                self.set_state(&node, &mut record, NodeState::Deleting).await?;
                return held.release().await;
            }
            held.release().await?;
        }
        Ok(())
    }

    fn is_own(node: &Node) -> bool {
        node.provider.as_ref().is_some_and(|provider| provider.as_str() == NODEPOOL11_PROVIDERS[0])
    }

    /// Launches the nodes of an accepted request, and fulfils or declines it.
    async fn serve(self: Rc<Self>, held: Lock, nodes: Vec<(NodeId, Lock)>) -> ZkResult<()> {
        let id = RequestId::from(paths::name(held.directory()));
        let ready = join_all(nodes.iter().map(|(node, _)| self.launch(node))).await;
        let is_deleted = self.reader.request(&id).await.is_none();
        let mut obtained = Vec::new();
        for (node, lock) in nodes {
            // The request was deleted: deallocates its node.
            if let (true, Some(mut record)) = (is_deleted, self.reader.node(&node).await) {
                record.allocated_to = None;
                self.store_node(&node, &record).await?;
            }
            obtained.push(node);
            lock.release().await?;
        }
        match self.reader.request(&id).await {
            Some(mut last) if ready.iter().all(|ready| *ready) => {
                last.nodes = obtained;
                self.store_request(&id, last, RequestState::Fulfilled).await?;
            }
            Some(last) => self.decline(&id, last, &self.pools[0]).await?,
            None => {}
        }
        held.release().await
    }

    /// Allocates an idle node of its own provider.
    async fn reuse(
        &self,
        id: &RequestId,
        request: &NodeRequest,
        label: &LabelName,
    ) -> ZkResult<Option<(NodeId, Lock)>> {
        let is_free = |node: &Node| node.is_idle() && Self::is_own(node) && node.labels.contains(label);
        for (node, _) in self.view.nodes(|node| request.reuse && is_free(node)) {
            let Some((held, record)) = self.lock_node(&node).await? else { continue };
            match record.filter(is_free) {
                Some(mut record) => {
                    record.allocated_to = Some(id.clone());
                    self.store_node(&node, &record).await?;
                    return Ok(Some((node, held)));
                }
                None => held.release().await?,
            }
        }
        Ok(None)
    }

    /// Creates the record of a node to launch, with its lock.
    async fn new_node(&self, id: &RequestId, request: &NodeRequest, label: &LabelName) -> ZkResult<(NodeId, Lock)> {
        let mut record = Node::new(NodeState::Init, clock::now());
        record.labels = vec![label.clone()];
        (record.provider, record.pool) = (Some(NODEPOOL11_PROVIDERS[0].into()), Some("main".into()));
        record.launcher = Some(self.pools[0].to_string());
        record.allocated_to = Some(id.clone());
        record.requestor = request.requestor.clone();
        let data = Bytes::from(json::to_bytes(&record));
        let (path, _) = self.zk.create(&paths::node_prefix(), data, CreateMode::PersistentSequential).await?;
        let node = NodeId::from(paths::name(&path));
        let held =
            lock::try_lock(&self.zk, &paths::node_lock(&node), "").await?.expect("no other client knows the new node");
        self.set_state(&node, &mut record, NodeState::Building).await?;
        Ok((node, held))
    }

    /// Launches a node whose lock is held. A reused node is ready already.
    async fn launch(&self, node: &NodeId) -> bool {
        let Some(mut record) = self.reader.node(node).await else { return false };
        if record.state == NodeState::Ready {
            return true;
        }
        for attempt in 0..ATTEMPTS {
            let Ok(server) = self.own_cloud.create(&order(node, attempt > 0)).await else { continue };
            record.external_id = serde_json::to_value(&server).expect("an id is a text").into();
            if self.store_node(node, &record).await.is_err() {
                return false;
            }
            if let Some(instance) = self.booted(&server).await {
                record.interface_ip = instance.interface_ip;
                return self.set_state(node, &mut record, NodeState::Ready).await.is_ok();
            }
            self.delete(&self.own_cloud, &server).await;
        }
        false
    }

    async fn booted(&self, server: &ExternalId) -> Option<Instance> {
        for _ in 0..180 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let Ok(listed) = self.own_cloud.list().await else { continue };
            let instance = listed.into_iter().find(|instance| instance.external_id == *server)?;
            match instance.state {
                InstanceState::Running => return Some(instance),
                InstanceState::Starting => {}
                _ => return None,
            }
        }
        None
    }

    /// Deletes finished nodes, every five seconds, one after the other.
    async fn delete_nodes(&self) {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let is_served =
                |node: &Node| node.provider.as_ref().is_some_and(|name| NODEPOOL11_PROVIDERS.contains(&name.as_str()));
            for (node, cached) in self.view.nodes(is_served) {
                let is_lost = match &cached.allocated_to {
                    Some(request) if cached.state == NodeState::Ready => self.reader.request(request).await.is_none(),
                    _ => false,
                };
                if cached.state.is_finished() || is_lost {
                    let _ = self.delete_node(&node).await;
                }
            }
        }
    }

    async fn delete_node(&self, node: &NodeId) -> ZkResult<()> {
        let directory = paths::node_lock(node);
        if !lock::contenders(&self.zk, &directory).await?.is_empty() {
            return Ok(());
        }
        let Some((held, record)) = self.lock_node(node).await? else { return Ok(()) };
        let Some(mut record) = record else {
            // The record was deleted meanwhile.
            delete_tree::delete_tree(&*self.zk, &paths::node(node)).await?;
            held.mark_released();
            return Ok(());
        };
        match record.allocated_to.clone() {
            Some(request) if record.state == NodeState::Ready && self.reader.request(&request).await.is_none() => {
                record.allocated_to = None;
                self.store_node(node, &record).await?;
                return held.release().await;
            }
            _ if !record.state.is_finished() => return held.release().await,
            _ => {}
        }
        self.set_state(node, &mut record, NodeState::Deleting).await?;
        let cloud = if Self::is_own(&record) { &self.own_cloud } else { &self.shared };
        if let Some(server) = ExternalId::of(&record.external_id)
            && !self.delete(cloud, &server).await
        {
            return held.release().await;
        }
        self.set_state(node, &mut record, NodeState::Deleted).await?;
        delete_tree::delete_tree(&*self.zk, &paths::node(node)).await?;
        held.mark_released();
        Ok(())
    }

    /// Locks a node, unless it is locked, and reads its record. As with kazoo, locking re-creates a deleted node as an
    /// empty one.
    async fn lock_node(&self, node: &NodeId) -> ZkResult<Option<(Lock, Option<Node>)>> {
        self.recreate_empty(node).await?;
        let Some(held) = lock::try_lock(&self.zk, &paths::node_lock(node), "").await? else { return Ok(None) };
        Ok(Some((held, self.reader.node(node).await)))
    }

    async fn recreate_empty(&self, node: &NodeId) -> ZkResult<()> {
        match self.zk.create(&paths::node(node), Bytes::new(), CreateMode::Persistent).await {
            Ok(_) | Err(ZkError::NodeExists) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes a server and waits until no listing has it. False if that fails.
    async fn delete(&self, cloud: &CloudConnection, server: &ExternalId) -> bool {
        match cloud.delete(server).await {
            Ok(()) => {}
            Err(CloudError::NotFound(_)) => return true,
            Err(_) => return false,
        }
        for _ in 0..600 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let Ok(listed) = cloud.list().await else { continue };
            if listed.iter().all(|instance| instance.external_id != *server) {
                return true;
            }
        }
        false
    }

    /// Deletes leaked servers, every minute: those without a node in two listings in a row.
    async fn delete_leaked(&self) {
        let mut leaked_before = BTreeSet::new();
        loop {
            tokio::time::sleep(Duration::from_secs(60)).await;
            let Ok(listed) = self.own_cloud.list().await else { continue };
            let mut leaked = BTreeSet::new();
            for instance in listed {
                let Some(node) = instance.node().map(NodeId::from) else { continue };
                if self.reader.node(&node).await.is_none() {
                    leaked.insert(instance.external_id.to_string());
                }
            }
            for server in leaked.intersection(&leaked_before) {
                let _ = self.own_cloud.delete(&ExternalId::text(server.clone())).await;
            }
            leaked_before = leaked;
        }
    }

    /// Resets abandoned requests, every minute.
    async fn reset_lost(&self) {
        loop {
            tokio::time::sleep(Duration::from_secs(60)).await;
            for id in self.view.requests(|request| request.state == RequestState::Pending) {
                let _ = self.reset(&id).await;
            }
        }
    }

    async fn reset(&self, id: &RequestId) -> ZkResult<()> {
        let Some(held) = lock::try_lock(&self.zk, &paths::request_lock(id), "").await? else { return Ok(()) };
        let lost = self.reader.request(id).await.filter(|request| request.state == RequestState::Pending);
        let Some(mut request) = lost else { return held.release().await };
        for (node, _) in self.view.nodes(|node| node.allocated_to.as_ref() == Some(id)) {
            self.recreate_empty(&node).await?;
            let locked = lock::lock(&self.zk, &paths::node_lock(&node), "").await?;
            if let Some(mut record) =
                self.reader.node(&node).await.filter(|record| record.allocated_to.as_ref() == Some(id))
            {
                record.allocated_to = None;
                let next = if record.state == NodeState::Init { NodeState::Deleting } else { record.state };
                self.set_state(&node, &mut record, next).await?;
            }
            locked.release().await?;
        }
        request.nodes.clear();
        self.store_request(id, request, RequestState::Requested).await?;
        held.release().await
    }

    /// Number of servers left within the limit. Nodepool 11 knows its own nodes without delay, so this counts the
    /// current ones.
    fn capacity(&self) -> usize {
        MAX_SERVERS.saturating_sub(self.view.history.nodes(Self::is_own).len())
    }

    async fn set_state(&self, node: &NodeId, record: &mut Node, state: NodeState) -> ZkResult<()> {
        if record.state != state {
            (record.state, record.state_time) = (state, clock::now());
        }
        self.store_node(node, record).await
    }

    async fn store_node(&self, node: &NodeId, record: &Node) -> ZkResult<()> {
        self.zk.set(&paths::node(node), json::to_bytes(record).into(), -1).await.map(drop)
    }

    async fn store_request(&self, id: &RequestId, mut request: NodeRequest, state: RequestState) -> ZkResult<()> {
        (request.state, request.state_time) = (state, clock::now());
        self.zk.set(&paths::request(id), json::to_bytes(&request).into(), -1).await.map(drop)
    }
}

fn component(provider: &str, id: &LauncherId, paused: bool) -> PoolComponent {
    let launches = provider == NODEPOOL11_PROVIDERS[0];
    let labels = LABELS.iter().copied().chain(launches.then_some(NODEPOOL11_LABEL));
    PoolComponent {
        hostname: "old".to_owned(),
        id: Some(id.clone()),
        kind: ComponentKind::Pool,
        model_api: 0,
        name: Some("main".into()),
        paused,
        priority: 100,
        provider_name: Some(provider.into()),
        state: "running".to_owned(),
        supported_labels: labels.map(LabelName::from).collect(),
        version: None,
        webapp: None,
        extra: Default::default(),
    }
}

/// The launch order of a node.
fn order(node: &NodeId, may_exist: bool) -> LaunchOrder {
    let metadata = [
        ("nodepool_node_id", node.to_string()),
        ("nodepool_pool_name", "main".to_owned()),
        ("nodepool_provider_name", NODEPOOL11_PROVIDERS[0].to_owned()),
    ];
    LaunchOrder {
        pool: "main".into(),
        label: LABELS[0].into(),
        hostname: format!("np{node}"),
        identity: "identity".to_owned(),
        attempt: 1,
        zone: None,
        image: None,
        request: Arc::default(),
        metadata: metadata.map(|(key, value)| (key.to_owned(), value)).into(),
        prior_instance: None,
        may_exist,
        may_appear: false,
    }
}
