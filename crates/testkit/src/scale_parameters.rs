//! Scale parameters: sizes of the scale tests, and measurement of their time and memory.

use std::time::Duration;

use tokio::time::Instant;

/// Timeout for slow steps on a busy machine.
pub const SCALE_TIMEOUT: Duration = Duration::from_secs(600);

/// The small size, or the documented one with NODEPOOL_LIMITS=full.
pub fn size(small: usize, full: usize) -> usize {
    match std::env::var("NODEPOOL_LIMITS").as_deref() {
        Ok("full") => full,
        Ok(other) => panic!("NODEPOOL_LIMITS is {other:?}, not \"full\""),
        Err(_) => small,
    }
}

/// Whether this run has the documented sizes, and must meet the documented times.
pub fn is_full() -> bool {
    size(0, 1) == 1
}

/// Prints the duration of each step, by the clock of the runtime.
pub struct Stopwatch {
    since: Instant,
}

impl Stopwatch {
    pub fn start(what: &str) -> Self {
        println!("{what}: {} MB resident", resident());
        Self { since: Instant::now() }
    }

    pub fn lap(&mut self, what: &str) {
        println!("  {:8.3} s  {what}; {} MB resident", self.since.elapsed().as_secs_f64(), resident());
        self.since = Instant::now();
    }
}

/// Resident memory of this process, including ZooKeeper's, in megabytes.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kilobytes| kilobytes.parse::<u64>().ok()).unwrap_or(0) / 1024
}
