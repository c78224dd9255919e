//! How large a test of limits is, and what it took of time and memory.

use std::time::Duration;

use tokio::time::Instant;

/// Waiting for what a busy machine takes its time for.
pub const SCALE_TIMEOUT: Duration = Duration::from_secs(600);

/// NODEPOOL_LIMITS=full for the size that is promised.
pub fn size(small: usize, full: usize) -> usize {
    match std::env::var("NODEPOOL_LIMITS").as_deref() {
        Ok("full") => full,
        Ok(other) => panic!("NODEPOOL_LIMITS is {other:?}, not \"full\""),
        Err(_) => small,
    }
}

#[allow(dead_code)] // Each test binary uses its part.
/// Whether this run has the sizes that are promised, and so is held to what is promised of time.
pub fn is_full() -> bool {
    size(0, 1) == 1
}

/// Tells how long each part took, on the clock of the runtime.
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

/// Of this process, with ZooKeeper in it. Megabytes.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kilobytes| kilobytes.parse::<u64>().ok()).unwrap_or(0) / 1024
}
