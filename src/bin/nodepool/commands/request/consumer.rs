//! Consumer of nodes, like Zuul: submits a request, waits, puts the nodes in use, and releases everything.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use futures::stream::{self, StreamExt};
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{LabelName, NodeId, ProviderName, RequestId, TenantName};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState, Writer};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_zk::locks::lock::{self, Lock};
use nodepool_zk::mirror::records::{Decoded, decode};
use nodepool_zk::tools::scan::{self, NodeEntry, RequestEntry};
use nodepool_zk::{SessionState, Zk, paths};
use serde_json::json;
use zookeeper_server::types::{CreateMode, Op, ZkError};

/// Timeout for locking an assigned node. Only the clean-up may hold its lock, and only briefly.
const LOCK_WAIT: Duration = Duration::from_secs(30);
/// Pause between two attempts while no server responds.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Number of nodes that are locked or written concurrently.
const MAX_CONCURRENT_NODES: usize = 100;
/// Attempts to write a record that other clients change without taking its lock.
const WRITE_ATTEMPTS: usize = 10;

/// Parameters of a request.
#[derive(Clone, Debug)]
pub struct RequestSpec {
    /// One per node, in the order of the request.
    pub labels: Vec<LabelName>,
    pub tenant: Option<TenantName>,
    pub provider: Option<ProviderName>,
    /// Three digits.
    pub priority: String,
    /// Name of the requestor, for operators who read the record.
    pub requestor: String,
}

/// End of a request.
#[derive(Debug)]
pub enum RequestEnd {
    Fulfilled(NodeRequest),
    Failed(NodeRequest),
    /// Another client removed the request.
    Removed,
}

impl RequestEnd {
    /// `None` for a request that is still open.
    fn of(request: &NodeRequest) -> Option<RequestEnd> {
        match request.state {
            RequestState::Fulfilled => Some(RequestEnd::Fulfilled(request.clone())),
            RequestState::Failed => Some(RequestEnd::Failed(request.clone())),
            RequestState::Requested | RequestState::Pending => None,
        }
    }
}

/// A request with its locked nodes. Its owner must call [`Consumer::release`] at the end, so no method consumes it.
pub struct Consumer {
    zk: Zk,
    request: Option<RequestId>,
    nodes: Vec<LockedNode>,
}

/// A node whose lock this consumer holds.
pub struct LockedNode {
    pub id: NodeId,
    /// Label of the request for which the node was assigned.
    pub label: LabelName,
    pub node: Node,
    version: i32,
    lock: Lock,
}

impl Consumer {
    pub fn new(zk: Zk) -> Self {
        Self { zk, request: None, nodes: Vec::new() }
    }

    pub fn nodes(&self) -> &[LockedNode] {
        &self.nodes
    }

    /// Creates the request.
    pub async fn submit(&mut self, spec: &RequestSpec) -> anyhow::Result<RequestId> {
        let mut request = NodeRequest::new(spec.labels.clone(), &spec.requestor, clock::now());
        let event = uuid::Uuid::new_v4().simple().to_string();
        request.event_id = Some(event.clone());
        request.created_time = Some(clock::now());
        request.tenant_name = spec.tenant.clone();
        request.provider = spec.provider.clone();
        request.requestor_data = json!({"tenant_name": spec.tenant, "job_name": null}).into();
        let id = self.create(&paths::request_prefix(&spec.priority), &request, &event).await?;
        self.request = Some(id.clone());
        Ok(id)
    }

    /// Creates the request as an ephemeral znode: if this program is killed, the request is deleted when the session
    /// ends, and the launchers reclaim its nodes.
    async fn create(&self, prefix: &str, request: &NodeRequest, event: &str) -> anyhow::Result<RequestId> {
        let data = bytes::Bytes::from(json::to_bytes(request));
        loop {
            match self.zk.create(prefix, data.clone(), CreateMode::EphemeralSequential).await {
                Ok((path, _)) => return Ok(RequestId::from(paths::name(&path))),
                Err(ZkError::NoNode) => {
                    lock::make_path(&self.zk, paths::REQUESTS).await.context("cannot create the request")?
                }
                // The request may have been created; its event id identifies it.
                Err(ZkError::Unknown(_)) => {
                    let scan = scan::requests(self.zk.as_ref()).await?;
                    let ours = |entry: &&RequestEntry| entry.stored.record.event_id.as_deref() == Some(event);
                    if let Some(entry) = scan.found.iter().find(ours) {
                        return Ok(entry.id.clone());
                    }
                }
                Err(error) => return Err(error).context("cannot create the request"),
            }
        }
    }

    /// Resolves when the request is fulfilled, failed or removed.
    pub async fn wait_for_end(&self) -> anyhow::Result<RequestEnd> {
        let id = self.request.as_ref().context("no request was submitted")?;
        let path = paths::request(id);
        loop {
            // The watch is set first, so that a change after the read is not missed.
            let watched = self.zk.exists_and_watch(&path).await;
            let read = scan::request(self.zk.as_ref(), id).await;
            let (changed, found) = match (watched, read) {
                (Ok((Some(_), changed)), Ok(found)) => (changed, found),
                (Ok((None, _)), Ok(_)) => return Ok(RequestEnd::Removed),
                (Err(ZkError::Unknown(_)), _) | (_, Err(ZkError::Unknown(_))) => {
                    self.wait_for_reconnect().await?;
                    continue;
                }
                (Err(error), _) | (_, Err(error)) => return Err(error).with_context(|| format!("cannot read {path}")),
            };
            match found {
                None => return Ok(RequestEnd::Removed),
                Some(Err(unreadable)) => bail!("{} cannot be read: {}", unreadable.path, unreadable.reason),
                Some(Ok(entry)) => match RequestEnd::of(&entry.stored.record) {
                    Some(end) => return Ok(end),
                    None => changed.await,
                },
            }
        }
    }

    /// The end of the request, if it has ended; does not wait.
    pub async fn poll_end(&self) -> anyhow::Result<Option<RequestEnd>> {
        let Some(id) = &self.request else { return Ok(None) };
        let Some(Ok(entry)) = scan::request(self.zk.as_ref(), id).await? else { return Ok(None) };
        Ok(RequestEnd::of(&entry.stored.record))
    }

    /// Waits for a server as long as the session may be alive, because a waiting request holds no nodes.
    async fn wait_for_reconnect(&self) -> anyhow::Result<()> {
        tokio::time::sleep(RETRY_INTERVAL).await;
        let mut session = self.zk.session();
        let state = session.wait_for(|state| *state != SessionState::Suspended).await.map(|state| *state);
        match state {
            Ok(SessionState::Connected) => Ok(()),
            _ => bail!("the ZooKeeper session expired and the request with it"),
        }
    }

    /// Locks the assigned nodes, which then belong to this consumer, and removes the request, which is no longer
    /// needed.
    pub async fn accept(&mut self, request: &NodeRequest) -> anyhow::Result<()> {
        let id = self.request.clone().context("no request was submitted")?;
        if request.nodes.len() != request.node_types.len() {
            bail!("request has {} nodes for {} labels", request.nodes.len(), request.node_types.len());
        }
        let assigned = request.nodes.iter().cloned().zip(request.node_types.iter().cloned());
        let locking = stream::iter(assigned).map(|(node, label)| lock_node(self.zk.clone(), id.clone(), node, label));
        let results: Vec<anyhow::Result<LockedNode>> = locking.buffered(MAX_CONCURRENT_NODES).collect().await;
        let mut failure = None;
        for result in results {
            match result {
                Ok(node) => self.nodes.push(node),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => self.remove_request().await,
        }
    }

    /// Marks the nodes as in use. From then on, no launcher assigns them again.
    pub async fn put_in_use(&mut self) -> anyhow::Result<()> {
        self.write_all(NodeState::InUse).await
    }

    /// Releases everything: marks nodes in use as used, leaves the others unchanged, and removes locks and request.
    /// Nodes that cannot be released here are reclaimed by the launchers when the session ends.
    pub async fn release(&mut self) -> anyhow::Result<()> {
        let marked = self.write_all(NodeState::Used).await;
        let locks = std::mem::take(&mut self.nodes).into_iter().map(|node| node.lock.release());
        let released: Vec<Result<(), ZkError>> =
            stream::iter(locks).buffer_unordered(MAX_CONCURRENT_NODES).collect().await;
        let released: Result<(), ZkError> = released.into_iter().collect();
        let removed = self.remove_request().await;
        marked?;
        released.context("cannot release a lock")?;
        removed
    }

    /// Writes a state to every locked node that may change to it, and leaves the others unchanged.
    async fn write_all(&mut self, state: NodeState) -> anyhow::Result<()> {
        let zk = &self.zk;
        let writes = stream::iter(&mut self.nodes).map(|node| node.write(zk, state));
        let written: Vec<anyhow::Result<()>> = writes.buffer_unordered(MAX_CONCURRENT_NODES).collect().await;
        written.into_iter().collect()
    }

    async fn remove_request(&mut self) -> anyhow::Result<()> {
        let Some(id) = &self.request else { return Ok(()) };
        match self.zk.delete(&paths::request(id), -1).await {
            Ok(()) | Err(ZkError::NoNode) => {
                self.request = None;
                Ok(())
            }
            Err(error) => Err(error).with_context(|| format!("cannot remove the request {id}")),
        }
    }
}

/// Locks an assigned node, and verifies that it is still allocated to the request.
async fn lock_node(zk: Zk, request: RequestId, id: NodeId, label: LabelName) -> anyhow::Result<LockedNode> {
    let ours = |entry: &NodeEntry| entry.stored.record.allocation() == Some(&request);
    let deallocated = || anyhow!("node {id} was assigned to {request} but is no longer allocated to it");
    // Checked before locking, because the lock of a reassigned node belongs to another consumer.
    read(&zk, &id).await?.filter(ours).ok_or_else(deallocated)?;
    let path = paths::node_lock(&id);
    let Some(lock) = lock::lock_within(&zk, &path, "", LOCK_WAIT).await? else {
        bail!("Timeout trying to acquire lock {path}");
    };
    // If this fails, dropping the guard releases the lock.
    let entry = read(&zk, &id).await?.filter(ours).ok_or_else(deallocated)?;
    let (node, version) = ((*entry.stored.record).clone(), entry.stored.version);
    Ok(LockedNode { id, label, node, version, lock })
}

async fn read(zk: &Zk, id: &NodeId) -> anyhow::Result<Option<NodeEntry>> {
    match scan::node(zk.as_ref(), id).await? {
        Some(Ok(entry)) => Ok(Some(entry)),
        Some(Err(unreadable)) => bail!("{} cannot be read: {}", unreadable.path, unreadable.reason),
        None => Ok(None),
    }
}

impl LockedNode {
    async fn write(&mut self, zk: &Zk, state: NodeState) -> anyhow::Result<()> {
        let path = paths::node(&self.id);
        for _ in 0..WRITE_ATTEMPTS {
            if !self.node.state.may_become(state, Writer::Consumer) {
                return self.check_skip(state);
            }
            let mut next = self.node.clone();
            next.set_state(state, Writer::Consumer, clock::now());
            let write = Op::set(&path, json::to_bytes(&next), self.version);
            match zk.multi(vec![self.lock.fence(), write]).await {
                Ok(_) => {
                    self.node = next;
                    self.version += 1;
                    return Ok(());
                }
                // Some writers take no lock, and a write without a reply may have succeeded.
                Err(error) if matches!(error.root(), ZkError::BadVersion | ZkError::Unknown(_)) => {
                    self.reread(zk, &path).await?;
                    if self.node.state == state {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error).with_context(|| format!("cannot write {path}")),
            }
        }
        bail!("{path} keeps changing: another client ignores its lock")
    }

    async fn reread(&mut self, zk: &Zk, path: &str) -> anyhow::Result<()> {
        let (data, stat) = zk.get(path).await.with_context(|| format!("cannot read {path}"))?;
        let Decoded::Record(node) = decode(&data) else { bail!("{path} has no valid record any more") };
        (self.node, self.version) = (node, stat.version);
        Ok(())
    }

    /// Checks whether the write of a state may be omitted. A node that was never in use, or that another client has set
    /// to another state, needs no write when it is released.
    fn check_skip(&self, state: NodeState) -> anyhow::Result<()> {
        match state {
            NodeState::Used => Ok(()),
            _ => bail!("node {} is {} and cannot be set to in-use", self.id, self.node.state),
        }
    }
}
