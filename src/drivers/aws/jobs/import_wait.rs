//! Waits of an upload for AWS: until its import may begin, and until it has ended.

use nodepool_model::records::time::Seconds;

/// Interval between looks at a task: it grows.
const MIN_POLL_INTERVAL: Seconds = Seconds(2.0);
const MAX_POLL_INTERVAL: Seconds = Seconds(30.0);
/// Interval between attempts to begin an import while others are running.
const RETRY_INTERVAL: Seconds = Seconds(30.0);

#[derive(Debug, Default)]
pub struct ImportWait {
    /// Time until the import could begin, and since then.
    for_turn: Seconds,
    for_end: Seconds,
}

impl ImportWait {
    /// The pause before the next attempt to begin; `None` after the limit.
    pub fn retry_delay(&mut self, limit: Seconds) -> Option<Seconds> {
        if self.for_turn >= limit {
            return None;
        }
        self.for_turn = Seconds(self.for_turn.0 + RETRY_INTERVAL.0);
        Some(RETRY_INTERVAL)
    }

    /// The pause before the next look at what has begun.
    pub fn poll_delay(&mut self) -> Seconds {
        let delay = Seconds((self.for_end.0 / 4.0).clamp(MIN_POLL_INTERVAL.0, MAX_POLL_INTERVAL.0));
        self.for_end = Seconds(self.for_end.0 + delay.0);
        delay
    }

    pub fn has_exceeded(&self, limit: Seconds) -> bool {
        self.for_end > limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_a_turn_takes_no_time_from_the_import() {
        let mut wait = ImportWait::default();
        let turns = std::iter::from_fn(|| wait.retry_delay(Seconds(60.0))).count();
        assert_eq!((turns, wait.poll_delay()), (2, MIN_POLL_INTERVAL));
        while wait.poll_delay() < MAX_POLL_INTERVAL {}
        assert!(wait.has_exceeded(Seconds(120.0)) && !wait.has_exceeded(Seconds(200.0)));
    }
}
