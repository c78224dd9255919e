//! Scenarios against a running launcher: one request at a time, all at once, and in a loop.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::{Target, baseline};
use anyhow::ensure;
use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use testkit::load::consumer::{Consumers, Fulfilled};
use testkit::load::process::{PERSISTENT_SEQUENTIAL, connect, cpu_seconds};
use tokio::time::Instant;
use zookeeper_client::Client;

const NODES: &str = "/nodepool/nodes";

/// Measures the transactions of all clients, and the CPU time of the launcher, between start and stop.
struct Measurement {
    client: Arc<Client>,
    pid: Option<u32>,
    settle: Duration,
    zxid: i64,
    cpu_seconds: f64,
}

impl Measurement {
    async fn start(client: &Arc<Client>, target: &Target) -> anyhow::Result<Self> {
        let settle = Duration::from_millis(target.settle);
        let computed = target.pid.map_or(Ok(0.0), cpu_seconds)?;
        let zxid = current_zxid(client).await?;
        Ok(Self { client: client.clone(), pid: target.pid, settle, zxid, cpu_seconds: computed })
    }

    /// Transactions without `own`, and CPU seconds, each per fulfilled request.
    async fn stop(self, own: usize, handouts: usize) -> anyhow::Result<(f64, f64)> {
        tokio::time::sleep(self.settle).await;
        let transactions = current_zxid(&self.client).await? - self.zxid - 1 - own as i64;
        let computed = self.pid.map_or(Ok(0.0), cpu_seconds)? - self.cpu_seconds;
        Ok((transactions as f64 / handouts as f64, computed / handouts as f64))
    }
}

/// Creates a znode and returns the zxid. The difference of two such zxids counts the transactions in between.
async fn current_zxid(client: &Client) -> anyhow::Result<i64> {
    let (stat, _) = client.create("/bench-mark-", b"", &PERSISTENT_SEQUENTIAL).await?;
    Ok(stat.czxid)
}

pub async fn one(target: &Target, count: usize) -> anyhow::Result<Value> {
    let client = Arc::new(connect(&target.zookeeper).await?);
    let consumers = Consumers::start(client.clone(), &target.label).await?;
    let measurement = Measurement::start(&client, target).await?;
    let (mut latencies, mut served) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let began = Instant::now();
        let id = consumers.submit_request().await?;
        let fulfilled = consumers.wait_until_fulfilled(&id).await?;
        latencies.push((fulfilled.at - began).as_secs_f64() * 1000.0);
        served.push((id, fulfilled));
    }
    let (transactions, computed) = measurement.stop(count, count).await?;
    let ready = ready_nodes(&client).await?.len() + count;
    release_nodes(&consumers, &served).await?;
    wait_for_nodes(&client, ready, Duration::from_secs(300)).await?;
    latencies.sort_by(f64::total_cmp);
    let percentile = |percent: usize| latencies[(count * percent / 100).min(count - 1)];
    Ok(json!({
        "count": count, "p50_ms": percentile(50), "p99_ms": percentile(99), "max_ms": latencies[count - 1],
        "transactions": transactions, "cpu_ms": computed * 1000.0,
    }))
}

pub async fn burst(target: &Target, count: usize, with_bare: bool) -> anyhow::Result<Value> {
    let client = Arc::new(connect(&target.zookeeper).await?);
    let consumers = Consumers::start(client.clone(), &target.label).await?;
    let ready = ready_nodes(&client).await?.len();
    ensure!(ready >= count, "{ready} nodes are ready, {count} are wanted");
    let measurement = Measurement::start(&client, target).await?;
    let (served, seconds) = serve_all(&consumers, count).await?;
    let (transactions, computed) = measurement.stop(count, count).await?;
    let distinct: BTreeSet<&String> = served.iter().flat_map(|(_, fulfilled)| &fulfilled.nodes).collect();
    ensure!(distinct.len() == count, "{count} requests got {} different nodes", distinct.len());
    let sample = baseline::Sample::read(&client, &served[count / 2].0, &served[count / 2].1.nodes[0]).await?;
    let began = Instant::now();
    release_nodes(&consumers, &served).await?;
    wait_for_nodes(&client, ready, Duration::from_secs(600)).await?;
    let released = began.elapsed().as_secs_f64();
    let mut report = json!({
        "count": count, "seconds": seconds, "per_second": count as f64 / seconds,
        "transactions": transactions, "cpu_ms": computed * 1000.0, "given_back_s": released,
    });
    if with_bare {
        let rate = baseline::commit(&target.zookeeper, &sample, count).await?;
        report["bare_per_second"] = json!(rate);
    }
    Ok(report)
}

pub async fn cycle(target: &Target, count: usize, seconds: u64, times: Option<&Path>) -> anyhow::Result<Value> {
    let client = Arc::new(connect(&target.zookeeper).await?);
    let consumers = Consumers::start(client.clone(), &target.label).await?;
    let ready = ready_nodes(&client).await?.len();
    let measurement = Measurement::start(&client, target).await?;
    let began = Instant::now();
    let end = began + Duration::from_secs(seconds);
    let rounds = (0..count).map(|_| async {
        let mut rounds = Vec::new();
        while Instant::now() < end {
            let id = consumers.submit_request().await?;
            let Fulfilled { nodes, at } = consumers.wait_until_fulfilled(&id).await?;
            consumers.use_node(&id, &nodes[0]).await?;
            rounds.push((nodes[0].clone(), [at, Instant::now()].map(unix_time)));
        }
        anyhow::Ok(rounds)
    });
    let rounds: Vec<_> = try_join_all(rounds).await?.into_iter().flatten().collect();
    let elapsed = began.elapsed().as_secs_f64();
    let (transactions, computed) = measurement.stop(0, rounds.len()).await?;
    // Deletions that continue after this scenario would be counted in the next one.
    match ready {
        0 => wait_for_no_nodes(&client, Duration::from_secs(600)).await?,
        _ => wait_for_nodes(&client, ready, Duration::from_secs(600)).await?,
    }
    if let Some(path) = times {
        std::fs::write(path, json!(rounds.iter().cloned().collect::<BTreeMap<_, _>>()).to_string())?;
    }
    Ok(json!({
        "consumers": count, "seconds": elapsed, "per_second": rounds.len() as f64 / elapsed,
        "transactions": transactions, "cpu_ms": computed * 1000.0,
    }))
}

/// Seconds since the Unix epoch.
fn unix_time(at: Instant) -> f64 {
    nodepool::actors::runtime::clock::now().0 - at.elapsed().as_secs_f64()
}

pub async fn launch(target: &Target, count: usize, leave: bool) -> anyhow::Result<Value> {
    let client = Arc::new(connect(&target.zookeeper).await?);
    let consumers = Consumers::start(client.clone(), &target.label).await?;
    let measurement = Measurement::start(&client, target).await?;
    let (served, seconds) = serve_all(&consumers, count).await?;
    let (transactions, computed) = measurement.stop(count, count).await?;
    let mut report = json!({
        "count": count, "seconds": seconds, "per_second": count as f64 / seconds,
        "transactions": transactions, "cpu_ms": computed * 1000.0,
    });
    if !leave {
        let began = Instant::now();
        release_nodes(&consumers, &served).await?;
        wait_for_no_nodes(&client, Duration::from_secs(1200)).await?;
        report["gone_s"] = json!(began.elapsed().as_secs_f64());
    }
    Ok(report)
}

async fn wait_for_no_nodes(client: &Client, timeout: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        let (names, _) = client.get_children(NODES).await?;
        if names.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{} nodes remain after {timeout:?}", names.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub async fn await_nodes(target: &Target, nodes: usize, seconds: u64) -> anyhow::Result<Value> {
    let client = Arc::new(connect(&target.zookeeper).await?);
    let began = Instant::now();
    wait_for_nodes(&client, nodes, Duration::from_secs(seconds)).await?;
    Ok(json!({"nodes": nodes, "seconds": began.elapsed().as_secs_f64()}))
}

/// Submits all requests at once; returns them and the time until the last one was fulfilled.
async fn serve_all(consumers: &Consumers, count: usize) -> anyhow::Result<(Vec<(String, Fulfilled)>, f64)> {
    let began = Instant::now();
    let requests = (0..count).map(|_| async {
        let id = consumers.submit_request().await?;
        let fulfilled = consumers.wait_until_fulfilled(&id).await?;
        anyhow::Ok((id, fulfilled))
    });
    let served = try_join_all(requests).await?;
    let last = served.iter().map(|(_, fulfilled)| fulfilled.at).max().expect("at least one request was fulfilled");
    Ok((served, (last - began).as_secs_f64()))
}

async fn release_nodes(consumers: &Consumers, served: &[(String, Fulfilled)]) -> anyhow::Result<()> {
    try_join_all(served.iter().map(|(id, fulfilled)| consumers.use_node(id, &fulfilled.nodes[0]))).await?;
    Ok(())
}

/// Ids of ready nodes without an allocation.
pub async fn ready_nodes(client: &Client) -> anyhow::Result<Vec<String>> {
    let (names, _) = match client.get_children(NODES).await {
        Ok(answer) => answer,
        Err(zookeeper_client::Error::NoNode) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let reads: FuturesUnordered<_> = names
        .into_iter()
        .map(|name| async {
            let data = client.get_data(&format!("{NODES}/{name}")).await;
            (name, data)
        })
        .collect();
    let mut ready = Vec::new();
    for (name, answer) in reads.collect::<Vec<_>>().await {
        let Ok((data, _)) = answer else { continue };
        let Ok(record) = serde_json::from_slice::<Value>(&data) else { continue };
        if record["state"] == "ready" && record["allocated_to"].is_null() {
            ready.push(name);
        }
    }
    Ok(ready)
}

async fn wait_for_nodes(client: &Client, count: usize, timeout: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        // Counting the names is one small read; the records are read only when the number suffices.
        let listed = client.get_children(NODES).await.map_or(0, |(names, _)| names.len());
        let mut found = format!("only {listed} of {count} nodes exist");
        if listed >= count {
            let ready = ready_nodes(client).await?.len();
            if ready >= count {
                return Ok(());
            }
            found = format!("only {ready} of {count} nodes are ready");
        }
        ensure!(Instant::now() < deadline, "{found} after {timeout:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
