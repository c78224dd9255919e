//! A load generator that behaves like Zuul, and the bare ZooKeeper clients that launchers are measured against.
//!
//! Each scenario runs against launchers that somebody else has started and prints one line of JSON. Without a scenario
//! (`cargo bench --bench handout`) the driver script `benches/run` is started, which sets everything up.

mod baseline;
mod consumer;
mod process;
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

/// Where the load goes, and whose computing time is counted.
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
    /// milliseconds in which a launcher may finish what belongs to its hand-outs
    #[arg(long, default_value_t = 200)]
    pub settle: u64,
}

#[derive(Subcommand)]
enum Scenario {
    /// Requests one after another, each to a ready node; nothing is given back before the end.
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
        /// Commit the same transactions from a bare pipelined client afterwards.
        #[arg(long)]
        bare: bool,
    },
    /// Consumers that ask, lock, use and give back without end.
    Cycle {
        #[command(flatten)]
        target: Target,
        #[arg(long)]
        consumers: usize,
        #[arg(long)]
        seconds: u64,
        /// Where to write when each node was handed out and when it was given back, in seconds since the Unix epoch.
        #[arg(long)]
        times: Option<PathBuf>,
    },
    /// All requests at once, for nodes that are made for them.
    Launch {
        #[command(flatten)]
        target: Target,
        #[arg(long)]
        count: usize,
        /// End without using the nodes: they stay, ready for others.
        #[arg(long)]
        leave: bool,
    },
    /// Waits until so many nodes are ready.
    Await {
        #[command(flatten)]
        target: Target,
        #[arg(long)]
        nodes: usize,
        #[arg(long, default_value_t = 600)]
        seconds: u64,
    },
    /// From the start of a launcher to its first hand-out, with many requests waiting.
    Start {
        #[command(flatten)]
        target: Target,
        #[arg(long)]
        requests: usize,
        #[arg(long)]
        rounds: usize,
        /// The launcher's command; without one the bare client is measured.
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Reads all nodes and requests with as little as it takes, and says so.
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
    // One thread: the machine belongs to the launcher and to ZooKeeper.
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

/// Hands over to the driver script, which calls this program back.
fn run_driver() -> anyhow::Result<()> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/run");
    let load = std::env::current_exe().context("this program has no path")?;
    let error = std::process::Command::new(&script).env("NODEPOOL_BENCH_LOAD", load).exec();
    Err(error).with_context(|| format!("cannot start {}", script.display()))
}
