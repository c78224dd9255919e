//! Connection of the load generator to ZooKeeper, and CPU time of another process.

use std::time::Duration;

use anyhow::Context;
use nix::time::ClockId;
use nix::unistd::Pid;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

pub const EPHEMERAL_SEQUENTIAL: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
pub const PERSISTENT_SEQUENTIAL: CreateOptions<'static> =
    CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
pub const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

pub async fn connect(server: &str) -> anyhow::Result<Client> {
    let connector = Client::connector().with_session_timeout(Duration::from_secs(30)).with_fail_eagerly();
    connector.connect(server).await.with_context(|| format!("cannot connect to ZooKeeper at {server}"))
}

/// CPU seconds of a process so far, in user and system mode, including threads that have ended.
pub fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid.try_into()?)).context("the launcher has exited")?;
    Ok(Duration::from(clock.now()?).as_secs_f64())
}
