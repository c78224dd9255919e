//! The state that all regions share: knobs, clock, counters, history, credentials, public addresses and buckets.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use simulated_service::network::Addresses;
use simulated_service::throttle::Throttle;

use crate::faults::knobs::Knobs;
use crate::options::Options;
use crate::region::counters::RunStats;
use crate::region::fixtures::RESERVED;
use crate::region::history::History;
use crate::region::work::{Step, Timers};
use crate::server::credentials::Credentials;
use crate::server::signature::SigningKeys;
use crate::services::bucket::Bucket;

pub struct World {
    pub options: Options,
    pub knobs: Knobs,
    pub stats: RunStats,
    pub history: History,
    pub timers: Timers,
    pub throttle: Throttle,
    pub credentials: Credentials,
    pub signing_keys: SigningKeys,
    pub public_addresses: Addresses,
    pub buckets: BTreeMap<String, Bucket>,
    /// Time since the start.
    pub now: Duration,
    pub started: DateTime<Utc>,
    /// Number of ids that were given to objects.
    ids: u64,
    requests: u64,
    pub instances_launched: u64,
    pub imports_started: u64,
}

impl World {
    pub fn new(options: Options) -> Self {
        Self {
            knobs: options.knobs.clone(),
            public_addresses: Addresses::new(options.public_network, RESERVED),
            options,
            stats: RunStats::default(),
            history: History::default(),
            timers: Timers::default(),
            throttle: Throttle::default(),
            credentials: Credentials::default(),
            signing_keys: SigningKeys::default(),
            buckets: BTreeMap::new(),
            now: Duration::ZERO,
            started: Utc::now(),
            ids: 0,
            requests: 0,
            instances_launched: 0,
            imports_started: 0,
        }
    }

    /// Restores the initial state, except for the clock and the credentials of roles.
    pub fn reset(&mut self) {
        let (now, started) = (self.now, self.started);
        let credentials = std::mem::take(&mut self.credentials);
        *self = Self { now, started, credentials, ..Self::new(self.options.clone()) };
    }

    /// A new id, such as `i-0123456789abcdef0`. It depends only on the seed and the number of ids before it.
    pub fn new_id(&mut self, prefix: &str) -> String {
        self.ids += 1;
        format!("{prefix}-0{:016x}", mixed(self.ids ^ mixed(self.knobs.seed)))
    }

    pub fn request_id(&mut self) -> String {
        self.requests += 1;
        let (high, low) = (mixed(self.requests), mixed(!self.requests));
        let (one, two, three, four) = (high >> 32, high >> 16 & 0xffff, high & 0xffff, low >> 48);
        format!("{one:08x}-{two:04x}-{three:04x}-{four:04x}-{:012x}", low & 0xffff_ffff_ffff)
    }

    pub fn after(&mut self, seconds: f64, region: &str, step: Step) {
        self.timers.add(self.now + Duration::from_secs_f64(seconds), (region.to_owned(), step));
    }

    /// This moment, as AWS writes it.
    pub fn timestamp(&self) -> String {
        (self.started + self.now).to_rfc3339_opts(SecondsFormat::Millis, true)
    }

    /// A time since the start, so written.
    pub fn timestamp_of(&self, moment: Duration) -> String {
        (self.started + moment).to_rfc3339_opts(SecondsFormat::Secs, true)
    }

    /// Milliseconds since the Unix epoch.
    pub fn epoch_ms(&self, moment: Duration) -> f64 {
        let micros = self.started.timestamp_micros() as f64 + moment.as_micros() as f64;
        micros / 1000.0
    }
}

/// The finalizer of MurmurHash3, which is a permutation: different numbers have different results.
fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    value = (value ^ (value >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    value ^ (value >> 33)
}
