//! Lives simulated hours, each in a process of its own, and holds them to the promises.

#[path = "campaign.rs"]
mod campaign;
#[path = "../in_process_launcher/mod.rs"]
mod in_process_launcher;
#[path = "mod.rs"]
mod simulator;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;

use campaign::{Campaign, Seeds};
use simulator::faults::FaultFilter;
use simulator::history::RunHistory;

/// Lives simulated hours, each from a seed, and holds them to the promises of doc/reliability.md.
#[derive(Parser)]
#[command(name = "sim")]
struct Arguments {
    /// Lives this hour alone, here, and says what came of it
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// With these of its faults only, by their numbers (`--faults 2,5`), or with `none`
    #[arg(long, requires = "seed", value_name = "NUMBERS")]
    faults: Option<FaultFilter>,
    /// Writes all that happened in it, line by line
    #[arg(long, requires = "seed", value_name = "FILE")]
    tale: Option<PathBuf>,
    /// Looks for as few of its faults as possible that still break a promise
    #[arg(long, requires = "seed", conflicts_with_all = ["faults", "tale"])]
    minimise: bool,
    /// Lives all hours of a range of seeds
    #[arg(long, value_name = "FIRST-LAST", default_value = "1-200")]
    seeds: Seeds,
    /// Hours at a time; as many as there are processors
    #[arg(long, value_name = "NUMBER")]
    jobs: Option<usize>,
    /// Lives each hour twice, and fails where they differ
    #[arg(long)]
    twice: bool,
    /// Stops at the first hour that breaks a promise
    #[arg(long)]
    until_broken: bool,
    /// Adds a line with commit, seeds and result to this file
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
}

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let has_passed = match arguments.seed {
        Some(seed) if arguments.minimise => campaign::minimize_faults(seed),
        Some(seed) => run_one_seed(seed, &arguments),
        None => Campaign {
            seeds: arguments.seeds,
            jobs: arguments.jobs.unwrap_or_else(campaign::processors),
            check_determinism: arguments.twice,
            until_broken: arguments.until_broken,
            history: arguments.ledger,
        }
        .run(),
    };
    if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Seconds of a processor after which an hour counts as one that never ends.
const MAX_CPU_S: u64 = 90;

fn run_one_seed(seed: u64, arguments: &Arguments) -> bool {
    // An hour that spins cannot say so itself, and nobody waits for it when who asked has gone.
    setrlimit(Resource::RLIMIT_CPU, MAX_CPU_S, MAX_CPU_S + 5).expect("a process may limit itself");
    set_pdeathsig(Signal::SIGKILL).expect("a process may end with its parent");
    let history = if arguments.tale.is_some() { RunHistory::with_trace() } else { RunHistory::default() };
    let filter = arguments.faults.clone().unwrap_or_default();
    let outcome = simulator::run(seed, &filter, history.clone());
    if let Some(file) = &arguments.tale {
        std::fs::write(file, history.trace().join("\n")).expect("the tale can be written");
    }
    println!("{}", outcome.report(seed, &filter));
    outcome.has_passed()
}
