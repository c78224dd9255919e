//! Campaign: many simulation runs, each in its own process, because the random number generators are seeded once per
//! process.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::Signal;
use simulator::faults::{self, FaultFilter};
use simulator::minimize::minimize;

const YEAR_H: f64 = 365.25 * 24.0;

/// Inclusive range.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    first: u64,
    last: u64,
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        if first <= last { Ok(Self { first, last }) } else { Err("the first seed is greater than the last".to_owned()) }
    }
}

pub struct Campaign {
    pub seeds: Seeds,
    pub jobs: usize,
    pub check_determinism: bool,
    pub until_broken: bool,
    pub history: Option<PathBuf>,
}

impl Campaign {
    /// Runs all seeds and prints the failed ones and the simulated time per CPU time. Returns whether all invariants
    /// held.
    pub fn run(self) -> bool {
        let (next, runs) = (AtomicU64::new(self.seeds.first), AtomicU64::new(0));
        let number_of_kills = AtomicUsize::new(0);
        let failed_seeds = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed > self.seeds.last || self.until_broken && !failed_seeds.lock().unwrap().is_empty() {
                            break;
                        }
                        runs.fetch_add(if self.check_determinism { 2 } else { 1 }, Ordering::Relaxed);
                        let (has_passed, kills) = self.check_seed(seed);
                        number_of_kills.fetch_add(kills, Ordering::Relaxed);
                        if !has_passed {
                            failed_seeds.lock().unwrap().push(seed);
                        }
                    }
                });
            }
        });
        let mut failed_seeds = failed_seeds.into_inner().unwrap();
        failed_seeds.sort_unstable();
        let Seeds { first, last } = self.seeds;
        let result = match failed_seeds.len() {
            0 => "all invariants held".to_owned(),
            number => format!("{number} failed: {failed_seeds:?}"),
        };
        let years = runs.into_inner() as f64 / YEAR_H / (processor_time().as_secs_f64() / 3600.0);
        let kills = number_of_kills.into_inner();
        println!("seeds {first}-{last}: {result}; {kills} kills; {years:.2} simulated years per CPU hour");
        if let Some(file) = &self.history {
            let line = format!("| {} | {first}-{last} | {kills} | {result} |\n", commit());
            let history = OpenOptions::new().create(true).append(true).open(file);
            history.and_then(|mut history| history.write_all(line.as_bytes())).expect("the history file is writable");
        }
        failed_seeds.is_empty()
    }

    /// Whether all invariants held, and the number of launchers and builders that were killed.
    fn check_seed(&self, seed: u64) -> (bool, usize) {
        let first_run = run_seed(seed, &FaultFilter::default());
        print!("{}", report(seed, &first_run));
        let kills = kills(&first_run);
        if !first_run.status.success() {
            return (false, kills);
        }
        let differs = self.check_determinism && run_seed(seed, &FaultFilter::default()).stdout != first_run.stdout;
        if differs {
            println!("seed {seed}: not deterministic: second run differs");
        }
        (!differs, kills)
    }
}

/// Removes faults as long as an invariant is still violated. False if the run with all faults passes.
pub fn minimize_faults(seed: u64) -> bool {
    let faults = faults::schedule(seed);
    let mut last_failure = run_seed(seed, &FaultFilter::default());
    if last_failure.status.success() {
        println!("seed {seed}: all invariants hold");
        return false;
    }
    let needed = minimize(faults.len(), |candidate| {
        let output = run_seed(seed, &FaultFilter::only(candidate));
        let still_fails = !output.status.success();
        if still_fails {
            println!("seed {seed}: still fails with {} faults: {candidate:?}", candidate.len());
            last_failure = output;
        }
        still_fails
    });
    for (at, fault) in needed.iter().map(|number| &faults[*number]) {
        println!("{at:9.3} {fault:?}");
    }
    print!("{}", report(seed, &last_failure));
    true
}

/// Number of kills, parsed from the first line that the run printed.
fn kills(output: &Output) -> usize {
    let out = String::from_utf8_lossy(&output.stdout);
    let parts = out.lines().next().into_iter().flat_map(|line| line.split(", "));
    parts.filter_map(|part| part.strip_suffix(" kills")).find_map(|number| number.parse().ok()).unwrap_or(0)
}

fn run_seed(seed: u64, filter: &FaultFilter) -> Output {
    let program = std::env::current_exe().expect("the path of the program is known");
    let mut command = Command::new(program);
    command.args(["--seed", &seed.to_string()]);
    if let Some(numbers) = filter.to_argument() {
        command.args(["--faults", &numbers]);
    }
    command.output().expect("the program starts again")
}

/// Output of a run, with its exit reason if the run did not print a result.
fn report(seed: u64, output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let reproduce = format!("    reproduce: sim --seed {seed} --trace run.log\n");
    match output.status.signal().map(Signal::try_from) {
        _ if output.status.success() => out.into_owned(),
        Some(Ok(Signal::SIGXCPU)) => format!("seed {seed}: VIOLATION exceeded the CPU limit\n{out}{err}{reproduce}"),
        Some(signal) => format!("seed {seed}: VIOLATION killed by {signal:?}\n{out}{err}{reproduce}"),
        None if out.is_empty() => format!("seed {seed}: VIOLATION exited with {}\n{err}{reproduce}", output.status),
        None => format!("{out}{err}"),
    }
}

pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("children are counted");
    let of = |time: nix::sys::time::TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000);
    of(usage.user_time()) + of(usage.system_time())
}

fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty", "--exclude=*"]).output();
    output.map_or_else(|_| "unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
