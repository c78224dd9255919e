//! The program `sim`: runs simulations from seeds, each in its own process, and checks the invariants.

mod campaign;
use std::path::PathBuf;
use std::process::ExitCode;

use campaign::{Campaign, Seeds};
use clap::Parser;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use simulator::faults::FaultFilter;
use simulator::history::RunHistory;

/// Run simulations from seeds and check the invariants of doc/reliability.md.
#[derive(Parser)]
#[command(name = "sim")]
struct Arguments {
    /// Run only this seed, in this process, and print its result
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Inject only the faults with these numbers (`--faults 2,5`), or `none`
    #[arg(long, requires = "seed", value_name = "NUMBERS")]
    faults: Option<FaultFilter>,
    /// Write the trace of the run to FILE
    #[arg(long, requires = "seed", value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Minimize the faults that still violate an invariant
    #[arg(long, requires = "seed", conflicts_with_all = ["faults", "trace"])]
    minimize: bool,
    /// Run every seed of this range
    #[arg(long, value_name = "FIRST-LAST", default_value = "1-200")]
    seeds: Seeds,
    /// Parallel runs (default: number of CPUs)
    #[arg(long, value_name = "NUMBER")]
    jobs: Option<usize>,
    /// Run each seed twice and fail if the results differ
    #[arg(long)]
    check_determinism: bool,
    /// Stop at the first failed seed
    #[arg(long)]
    until_broken: bool,
    /// Append commit, seeds and result to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let has_passed = match arguments.seed {
        Some(seed) if arguments.minimize => campaign::minimize_faults(seed),
        Some(seed) => run_one_seed(seed, &arguments),
        None => Campaign {
            seeds: arguments.seeds,
            jobs: arguments.jobs.unwrap_or_else(campaign::processors),
            check_determinism: arguments.check_determinism,
            until_broken: arguments.until_broken,
            history: arguments.history,
        }
        .run(),
    };
    if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Seconds of CPU time after which a run counts as one that never ends.
const MAX_CPU_S: u64 = 90;

fn run_one_seed(seed: u64, arguments: &Arguments) -> bool {
    // The kernel ends a run that spins, because such a run cannot report that, and a run whose parent exited.
    setrlimit(Resource::RLIMIT_CPU, MAX_CPU_S, MAX_CPU_S + 5).expect("a process may limit itself");
    set_pdeathsig(Signal::SIGKILL).expect("a process may ask for a signal when its parent exits");
    let history = if arguments.trace.is_some() { RunHistory::with_trace() } else { RunHistory::default() };
    let filter = arguments.faults.clone().unwrap_or_default();
    let outcome = simulator::run(seed, &filter, history.clone());
    if let Some(file) = &arguments.trace {
        std::fs::write(file, history.trace().join("\n")).expect("the trace file is writable");
    }
    println!("{}", outcome.report(seed, &filter));
    outcome.has_passed()
}
