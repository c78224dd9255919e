//! Foreign pool: a pool of another launcher that launches nodes, driven by the test.

use std::collections::BTreeSet;

use bytes::Bytes;
use nodepool::actors::runtime::clock;
use nodepool_model::records::component::{ComponentKind, PoolComponent};
use nodepool_model::records::ids::{LabelName, LauncherId, NodeId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_zk::locks::lock;
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::{Zk, paths};
use zookeeper_server::types::CreateMode;

pub struct ForeignPool {
    pub zk: Zk,
    pub launcher: LauncherId,
    provider: &'static str,
    component: String,
}

impl ForeignPool {
    /// Registers the pool on its own session.
    pub async fn register(zookeeper: &MemoryZooKeeper, provider: &'static str, labels: &[&str]) -> Self {
        let zk: Zk = zookeeper.connect();
        let launcher = LauncherId::from(format!("elsewhere-PoolWorker.{provider}-main-{:032x}", 7));
        let record = PoolComponent {
            hostname: "elsewhere".to_owned(),
            id: Some(launcher.clone()),
            kind: ComponentKind::Pool,
            model_api: 0,
            name: Some("main".into()),
            paused: false,
            priority: 100,
            provider_name: Some(provider.into()),
            state: "running".to_owned(),
            supported_labels: labels.iter().map(|label| LabelName::from(*label)).collect::<BTreeSet<_>>(),
            version: None,
            webapp: None,
            extra: Default::default(),
        };
        lock::make_path(&zk, &paths::components(ComponentKind::Pool)).await.unwrap();
        let prefix = paths::component_prefix(ComponentKind::Pool, "elsewhere");
        let data = Bytes::from(json::to_bytes(&record));
        let (component, _) = zk.create(&prefix, data, CreateMode::EphemeralSequential).await.unwrap();
        Self { zk, launcher, provider, component }
    }

    pub async fn unregister(self) {
        self.zk.delete(&self.component, -1).await.unwrap();
    }

    /// Creates a ready node of this pool: allocated to a request, or idle.
    pub async fn launch(&self, label: &LabelName, request: Option<&RequestId>) -> NodeId {
        let mut node = Node::new(NodeState::Ready, clock::now());
        (node.provider, node.pool) = (Some(self.provider.into()), Some("main".into()));
        node.launcher = Some(self.launcher.to_string());
        node.labels = vec![label.clone()];
        node.allocated_to = request.cloned();
        lock::make_path(&self.zk, "/nodepool/nodes").await.unwrap();
        let data = Bytes::from(json::to_bytes(&node));
        let (path, _) = self.zk.create(&paths::node_prefix(), data, CreateMode::PersistentSequential).await.unwrap();
        NodeId::from(paths::name(&path))
    }

    /// Launches a node for each requested label, then fulfils the request.
    pub async fn fulfill(&self, id: &RequestId) -> Vec<NodeId> {
        let mut request = self.read(id).await;
        for label in request.node_types.clone() {
            request.nodes.push(self.launch(&label, Some(id)).await);
        }
        let nodes = request.nodes.clone();
        self.finish(id, request, RequestState::Fulfilled).await;
        nodes
    }

    /// Declines as the last pool, so the request fails.
    pub async fn fail(&self, id: &RequestId) {
        let mut request = self.read(id).await;
        request.declined_by.push(self.launcher.clone());
        self.finish(id, request, RequestState::Failed).await;
    }

    async fn read(&self, id: &RequestId) -> NodeRequest {
        json::from_bytes(&self.zk.get(&paths::request(id)).await.unwrap().0).unwrap()
    }

    async fn finish(&self, id: &RequestId, mut request: NodeRequest, state: RequestState) {
        request.set_state(state, clock::now());
        self.zk.set(&paths::request(id), Bytes::from(json::to_bytes(&request)), -1).await.unwrap();
    }
}
