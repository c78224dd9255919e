//! Points in time and durations, in seconds as in ZooKeeper's records. Arithmetic only: there is no `now()`.

use std::cmp::Ordering;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Seconds since the Unix epoch, as in the records.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub f64);

/// Time of the monotonic clock, for waits that do not depend on the wall clock. It has no meaning in another process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MonotonicTime(pub Duration);

/// A duration in seconds; negative if the clock of another machine is ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

/// Thirty years, in effect forever; adding it to a clock's time does not overflow.
const MAX_DURATION: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

impl Seconds {
    pub const ZERO: Seconds = Seconds(0.0);

    pub fn new(seconds: f64) -> Self {
        Self(seconds)
    }

    /// For timers: a negative duration becomes zero, one beyond the range of timers becomes `MAX_DURATION`.
    pub fn to_duration(self) -> Duration {
        if self.0 < 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(self.0).map_or(MAX_DURATION, |duration| duration.min(MAX_DURATION))
    }
}

impl PartialEq for Timestamp {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Timestamp {}
impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
impl Sub for Timestamp {
    type Output = Seconds;
    fn sub(self, other: Timestamp) -> Seconds {
        Seconds(self.0 - other.0)
    }
}
impl Add<Seconds> for Timestamp {
    type Output = Timestamp;
    fn add(self, seconds: Seconds) -> Timestamp {
        Timestamp(self.0 + seconds.0)
    }
}

impl MonotonicTime {
    /// This many seconds after the start of the clock.
    pub fn at(seconds: f64) -> Self {
        Self(Seconds(seconds).to_duration())
    }
}

impl Sub for MonotonicTime {
    type Output = Seconds;
    fn sub(self, other: MonotonicTime) -> Seconds {
        let (later, earlier) = (self.0.saturating_sub(other.0), other.0.saturating_sub(self.0));
        Seconds(later.as_secs_f64() - earlier.as_secs_f64())
    }
}
impl Add<Seconds> for MonotonicTime {
    type Output = MonotonicTime;
    /// Saturates at the start and at the end of the clock.
    fn add(self, seconds: Seconds) -> MonotonicTime {
        MonotonicTime(match seconds.0 < 0.0 {
            true => self.0.saturating_sub(Seconds(-seconds.0).to_duration()),
            false => self.0 + seconds.to_duration(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // With `max-hold-age: .inf`, each reconcile run set a timer beyond the clock's range and panicked.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn every_number_of_seconds_fits_a_timer() {
        for seconds in [f64::INFINITY, f64::NAN, 1e300, 1e19] {
            assert_eq!(Seconds(seconds).to_duration(), MAX_DURATION, "{seconds}");
        }
        assert_eq!(Seconds(f64::NEG_INFINITY).to_duration(), Duration::ZERO);
        assert_eq!(Seconds(1.5).to_duration(), Duration::from_millis(1500));
        let _can_be_added = std::time::Instant::now() + MAX_DURATION;
    }
    #[test]
    fn monotonic_times_add_and_subtract() {
        let time = MonotonicTime::at(10.0);
        assert_eq!(time + Seconds(1.5), MonotonicTime::at(11.5));
        assert_eq!(time + Seconds(-1.5), MonotonicTime::at(8.5));
        assert_eq!(time + Seconds(-11.0), MonotonicTime::at(0.0));
        assert_eq!((MonotonicTime::at(8.0) - time, time - MonotonicTime::at(8.0)), (Seconds(-2.0), Seconds(2.0)));
        for never in [f64::INFINITY, f64::NAN] {
            assert!(time + Seconds(never) > time);
        }
    }
}
