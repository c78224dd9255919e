//! In-process launchers with their production actors, on a ZooKeeper in memory and in paused time, and consumers that
//! act like Zuul.

pub mod fake_cloud;
pub mod foreign_pool;
pub mod image_records;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix_rt::{Arbiter, System};
use bytes::Bytes;
use nodepool::actors::launcher::launcher::run_session;
use nodepool::actors::process::context::{
    ArbiterHandles, ExplainRegistry, LauncherOptions, ProcessContext, SessionEnd, StopRequest,
};
use nodepool::actors::process::files::ConfigFileSource;
use nodepool::actors::process::identity::Identity;
use nodepool::actors::provider::providers::ExtraDrivers;
use nodepool::actors::runtime::panics::PanicCounter;
use nodepool::actors::runtime::snapshot_feed::SnapshotFeed;
use nodepool::actors::runtime::{clock, dump};
use nodepool::actors::telemetry::samples::SampleSink;
use nodepool_model::records::ids::{LabelName, NodeId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState, Writer};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_zk::locks::lock::{self, Lock};
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::{Zk, paths};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use zookeeper_server::types::{CreateMode, ZkError};

/// Runs a test on one thread with a virtual clock, so that waiting takes no real time.
pub fn on_paused_time<T>(test: impl Future<Output = T>) -> T {
    System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    })
    .block_on(test)
}

/// Runs a test on the wall clock, for real hosts.
pub fn on_real_time<T>(test: impl Future<Output = T>) -> T {
    System::new().block_on(test)
}

pub fn zookeeper() -> MemoryZooKeeper {
    MemoryZooKeeper::with_clock(|| (clock::now().0 * 1000.0) as i64)
}

/// Wait that is longer than any interval of a launcher: after it, every action that was due has been performed.
pub const SETTLE_TIME: Duration = Duration::from_secs(300);

/// Runs a launcher on an empty ZooKeeper and waits until its first pool is registered.
pub async fn started(yaml: &str) -> (Consumer, InProcessDaemon) {
    started_as(InProcessDaemon::new(yaml)).await
}

/// `started` for a launcher with its own options or drivers.
pub async fn started_as(mut process: InProcessDaemon) -> (Consumer, InProcessDaemon) {
    let zookeeper = zookeeper();
    let consumer = Consumer::of(&zookeeper);
    process.run(&zookeeper);
    until("its pool to be registered", async || consumer.count("/nodepool/components/pool").await == 1).await;
    (consumer, process)
}

/// A node of the pool `main` of the provider `lab` with the label `a`, allocated to a request or not.
pub fn node_record(state: NodeState, request: Option<&RequestId>) -> Node {
    let mut node = Node::new(state, clock::now());
    (node.provider, node.pool, node.labels) = (Some("lab".into()), Some("main".into()), vec!["a".into()]);
    node.allocated_to = request.cloned();
    node
}

/// Waits until a condition holds, in virtual time.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..20_000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("timed out after 200 s waiting for {what}");
}

/// One launcher process: the state that outlives its sessions, and the current session.
pub struct InProcessDaemon {
    pub shared: Arc<ProcessContext>,
    pub file: PathBuf,
    pub session_id: i64,
    stop: watch::Sender<Option<StopRequest>>,
    /// The folder of its configuration, if that is on disk.
    _folder: Option<tempfile::TempDir>,
}

impl InProcessDaemon {
    pub fn new(yaml: &str) -> Self {
        Self::with(yaml, |_| {})
    }

    pub fn with(yaml: &str, tune: impl FnOnce(&mut LauncherOptions)) -> Self {
        Self::with_drivers(yaml, tune, None)
    }

    /// A process with drivers that the test supplies.
    pub fn with_drivers(
        yaml: &str,
        tune: impl FnOnce(&mut LauncherOptions),
        drivers: Option<Box<dyn ExtraDrivers>>,
    ) -> Self {
        Self::with_identity(Identity::from_host(), yaml, tune, drivers)
    }

    /// A process with another identity.
    pub fn with_identity(
        identity: Identity,
        yaml: &str,
        tune: impl FnOnce(&mut LauncherOptions),
        drivers: Option<Box<dyn ExtraDrivers>>,
    ) -> Self {
        let (stop, shutdown) = watch::channel(None);
        let arbiter = Arbiter::current();
        let mut options = LauncherOptions::new("nodepool.yaml");
        tune(&mut options);
        let folder = matches!(options.files, ConfigFileSource::OnDisk).then(|| tempfile::tempdir().unwrap());
        if let Some(folder) = &folder {
            options.config = folder.path().join(&options.config);
            std::fs::write(&options.config, yaml).unwrap();
        }
        let file = options.config.clone();
        let shared = Arc::new(ProcessContext {
            options,
            registry: dump::DumpRegistry::default(),
            explain_registry: ExplainRegistry::default(),
            samples: SampleSink::discard(),
            snapshot_feed: SnapshotFeed::default(),
            tracer: Default::default(),
            ready: tokio::sync::watch::Sender::new(false),
            shutdown,
            panics: PanicCounter::default(),
            webapp: None,
            arbiters: ArbiterHandles {
                roots: arbiter.clone(),
                pools: arbiter.clone(),
                runtime: tokio::runtime::Handle::current(),
                clouds: arbiter,
            },
            identity,
            drivers,
            servers: watch::Sender::new(Vec::new()),
            active_config: Default::default(),
        });
        Self { shared, file, session_id: 0, stop, _folder: folder }
    }

    /// Starts the actor tree on a new session.
    pub fn run(&mut self, zookeeper: &MemoryZooKeeper) -> tokio::task::JoinHandle<SessionEnd> {
        self.run_on(zookeeper.connect())
    }

    /// Starts the actor tree on a session with any ZooKeeper.
    pub fn run_on(&mut self, connection: Zk) -> tokio::task::JoinHandle<SessionEnd> {
        self.session_id = connection.session_id();
        let shared = self.shared.clone();
        actix_rt::spawn(async move {
            let loaded = shared.options.load().await.expect("a test's configuration loads");
            run_session(connection, shared, loaded).await
        })
    }

    /// Stops gracefully, as SIGINT stops a builder.
    pub fn stop_gracefully(&self) {
        self.stop.send_replace(Some(StopRequest { signal: "SIGINT", is_graceful: true }));
    }

    pub fn stop(&self) {
        self.stop.send_replace(Some(StopRequest { signal: "SIGTERM", is_graceful: false }));
    }
}

/// Runs a launcher on an empty ZooKeeper and waits until it has registered this many nodes.
pub async fn start_launcher(yaml: &str, nodes: usize) -> (MemoryZooKeeper, Consumer, InProcessDaemon) {
    start_process(InProcessDaemon::new(yaml), nodes).await
}

pub async fn start_process(mut process: InProcessDaemon, nodes: usize) -> (MemoryZooKeeper, Consumer, InProcessDaemon) {
    let zookeeper = zookeeper();
    let consumer = Consumer::of(&zookeeper);
    process.run(&zookeeper);
    until(&format!("{nodes} nodes"), async || consumer.ready_nodes().await == nodes).await;
    (zookeeper, consumer, process)
}

/// The configuration of a static provider. Launchers do not connect to its hosts, because host keys are not checked.
pub fn yaml(provider: &str, nodes: &[&str], more: &str) -> String {
    let nodes: String =
        nodes.iter().map(|node| format!("          - {{{node}, host-key-checking: false}}\n")).collect();
    let labels = ["a", "b", "c"].map(|label| format!("  - name: {label}\n")).concat();
    format!(
        "zookeeper-servers:\n  - host: localhost\n    port: 2181\nlabels:\n{labels}providers:\n  - name: {provider}\n    driver: static\n    pools:\n      - name: main\n        nodes:\n{nodes}{more}"
    )
}

/// The checked fields of a node record.
#[derive(serde::Deserialize)]
pub struct NodeFields {
    pub state: NodeState,
    pub allocated_to: Option<RequestId>,
}

/// A client that requests nodes.
#[derive(Clone)]
pub struct Consumer {
    pub zk: Zk,
}

impl Consumer {
    pub fn of(zookeeper: &MemoryZooKeeper) -> Self {
        Self { zk: zookeeper.connect() }
    }

    pub async fn submit_labels(&self, labels: &[&str]) -> RequestId {
        let labels = labels.iter().map(|label| LabelName::from(*label)).collect();
        self.submit(NodeRequest::new(labels, "tester", clock::now())).await
    }

    pub async fn submit(&self, request: NodeRequest) -> RequestId {
        self.submit_with_precedence("200", request).await
    }

    /// Submits with this precedence: lower values are served sooner.
    pub async fn submit_with_precedence(&self, precedence: &str, request: NodeRequest) -> RequestId {
        let (prefix, data) = (paths::request_prefix(precedence), Bytes::from(json::to_bytes(&request)));
        let (path, _) = self.zk.create(&prefix, data, CreateMode::PersistentSequential).await.unwrap();
        RequestId::from(paths::name(&path))
    }

    /// All existing requests.
    pub async fn requests(&self) -> Vec<RequestId> {
        let names = self.zk.children("/nodepool/requests").await.map(|(names, _)| names).unwrap_or_default();
        let mut ids: Vec<_> = names.into_iter().map(RequestId::from).collect();
        ids.sort();
        ids
    }

    /// A record, or some of its fields. `None` if the znode does not exist or is empty.
    pub async fn read<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        match self.zk.get(path).await {
            Ok((data, _)) if data.is_empty() => None,
            Ok((data, _)) => Some(json::from_bytes(&data).unwrap()),
            Err(ZkError::NoNode) => None,
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn request(&self, id: &RequestId) -> Option<NodeRequest> {
        self.read(&paths::request(id)).await
    }

    /// The record of a node as it is stored.
    pub async fn raw_node(&self, id: &NodeId) -> serde_json::Value {
        serde_json::from_slice(&self.zk.get(&paths::node(id)).await.unwrap().0).unwrap()
    }

    /// Waits until a request is fulfilled and returns its nodes.
    pub async fn fulfilled_nodes(&self, id: &RequestId) -> Vec<NodeId> {
        let request = self.wait_for_end(id).await;
        assert_eq!(request.state, RequestState::Fulfilled, "{request:?}");
        request.nodes
    }

    /// The state of a node; `None` if it does not exist.
    pub async fn node_state(&self, id: &NodeId) -> Option<NodeState> {
        self.node(id).await.map(|node| node.state)
    }

    /// Creates the record of a node, as another launcher would.
    pub async fn create_node(&self, node: &Node) -> NodeId {
        lock::make_path(&self.zk, paths::NODES).await.unwrap();
        let data = Bytes::from(json::to_bytes(node));
        let (path, _) = self.zk.create(&paths::node_prefix(), data, CreateMode::PersistentSequential).await.unwrap();
        NodeId::from(paths::name(&path))
    }

    pub async fn node(&self, id: &NodeId) -> Option<Node> {
        self.read(&paths::node(id)).await
    }

    /// The fields of a node that a consumer checks.
    pub async fn node_fields(&self, id: &NodeId) -> Option<NodeFields> {
        self.read(&paths::node(id)).await
    }

    pub async fn nodes(&self) -> Vec<(NodeId, Node)> {
        let mut nodes = Vec::new();
        let names = self.zk.children("/nodepool/nodes").await.map(|(names, _)| names).unwrap_or_default();
        for name in names {
            let id = NodeId::from(name);
            if let Some(node) = self.node(&id).await {
                nodes.push((id, node));
            }
        }
        nodes.sort_by(|(one, _), (other, _)| one.cmp(other));
        nodes
    }

    pub async fn ready_nodes(&self) -> usize {
        self.nodes().await.iter().filter(|(_, node)| node.is_idle()).count()
    }

    /// Waits for the end of a request.
    pub async fn wait_for_end(&self, id: &RequestId) -> NodeRequest {
        until(&format!("the end of request {id}"), async || {
            let request = self.request(id).await.expect("only the requestor deletes its request");
            matches!(request.state, RequestState::Fulfilled | RequestState::Failed)
        })
        .await;
        self.request(id).await.unwrap()
    }

    /// Accepts a fulfilled request as Zuul's executor does: locks the nodes, with a timeout of half a minute each, then
    /// deletes the request.
    pub async fn accept(&self, id: &RequestId) -> Vec<(NodeId, Lock)> {
        let locked = self.lock_nodes(id, usize::MAX).await;
        self.zk.delete(&paths::request(id), -1).await.unwrap();
        locked
    }

    /// Locks up to `max` nodes of a fulfilled request.
    pub async fn lock_nodes(&self, id: &RequestId, max: usize) -> Vec<(NodeId, Lock)> {
        let request = self.request(id).await.unwrap();
        let mut locked = Vec::new();
        for node in request.nodes.into_iter().take(max) {
            let record = self.node_fields(&node).await.expect("a node of a fulfilled request exists");
            assert_eq!(record.allocated_to.as_ref(), Some(id), "node {node} is not allocated to request {id}");
            assert_eq!(record.state, NodeState::Ready);
            // A launcher may lock the node to check whether it can be deleted. If the launcher is killed then, the lock
            // lasts as long as its session.
            let lock =
                lock::lock_within(&self.zk, &paths::node_lock(&node), "", Duration::from_secs(30)).await.unwrap();
            locked.push((node, lock.expect("no launcher keeps the lock of a node of a fulfilled request")));
        }
        locked
    }

    pub async fn set_state(&self, id: &NodeId, state: NodeState) {
        let (data, stat) = self.zk.get(&paths::node(id)).await.unwrap();
        let mut node: Node = json::from_bytes(&data).unwrap();
        node.set_state(state, Writer::Consumer, clock::now());
        self.zk.set(&paths::node(id), Bytes::from(json::to_bytes(&node)), stat.version).await.unwrap();
    }

    /// Sets the nodes in use and used, and unlocks them.
    pub async fn use_and_release(&self, nodes: Vec<(NodeId, Lock)>) {
        for (id, _) in &nodes {
            self.set_state(id, NodeState::InUse).await;
        }
        for (id, lock) in nodes {
            self.set_state(&id, NodeState::Used).await;
            lock.release().await.unwrap();
        }
    }

    pub async fn count(&self, path: &str) -> usize {
        self.zk.children(path).await.map_or(0, |(names, _)| names.len())
    }
}
