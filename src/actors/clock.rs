//! The one place that asks what time it is.

use std::cell::Cell;

use tokio::time::Instant;

use crate::model::time::Timestamp;

thread_local! {
    static SIMULATED: Cell<Option<(Instant, Timestamp)>> = const { Cell::new(None) };
}

/// From here on it is this time on this thread, and the wall clock counts no more: a simulation is the same whenever it runs.
/// Another call is a jump of the clock, of which timers notice nothing.
pub fn simulate(now: Timestamp) {
    SIMULATED.set(Some((Instant::now(), now)));
}

/// The time by the wall clock. Where tokio's time is paused or advanced, as in tests, this follows it: the distance
/// between tokio's clock and the machine's steady clock is zero in a running program and is added here. A correction
/// of the machine's wall clock is followed as well, because no base is remembered.
#[allow(clippy::disallowed_methods)] // This function is where time enters.
pub fn now() -> Timestamp {
    if let Some((since, begun)) = SIMULATED.get() {
        return Timestamp(begun.0 + since.elapsed().as_secs_f64());
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn an_hour_of_paused_time_is_an_hour() {
        let before = now();
        tokio::time::advance(Duration::from_secs(3600)).await;
        let passed = (now() - before).0;
        assert!((passed - 3600.0).abs() < 1.0, "{passed}");
    }

    #[tokio::test(start_paused = true)]
    async fn simulated_time_follows_timers_alone_and_jumps_on_demand() {
        simulate(Timestamp(1000.0));
        tokio::time::advance(Duration::from_millis(2500)).await;
        assert_eq!(now().0, 1002.5);
        simulate(Timestamp(500.0));
        assert_eq!(now().0, 500.0);
        SIMULATED.set(None);
    }

    #[test]
    fn without_a_runtime_it_is_the_wall_clock() {
        // Between 2020 and 2100; finer would compare the clock with itself.
        assert!((1.577e9..4.1e9).contains(&now().0), "{:?}", now());
    }
}
