//! Consumers of nodes that issue the same transactions as Zuul.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::process::{EPHEMERAL_SEQUENTIAL, PERSISTENT};
use anyhow::{Context, bail};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::Instant;
use zookeeper_client::{AddWatchMode, Client, Error, EventType, PersistentWatcher};

const REQUESTS: &str = "/nodepool/requests";

/// A request that has been fulfilled.
#[derive(Debug)]
pub struct Fulfilled {
    pub at: Instant,
    pub nodes: Vec<String>,
}

enum Slot {
    Waiting(oneshot::Sender<Fulfilled>),
    Done(Fulfilled),
}

/// One session that submits and watches requests for any number of consumers.
#[derive(Clone)]
pub struct Consumers {
    pub client: Arc<Client>,
    label: String,
    slots: Arc<Mutex<HashMap<String, Slot>>>,
}

impl Consumers {
    pub async fn start(client: Arc<Client>, label: &str) -> anyhow::Result<Self> {
        // Some launchers do not create the paths that they only read.
        for path in ["/nodepool", REQUESTS] {
            match client.create(path, b"", &PERSISTENT).await {
                Ok(_) | Err(Error::NodeExists) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot create {path}")),
            }
        }
        let watcher = client.watch(REQUESTS, AddWatchMode::PersistentRecursive).await?;
        let consumers = Self { client, label: label.to_owned(), slots: Arc::default() };
        tokio::spawn(watch_requests(consumers.client.clone(), watcher, consumers.slots.clone()));
        Ok(consumers)
    }

    /// The record of a request as Zuul writes it.
    pub fn record(&self) -> Vec<u8> {
        let now = nodepool::actors::runtime::clock::now().0;
        let record = json!({
            "state": "requested", "state_time": now, "declined_by": [], "node_types": [self.label], "nodes": [],
            "reuse": true, "requestor": "zuul", "requestor_data": {
                "build_set_uuid": "b2c6b3b44d0f4b7cb4a0b1f6d6a2a0ce", "tenant_name": "example", "pipeline_name": "check",
                "job_name": "unit-tests"},
            "provider": null, "relative_priority": 0, "event_id": "0f1d4cbe0b8d4e0f9f0e6d9a3f1e7c55",
            "created_time": now, "tenant_name": "example"
        });
        record.to_string().into_bytes()
    }

    /// Creates an ephemeral request; returns its id.
    pub async fn submit_request(&self) -> anyhow::Result<String> {
        let prefix = format!("{REQUESTS}/200-");
        let (_, sequence) = self.client.create(&prefix, &self.record(), &EPHEMERAL_SEQUENTIAL).await?;
        Ok(format!("200-{sequence}"))
    }

    /// Resolves when the request is fulfilled.
    pub async fn wait_until_fulfilled(&self, id: &str) -> anyhow::Result<Fulfilled> {
        let (sender, receiver) = oneshot::channel();
        let earlier = self.lock().insert(id.to_owned(), Slot::Waiting(sender));
        match earlier {
            Some(Slot::Done(fulfilled)) => {
                self.lock().remove(id);
                Ok(fulfilled)
            }
            Some(Slot::Waiting(_)) => bail!("two consumers wait for {id}"),
            None => receiver.await.with_context(|| format!("request {id} was never fulfilled")),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Slot>> {
        self.slots.lock().expect("nothing panics while it holds the slots")
    }

    /// Performs all writes of Zuul for a node: lock, deletion of the request, `in-use`, `used`, unlock.
    pub async fn use_node(&self, request: &str, node: &str) -> anyhow::Result<()> {
        let contender = self.lock_node(node).await?;
        let path = format!("/nodepool/nodes/{node}");
        let read = self.client.get_data(&path).await;
        let (data, stat) = read.with_context(|| format!("cannot read node {node} of {request}"))?;
        let mut record: Value = serde_json::from_slice(&data)?;
        if record["allocated_to"] != request {
            bail!("node {node} is allocated to {} and was assigned to {request}", record["allocated_to"]);
        }
        let removed = self.client.delete(&format!("{REQUESTS}/{request}"), None).await;
        removed.with_context(|| format!("cannot remove request {request}"))?;
        let mut version = stat.version;
        for state in ["in-use", "used"] {
            record["state"] = json!(state);
            let bytes = record.to_string().into_bytes();
            let written = self.client.set_data(&path, &bytes, Some(version)).await;
            version = written.with_context(|| format!("cannot set node {node} to {state}"))?.version;
        }
        self.client.delete(&contender, None).await.with_context(|| format!("cannot unlock node {node}"))?;
        Ok(())
    }

    /// Acquires the lock like kazoo, and waits until there is no other contender.
    async fn lock_node(&self, node: &str) -> anyhow::Result<String> {
        let directory = format!("/nodepool/nodes/{node}/lock");
        let prefix = format!("{directory}/{}__lock__", uuid::Uuid::new_v4().simple());
        let sequence = match self.client.create(&prefix, b"", &EPHEMERAL_SEQUENTIAL).await {
            Ok((_, sequence)) => sequence,
            Err(Error::NoNode) => {
                match self.client.create(&directory, b"", &PERSISTENT).await {
                    Ok(_) | Err(Error::NodeExists) => {}
                    Err(error) => return Err(error).with_context(|| format!("cannot lock node {node}")),
                }
                self.client.create(&prefix, b"", &EPHEMERAL_SEQUENTIAL).await?.1
            }
            Err(error) => return Err(error.into()),
        };
        loop {
            // A launcher may unlock the node shortly after it has fulfilled the request.
            let (names, _) = self.client.get_children(&directory).await?;
            if names.len() == 1 {
                return Ok(format!("{prefix}{sequence}"));
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }
}

/// Reads every changed request, like a request cache, and notifies its consumer.
async fn watch_requests(client: Arc<Client>, mut watcher: PersistentWatcher, slots: Arc<Mutex<HashMap<String, Slot>>>) {
    let mut reads = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            event = watcher.changed() => {
                if event.event_type == EventType::Session {
                    return;
                }
                if event.event_type == EventType::NodeDataChanged {
                    let client = client.clone();
                    reads.push(async move { (client.get_data(&event.path).await, event.path) });
                }
            }
            Some((answer, path)) = reads.next() => {
                let Ok((data, _)) = answer else { continue };
                let Ok(record) = serde_json::from_slice::<Value>(&data) else { continue };
                assert_ne!(record["state"], "failed", "{path} failed: {record}");
                if record["state"] == "fulfilled" {
                    let nodes = record["nodes"].as_array().into_iter().flatten();
                    let nodes = nodes.filter_map(|node| node.as_str().map(str::to_owned)).collect();
                    notify_waiter(&slots, &path[REQUESTS.len() + 1..], Fulfilled { at: Instant::now(), nodes });
                }
            }
        }
    }
}

fn notify_waiter(slots: &Mutex<HashMap<String, Slot>>, id: &str, fulfilled: Fulfilled) {
    let mut slots = slots.lock().expect("nothing panics while it holds the slots");
    match slots.remove(id) {
        // The consumer may have stopped waiting.
        Some(Slot::Waiting(sender)) => drop(sender.send(fulfilled)),
        Some(Slot::Done(_)) | None => drop(slots.insert(id.to_owned(), Slot::Done(fulfilled))),
    }
}
