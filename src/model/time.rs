//! Points in time and spans, in seconds as ZooKeeper's records carry them; arithmetic only, there is no `now()`.

use std::cmp::Ordering;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Seconds since the Unix epoch, as in the records.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub f64);

/// A length of time in seconds; may be negative where a clock of somebody else runs ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span(pub f64);

impl Span {
    pub const ZERO: Span = Span(0.0);

    pub fn seconds(seconds: f64) -> Self {
        Self(seconds)
    }

    /// For timers; a negative or absurd span becomes the nearest duration there is.
    pub fn to_duration(self) -> Duration {
        Duration::try_from_secs_f64(self.0.max(0.0)).unwrap_or(Duration::MAX)
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
    type Output = Span;
    fn sub(self, other: Timestamp) -> Span {
        Span(self.0 - other.0)
    }
}
impl Add<Span> for Timestamp {
    type Output = Timestamp;
    fn add(self, span: Span) -> Timestamp {
        Timestamp(self.0 + span.0)
    }
}
