//! What a decision may look at: configuration, snapshot, facts and the time, all borrowed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cloud::Facts;
use super::config::Config;
use super::ids::ProviderName;
use super::snapshot::Snapshot;
use super::time::Timestamp;

#[derive(Clone, Copy)]
pub struct World<'a> {
    pub config: &'a Config,
    pub snapshot: &'a Snapshot,
    /// One entry per provider in service.
    pub facts: &'a BTreeMap<ProviderName, Arc<Facts>>,
    pub now: Timestamp,
}
