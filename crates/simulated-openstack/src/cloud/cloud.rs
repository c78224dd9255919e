//! The state of the cloud at one time, and its advance to a later time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::cloud::counters::RunStats;
use crate::cloud::fixtures::{Duplicate, Fixtures, Flavor, Network, SecurityGroup};
use crate::cloud::history::History;
use crate::cloud::loopback_addresses::AddressPool;
use crate::faults::knobs::Knobs;
use crate::options::Options;
use crate::services::image::Image;
use crate::services::network::{FloatingIp, Port};
use crate::services::server::{Server, Stage, Status};
use crate::services::volume::Volume;

/// Time since the start of the cloud.
pub type SimTime = Duration;

/// Prefix of an id, which shows the kind of the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Server = 0xa000_0000,
    Port = 0xb000_0000,
    Image = 0xc000_0000,
    FloatingIp = 0xd000_0000,
    Volume = 0xe000_0000,
    Flavor = 0xf000_0000,
    Network = 0x1000_0000,
    Subnet = 0x2000_0000,
    Router = 0x3000_0000,
    SecurityGroup = 0x4000_0000,
}

pub fn id(kind: Kind, number: u64) -> String {
    format!("{:08x}-0000-4000-8000-{number:012x}", kind as u32)
}

/// The number in an id of this kind.
pub fn number_of(kind: Kind, text: &str) -> Option<u64> {
    let number = u64::from_str_radix(text.get(24..)?, 16).ok()?;
    (id(kind, number) == text).then_some(number)
}

pub const PROJECT_ID: &str = "a1b0000000004000800000000000000a";
pub const USER_ID: &str = "a2b0000000004000800000000000000a";

pub struct Cloud {
    /// `http://127.0.0.1:PORT`.
    pub base: String,
    /// The same for the control port, which always listens.
    pub control_base: String,
    pub options: Options,
    pub knobs: Knobs,
    pub fixtures: Fixtures,
    pub now: SimTime,
    pub started: DateTime<Utc>,
    last_number: u64,
    pub tokens: HashMap<String, Token>,
    pub servers: BTreeMap<u64, Server>,
    /// Deleted servers that stale lists still contain.
    pub deleted_servers: BTreeMap<u64, Server>,
    pub ports: BTreeMap<u64, Port>,
    pub floating_ips: BTreeMap<u64, FloatingIp>,
    pub volumes: BTreeMap<u64, Volume>,
    pub images: BTreeMap<u64, Image>,
    /// The addresses of each network, and of the external one.
    pub pools: Vec<AddressPool>,
    pub floating_pool: AddressPool,
    pub usage: Usage,
    pub stats: RunStats,
    pub history: History,
    pending_events: BinaryHeap<Reverse<(SimTime, u64, ServerEvent)>>,
}

/// User and expiry of a token.
#[derive(Clone, Debug)]
pub struct Token {
    pub user: String,
    pub expires: SimTime,
}

/// Quota usage of the servers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub servers: i64,
    pub cores: i64,
    pub ram_mib: i64,
}

/// A scheduled event of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerEvent {
    BootCompleted,
    Deleted,
    Vanished,
}

impl Cloud {
    pub fn new(options: Options, base: String, control_base: String) -> Self {
        let fixtures = Fixtures::from_options(&options);
        // One pool more, for the duplicate of the first network.
        let pools = (0..=options.networks.len()).map(|index| AddressPool::internal(index as u8)).collect();
        let mut cloud = Self {
            base,
            control_base,
            knobs: options.knobs.clone(),
            options,
            fixtures,
            now: SimTime::ZERO,
            started: Utc::now(),
            last_number: 0,
            tokens: HashMap::new(),
            servers: BTreeMap::new(),
            deleted_servers: BTreeMap::new(),
            ports: BTreeMap::new(),
            floating_ips: BTreeMap::new(),
            volumes: BTreeMap::new(),
            images: BTreeMap::new(),
            pools,
            floating_pool: AddressPool::external(),
            usage: Usage::default(),
            stats: RunStats::default(),
            history: History::default(),
            pending_events: BinaryHeap::new(),
        };
        cloud.add_standard_images();
        cloud.update_duplicate_image();
        cloud
    }

    pub fn set_knobs(&mut self, knobs: Knobs) {
        let duplicates = std::mem::replace(&mut self.knobs, knobs).duplicates;
        if self.knobs.duplicates != duplicates {
            self.update_duplicate_image();
        }
    }

    /// Resets the cloud to its initial state at the current time. Tokens stay valid, and no id is reused.
    pub fn reset(&mut self) {
        let (base, control_base) = (std::mem::take(&mut self.base), std::mem::take(&mut self.control_base));
        let mut fresh = Self::new(self.options.clone(), base, control_base);
        fresh.now = self.now;
        fresh.started = self.started;
        fresh.last_number = self.last_number.max(fresh.last_number);
        fresh.tokens = std::mem::take(&mut self.tokens);
        *self = fresh;
    }

    pub fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Wall-clock time in the format of most services.
    pub fn timestamp(&self, moment: SimTime) -> String {
        (self.started + moment).format("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// The same with microseconds, as other services write it.
    pub fn timestamp_micros(&self, moment: SimTime) -> String {
        (self.started + moment).format("%Y-%m-%dT%H:%M:%S.%6f").to_string()
    }

    pub fn schedule(&mut self, after_s: f64, server: u64, event: ServerEvent) {
        self.pending_events.push(Reverse((self.now + Duration::from_secs_f64(after_s), server, event)));
    }

    /// Executes the events that are due.
    pub fn advance(&mut self, now: SimTime) {
        while let Some(Reverse((at, _, _))) = self.pending_events.peek()
            && *at <= now
        {
            let Reverse((at, server, due)) = self.pending_events.pop().expect("the event was just peeked");
            self.now = self.now.max(at);
            match due {
                ServerEvent::BootCompleted => self.on_booted(server),
                ServerEvent::Deleted => self.on_deleted(server),
                ServerEvent::Vanished => self.remove_server(server),
            }
        }
        self.now = self.now.max(now);
    }

    /// The existing networks with their indexes in the fixtures.
    pub fn networks(&self) -> impl Iterator<Item = (usize, &Network)> {
        let duplicates = self.knobs.duplicates.contains(&Duplicate::Network);
        self.fixtures.networks.iter().enumerate().filter(move |(_, network)| duplicates || !network.is_duplicate)
    }

    pub fn security_groups(&self) -> impl Iterator<Item = &SecurityGroup> {
        let duplicates = self.knobs.duplicates.contains(&Duplicate::SecurityGroup);
        self.fixtures.security_groups.iter().filter(move |group| duplicates || !group.is_duplicate)
    }

    pub fn flavor(&self, server: &Server) -> &Flavor {
        &self.fixtures.flavors[server.flavor]
    }

    fn on_booted(&mut self, number: u64) {
        let now = self.now;
        let Some(server) = self.servers.get_mut(&number) else { return };
        if server.stage().deleting {
            return;
        }
        if let Some(message) = server.boot_failure.take() {
            server.fail(now, message);
            for port in std::mem::take(&mut server.ports) {
                self.remove_port(port);
            }
        } else {
            server.enter(now, Stage { status: Status::Active, deleting: false });
            server.launched_at = Some(now);
            for port in &server.ports {
                self.ports.get_mut(port).expect("a server's ports exist").active = true;
            }
        }
    }

    fn on_deleted(&mut self, number: u64) {
        let now = self.now;
        let Some(server) = self.servers.get_mut(&number) else { return };
        if server.delete_failures > 0 {
            server.delete_failures -= 1;
            let error = server.metadata.get("loopback:delete_error").and_then(|error| error.as_str());
            let message = error.unwrap_or_default().to_owned();
            server.fail(now, message);
            return;
        }
        self.remove_server(number);
    }

    /// Removes a server, with its ports and volumes.
    pub fn remove_server(&mut self, number: u64) {
        let Some(mut server) = self.servers.remove(&number) else { return };
        server.deleted_at = Some(self.now);
        self.history.record_deleted(number, self.now);
        let flavor = &self.fixtures.flavors[server.flavor];
        self.usage.servers -= 1;
        self.usage.cores -= flavor.vcpus;
        self.usage.ram_mib -= flavor.ram_mib;
        assert!(self.usage.servers >= 0 && self.usage.cores >= 0, "more was released than used");
        self.stats.server_deleted(server.node.as_deref());
        let port_leaks = simulated_service::knobs::is_nth(self.knobs.port_stays_every, self.stats.servers_left);
        for port in std::mem::take(&mut server.ports) {
            if port_leaks {
                self.ports.get_mut(&port).expect("a server's ports exist").active = false;
            } else {
                self.remove_port(port);
            }
        }
        for (volume, delete_on_termination) in std::mem::take(&mut server.volumes) {
            if delete_on_termination {
                self.volumes.remove(&volume);
            } else if let Some(volume) = self.volumes.get_mut(&volume) {
                volume.server = None;
            }
        }
        if self.knobs.stale_lists_s > 0.0 {
            let retention = Duration::from_secs_f64(self.knobs.stale_lists_s);
            self.deleted_servers
                .retain(|_, server| server.deleted_at.is_some_and(|deleted| deleted + retention > self.now));
            self.deleted_servers.insert(number, server);
        }
    }

    /// Invalidates the rendered JSON of a server when a port changes, because it contains the addresses of the ports.
    pub fn invalidate_rendered(&mut self, server: Option<u64>) {
        if let Some(server) = server.and_then(|number| self.servers.get_mut(&number)) {
            server.rendered_json.clear();
        }
    }
}
