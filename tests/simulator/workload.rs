//! Consumers as Zuul is one: they ask, wait, revise, change their minds, use, hold, and die with what they have.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

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
use tokio::task::JoinHandle;
use zookeeper_server::types::ZkError;

use super::configuration::{TENANT, TENANT_LABEL};
use super::history::RunHistory;
use super::network::SimLink;
use super::operator;
use super::step_budget::{KillableConnection, StepBudget};
use crate::in_process_launcher::Consumer;

/// What has come of all requests.
#[derive(Clone, Default)]
pub struct RunStats {
    pub served: Rc<Cell<u32>>,
    pub failed: Rc<Cell<u32>>,
    pub cancelled: Rc<Cell<u32>>,
}

fn count(cell: &Cell<u32>) {
    cell.set(cell.get() + 1);
}

/// Those who ask in an hour.
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

    /// One more, who asks for one of these labels, or for several, after a while.
    pub fn add_consumer(&self, after: Duration, seed: u64, labels: Vec<&'static str>) {
        let workload = self.clone();
        self.consumers.borrow_mut().push(actix_rt::spawn(async move {
            tokio::time::sleep(after).await;
            run_request(workload, seed, &labels).await;
        }));
    }

    /// Each ends when it has what it wanted.
    pub fn take_consumers(&self) -> Vec<JoinHandle<()>> {
        self.consumers.take()
    }
}

/// Whatever fails, an hour is too long.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// How many nodes a request asks for, one of these numbers as likely as the other. Most jobs have one.
const NODE_COUNTS: [usize; 8] = [1, 1, 1, 1, 1, 1, 2, 3];

/// One request from its beginning to the end.
async fn run_request(workload: Workload, seed: u64, labels: &[&'static str]) {
    let Workload { zookeeper, history: book, stats, .. } = workload;
    let mut dice = StdRng::seed_from_u64(seed);
    let consumer = Consumer { zk: connect(&zookeeper, seed) };
    let session = consumer.zk.session_id();
    let requested: Vec<&str> = (0..NODE_COUNTS[dice.gen_range(0..NODE_COUNTS.len())])
        .map(|_| labels[dice.gen_range(0..labels.len())])
        .collect();
    let id = submit(&consumer, &requested).await;
    let death = dice.gen_bool(0.03).then(|| Duration::from_secs_f64(dice.gen_range(0.0..60.0)));
    let cancel_after = dice.gen_bool(0.1).then(|| Duration::from_secs_f64(dice.gen_range(0.1..90.0)));
    let revisions = dice.gen_bool(0.2).then(|| StdRng::seed_from_u64(dice.r#gen()));
    let ended = tokio::select! {
        biased;
        () = dies(death) => {
            zookeeper.expire(session);
            delete_abandoned(&zookeeper, &id, &mut dice).await;
            return count(&stats.cancelled);
        }
        ended = tokio::time::timeout(cancel_after.unwrap_or(MAX_WAIT), wait_for_end(&consumer, &id)) => ended,
        never = revise_priority(&consumer, &id, revisions) => match never {},
    };
    match ended {
        Err(_) => {
            if cancel_after.is_none() {
                book.report_violation(Violation(format!("request {id} for {requested:?} waited for {MAX_WAIT:?}")));
            }
            // Changed its mind, whatever has come of the request meanwhile.
            let _ = consumer.zk.delete(&paths::request(&id), -1).await;
            return count(&stats.cancelled);
        }
        Ok(RequestState::Failed) => {
            consumer.zk.delete(&paths::request(&id), -1).await.unwrap();
            return count(&stats.failed);
        }
        Ok(_) => {}
    }
    tokio::time::sleep(Duration::from_secs_f64(dice.gen_range(0.0..0.5))).await;
    if dice.gen_bool(0.06) {
        // Dies before it takes what it was given, or with some of the locks; or the build was cancelled (Z17).
        let locks = consumer.lock_nodes(&id, dice.gen_range(0..3)).await;
        match dice.gen_bool(0.5) {
            true => {
                zookeeper.expire(session);
                drop(locks);
                delete_abandoned(&zookeeper, &id, &mut dice).await;
            }
            false => consumer.zk.delete(&paths::request(&id), -1).await.unwrap(),
        }
        return count(&stats.cancelled);
    }
    let nodes = consumer.accept(&id).await;
    count(&stats.served);
    // From now on only the locks tell that they are taken.
    tokio::time::sleep(Duration::from_secs_f64(dice.gen_range(0.0..3.0))).await;
    for (node, _) in &nodes {
        let record = consumer.node_fields(node).await.expect("a locked node stays");
        let is_ours = record.state == NodeState::Ready && record.allocated_to.as_ref() == Some(&id);
        assert!(is_ours, "node {node} was locked for {id}, and is {} for {:?}", record.state, record.allocated_to);
    }
    match dice.gen_range(0..20) {
        // Dies with its locks before it has used anything, or in the middle.
        0 => zookeeper.expire(session),
        1 => {
            for (node, _) in &nodes {
                consumer.set_state(node, NodeState::InUse).await;
            }
            tokio::time::sleep(Duration::from_secs_f64(dice.gen_range(0.0..60.0))).await;
            zookeeper.expire(session);
        }
        // Never needed them.
        2 => {
            for (_, lock) in nodes {
                lock.release().await.unwrap();
            }
        }
        // Keeps one for somebody to look at, who deletes it later.
        3 => {
            let held = nodes[0].0.clone();
            for (node, lock) in nodes {
                consumer.set_state(&node, NodeState::InUse).await;
                let state = if node == held { NodeState::Hold } else { NodeState::Used };
                consumer.set_state(&node, state).await;
                lock.release().await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs_f64(dice.gen_range(60.0..300.0))).await;
            operator::delete_held(&consumer, &held, NodeState::Used).await;
        }
        _ => {
            for (node, _) in &nodes {
                consumer.set_state(node, NodeState::InUse).await;
            }
            tokio::time::sleep(Duration::from_secs_f64(dice.gen_range(5.0..120.0))).await;
            for (node, lock) in nodes {
                consumer.set_state(&node, NodeState::Used).await;
                lock.release().await.unwrap();
            }
        }
    }
}

/// One in so many is far away, and all that it asks and hears takes up to so long.
const REMOTE_ONE_IN: u32 = 8;
const REMOTE_DELAYS: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(400), Duration::from_millis(1500)];

fn connect(zookeeper: &MemoryZooKeeper, seed: u64) -> Zk {
    let (inner, mut dice) = (zookeeper.connect(), StdRng::seed_from_u64(seed ^ 0xfa4));
    if !dice.gen_ratio(1, REMOTE_ONE_IN) {
        return inner;
    }
    let link = SimLink::new(dice.r#gen());
    link.set_max_delay(REMOTE_DELAYS[dice.gen_range(0..REMOTE_DELAYS.len())]);
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

/// What nobody knows any more who is alive: somebody finds out and takes it away (zookeeper.md Z18).
async fn delete_abandoned(zookeeper: &MemoryZooKeeper, id: &RequestId, dice: &mut StdRng) {
    tokio::time::sleep(Duration::from_secs_f64(dice.gen_range(0.0..300.0))).await;
    let _ = Consumer::of(zookeeper).zk.delete(&paths::request(id), -1).await;
}

/// Has thought better of what comes first, again and again (zookeeper.md Z8).
async fn revise_priority(consumer: &Consumer, id: &RequestId, dice: Option<StdRng>) -> Infallible {
    let Some(mut dice) = dice else { return pending().await };
    loop {
        tokio::time::sleep(Duration::from_secs_f64(dice.gen_range(0.0..30.0))).await;
        let (data, stat) = consumer.zk.get(&paths::request(id)).await.expect("only we take our request away");
        let mut request: NodeRequest = json::from_bytes(&data).expect("a request can be read");
        tokio::time::sleep(Duration::from_secs_f64(dice.gen_range(0.0..0.1))).await;
        if request.state != RequestState::Requested {
            continue;
        }
        let locked = lock::try_lock(&consumer.zk, &paths::request_lock(id), "").await.expect("our session lives");
        let Some(held) = locked else { continue };
        request.relative_priority = dice.gen_range(0..20);
        match consumer.zk.set(&paths::request(id), json::to_bytes(&request).into(), stat.version).await {
            Ok(_) | Err(ZkError::BadVersion) => {}
            Err(error) => panic!("{id}: {error}"),
        }
        held.release().await.expect("our session lives");
    }
}

/// What one who waits for the end of a request minds of it.
#[derive(Deserialize)]
struct RequestEnd {
    state: RequestState,
}

async fn wait_for_end(consumer: &Consumer, id: &RequestId) -> RequestState {
    loop {
        let (_, changed) = consumer.zk.exists_and_watch(&paths::request(id)).await.unwrap();
        let RequestEnd { state } = consumer.read(&paths::request(id)).await.expect("only we take our request away");
        if matches!(state, RequestState::Fulfilled | RequestState::Failed) {
            return state;
        }
        changed.await;
    }
}
