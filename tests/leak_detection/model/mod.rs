//! Leak model: random cases of leak detection under faults. All leaked instances are deleted, and no others.
//!
//! NODEPOOL_LEAK_CASES=1000000 makes it a long run; NODEPOOL_SEED repeats one case and prints its trace.

mod cloud;
mod simulation;
mod zookeeper;

use simulation::{LeakSimulation, RunStats};
use tokio::time::Instant;

/// Default number of cases, which take a few seconds.
const CASES: u64 = 600;

#[test]
fn only_leaked_instances_are_deleted() {
    if let Ok(seed) = std::env::var("NODEPOOL_SEED") {
        let stats =
            LeakSimulation::run(seed.parse().expect("NODEPOOL_SEED is a number"), Some(&mut |line| println!("{line}")));
        return assert_eq!(stats.violations, Vec::<String>::new());
    }
    let cases = std::env::var("NODEPOOL_LEAK_CASES");
    let cases = cases.map_or(CASES, |text| text.parse().expect("NODEPOOL_LEAK_CASES is a number"));
    let began = Instant::now();
    let mut sum = RunStats::default();
    for seed in 0..cases {
        let stats = LeakSimulation::run(seed, None);
        if !stats.violations.is_empty() {
            println!("NODEPOOL_SEED={seed}: {}", stats.violations.join("; "));
        }
        sum.add(stats);
        assert!(sum.violations.len() < 10, "{} violations in {} cases", sum.violations.len(), seed + 1);
    }
    println!("{cases} cases in {:.1?}: {} violations, {} sweeps", began.elapsed(), sum.violations.len(), sum.sweeps);
    println!("{:#?}", sum.events);
    assert!(sum.violations.is_empty());
    // Cases without these events prove nothing.
    for what in simulation::EXPECTED {
        assert!(sum.events.get(what).copied().unwrap_or(0) * 200 >= cases, "event is too rare: {what}");
    }
}
