//! Computing time of another process, and what a ZooKeeper client of this program is made of.

use std::time::Duration;

use anyhow::Context;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

pub const EPHEMERAL_SEQUENTIAL: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
pub const PERSISTENT_SEQUENTIAL: CreateOptions<'static> =
    CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
pub const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

/// Linux counts computing time in hundredths of a second on all platforms that matter here.
const TICKS_PER_SECOND: f64 = 100.0;

pub async fn connect(server: &str) -> anyhow::Result<Client> {
    let connector = Client::connector().with_session_timeout(Duration::from_secs(30)).with_fail_eagerly();
    connector.connect(server).await.with_context(|| format!("no ZooKeeper at {server}"))
}

/// Seconds that a process has computed so far, in user and system mode.
pub fn computed(pid: u32) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("the launcher is gone")?;
    // The name in parentheses may hold anything; behind it the fields are numbers.
    let (_, fields) = text.rsplit_once(')').context("/proc/PID/stat has another form")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / TICKS_PER_SECOND)
}
