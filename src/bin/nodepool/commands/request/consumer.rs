//! A consumer of nodes, as Zuul is one: asks, waits, takes the nodes into use, and gives everything back.

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

/// How long the lock of a node is waited for that was handed to us; only clean-up could hold it, and briefly.
const LOCK_WAIT: Duration = Duration::from_secs(30);
/// Between two tries while no server answers.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Nodes that are locked or written at a time.
const MAX_CONCURRENT_NODES: usize = 100;
/// How often a record may be changed under our lock, by writers that take none, before we give up.
const WRITE_ATTEMPTS: usize = 10;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct RequestSpec {
    /// One per node, in the order in which they are wanted.
    pub labels: Vec<LabelName>,
    pub tenant: Option<TenantName>,
    pub provider: Option<ProviderName>,
    /// Three digits.
    pub priority: String,
    /// Who asks, for operators who look at the records.
    pub requestor: String,
}

/// How a request ended.
#[derive(Debug)]
pub enum RequestEnd {
    Fulfilled(NodeRequest),
    Failed(NodeRequest),
    /// Somebody removed it.
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

/// Everything held on the way. It must end in [`Consumer::give_back`], which is the reason why no step consumes it.
pub struct Consumer {
    zk: Zk,
    request: Option<RequestId>,
    nodes: Vec<LockedNode>,
}

/// A node whose lock we hold.
pub struct LockedNode {
    pub id: NodeId,
    /// The label for which it was handed out.
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

    /// Puts the request where the launchers see it.
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

    /// The request belongs to this session: should this program be killed, the launchers take the nodes back at the
    /// session's end, and nothing waits for somebody who is gone.
    async fn create(&self, prefix: &str, request: &NodeRequest, event: &str) -> anyhow::Result<RequestId> {
        let data = bytes::Bytes::from(json::to_bytes(request));
        loop {
            match self.zk.create(prefix, data.clone(), CreateMode::EphemeralSequential).await {
                Ok((path, _)) => return Ok(RequestId::from(paths::name(&path))),
                Err(ZkError::NoNode) => {
                    lock::make_path(&self.zk, paths::REQUESTS).await.context("cannot create the request")?
                }
                // It may have been created all the same; its event tells it from all others.
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

    /// Resolves when the request has ended one way or the other.
    pub async fn wait_for_end(&self) -> anyhow::Result<RequestEnd> {
        let id = self.request.as_ref().context("nothing has been asked for")?;
        let path = paths::request(id);
        loop {
            // The watch first: what happens after the read wakes us.
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

    /// How the request has ended, if it has; without waiting.
    pub async fn poll_end(&self) -> anyhow::Result<Option<RequestEnd>> {
        let Some(id) = &self.request else { return Ok(None) };
        let Some(Ok(entry)) = scan::request(self.zk.as_ref(), id).await? else { return Ok(None) };
        Ok(RequestEnd::of(&entry.stored.record))
    }

    /// Waiting costs nothing, so a server that is away is waited for as long as the session may live.
    async fn wait_for_reconnect(&self) -> anyhow::Result<()> {
        tokio::time::sleep(RETRY_INTERVAL).await;
        let mut session = self.zk.session();
        let state = session.wait_for(|state| *state != SessionState::Suspended).await.map(|state| *state);
        match state {
            Ok(SessionState::Connected) => Ok(()),
            _ => bail!("the ZooKeeper session is over and with it the request"),
        }
    }

    /// Locks the nodes, which makes them ours, and removes the request, which nobody needs any more.
    pub async fn accept(&mut self, request: &NodeRequest) -> anyhow::Result<()> {
        let id = self.request.clone().context("nothing has been asked for")?;
        if request.nodes.len() != request.node_types.len() {
            bail!("{} nodes were handed out for {} labels", request.nodes.len(), request.node_types.len());
        }
        let wanted = request.nodes.iter().cloned().zip(request.node_types.iter().cloned());
        let locking = stream::iter(wanted).map(|(node, label)| lock_node(self.zk.clone(), id.clone(), node, label));
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

    /// From now on the nodes are spent: whatever happens, nobody gets them a second time.
    pub async fn put_in_use(&mut self) -> anyhow::Result<()> {
        self.write_all(NodeState::InUse).await
    }

    /// Everything back: nodes in use are marked as used, the others are as good as before, locks and request go.
    /// What cannot be given back in order is taken back by the launchers when the session ends.
    pub async fn release(&mut self) -> anyhow::Result<()> {
        let marked = self.write_all(NodeState::Used).await;
        let locks = std::mem::take(&mut self.nodes).into_iter().map(|node| node.lock.release());
        let released: Vec<Result<(), ZkError>> =
            stream::iter(locks).buffer_unordered(MAX_CONCURRENT_NODES).collect().await;
        let released: Result<(), ZkError> = released.into_iter().collect();
        let removed = self.remove_request().await;
        marked?;
        released.context("cannot give back a lock")?;
        removed
    }

    /// Takes every node of ours that may go there to a state; the others stay as they are.
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

/// Locks a node that was handed to us, and makes sure that it still is ours.
async fn lock_node(zk: Zk, request: RequestId, id: NodeId, label: LabelName) -> anyhow::Result<LockedNode> {
    let ours = |entry: &NodeEntry| entry.stored.record.allocation() == Some(&request);
    let deallocated = || anyhow!("node {id} was handed out for {request} but is not reserved for it any more");
    // Before the lock, because locking the node of somebody else would be in their way.
    read(&zk, &id).await?.filter(ours).ok_or_else(deallocated)?;
    let path = paths::node_lock(&id);
    let Some(lock) = lock::lock_within(&zk, &path, "", LOCK_WAIT).await? else {
        bail!("Timeout trying to acquire lock {path}");
    };
    // Where this fails, the lock goes with its guard.
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
                // Writers exist that take no lock, and a write of ours may have gone through unnoticed.
                Err(error) if matches!(error.root(), ZkError::BadVersion | ZkError::Unknown(_)) => {
                    self.reread(zk, &path).await?;
                    if self.node.state == state {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error).with_context(|| format!("cannot write {path}")),
            }
        }
        bail!("{path} is being changed all the time by somebody who ignores its lock")
    }

    async fn reread(&mut self, zk: &Zk, path: &str) -> anyhow::Result<()> {
        let (data, stat) = zk.get(path).await.with_context(|| format!("cannot read {path}"))?;
        let Decoded::Record(node) = decode(&data) else { bail!("{path} is no record any more") };
        (self.node, self.version) = (node, stat.version);
        Ok(())
    }

    /// Giving back what was never in use, or what somebody else has put elsewhere, needs no write.
    fn check_skip(&self, state: NodeState) -> anyhow::Result<()> {
        match state {
            NodeState::Used => Ok(()),
            _ => bail!("node {} is {} and cannot be taken into use", self.id, self.node.state),
        }
    }
}
