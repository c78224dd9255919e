//! Time from the start of a launcher to its first fulfilled request with a full ZooKeeper, and the same for the
//! baseline client.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::Target;
use anyhow::{Context, bail, ensure};
use futures::future::try_join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use testkit::load::consumer::Consumers;
use testkit::load::process::{PERSISTENT_SEQUENTIAL, connect};
use tokio::time::Instant;
use zookeeper_client::{AddWatchMode, Client, Error, EventType};

const REQUESTS: &str = "/nodepool/requests";
const NODES: &str = "/nodepool/nodes";
/// Long, because Nodepool 11 reads the nodes one by one.
const HAND_OUT_TIMEOUT: Duration = Duration::from_secs(300);

pub async fn start(target: &Target, requests: usize, rounds: usize, command: &[String]) -> anyhow::Result<Value> {
    let client = Arc::new(connect(&target.zookeeper).await?);
    let mut seconds = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        reset_requests(&client, target, requests).await?;
        seconds.push(match command {
            [] => read_once(&target.zookeeper)?,
            command => first_hand_out(&client, command).await?,
        });
    }
    seconds.sort_by(f64::total_cmp);
    Ok(json!({"rounds": rounds, "best_s": seconds[0], "median_s": seconds[rounds / 2], "requests": requests}))
}

/// Resets ZooKeeper to this many open requests and no allocated nodes, as before the start of any launcher.
async fn reset_requests(client: &Arc<Client>, target: &Target, requests: usize) -> anyhow::Result<()> {
    let (names, _) = client.get_children(REQUESTS).await?;
    try_join_all(names.iter().map(|name| client.delete(&format!("{REQUESTS}/{name}"), None))).await?;
    let (names, _) = client.get_children(NODES).await?;
    let resets = names.iter().map(|name| async move {
        let path = format!("{NODES}/{name}");
        let (data, stat) = client.get_data(&path).await?;
        if stat.num_children > 0 {
            match client.delete(&format!("{path}/lock"), None).await {
                Ok(()) | Err(Error::NoNode | Error::NotEmpty) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut record: Value = serde_json::from_slice(&data)?;
        if !record["allocated_to"].is_null() {
            record["allocated_to"] = Value::Null;
            client.set_data(&path, record.to_string().as_bytes(), None).await?;
        }
        anyhow::Ok(())
    });
    try_join_all(resets).await?;
    let consumers = Consumers::start(client.clone(), &target.label).await?;
    let prefix = format!("{REQUESTS}/200-");
    let creates = (0..requests).map(|_| async {
        // Persistent, so that the requests do not depend on this session.
        client.create(&prefix, &consumers.record(), &PERSISTENT_SEQUENTIAL).await
    });
    try_join_all(creates).await?;
    Ok(())
}

async fn first_hand_out(client: &Arc<Client>, command: &[String]) -> anyhow::Result<f64> {
    let mut watcher = client.watch(REQUESTS, AddWatchMode::PersistentRecursive).await?;
    let began = Instant::now();
    let mut launcher = spawn(command)?;
    let first = tokio::time::timeout(HAND_OUT_TIMEOUT, async {
        loop {
            let event = watcher.changed().await;
            ensure!(event.event_type != EventType::Session, "the ZooKeeper session ended");
            if event.event_type == EventType::NodeDataChanged {
                let (data, _) = client.get_data(&event.path).await?;
                let record: Value = serde_json::from_slice(&data)?;
                if record["state"] == "fulfilled" {
                    return Ok(began.elapsed().as_secs_f64());
                }
            }
        }
    });
    let first = first.await;
    terminate(&mut launcher).await?;
    first.context("no request was fulfilled in time")?
}

/// Runs this program as the baseline client in a separate process, like the launcher.
fn read_once(server: &str) -> anyhow::Result<f64> {
    let began = Instant::now();
    let status =
        Command::new(std::env::current_exe()?).args(["read", "--zookeeper", server]).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "the baseline client failed: {status}");
    Ok(began.elapsed().as_secs_f64())
}

fn spawn(command: &[String]) -> anyhow::Result<Child> {
    let [program, arguments @ ..] = command else { bail!("no command") };
    let child = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.with_context(|| format!("cannot start {program}"))
}

/// Sends SIGTERM, so that the launcher deletes its registration, and SIGKILL if it takes too long.
async fn terminate(launcher: &mut Child) -> anyhow::Result<()> {
    let pid = Pid::from_raw(launcher.id().try_into()?);
    kill(pid, Signal::SIGTERM)?;
    for _ in 0..400 {
        if launcher.try_wait()?.is_some() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    launcher.kill()?;
    launcher.wait()?;
    Ok(())
}
