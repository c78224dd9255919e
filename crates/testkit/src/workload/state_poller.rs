//! Poller of ZooKeeper's state: reports states that violate an invariant, without knowledge of the consumers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::consistency_checker::ConsistencyChecker;
use super::{IDENTIFIER, retry_unknown};
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_zk::{Zk, paths};
use tokio::task::JoinHandle;

/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls until dropped.
pub struct StatePoller {
    task: JoinHandle<()>,
}

impl StatePoller {
    /// Contenders that do not belong to the workload count as a launcher's.
    pub fn start(zk: &Zk, checker: &Arc<ConsistencyChecker>) -> StatePoller {
        let (zk, checker) = (zk.clone(), checker.clone());
        let task = tokio::spawn(async move {
            loop {
                poll(&zk, &checker).await;
                checker.check_head_of_queue();
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
        StatePoller { task }
    }
}

impl Drop for StatePoller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn poll(zk: &Zk, checker: &ConsistencyChecker) {
    let Ok((names, _)) = retry_unknown(|| zk.children("/nodepool/requests")).await else { return };
    let mut owners: BTreeMap<NodeId, RequestId> = BTreeMap::new();
    for name in names {
        let id = RequestId::from(name);
        let Some(request) = read::<NodeRequest>(zk, &paths::request(&id)).await else { continue };
        if request.state != RequestState::Fulfilled {
            continue;
        }
        for node in &request.nodes {
            if let Some(other) = owners.insert(node.clone(), id.clone()) {
                // Ids of requests are used once, so a request that exists now existed all the time.
                if other == id || (exists(zk, &other).await && exists(zk, &id).await) {
                    checker.report_violation(format!("node {node} is in the fulfilled requests {other} and {id}"));
                }
            }
            check_node(zk, checker, &id, node).await;
        }
    }
}

/// As long as a fulfilled request exists, its nodes are ready and allocated to it, and no launcher has them locked.
async fn check_node(zk: &Zk, checker: &ConsistencyChecker, id: &RequestId, node: &NodeId) {
    let record = read::<Node>(zk, &paths::node(node)).await;
    let is_correct = record
        .as_ref()
        .is_some_and(|record| record.state == NodeState::Ready && record.allocated_to.as_ref() == Some(id));
    let launcher = launcher_contender(zk, node).await;
    if (is_correct && launcher.is_none()) || !exists(zk, id).await {
        return;
    }
    if !is_correct {
        checker.report_violation(format!("fulfilled request {id}: node {node} is {record:?}"));
    }
    if let Some(contender) = launcher {
        checker.locked_by_launcher(id, node, &contender);
    }
}

async fn launcher_contender(zk: &Zk, node: &NodeId) -> Option<String> {
    let directory = paths::node_lock(node);
    let (names, _) = retry_unknown(|| zk.children(&directory)).await.ok()?;
    for name in names {
        let path = format!("{directory}/{name}");
        if let Ok((data, _)) = retry_unknown(|| zk.get(&path)).await
            && data != IDENTIFIER.as_bytes()
        {
            return Some(name);
        }
    }
    None
}

async fn exists(zk: &Zk, id: &RequestId) -> bool {
    matches!(retry_unknown(|| zk.exists(&paths::request(id))).await, Ok(Some(_)))
}

async fn read<T: serde::de::DeserializeOwned>(zk: &Zk, path: &str) -> Option<T> {
    let (data, _) = retry_unknown(|| zk.get(path)).await.ok()?;
    json::from_bytes(&data).ok()
}
