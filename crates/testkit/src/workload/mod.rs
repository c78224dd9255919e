//! Workload of concurrent consumers on a real ZooKeeper: they submit and cancel requests, and accept, use and return
//! nodes, also across lost connections.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{LabelName, NodeId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState, Writer};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_zk::locks::lock::{self, Lock};
use nodepool_zk::{Reply, Zk, paths};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use zookeeper_server::types::{CreateMode, ZkError};

pub mod consistency_checker;
pub mod harness;
pub mod state_poller;

use consistency_checker::ConsistencyChecker;

/// Data of the consumers' contenders, by which the poller distinguishes them from a launcher's.
pub const IDENTIFIER: &str = "consumer";

/// Pause after a call with an unknown outcome.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of a node's lock, the same as Zuul's.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// A request that takes longer is a violation, whatever its rank.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);

/// Parameters of a workload.
#[derive(Clone)]
pub struct WorkloadSpec {
    /// The label lists to request, equally likely.
    pub label_lists: Vec<Vec<&'static str>>,
    /// A label that no launcher serves: a request for it must fail soon.
    pub unserved_label: Option<&'static str>,
    pub consumers: usize,
    /// Maximum time for which a consumer uses its nodes.
    pub max_use: Duration,
}

/// Running consumers.
pub struct Workload {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Workload {
    pub async fn start(zk: &Zk, checker: &Arc<ConsistencyChecker>, spec: WorkloadSpec, seed: u64) -> Workload {
        for container in ["/nodepool/requests", "/nodepool/nodes"] {
            lock::make_path(zk, container).await.expect("a running server accepts new paths");
        }
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for number in 0..spec.consumers {
            let rng = StdRng::seed_from_u64(seed.wrapping_add(number as u64));
            let mut consumer = Consumer { zk: zk.clone(), checker: checker.clone(), spec: spec.clone(), rng };
            let stopped = stopped.clone();
            tasks.spawn(async move {
                while !*stopped.borrow() {
                    consumer.run_request().await;
                }
            });
        }
        Workload { tasks, stop }
    }

    /// Stops after the requests in progress.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("a consumer reports violations and does not panic");
        }
    }
}

struct Consumer {
    zk: Zk,
    checker: Arc<ConsistencyChecker>,
    spec: WorkloadSpec,
    rng: StdRng,
}

/// An assigned node, as its consumer read it.
struct HeldNode {
    id: NodeId,
    record: Node,
    version: i32,
}

impl Consumer {
    /// One request, from its submission to its end.
    async fn run_request(&mut self) {
        if let Some(label) = self.spec.unserved_label
            && self.rng.gen_ratio(1, 12)
        {
            return self.submit_unserved(label).await;
        }
        let shape = self.rng.gen_range(0..self.spec.label_lists.len());
        let labels: Vec<LabelName> = self.spec.label_lists[shape].iter().map(|label| LabelName::from(*label)).collect();
        let id = self.submit(&labels).await;
        self.checker.submitted(&id, &labels);
        if self.rng.gen_ratio(1, 8) {
            self.sleep_up_to(60).await;
            self.cancel(&id).await;
            return;
        }
        let Some(request) = self.wait_for_end(&id).await else {
            let (record, locks) = (self.request(&id).await, self.describe_locks(&id).await);
            self.checker.report_violation(format!(
                "request {id} for {labels:?} did not end within the timeout: {record:?}; {locks}"
            ));
            self.cancel(&id).await;
            return;
        };
        if request.state == RequestState::Failed {
            self.checker.report_violation(format!("request {id} for {labels:?} failed"));
            self.cancel(&id).await;
            return;
        }
        let nodes = self.check_nodes(&id, &request, &labels).await;
        let records: Vec<(NodeId, Node)> = nodes.iter().map(|held| (held.id.clone(), held.record.clone())).collect();
        self.checker.fulfilled(&id, &records);
        self.sleep_up_to(30).await;
        if self.rng.gen_ratio(1, 8) {
            self.cancel(&id).await;
            return;
        }
        // The nodes may not change until the consumer accepts them.
        let nodes = self.check_nodes(&id, &request, &labels).await;
        self.accept(&id, nodes).await;
    }

    async fn submit_unserved(&self, label: &str) {
        let (began, labels) = (Instant::now(), [LabelName::from(label)]);
        let id = self.submit(&labels).await;
        let ended = self.wait_for_end(&id).await.map(|request| request.state);
        let waited = self.checker.waited_since(began);
        if ended != Some(RequestState::Failed) || waited > 2 * self.checker.max_head_wait {
            self.checker.report_violation(format!("request {id} for {label}: {ended:?} after {waited:?}"));
        }
        self.cancel(&id).await;
    }

    async fn submit(&self, labels: &[LabelName]) -> RequestId {
        let mut request = NodeRequest::new(labels.to_vec(), "tester", clock::now());
        request.event_id = Some(uuid::Uuid::new_v4().simple().to_string());
        let data = Bytes::from(json::to_bytes(&request));
        loop {
            let created = self.zk.create(&paths::request_prefix("200"), data.clone(), CreateMode::PersistentSequential);
            match created.await {
                Ok((path, _)) => return RequestId::from(paths::name(&path)),
                Err(ZkError::Unknown(_)) => {
                    sleep(RETRY_INTERVAL).await;
                    if let Some(id) = self.find(&request.event_id).await {
                        return id;
                    }
                }
                Err(error) => panic!("cannot submit a request: {error}"),
            }
        }
    }

    /// Finds the request that a call with a lost reply may have created.
    async fn find(&self, event: &Option<String>) -> Option<RequestId> {
        let (names, _) =
            retry_unknown(|| self.zk.children("/nodepool/requests")).await.expect("the parent znode exists");
        for name in names {
            let id = RequestId::from(name);
            if self.request(&id).await.is_some_and(|request| request.event_id == *event) {
                return Some(id);
            }
        }
        None
    }

    async fn request(&self, id: &RequestId) -> Option<NodeRequest> {
        match retry_unknown(|| self.zk.get(&paths::request(id))).await {
            Ok((data, _)) => Some(json::from_bytes(&data).expect("records of launchers are readable")),
            Err(ZkError::NoNode) => None,
            Err(error) => panic!("cannot read request {id}: {error}"),
        }
    }

    /// The lock contenders of a request, and its nodes with theirs.
    async fn describe_locks(&self, id: &RequestId) -> String {
        let holders = lock::contenders(&self.zk, &paths::request_lock(id)).await;
        let (names, _) = retry_unknown(|| self.zk.children(paths::NODES)).await.expect("the parent znode exists");
        let mut nodes = Vec::new();
        for name in names {
            let node = NodeId::from(name);
            let Ok((data, _)) = retry_unknown(|| self.zk.get(&paths::node(&node))).await else { continue };
            let Ok(record) = json::from_bytes::<Node>(&data) else { continue };
            if record.allocated_to.as_ref() == Some(id) {
                let holders = lock::contenders(&self.zk, &paths::node_lock(&node)).await;
                nodes.push(format!("{node} {} {holders:?}", record.state.as_str()));
            }
        }
        format!("locked by {holders:?}, nodes {nodes:?}")
    }

    /// Waits for the end of a request; `None` after the timeout.
    async fn wait_for_end(&self, id: &RequestId) -> Option<NodeRequest> {
        let began = Instant::now();
        while began.elapsed() < REQUEST_TIMEOUT {
            let changed = match self.zk.exists_and_watch(&paths::request(id)).await {
                Ok((_, changed)) => changed,
                Err(ZkError::Unknown(_)) => continue,
                Err(error) => panic!("cannot watch request {id}: {error}"),
            };
            match self.request(id).await {
                Some(request) if matches!(request.state, RequestState::Fulfilled | RequestState::Failed) => {
                    return Some(request);
                }
                Some(_) => drop(timeout(Duration::from_secs(1), changed).await),
                None => {
                    self.checker.report_violation(format!("request {id} was deleted before its requestor deleted it"))
                }
            }
        }
        None
    }

    /// Checks the nodes of a fulfilled request: ready, unlocked and allocated to it, in the order of its labels.
    async fn check_nodes(&self, id: &RequestId, request: &NodeRequest, labels: &[LabelName]) -> Vec<HeldNode> {
        let mut nodes = Vec::new();
        if request.nodes.len() != labels.len() {
            self.checker.report_violation(format!("request {id} for {labels:?} was assigned {:?}", request.nodes));
        }
        for (node, label) in request.nodes.iter().zip(labels) {
            match retry_unknown(|| self.zk.get(&paths::node(node))).await {
                Ok((data, stat)) => {
                    let record: Node = json::from_bytes(&data).expect("records of launchers are readable");
                    let is_ours = record.allocated_to.as_ref() == Some(id) && record.state == NodeState::Ready;
                    if !is_ours || !record.labels.contains(label) {
                        self.checker.report_violation(format!(
                            "node {node} of fulfilled request {id} for {labels:?}: {record:?}"
                        ));
                    }
                    nodes.push(HeldNode { id: node.clone(), record, version: stat.version });
                }
                Err(ZkError::NoNode) => {
                    self.checker.report_violation(format!("node {node} of fulfilled request {id} does not exist"))
                }
                Err(error) => panic!("cannot read node {node}: {error}"),
            }
            if let Ok((names, _)) = retry_unknown(|| self.zk.children(&paths::node_lock(node))).await {
                names.iter().for_each(|name| self.checker.locked_by_launcher(id, node, name));
            }
        }
        nodes
    }

    /// Deletes the request, whether it has ended or not.
    async fn cancel(&self, id: &RequestId) {
        self.checker.cancelled(id);
        self.remove(id).await;
    }

    async fn remove(&self, id: &RequestId) {
        match retry_unknown(|| self.zk.delete(&paths::request(id), -1)).await {
            Ok(()) | Err(ZkError::NoNode) => {}
            Err(error) => panic!("cannot remove request {id}: {error}"),
        }
    }

    /// Acts as Zuul's executor: locks the nodes, deletes the request, sets the nodes in use and used, and unlocks them.
    async fn accept(&mut self, id: &RequestId, mut nodes: Vec<HeldNode>) {
        let mut locks = Vec::new();
        for held in &nodes {
            match lock::lock_within(&self.zk, &paths::node_lock(&held.id), IDENTIFIER, LOCK_TIMEOUT).await {
                Ok(Some(lock)) => locks.push(lock),
                other => self.checker.report_violation(format!("node {} of {id} cannot be locked: {other:?}", held.id)),
            }
        }
        self.remove(id).await;
        if self.rng.gen_ratio(1, 10) {
            // The build was cancelled before it started.
            self.checker.released(id);
            return self.release(locks).await;
        }
        for held in &mut nodes {
            self.checker.in_use(id, &held.id);
            self.write(id, held, NodeState::InUse).await;
        }
        let max_use_ms = self.spec.max_use.as_millis() as u64;
        self.sleep_up_to(max_use_ms).await;
        for (held, lock) in nodes.iter().zip(&locks) {
            if retry_unknown(|| self.zk.exists(lock.path())).await == Ok(None) {
                self.checker.report_violation(format!("the lock of node {}, held for {id}, was removed", held.id));
            }
        }
        self.checker.released(id);
        for held in &mut nodes {
            self.write(id, held, NodeState::Used).await;
        }
        self.release(locks).await;
    }

    async fn write(&self, id: &RequestId, held: &mut HeldNode, state: NodeState) {
        held.record.set_state(state, Writer::Consumer, clock::now());
        let data = Bytes::from(json::to_bytes(&held.record));
        let path = paths::node(&held.id);
        loop {
            match self.zk.set(&path, data.clone(), held.version).await {
                Ok(stat) => {
                    held.version = stat.version;
                    return;
                }
                Err(ZkError::Unknown(_)) => {
                    sleep(RETRY_INTERVAL).await;
                    if let Ok((found, stat)) = retry_unknown(|| self.zk.get(&path)).await
                        && found == data
                    {
                        held.version = stat.version;
                        return;
                    }
                }
                Err(error) => {
                    let id = format!("node {} of {id}", held.id);
                    self.checker
                        .report_violation(format!("{id} changed under its consumer's lock: {state:?}: {error}"));
                    return;
                }
            }
        }
    }

    async fn release(&self, locks: Vec<Lock>) {
        for lock in locks {
            // A failed release is retried in the background.
            let _ = lock.release().await;
        }
    }

    async fn sleep_up_to(&mut self, max_ms: u64) {
        sleep(Duration::from_millis(self.rng.gen_range(0..=max_ms))).await;
    }
}

/// Retries until the outcome is known; for idempotent requests.
pub async fn retry_unknown<T>(mut request: impl FnMut() -> Reply<T>) -> Result<T, ZkError> {
    loop {
        match request().await {
            Err(ZkError::Unknown(_)) => sleep(RETRY_INTERVAL).await,
            answer => return answer,
        }
    }
}
