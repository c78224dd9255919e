//! What a decision may look at: configuration, snapshot, facts and the time, all borrowed.

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
    /// By the clock on the wall, as records have it; it may be set at any time.
    pub now: Timestamp,
    /// By the clock that nobody sets, for whatever is waited for.
    pub monotonic_now: MonotonicTime,
}

impl Inputs<'_> {
    /// When a time on the wall comes, unless that clock is set before.
    pub fn monotonic_time_of(&self, time: Timestamp) -> MonotonicTime {
        self.monotonic_now + (time - self.now)
    }
}
