//! Test helpers: an in-memory store with records, and captured command output.

use std::sync::Arc;

use nodepool::actors::process::context::BUILT_IN_DRIVERS;
use nodepool::actors::process::files::ConfigFileSource;
use nodepool_model::config::Config;
use nodepool_model::records::node::Node;
use nodepool_zk::Zk;
use nodepool_zk::memory::MemoryZooKeeper;
use serde_json::json;
use zookeeper_server::types::CreateMode;

use crate::args::OutputFormat;
use crate::output::Output;

pub struct TestStore {
    pub server: MemoryZooKeeper,
    pub zk: Zk,
}

/// Captured output and result of a command.
#[derive(Debug, Default)]
pub struct CommandOutput {
    pub out: String,
    pub notes: String,
    pub result: Option<anyhow::Error>,
}

impl TestStore {
    pub fn new() -> Self {
        let server = MemoryZooKeeper::new();
        let zk: Zk = server.connect();
        Self { server, zk }
    }

    pub async fn put(&self, path: &str, data: impl AsRef<[u8]>) {
        for (slash, _) in path.match_indices('/').skip(1) {
            // It may exist.
            let _ = self.zk.create(&path[..slash], bytes::Bytes::new(), CreateMode::Persistent).await;
        }
        let data = bytes::Bytes::copy_from_slice(data.as_ref());
        self.zk.create(path, data, CreateMode::Persistent).await.unwrap();
    }

    pub async fn put_node(&self, id: &str, record: &str) {
        self.put(&format!("/nodepool/nodes/{id}"), record).await;
    }

    pub async fn text(&self, path: &str) -> String {
        let (data, _) = self.zk.get(path).await.unwrap();
        String::from_utf8(data.to_vec()).unwrap()
    }

    pub async fn node(&self, id: &str) -> Node {
        nodepool_model::records::json::from_bytes(self.text(&format!("/nodepool/nodes/{id}")).await.as_bytes()).unwrap()
    }

    pub async fn exists(&self, path: &str) -> bool {
        self.zk.exists(path).await.unwrap().is_some()
    }

    /// A connection with a session of its own, as of another process.
    pub fn connect_other(&self) -> Zk {
        let connection: Arc<_> = self.server.connect();
        connection
    }
}

/// Runs a command and captures its output.
pub async fn capture<T>(
    format: OutputFormat,
    command: impl AsyncFnOnce(&mut Output<'_>) -> anyhow::Result<T>,
) -> CommandOutput {
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let result = command(&mut Output::new(format, &mut out, &mut notes)).await.err();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    CommandOutput { out: text(out), notes: text(notes), result }
}

impl CommandOutput {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap()
    }

    pub fn error(&self) -> String {
        format!("{:#}", self.result.as_ref().unwrap())
    }
}

const LAUNCHER: &str = "nl01-PoolWorker.p-main-0123";

impl TestStore {
    /// Waits until a request exists; returns its path.
    pub async fn wait_for_request(&self) -> String {
        loop {
            let names = self.zk.children("/nodepool/requests").await.map(|(names, _)| names).unwrap_or_default();
            if let Some(name) = names.first() {
                return format!("/nodepool/requests/{name}");
            }
            tokio::task::yield_now().await;
        }
    }

    /// Ends the only request, as a launcher would: with a new node for every label, or without nodes.
    pub async fn end_request(&self, state: &str) {
        let path = self.wait_for_request().await;
        let mut request: serde_json::Value = serde_json::from_str(&self.text(&path).await).unwrap();
        request["state"] = state.into();
        match state {
            "fulfilled" => {
                let labels = request["node_types"].as_array().unwrap().clone();
                let mut nodes = Vec::new();
                for (index, label) in labels.into_iter().enumerate() {
                    let id = format!("{index:010}");
                    let node = json!({
                        "state": "ready", "allocated_to": path.rsplit_once('/').unwrap().1, "type": [label],
                        "provider": "p", "interface_ip": "127.0.0.1", "connection_port": 2200 + index,
                        "username": "zuul", "host_keys": ["ssh-ed25519 AAAA"], "connection_type": "ssh", "later": 1,
                    });
                    self.put_node(&id, &node.to_string()).await;
                    nodes.push(id);
                }
                request["nodes"] = json!(nodes);
            }
            _ => request["declined_by"] = json!([LAUNCHER]),
        }
        self.zk.set(&path, request.to_string().into(), -1).await.unwrap();
    }

    /// Registers a pool on a host, with the address of a web port.
    pub async fn register_pool(&self, labels: &[&str], webapp: Option<&str>) {
        let mut pool = json!({
            "kind": "pool", "id": LAUNCHER, "hostname": "nl01", "provider_name": "p", "name": "main",
            "supported_labels": labels,
        });
        if let Some(webapp) = webapp {
            pool["webapp"] = webapp.into();
        }
        self.put("/nodepool/components/pool/nl010000000000", pool.to_string()).await;
    }
}

/// A configuration from its text.
pub async fn config(text: &str) -> Arc<Config> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let loaded =
        nodepool::actors::process::config_files::load(&ConfigFileSource::OnDisk, file.path(), None, BUILT_IN_DRIVERS)
            .await;
    loaded.unwrap().config
}
