//! Baseline: pipelined ZooKeeper clients without any decisions, which measure this ZooKeeper's own speed.

use std::sync::Arc;

use anyhow::Context;
use futures::future::try_join_all;
use serde_json::{Value, json};
use testkit::load::process::{PERSISTENT, connect};
use tokio::time::Instant;
use zookeeper_client::{Client, Error};

/// Root of the transactions; no client watches it.
const ROOT: &str = "/bench-bare";

/// The request and node record of one fulfilled request.
pub struct Sample {
    request: Vec<u8>,
    node: Vec<u8>,
}

impl Sample {
    pub async fn read(client: &Client, request: &str, node: &str) -> anyhow::Result<Self> {
        let (request, _) = client.get_data(&format!("/nodepool/requests/{request}")).await?;
        let (node, _) = client.get_data(&format!("/nodepool/nodes/{node}")).await?;
        Ok(Self { request, node })
    }
}

/// Transactions per second of the shape and size of a fulfilment: both locks proven free, node and request written.
pub async fn commit(server: &str, sample: &Sample, count: usize) -> anyhow::Result<f64> {
    let client = connect(server).await?;
    for directory in [ROOT.to_owned(), format!("{ROOT}/nodes"), format!("{ROOT}/requests"), format!("{ROOT}/locks")] {
        match client.create(&directory, b"", &PERSISTENT).await {
            Ok(_) | Err(Error::NodeExists) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let round = uuid::Uuid::new_v4().simple().to_string();
    let paths: Vec<[String; 4]> = (0..count)
        .map(|index| {
            let id = format!("{}-{index:08}", &round[..6]);
            [
                format!("{ROOT}/nodes/{id}"),
                format!("{ROOT}/requests/{id}"),
                format!("{ROOT}/locks/{id}"),
                format!("{ROOT}/nodes/{id}/lock"),
            ]
        })
        .collect();
    let records = paths.iter().map(|[node, request, ..]| async {
        client.create(node, &sample.node, &PERSISTENT).await?;
        client.create(request, &sample.request, &PERSISTENT).await
    });
    try_join_all(records).await?;
    let mut writers = Vec::with_capacity(count);
    for [node, request, lock, node_lock] in &paths {
        let mut writer = client.new_multi_writer();
        writer.add_create(lock, b"", &PERSISTENT)?;
        writer.add_delete(lock, None)?;
        writer.add_create(node_lock, b"", &PERSISTENT)?;
        writer.add_set_data(node, &sample.node, Some(0))?;
        writer.add_set_data(request, &sample.request, Some(0))?;
        writers.push(writer);
    }
    let began = Instant::now();
    try_join_all(writers.iter_mut().map(|writer| writer.commit())).await.context("a baseline transaction failed")?;
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// Reads the records that a launcher reads at its start, or those that `nodepool list` reads.
pub async fn read(server: &str, nodes_only: bool) -> anyhow::Result<Value> {
    let began = Instant::now();
    let client = Arc::new(connect(server).await?);
    let mut bytes = 0;
    let mut znodes = 0;
    let roots: &[&str] = if nodes_only { &["nodes"] } else { &["nodes", "requests", "requests-lock"] };
    for root in roots {
        let root = format!("/nodepool/{root}");
        let names = match client.get_children(&root).await {
            Ok((names, _)) => names,
            Err(Error::NoNode) => continue,
            Err(error) => return Err(error.into()),
        };
        let reads = names.iter().map(|name| client.get_data(&format!("{root}/{name}")));
        let records = try_join_all(reads).await?;
        let locks = names.iter().zip(&records).filter(|(_, (_, stat))| stat.num_children > 0);
        let locks = try_join_all(locks.map(|(name, _)| client.get_children(&format!("{root}/{name}/lock")))).await?;
        znodes += records.len() + locks.len();
        bytes += records.iter().map(|(data, _)| data.len()).sum::<usize>();
    }
    Ok(json!({"znodes": znodes, "bytes": bytes, "seconds": began.elapsed().as_secs_f64()}))
}
