//! Clock: the only place that reads the current time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::time::Instant;

use nodepool_driver::facts::ProviderFacts;
use nodepool_model::config::Config;
use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::time::{MonotonicTime, Timestamp};
use nodepool_model::snapshot::Snapshot;
use nodepool_policy::inputs::Inputs;

/// Keeps monotonic times positive: each runtime of a test has its own time, which may be days behind `PROCESS_START` if
/// that was taken in a runtime whose time was advanced.
const CLOCK_OFFSET: Duration = Duration::from_secs(365 * 24 * 3600);

/// Monotonic time counts from `CLOCK_OFFSET` before this instant.
static PROCESS_START: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    static SIMULATED: Cell<Option<Simulated>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Simulated {
    /// Replaces `PROCESS_START`.
    started: Instant,
    /// Time at which the clock was last set, and the time that it was set to.
    set: (Instant, Timestamp),
}

/// Sets the time on this thread and detaches it from the wall clock, so that a simulation is the same whenever it runs.
/// Another call is a jump of the clock, which does not affect timers.
pub fn simulate(now: Timestamp) {
    let at = Instant::now();
    let started = SIMULATED.get().map_or(at, |simulated| simulated.started);
    SIMULATED.set(Some(Simulated { started, set: (at, now) }));
}

/// The monotonic time, which timers follow; setting the wall clock does not change it.
pub fn monotonic_now() -> MonotonicTime {
    let started = SIMULATED.get().map_or_else(|| *PROCESS_START, |simulated| simulated.started);
    MonotonicTime((Instant::now() + CLOCK_OFFSET).saturating_duration_since(started))
}

/// The wall-clock time. If tokio's time is paused or advanced, as in tests, this follows it: the difference between
/// tokio's clock and the machine's steady clock is zero in a running program and is added here. Corrections of the
/// machine's wall clock are followed as well, because no base is stored.
#[allow(clippy::disallowed_methods)] // The only place that reads the wall clock.
pub fn now() -> Timestamp {
    if let Some(Simulated { set: (at, time), .. }) = SIMULATED.get() {
        return Timestamp(time.0 + at.elapsed().as_secs_f64());
    }
    let wall = std::time::SystemTime::now();
    let since_epoch = match wall.duration_since(std::time::UNIX_EPOCH) {
        Ok(after) => after.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    };
    let (virtual_now, steady_now) = (Instant::now().into_std(), std::time::Instant::now());
    let ahead = virtual_now.saturating_duration_since(steady_now).as_secs_f64();
    let behind = steady_now.saturating_duration_since(virtual_now).as_secs_f64();
    Timestamp(since_epoch + ahead - behind)
}

/// Inputs of a decision, with the current time.
pub fn inputs<'a>(
    config: &'a Config,
    snapshot: &'a Snapshot,
    facts: &'a BTreeMap<ProviderName, Arc<ProviderFacts>>,
) -> Inputs<'a> {
    Inputs { config, snapshot, facts, now: now(), monotonic_now: monotonic_now() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::records::time::Seconds;

    #[tokio::test(start_paused = true)]
    async fn now_follows_paused_time() {
        let before = now();
        tokio::time::advance(Duration::from_secs(3600)).await;
        let passed = (now() - before).0;
        assert!((passed - 3600.0).abs() < 1.0, "{passed}");
    }

    #[tokio::test(start_paused = true)]
    async fn simulated_time_follows_timers_and_explicit_jumps() {
        simulate(Timestamp(1000.0));
        tokio::time::advance(Duration::from_millis(2500)).await;
        assert_eq!(now().0, 1002.5);
        let before = monotonic_now();
        simulate(Timestamp(500.0));
        assert_eq!(now().0, 500.0);
        assert_eq!(monotonic_now(), before, "setting the clock back does not delay timers");
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(monotonic_now() - before, Seconds(1.5));
        SIMULATED.set(None);
    }

    #[test]
    fn now_is_the_wall_clock_without_a_runtime() {
        // Between 2020 and 2100; finer would compare the clock with itself.
        assert!((1.577e9..4.1e9).contains(&now().0), "{:?}", now());
    }
}
