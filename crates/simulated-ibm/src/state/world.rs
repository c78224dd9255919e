//! The state of the region: knobs, clock, counters, history, tokens, addresses and the tables of all resources.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use simulated_service::network::Addresses;
use simulated_service::seconds::SecondsRange;
use simulated_service::throttle::Throttle;

use crate::faults::knobs::Knobs;
use crate::identity::tokens::Tokens;
use crate::options::Options;
use crate::state::counters::RunStats;
use crate::state::fixtures::{Image, RESERVED, Subnet};
use crate::state::floating_ip_steps::FloatingIp;
use crate::state::history::History;
use crate::state::instance::Instance;
use crate::state::profiles::Profile;
use crate::state::table::Table;
use crate::state::volume::Volume;
use crate::state::work::{Step, Timers};

pub struct World {
    pub options: Options,
    pub knobs: Knobs,
    pub stats: RunStats,
    pub history: History,
    pub timers: Timers,
    pub throttle: Throttle,
    pub tokens: Tokens,
    /// The URL of the API.
    pub base: String,
    pub default_group: String,
    pub groups: Table<()>,
    pub profiles: Table<Profile>,
    pub operating_systems: Table<()>,
    pub vpcs: Table<()>,
    pub subnets: Table<Subnet>,
    pub security_groups: Table<()>,
    pub keys: Table<()>,
    pub images: Table<Image>,
    pub instances: Table<Instance>,
    pub floating_ips: Table<FloatingIp>,
    pub volumes: Table<Volume>,
    /// The instances of network interfaces and of virtual network interfaces, by their ids.
    pub interfaces: HashMap<String, String>,
    /// The floating IPs of interfaces, by the interfaces' ids.
    pub attached: HashMap<String, String>,
    pub public: Addresses,
    pub used_vcpus: u64,
    pub used_memory_gib: u64,
    /// Time since the start.
    pub now: Duration,
    pub started: DateTime<Utc>,
    /// Count of random numbers, among them the ids.
    numbers: u64,
}

impl World {
    pub fn new(options: Options, base: &str) -> Self {
        let mut world = Self::without_fixtures(options, base, Utc::now(), Duration::ZERO);
        world.add_fixtures();
        world
    }

    fn without_fixtures(options: Options, base: &str, started: DateTime<Utc>, now: Duration) -> Self {
        Self {
            knobs: options.knobs.clone(),
            public: Addresses::new(options.public_network, RESERVED),
            options,
            stats: RunStats::default(),
            history: History::default(),
            timers: Timers::default(),
            throttle: Throttle::default(),
            tokens: Tokens::default(),
            base: base.to_owned(),
            default_group: String::new(),
            groups: Table::default(),
            profiles: Table::default(),
            operating_systems: Table::default(),
            vpcs: Table::default(),
            subnets: Table::default(),
            security_groups: Table::default(),
            keys: Table::default(),
            images: Table::default(),
            instances: Table::default(),
            floating_ips: Table::default(),
            volumes: Table::default(),
            interfaces: HashMap::new(),
            attached: HashMap::new(),
            used_vcpus: 0,
            used_memory_gib: 0,
            now,
            started,
            numbers: 0,
        }
    }

    /// Restores the initial state, except for the clock and the tokens.
    pub fn reset(&mut self) {
        let tokens = std::mem::take(&mut self.tokens);
        let (options, base) = (self.options.clone(), std::mem::take(&mut self.base));
        *self = Self::without_fixtures(options, &base, self.started, self.now);
        self.tokens = tokens;
        self.add_fixtures();
    }

    /// The next number of a sequence that depends only on the seed.
    pub fn random(&mut self) -> u64 {
        self.numbers += 1;
        mixed(self.numbers ^ mixed(self.knobs.seed))
    }

    /// A time of this range in seconds.
    pub fn duration(&mut self, seconds: SecondsRange) -> f64 {
        let random = self.random();
        seconds.at(random)
    }

    pub fn schedule(&mut self, seconds: f64, step: Step) {
        self.timers.add(self.now + Duration::from_secs_f64(seconds), step);
    }

    /// This moment as the API writes it.
    pub fn timestamp(&self) -> String {
        (self.started + self.now).to_rfc3339_opts(SecondsFormat::Micros, true)
    }

    /// This day as `YYYY-MM-DD`.
    pub fn today(&self) -> String {
        (self.started + self.now).date_naive().to_string()
    }

    /// Milliseconds since the Unix epoch.
    pub fn epoch_ms(&self, moment: Duration) -> f64 {
        let micros = self.started.timestamp_micros() as f64 + moment.as_micros() as f64;
        micros / 1000.0
    }

    pub fn run(&mut self, step: Step) {
        match step {
            Step::Start(id, change) => self.start(&id, change),
            Step::Run(id, change) => self.finish_boot(&id, change),
            Step::Fail(id, change) => self.fail(&id, change),
            Step::FinishStop(id, change) => self.finish_stop(&id, change),
            Step::FinishDelete(id) => self.remove_instance(&id, "deleted"),
            Step::FloatingIpAvailable(id) => self.floating_ip_available(&id),
            Step::Attach(id, interface) => self.finish_attach(&id, &interface),
            Step::FloatingIpGone(id) => self.remove_floating_ip(&id, "deleted"),
            Step::FinishImport(id) => self.finish_import(&id),
            Step::ImageGone(id) => self.remove_image(&id, "deleted"),
        }
    }
}

/// The finalizer of MurmurHash3, which is a permutation: different numbers have different results.
pub fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    value = (value ^ (value >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    value ^ (value >> 33)
}
