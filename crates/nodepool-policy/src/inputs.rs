//! Inputs of a decision: configuration, snapshot, provider facts and the time, all borrowed.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodepool_driver::facts::ProviderFacts;
use nodepool_model::config::Config;
use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::time::{MonotonicTime, Timestamp};
use nodepool_model::snapshot::Snapshot;

#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub config: &'a Config,
    pub snapshot: &'a Snapshot,
    /// One entry per provider in service.
    pub facts: &'a BTreeMap<ProviderName, Arc<ProviderFacts>>,
    /// Wall-clock time, as records have it. An operator or NTP may set this clock at any time.
    pub now: Timestamp,
    /// Monotonic time, for delays and timeouts.
    pub monotonic_now: MonotonicTime,
}

impl Inputs<'_> {
    /// The monotonic time at which the wall clock will show `time`, unless the wall clock is set before then.
    pub fn monotonic_time_of(&self, time: Timestamp) -> MonotonicTime {
        self.monotonic_now + (time - self.now)
    }
}
