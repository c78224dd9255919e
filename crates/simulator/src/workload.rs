//! Workload: consumers that act like Zuul. They submit, revise and cancel requests, wait for them, and use or hold
//! nodes. Some exit with locks and requests.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::configuration::{METASTATIC_LABEL, TENANT, TENANT_LABEL};
use super::history::RunHistory;
use super::network::SimLink;
use super::operator;
use super::step_budget::{KillableConnection, StepBudget};
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{LabelName, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_policy::invariants::nodes::Violation;
use nodepool_zk::locks::lock;
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::{Zk, paths};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use testkit::in_process_launcher::Consumer;
use tokio::task::JoinHandle;
use zookeeper_server::types::ZkError;

/// Numbers of requests by their end.
#[derive(Clone, Default)]
pub struct RunStats {
    pub served: Rc<Cell<u32>>,
    pub failed: Rc<Cell<u32>>,
    pub cancelled: Rc<Cell<u32>>,
}

fn count(cell: &Cell<u32>) {
    cell.set(cell.get() + 1);
}

/// The consumers of a run.
#[derive(Clone)]
pub struct Workload {
    zookeeper: MemoryZooKeeper,
    history: RunHistory,
    pub stats: RunStats,
    consumers: Rc<RefCell<Vec<JoinHandle<()>>>>,
}

impl Workload {
    pub fn of(zookeeper: &MemoryZooKeeper, history: &RunHistory) -> Self {
        Self {
            zookeeper: zookeeper.clone(),
            history: history.clone(),
            stats: RunStats::default(),
            consumers: Rc::default(),
        }
    }

    /// Starts a consumer that requests one or several of these labels after a delay.
    pub fn add_consumer(&self, after: Duration, seed: u64, labels: Vec<&'static str>) {
        let workload = self.clone();
        self.consumers.borrow_mut().push(actix_rt::spawn(async move {
            tokio::time::sleep(after).await;
            run_request(workload, seed, &labels).await;
        }));
    }

    /// The tasks of the consumers. Each ends with its request and nodes.
    pub fn take_consumers(&self) -> Vec<JoinHandle<()>> {
        self.consumers.take()
    }
}

/// Maximum wait of a request. A longer one is a violation, whatever fails.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// Numbers of nodes per request, equally likely. Most jobs have one.
const NODE_COUNTS: [usize; 8] = [1, 1, 1, 1, 1, 1, 2, 3];

/// One request, from its submission to the release of its nodes.
async fn run_request(workload: Workload, seed: u64, labels: &[&'static str]) {
    let Workload { zookeeper, history, stats, .. } = workload;
    let mut rng = StdRng::seed_from_u64(seed);
    let consumer = Consumer { zk: connect(&zookeeper, seed) };
    let session = consumer.zk.session_id();
    let mut requested: Vec<&str> =
        (0..NODE_COUNTS[rng.gen_range(0..NODE_COUNTS.len())]).map(|_| labels[rng.gen_range(0..labels.len())]).collect();
    // No pool serves this label together with another one.
    if requested.contains(&METASTATIC_LABEL) {
        requested.fill(METASTATIC_LABEL);
    }
    let id = submit(&consumer, &requested).await;
    let death = rng.gen_bool(0.03).then(|| Duration::from_secs_f64(rng.gen_range(0.0..60.0)));
    let cancel_after = rng.gen_bool(0.1).then(|| Duration::from_secs_f64(rng.gen_range(0.1..90.0)));
    let revisions = rng.gen_bool(0.2).then(|| StdRng::seed_from_u64(rng.r#gen()));
    let ended = tokio::select! {
        biased;
        () = dies(death) => {
            zookeeper.expire(session);
            delete_abandoned(&zookeeper, &id, &mut rng).await;
            return count(&stats.cancelled);
        }
        ended = tokio::time::timeout(cancel_after.unwrap_or(MAX_WAIT), wait_for_end(&consumer, &id)) => ended,
        never = revise_priority(&consumer, &id, revisions) => match never {},
    };
    match ended {
        Err(_) => {
            if cancel_after.is_none() {
                history.report_violation(Violation(format!("request {id} for {requested:?} waited for {MAX_WAIT:?}")));
            }
            // The consumer cancels, in whatever state the request is by now.
            let _ = consumer.zk.delete(&paths::request(&id), -1).await;
            return count(&stats.cancelled);
        }
        Ok(RequestState::Failed) => {
            consumer.zk.delete(&paths::request(&id), -1).await.unwrap();
            return count(&stats.failed);
        }
        Ok(_) => {}
    }
    tokio::time::sleep(Duration::from_secs_f64(rng.gen_range(0.0..0.5))).await;
    if rng.gen_bool(0.06) {
        // The consumer exits before it accepts its nodes, or with some of the locks; or the build was cancelled.
        let locks = consumer.lock_nodes(&id, rng.gen_range(0..3)).await;
        match rng.gen_bool(0.5) {
            true => {
                zookeeper.expire(session);
                drop(locks);
                delete_abandoned(&zookeeper, &id, &mut rng).await;
            }
            false => consumer.zk.delete(&paths::request(&id), -1).await.unwrap(),
        }
        return count(&stats.cancelled);
    }
    let nodes = consumer.accept(&id).await;
    count(&stats.served);
    // From now on only the locks show that the nodes are in use.
    tokio::time::sleep(Duration::from_secs_f64(rng.gen_range(0.0..3.0))).await;
    for (node, _) in &nodes {
        let record = consumer.node_fields(node).await.expect("a locked node is not deleted");
        let is_ours = record.state == NodeState::Ready && record.allocated_to.as_ref() == Some(&id);
        assert!(is_ours, "node {node} was locked for {id}, and is {} for {:?}", record.state, record.allocated_to);
    }
    match rng.gen_range(0..20) {
        // The consumer exits with its locks before it uses a node, or while it does.
        0 => zookeeper.expire(session),
        1 => {
            for (node, _) in &nodes {
                consumer.set_state(node, NodeState::InUse).await;
            }
            tokio::time::sleep(Duration::from_secs_f64(rng.gen_range(0.0..60.0))).await;
            zookeeper.expire(session);
        }
        // The consumer returns the nodes unused.
        2 => {
            for (_, lock) in nodes {
                lock.release().await.unwrap();
            }
        }
        // The consumer holds one node for an operator, who deletes it later.
        3 => {
            let held = nodes[0].0.clone();
            for (node, lock) in nodes {
                consumer.set_state(&node, NodeState::InUse).await;
                let state = if node == held { NodeState::Hold } else { NodeState::Used };
                consumer.set_state(&node, state).await;
                lock.release().await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs_f64(rng.gen_range(60.0..300.0))).await;
            operator::delete_held(&consumer, &held, NodeState::Used).await;
        }
        _ => {
            for (node, _) in &nodes {
                consumer.set_state(node, NodeState::InUse).await;
            }
            tokio::time::sleep(Duration::from_secs_f64(rng.gen_range(5.0..120.0))).await;
            for (node, lock) in nodes {
                consumer.set_state(&node, NodeState::Used).await;
                lock.release().await.unwrap();
            }
        }
    }
}

/// One in this many consumers is remote: its requests and replies take up to one of `REMOTE_DELAYS`.
const REMOTE_ONE_IN: u32 = 8;
const REMOTE_DELAYS: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(400), Duration::from_millis(1500)];

fn connect(zookeeper: &MemoryZooKeeper, seed: u64) -> Zk {
    let (inner, mut rng) = (zookeeper.connect(), StdRng::seed_from_u64(seed ^ 0xfa4));
    if !rng.gen_ratio(1, REMOTE_ONE_IN) {
        return inner;
    }
    let link = SimLink::new(rng.r#gen());
    link.set_max_delay(REMOTE_DELAYS[rng.gen_range(0..REMOTE_DELAYS.len())]);
    Arc::new(KillableConnection { inner, budget: StepBudget::unlimited(), link })
}

async fn submit(consumer: &Consumer, requested: &[&str]) -> RequestId {
    let labels = requested.iter().map(|label| LabelName::from(*label)).collect();
    let mut request = NodeRequest::new(labels, "tester", clock::now());
    request.tenant_name = requested.contains(&TENANT_LABEL).then(|| TENANT.into());
    consumer.submit(request).await
}

async fn dies(after: Option<Duration>) {
    match after {
        Some(after) => tokio::time::sleep(after).await,
        None => pending().await,
    }
}

/// Deletes the request of a consumer that exited, as another scheduler of Zuul does some time later.
async fn delete_abandoned(zookeeper: &MemoryZooKeeper, id: &RequestId, rng: &mut StdRng) {
    tokio::time::sleep(Duration::from_secs_f64(rng.gen_range(0.0..300.0))).await;
    let _ = Consumer::of(zookeeper).zk.delete(&paths::request(id), -1).await;
}

/// Changes the relative priority of the request repeatedly, as Zuul does.
async fn revise_priority(consumer: &Consumer, id: &RequestId, rng: Option<StdRng>) -> Infallible {
    let Some(mut rng) = rng else { return pending().await };
    loop {
        tokio::time::sleep(Duration::from_secs_f64(rng.gen_range(0.0..30.0))).await;
        let (data, stat) = consumer.zk.get(&paths::request(id)).await.expect("only the requestor deletes its request");
        let mut request: NodeRequest = json::from_bytes(&data).expect("a request can be read");
        tokio::time::sleep(Duration::from_secs_f64(rng.gen_range(0.0..0.1))).await;
        if request.state != RequestState::Requested {
            continue;
        }
        let locked = lock::try_lock(&consumer.zk, &paths::request_lock(id), "").await.expect("the session is alive");
        let Some(held) = locked else { continue };
        request.relative_priority = rng.gen_range(0..20);
        match consumer.zk.set(&paths::request(id), json::to_bytes(&request).into(), stat.version).await {
            Ok(_) | Err(ZkError::BadVersion) => {}
            Err(error) => panic!("cannot write request {id}: {error}"),
        }
        held.release().await.expect("the session is alive");
    }
}

/// The fields of a request that a waiting consumer reads.
#[derive(Deserialize)]
struct RequestEnd {
    state: RequestState,
}

async fn wait_for_end(consumer: &Consumer, id: &RequestId) -> RequestState {
    loop {
        let (_, changed) = consumer.zk.exists_and_watch(&paths::request(id)).await.unwrap();
        let RequestEnd { state } =
            consumer.read(&paths::request(id)).await.expect("only the requestor deletes its request");
        if matches!(state, RequestState::Fulfilled | RequestState::Failed) {
            return state;
        }
        changed.await;
    }
}
