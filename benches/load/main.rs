//! Load generator that behaves like Zuul, and the baseline ZooKeeper clients that launchers are compared with.
//!
//! Each scenario runs against launchers that are already running and prints one line of JSON. Without a scenario
//! (`cargo bench --bench handout`) the program starts the driver script `benches/run`, which sets everything up.

mod baseline;
mod scenarios;
mod start;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

/// The ZooKeeper and label of the load, and the process whose CPU time is measured.
#[derive(clap::Args, Clone)]
pub struct Target {
    /// host:port of a ZooKeeper without TLS
    #[arg(long)]
    pub zookeeper: String,
    #[arg(long, default_value = "bench")]
    pub label: String,
    /// process id of the launcher
    #[arg(long)]
    pub pid: Option<u32>,
    /// milliseconds in which a launcher may finish its writes after the last fulfilled request
    #[arg(long, default_value_t = 200)]
    pub settle: u64,
}

#[derive(Subcommand)]
enum Scenario {
    /// Requests one after another, each fulfilled with a ready node; no node is released before the end.
    One {
        #[command(flatten)]
        target: Target,
        #[arg(long)]
        count: usize,
    },
    /// All requests at once; consumers only watch until the last one is fulfilled.
    Burst {
        #[command(flatten)]
        target: Target,
        #[arg(long)]
        count: usize,
        /// Commit the same transactions from a pipelined baseline client afterwards.
        #[arg(long)]
        bare: bool,
    },
    /// Consumers that request, lock, use and release nodes in a loop.
    Cycle {
        #[command(flatten)]
        target: Target,
        #[arg(long)]
        consumers: usize,
        #[arg(long)]
        seconds: u64,
        /// File for the times at which each node was assigned and released, in seconds since the Unix epoch.
        #[arg(long)]
        times: Option<PathBuf>,
    },
    /// All requests at once, fulfilled with launched nodes.
    Launch {
        #[command(flatten)]
        target: Target,
        #[arg(long)]
        count: usize,
        /// End without using the nodes: they remain ready for other requests.
        #[arg(long)]
        leave: bool,
    },
    /// Waits until this many nodes are ready.
    Await {
        #[command(flatten)]
        target: Target,
        #[arg(long)]
        nodes: usize,
        #[arg(long, default_value_t = 600)]
        seconds: u64,
    },
    /// Time from the start of a launcher to its first fulfilled request, with many open requests.
    Start {
        #[command(flatten)]
        target: Target,
        #[arg(long)]
        requests: usize,
        #[arg(long)]
        rounds: usize,
        /// The launcher's command; without one the baseline client is measured.
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Reads all nodes and requests with the minimum of operations, and reports the time.
    Read {
        #[command(flatten)]
        target: Target,
        /// Nodes only, as `nodepool list` does.
        #[arg(long)]
        nodes_only: bool,
    },
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().filter(|argument| argument != "--bench").collect();
    if arguments.len() == 1 {
        return run_driver();
    }
    let scenario = Arguments::parse_from(arguments).scenario;
    // One thread, to leave the CPUs to the launcher and to ZooKeeper.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(run(scenario))?;
    println!("{report}");
    Ok(())
}

async fn run(scenario: Scenario) -> anyhow::Result<serde_json::Value> {
    match scenario {
        Scenario::One { target, count } => scenarios::one(&target, count).await,
        Scenario::Burst { target, count, bare } => scenarios::burst(&target, count, bare).await,
        Scenario::Cycle { target, consumers, seconds, times } => {
            scenarios::cycle(&target, consumers, seconds, times.as_deref()).await
        }
        Scenario::Launch { target, count, leave } => scenarios::launch(&target, count, leave).await,
        Scenario::Await { target, nodes, seconds } => scenarios::await_nodes(&target, nodes, seconds).await,
        Scenario::Start { target, requests, rounds, command } => {
            start::start(&target, requests, rounds, &command).await
        }
        Scenario::Read { target, nodes_only } => baseline::read(&target.zookeeper, nodes_only).await,
    }
}

/// Replaces this process by the driver script, which starts this program with a scenario.
fn run_driver() -> anyhow::Result<()> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/run");
    let load = std::env::current_exe().context("this program has no path")?;
    let error = std::process::Command::new(&script).env("NODEPOOL_BENCH_LOAD", load).exec();
    Err(error).with_context(|| format!("cannot start {}", script.display()))
}
