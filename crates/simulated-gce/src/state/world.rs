//! The state that all projects share: knobs, clock, counters, history, tokens, addresses and images.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, FixedOffset, SecondsFormat, Utc};
use simulated_service::network::Addresses;
use simulated_service::seconds::SecondsRange;
use simulated_service::throttle::Throttle;

use crate::faults::knobs::Knobs;
use crate::identity::tokens::Tokens;
use crate::options::Options;
use crate::state::counters::RunStats;
use crate::state::history::History;
use crate::state::images::Images;
use crate::state::work::{Place, Step, Timers};

/// Addresses that Google reserves at the beginning and at the end of a network.
const RESERVED: (u32, u32) = (2, 2);

pub struct World {
    pub options: Options,
    pub knobs: Knobs,
    pub stats: RunStats,
    pub history: History,
    pub timers: Timers,
    pub throttle: Throttle,
    pub tokens: Tokens,
    pub internal: Addresses,
    pub external: Addresses,
    pub images: Images,
    /// Time since the start.
    pub now: Duration,
    pub started: DateTime<Utc>,
    /// Count of random numbers, among them the ids.
    numbers: u64,
}

impl World {
    pub fn new(options: Options) -> Self {
        let mut world = Self {
            knobs: options.knobs.clone(),
            internal: Addresses::new(options.network, RESERVED),
            external: Addresses::new(options.public_network, RESERVED),
            options,
            stats: RunStats::default(),
            history: History::default(),
            timers: Timers::default(),
            throttle: Throttle::default(),
            tokens: Tokens::default(),
            images: Images::default(),
            now: Duration::ZERO,
            started: Utc::now(),
            numbers: 0,
        };
        let (created, own) = (world.timestamp(), world.options.projects.clone());
        world.images = Images::initial(&own, &created, || world.new_id());
        world
    }

    /// Restores the initial state, except for the clock and the tokens.
    pub fn reset(&mut self) {
        let (now, started, tokens) = (self.now, self.started, std::mem::take(&mut self.tokens));
        *self = Self { now, started, tokens, ..Self::new(self.options.clone()) };
    }

    /// The next number of a sequence that depends only on the seed.
    pub fn random(&mut self) -> u64 {
        self.numbers += 1;
        mixed(self.numbers ^ mixed(self.knobs.seed))
    }

    /// A new id of a resource: 19 digits, as those of Google mostly have.
    pub fn new_id(&mut self) -> u64 {
        1_000_000_000_000_000_000 + self.random() % 8_000_000_000_000_000_000
    }

    /// A new fingerprint of metadata, labels or tags.
    pub fn fingerprint(&mut self) -> String {
        STANDARD.encode(self.random().to_be_bytes())
    }

    /// A time of this range in seconds.
    pub fn duration(&mut self, seconds: SecondsRange) -> f64 {
        let random = self.random();
        seconds.at(random)
    }

    pub fn schedule(&mut self, seconds: f64, place: &Place, step: Step) {
        self.timers.add(self.now + Duration::from_secs_f64(seconds), (place.clone(), step));
    }

    /// This moment as the API writes it: in the time of California.
    pub fn timestamp(&self) -> String {
        let offset = FixedOffset::west_opt(8 * 3600).expect("eight hours are a valid offset");
        (self.started + self.now).with_timezone(&offset).to_rfc3339_opts(SecondsFormat::Millis, false)
    }

    /// Milliseconds since the Unix epoch.
    pub fn epoch_ms(&self, moment: Duration) -> f64 {
        let micros = self.started.timestamp_micros() as f64 + moment.as_micros() as f64;
        micros / 1000.0
    }
}

/// The finalizer of MurmurHash3, which is a permutation: different numbers have different results.
pub fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    value = (value ^ (value >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    value ^ (value >> 33)
}
