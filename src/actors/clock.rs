//! The one place that asks what time it is.

use crate::model::time::Timestamp;

/// The time by the wall clock. Where tokio's time is paused or advanced, as in tests, this follows it: the distance
/// between tokio's clock and the machine's steady clock is zero in a running program and is added here. A correction
/// of the machine's wall clock is followed as well, because no base is remembered.
#[allow(clippy::disallowed_methods)] // This function is where time enters.
pub fn now() -> Timestamp {
    let wall = std::time::SystemTime::now();
    let since_epoch = match wall.duration_since(std::time::UNIX_EPOCH) {
        Ok(after) => after.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    };
    let (virtual_now, steady_now) = (tokio::time::Instant::now().into_std(), std::time::Instant::now());
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

    #[test]
    fn without_a_runtime_it_is_the_wall_clock() {
        // Between 2020 and 2100; finer would compare the clock with itself.
        assert!((1.577e9..4.1e9).contains(&now().0), "{:?}", now());
    }
}
