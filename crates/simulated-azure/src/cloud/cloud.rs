//! The whole state: knobs, clock, counters, history, and all resources of the subscription.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use simulated_service::network::Addresses;
use simulated_service::throttle::Throttle;

use crate::cloud::counters::RunStats;
use crate::cloud::history::History;
use crate::cloud::operations::Operations;
use crate::cloud::resources::{Disk, Image, Meta, Nic, PublicIp, Resource, Tags, Vm};
use crate::cloud::sizes::Sizes;
use crate::cloud::table::Table;
use crate::cloud::tokens::Tokens;
use crate::cloud::usage::Usage;
use crate::cloud::work::{Step, Timers};
use crate::faults::knobs::Knobs;
use crate::options::Options;
use crate::server::response::ApiError;
use crate::server::target::Kind;

/// Addresses that Azure reserves at the beginning and at the end of a subnet.
const RESERVED: (u32, u32) = (4, 1);

pub struct Cloud {
    pub options: Options,
    /// The URL that links begin with.
    pub base: String,
    pub knobs: Knobs,
    pub stats: RunStats,
    pub history: History,
    pub timers: Timers,
    pub throttle: Throttle,
    pub forced_throttle: ForcedThrottle,
    pub tokens: Tokens,
    pub vms: Table<Vm>,
    pub nics: Table<Nic>,
    pub ips: Table<PublicIp>,
    pub disks: Table<Disk>,
    pub images: Table<Image>,
    /// The key of the disk behind each account and container.
    pub containers: std::collections::HashMap<String, String>,
    pub operations: Operations,
    pub sizes: Sizes,
    pub usage: Usage,
    pub private_addresses: Addresses,
    pub public_addresses: Addresses,
    pub ipv6_addresses: u64,
    /// Error of an `in=operation` fault that the operation of the current call is to have.
    pub planned_failure: Option<ApiError>,
    /// Time since the start.
    pub now: Duration,
    pub started: DateTime<Utc>,
    /// Number of ids and random numbers.
    ids: u64,
    pub vms_deleted: u64,
}

/// The next calls, or all calls until a time, are refused with 429.
#[derive(Default)]
pub struct ForcedThrottle {
    pub calls: u64,
    pub until: Duration,
    pub retry_after_s: Option<u64>,
}

impl Cloud {
    pub fn new(options: Options, base: String) -> Self {
        Self {
            knobs: options.knobs.clone(),
            base,
            stats: RunStats::default(),
            history: History::default(),
            timers: Timers::default(),
            throttle: Throttle::default(),
            forced_throttle: ForcedThrottle::default(),
            tokens: Tokens::default(),
            vms: Table::default(),
            nics: Table::default(),
            ips: Table::default(),
            disks: Table::default(),
            images: Table::default(),
            containers: std::collections::HashMap::new(),
            operations: Operations::default(),
            sizes: Sizes::new(&options.locations, options.extra_skus),
            usage: Usage::default(),
            private_addresses: Addresses::new(options.network, RESERVED),
            public_addresses: Addresses::new(options.public_network, RESERVED),
            ipv6_addresses: 0,
            planned_failure: None,
            now: Duration::ZERO,
            started: Utc::now(),
            ids: 0,
            vms_deleted: 0,
            options,
        }
    }

    /// Restores the initial state, except for the clock and the tokens.
    pub fn reset(&mut self) {
        let (now, started, base) = (self.now, self.started, self.base.clone());
        let tokens = std::mem::take(&mut self.tokens);
        *self = Self { now, started, tokens, ..Self::new(self.options.clone(), base) };
    }

    /// A random number. It depends only on the seed and the number of those before it.
    pub fn random(&mut self) -> u64 {
        self.ids += 1;
        mixed(self.ids ^ mixed(self.knobs.seed))
    }

    pub fn new_guid(&mut self) -> String {
        let (high, low) = (self.random(), self.random());
        let (one, two, three, four) = (high >> 32, high >> 16 & 0xffff, high & 0xfff, low >> 48 & 0x3fff | 0x8000);
        format!("{one:08x}-{two:04x}-4{three:03x}-{four:04x}-{:012x}", low & 0xffff_ffff_ffff)
    }

    pub fn new_meta(&mut self, group: &str, name: &str, location: &str, tags: Tags) -> Meta {
        Meta {
            group: group.to_owned(),
            name: name.to_owned(),
            location: location.to_owned(),
            tags,
            zones: Vec::new(),
            created: self.now,
            guid: self.new_guid(),
        }
    }

    pub fn after(&mut self, seconds: f64, step: Step) {
        self.timers.add(self.now + Duration::from_secs_f64(seconds), step);
    }

    /// Runs a step now if it has no delay, so that the response of its call shows the result.
    pub fn run_after(&mut self, seconds: f64, step: Step) {
        if seconds > 0.0 {
            self.after(seconds, step);
        } else {
            self.run(step);
        }
    }

    /// A time since the start, as Azure writes it.
    pub fn timestamp(&self, moment: Duration) -> String {
        (self.started + moment).to_rfc3339_opts(SecondsFormat::Micros, false)
    }

    pub fn epoch_s(&self, moment: Duration) -> i64 {
        (self.started + moment).timestamp()
    }

    /// Milliseconds since the Unix epoch.
    pub fn epoch_ms(&self, moment: Duration) -> f64 {
        let micros = self.started.timestamp_micros() as f64 + moment.as_micros() as f64;
        micros / 1000.0
    }

    pub fn id_of<R: Resource>(&self, resource: &R) -> String {
        resource.meta().id(R::KIND, &self.options.subscription)
    }

    /// Counts a new resource and records its creation.
    pub fn created(&mut self, kind: Kind, meta: &Meta) {
        self.stats.created(kind.label());
        self.history.created(kind, meta, self.now);
    }

    /// Counts the end of a resource and records it.
    pub fn ended(&mut self, kind: Kind, meta: &Meta) {
        self.stats.deleted(kind.label());
        self.history.ended(kind, &meta.guid, self.now);
    }
}

/// The finalizer of MurmurHash3, which is a permutation: different numbers have different results.
fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    value = (value ^ (value >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    value ^ (value >> 33)
}
