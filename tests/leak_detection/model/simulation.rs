//! One case: random events of nodes, servers and ZooKeeper during leak detection, and the real owner of each server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::cloud::{CloudModel, ListFault, PROVIDER, Server, ServerOwner};
use super::zookeeper::{NodeRecord, StoreState, ZooKeeperModel, id_of};
use nodepool_driver::facts::ProviderFacts;
use nodepool_model::records::ids::{ExternalId, NodeId, ProviderName};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::time::{MonotonicTime, Timestamp};
use nodepool_policy::cleanup::leaks::{Effect, Event, LeakDetector, Proof};
use nodepool_policy::inputs::Inputs;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use testkit::fixtures::{Fixture, FixtureSpec, build, launch_config};

/// Events that must happen at least once in two hundred cases.
pub const EXPECTED: [&str; 14] = [
    "leaked servers deleted",
    "duplicate servers deleted",
    "deletion budget exceeded",
    "servers with unissued ids kept",
    "ZooKeeper restored",
    "ZooKeeper emptied",
    "a node lost by ZooKeeper",
    "a node id reissued",
    "a foreign server",
    "a stale list",
    "a partial list",
    "an empty list",
    "no reply of ZooKeeper",
    "a jump of the clock",
];

#[derive(Default)]
pub struct RunStats {
    /// Deleted servers that had an owner, and leaked servers that remained.
    pub violations: Vec<String>,
    pub sweeps: u64,
    pub events: BTreeMap<&'static str, u64>,
}

impl RunStats {
    fn count(&mut self, event: &'static str) {
        *self.events.entry(event).or_default() += 1;
    }

    pub fn add(&mut self, other: RunStats) {
        self.violations.extend(other.violations);
        self.sweeps += other.sweeps;
        other.events.into_iter().for_each(|(what, count)| *self.events.entry(what).or_default() += count);
    }
}

/// A node since its first record, as its users know it. A restore of ZooKeeper does not change the lifetime.
struct NodeLifetime {
    number: u64,
    is_wanted: bool,
}

/// A request of the detector to which no reply was delivered yet.
enum PendingReply {
    ListIds,
    List,
    Read(Vec<NodeId>),
    /// A proof that was read and not delivered yet.
    Proof(Proof),
}

pub struct LeakSimulation<'a> {
    rng: StdRng,
    cloud: CloudModel,
    zookeeper: ZooKeeperModel,
    backup: Option<StoreState>,
    lifetimes: Vec<NodeLifetime>,
    detector: LeakDetector,
    pending: Vec<PendingReply>,
    built: Fixture,
    is_in_service: bool,
    /// Servers whose node ids this session reported as unissued. They are kept, even if the list was stale and the name
    /// is in use again.
    reported_unissued: BTreeSet<String>,
    /// Whether a server's id is its name, which contains the node's number, as in some clouds.
    is_named: bool,
    stats: RunStats,
    /// Receives the lines of the trace.
    trace: Option<&'a mut dyn FnMut(String)>,
}

fn provider() -> ProviderName {
    PROVIDER.into()
}

fn facts() -> Arc<ProviderFacts> {
    let launching = launch_config(&[]);
    Arc::new(ProviderFacts { launch_config: Some(Arc::new(launching)), ..ProviderFacts::initial() })
}

impl<'a> LeakSimulation<'a> {
    /// Runs the case of this seed, up to a phase without faults.
    pub fn run(seed: u64, trace: Option<&'a mut dyn FnMut(String)>) -> RunStats {
        let mut rng = StdRng::seed_from_u64(seed);
        let is_named = rng.gen_bool(0.3);
        let steps = rng.gen_range(20..90);
        let mut built = build(&FixtureSpec::default());
        built.facts = BTreeMap::from([(provider(), facts())]);
        let mut simulation = Self {
            rng,
            cloud: CloudModel::default(),
            zookeeper: ZooKeeperModel::default(),
            backup: None,
            lifetimes: Vec::new(),
            detector: LeakDetector::default(),
            pending: Vec::new(),
            built,
            is_in_service: true,
            reported_unissued: BTreeSet::new(),
            is_named,
            stats: RunStats::default(),
            trace,
        };
        simulation.zookeeper.state.next_number = simulation.rng.gen_range(0..3) * 7;
        simulation.zookeeper.connect();
        (0..simulation.rng.gen_range(0..25)).for_each(|_| simulation.create_used_node());
        for _ in 0..steps {
            if simulation.rng.gen_bool(0.25) {
                simulation.cloud.save_state();
            }
            simulation.step();
        }
        simulation.settle();
        simulation.stats
    }

    fn trace_line(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace(line());
        }
    }

    fn step(&mut self) {
        match self.rng.gen_range(0..100) {
            0..12 => drop(self.create_node()),
            12..22 => self.advance_some_node(),
            22..30 => self.delete_some_node(),
            30..33 => self.delete_many_records(),
            33..37 => self.create_foreign_server(),
            37..45 => {
                let max_changes = self.rng.gen_range(1..6);
                self.zookeeper.deliver_changes(max_changes);
            }
            45..48 => self.zookeeper.mirror.connected = false,
            48..51 => self.reconnect(),
            51..54 => self.backup = Some(self.zookeeper.state.clone()),
            54..56 => self.restore(),
            56..58 => self.jump_clock(),
            58..60 => self.is_in_service = !self.is_in_service,
            60..72 => self.sweep(),
            _ => self.reply_to_some(),
        }
    }

    // Events of nodes.

    fn create_node(&mut self) -> u64 {
        let lifetime = self.lifetimes.len();
        let number = self.zookeeper.create(NodeRecord { lifetime, state: NodeState::Building, external_id: None });
        for lost in 0..self.lifetimes.len() {
            if self.lifetimes[lost].number == number && self.lifetimes[lost].is_wanted {
                self.stats.count("a node id reissued");
                self.abandon_lost(lost);
            }
        }
        self.lifetimes.push(NodeLifetime { number, is_wanted: true });
        self.trace_line(|| format!("node {number} starts lifetime {lifetime}"));
        number
    }

    /// Marks the servers of a lost node as leaked: they are indistinguishable from duplicates of the node with its
    /// number. A session that reported the number as unissued keeps them.
    fn abandon_lost(&mut self, lost: usize) {
        self.mark_leaked(lost, |server| !server.is_reported_unissued);
        self.lifetimes[lost].is_wanted = !self.servers_of(lost).is_empty();
    }

    fn create_used_node(&mut self) {
        let number = self.create_node();
        for _ in 0..4 {
            self.advance_node(number);
        }
        self.zookeeper.deliver_changes(usize::MAX);
    }

    fn some_number(&mut self) -> Option<u64> {
        let numbers: Vec<u64> = self.zookeeper.state.records.keys().copied().collect();
        numbers.choose(&mut self.rng).copied()
    }

    fn advance_some_node(&mut self) {
        if let Some(number) = self.some_number() {
            self.advance_node(number);
        }
    }

    /// The next step in the lifetime of a node.
    fn advance_node(&mut self, number: u64) {
        let mut record = self.zookeeper.state.records[&number].clone();
        let own: Vec<String> = self.servers_of(record.lifetime);
        record.state = match (record.state, &record.external_id) {
            (NodeState::Building, None) if own.is_empty() || self.rng.gen_bool(0.2) => {
                return self.create_server(number, record.lifetime);
            }
            (NodeState::Building, None) => {
                record.external_id = own.last().cloned();
                NodeState::Building
            }
            (NodeState::Building, Some(own_id)) => {
                // Replies of earlier attempts were lost, and their servers are leaked now.
                let own_id = own_id.clone();
                self.mark_leaked(record.lifetime, |server| server.id != own_id);
                NodeState::Ready
            }
            (NodeState::Ready, _) => *[NodeState::InUse, NodeState::Hold].choose(&mut self.rng).expect("two"),
            (NodeState::InUse, _) => NodeState::Used,
            _ => return,
        };
        self.trace_line(|| format!("node {number} is {:?} with {:?}", record.state, record.external_id));
        self.zookeeper.set(number, record);
    }

    fn create_server(&mut self, number: u64, lifetime: usize) {
        let id = if self.is_named { format!("np-{number}") } else { self.cloud.next_id() };
        self.trace_line(|| format!("server {id} is created for node {number}"));
        match self.cloud.position(&id) {
            // A create call with an existing name returns the server with that name.
            Some(at) => {
                let server = &mut self.cloud.servers[at];
                (server.owner, server.is_stopping) = (ServerOwner::Node(lifetime), false);
            }
            None => self.cloud.servers.push(Server {
                id,
                provider: Some(PROVIDER),
                node: Some(format!("{number:010}")),
                owner: ServerOwner::Node(lifetime),
                is_lost: false,
                is_reported_unissued: false,
                is_stopping: false,
            }),
        }
    }

    fn servers_of(&self, lifetime: usize) -> Vec<String> {
        let own = self.cloud.servers.iter().filter(|server| server.owner == ServerOwner::Node(lifetime));
        own.map(|server| server.id.clone()).collect()
    }

    fn mark_leaked(&mut self, lifetime: usize, which: impl Fn(&Server) -> bool) {
        let own = self.cloud.servers.iter_mut().filter(|server| server.owner == ServerOwner::Node(lifetime));
        own.filter(|server| which(server)).for_each(|server| server.owner = ServerOwner::Leaked);
    }

    /// Deletes a node, in most cases after its server.
    fn delete_some_node(&mut self) {
        let Some(number) = self.some_number() else { return };
        let leaks_server = self.rng.gen_bool(0.4);
        self.delete_node(number, leaks_server);
    }

    fn delete_node(&mut self, number: u64, leaks_server: bool) {
        let record = self.zookeeper.state.records[&number].clone();
        self.trace_line(|| {
            format!("node {number} is deleted{}", if leaks_server { " without its server" } else { "" })
        });
        if !leaks_server {
            self.cloud.servers.retain(|server| server.owner != ServerOwner::Node(record.lifetime));
        }
        self.mark_leaked(record.lifetime, |_| true);
        self.lifetimes[record.lifetime].is_wanted = false;
        self.zookeeper.remove(number);
    }

    /// Deletes many records without their servers, as a crashing launcher or an operator may.
    fn delete_many_records(&mut self) {
        let numbers: Vec<u64> = self.zookeeper.state.records.keys().copied().collect();
        let share = *[0.2, 0.5, 1.0].choose(&mut self.rng).expect("three");
        for number in numbers {
            if self.rng.gen_bool(share) {
                self.delete_node(number, true);
            }
        }
    }

    /// Creates a server of another user of the project: with foreign metadata, without any, or with malformed metadata.
    fn create_foreign_server(&mut self) {
        let number = self.rng.gen_range(0..self.zookeeper.state.next_number + 3);
        let (of_launchers, short) = (format!("{number:010}"), number.to_string());
        let metadata = [
            (Some("other"), Some(of_launchers.clone())),
            (Some("Lab"), Some(of_launchers.clone())),
            (Some("lab2"), Some(of_launchers.clone())),
            (None, Some(of_launchers.clone())),
            (None, None),
            (Some(PROVIDER), None),
            (Some(PROVIDER), Some(short)),
            (Some(PROVIDER), Some(String::new())),
            (Some(PROVIDER), Some(format!("{of_launchers} "))),
            (Some(PROVIDER), Some("-000000001".to_owned())),
        ];
        let (provider, node) = metadata.choose(&mut self.rng).expect("the array is not empty").clone();
        let id = self.cloud.next_id();
        self.stats.count("a foreign server");
        self.trace_line(|| format!("foreign server {id} is created with {provider:?} {node:?}"));
        let server = Server {
            id,
            provider,
            node,
            owner: ServerOwner::Foreign,
            is_lost: false,
            is_reported_unissued: false,
            is_stopping: false,
        };
        self.cloud.servers.push(server);
    }

    // Events of ZooKeeper and the launcher.

    fn reconnect(&mut self) {
        if self.rng.gen_bool(0.5) {
            self.begin_session();
        } else {
            self.zookeeper.mirror.connected = true;
        }
    }

    fn begin_session(&mut self) {
        self.detector = LeakDetector::default();
        self.pending.clear();
        self.reported_unissued.clear();
        self.zookeeper.connect();
        self.trace_line(|| "a new session".to_owned());
        self.cloud.servers.iter_mut().for_each(|server| server.is_reported_unissued = false);
        let state = &self.zookeeper.state;
        let lost = self.lifetimes.iter().enumerate().filter(|(index, lifetime)| {
            let is_known = state.records.get(&lifetime.number).is_some_and(|record| record.lifetime == *index);
            lifetime.is_wanted && lifetime.number < state.next_number && !is_known
        });
        let lost: Vec<usize> = lost.map(|(lifetime, _)| lifetime).collect();
        lost.into_iter().for_each(|lifetime| self.abandon_lost(lifetime));
    }

    /// Restores ZooKeeper from the backup, or replaces it by an empty one.
    fn restore(&mut self) {
        let what =
            if self.backup.is_some() && self.rng.gen_bool(0.8) { "ZooKeeper restored" } else { "ZooKeeper emptied" };
        let restored =
            if what == "ZooKeeper restored" { self.backup.clone().unwrap_or_default() } else { StoreState::default() };
        self.stats.count(what);
        self.trace_line(|| format!("{what}, to number {}", restored.next_number));
        for (number, record) in &self.zookeeper.state.records {
            if *number >= restored.next_number {
                self.stats.count("a node lost by ZooKeeper");
                let own =
                    self.cloud.servers.iter_mut().filter(|server| server.owner == ServerOwner::Node(record.lifetime));
                own.for_each(|server| server.is_lost = true);
            }
        }
        // The restored ZooKeeper lacks the nodes of unwanted servers as well.
        for server in &mut self.cloud.servers {
            let number = server.node.as_deref().and_then(|node| node.parse::<u64>().ok());
            server.is_lost |= number.is_some_and(|number| number >= restored.next_number);
        }
        for record in restored.records.values() {
            let lifetime = &mut self.lifetimes[record.lifetime];
            lifetime.is_wanted = true;
            let node = format!("{:010}", lifetime.number);
            let is_its = |server: &&mut Server| {
                let is_own = record.state == NodeState::Building
                    || record.external_id.as_ref().is_some_and(|id| *id == server.id);
                server.owner == ServerOwner::Leaked && server.node.as_ref() == Some(&node) && is_own
            };
            // A leaked server of a restored node has an owner again.
            self.cloud
                .servers
                .iter_mut()
                .filter(is_its)
                .for_each(|server| server.owner = ServerOwner::Node(record.lifetime));
        }
        // A later backup belongs to another history, so only an earlier one can be restored from now on.
        self.backup = self.backup.take().filter(|backup| backup.next_number <= restored.next_number);
        self.zookeeper.state = restored;
        self.begin_session();
    }

    fn jump_clock(&mut self) {
        self.stats.count("a jump of the clock");
        let seconds = *[-3600.0, -30.0, 120.0, 700.0, 1e7].choose(&mut self.rng).expect("five");
        self.built.now = Timestamp(self.built.now.0 + seconds);
    }

    // The launcher's leak detection.

    fn sweep(&mut self) {
        self.stats.sweeps += 1;
        self.built.now = Timestamp(self.built.now.0 + 60.0);
        self.feed(Event::Sweep, None);
    }

    /// `ours` is the number of the provider's servers on a list, which determines the deletion budget.
    fn feed(&mut self, event: Event, ours: Option<usize>) {
        self.built.facts.clear();
        if self.is_in_service {
            self.built.facts.insert(provider(), facts());
        }
        let Fixture { config, facts, now, .. } = &self.built;
        let inputs = Inputs {
            config,
            snapshot: &self.zookeeper.mirror,
            facts,
            now: *now,
            monotonic_now: MonotonicTime::at(now.0),
        };
        let effects = self.detector.step(event, &inputs);
        let deletions = effects.iter().filter(|effect| matches!(effect, Effect::Delete { .. })).count();
        let budget = ours.map_or(0, |ours| (ours / 10).max(10));
        if deletions > budget {
            self.stats.violations.push(format!("{deletions} deletions at once"));
        }
        effects.into_iter().for_each(|effect| self.perform(effect));
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::ListServerIds(_) => self.pending.push(PendingReply::ListIds),
            Effect::List(_) => self.pending.push(PendingReply::List),
            Effect::Prove(_, nodes) => self.pending.push(PendingReply::Read(nodes)),
            Effect::Delete { candidate, .. } => self.delete(&candidate.external_id),
            Effect::Exceeded { .. } => self.stats.count("deletion budget exceeded"),
            Effect::UnissuedId(_, candidates) => {
                self.stats.count("servers with unissued ids kept");
                for candidate in candidates {
                    self.reported_unissued.insert(candidate.external_id.to_string());
                    if let Some(at) = self.cloud.position(&candidate.external_id.to_string()) {
                        self.cloud.servers[at].is_reported_unissued = true;
                    }
                }
            }
            // The cloud has servers only.
            Effect::ListUnused(..)
            | Effect::ProveUnused(..)
            | Effect::DeleteUnused(..)
            | Effect::TooManyUnused { .. }
            | Effect::SetLeakedUsage(..) => {}
        }
    }

    fn delete(&mut self, id: &ExternalId) {
        let id = id.to_string();
        // A stale list may contain a deleted server.
        let Some(at) = self.cloud.position(&id) else { return };
        let server = self.cloud.servers[at].clone();
        self.trace_line(|| format!("server {id} is deleted"));
        let is_wanted = match server.owner {
            ServerOwner::Foreign => true,
            ServerOwner::Leaked => false,
            ServerOwner::Node(lifetime) => self.lifetimes[lifetime].is_wanted,
        };
        if is_wanted {
            self.stats.violations.push(format!("an owned server is deleted: {server:?}"));
        }
        let number = server.node.as_deref().and_then(|node| node.parse().ok()).unwrap_or(u64::MAX);
        let has_record = self.zookeeper.state.records.contains_key(&number);
        self.stats.count(if has_record { "duplicate servers deleted" } else { "leaked servers deleted" });
        match self.rng.gen_range(0..10) {
            // The cloud accepts the deletion and ignores it.
            0 => {}
            1..4 => self.cloud.servers[at].is_stopping = true,
            _ => drop(self.cloud.servers.remove(at)),
        }
    }

    fn reply_to_some(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut at = self.rng.gen_range(0..self.pending.len());
        let is_of_zookeeper =
            |pending: &PendingReply| matches!(pending, PendingReply::Read(_) | PendingReply::Proof(_));
        if is_of_zookeeper(&self.pending[at]) {
            // ZooKeeper replies in the order of the requests.
            at = self.pending.iter().position(is_of_zookeeper).expect("at least this one is pending");
        }
        let list_fault = match self.rng.gen_range(0..12) {
            0 | 1 => Some(ListFault::Stale),
            2 => Some(ListFault::Partial),
            3 => Some(ListFault::Empty),
            4 => Some(ListFault::Doubled),
            _ => None,
        };
        match list_fault {
            Some(ListFault::Stale) => self.stats.count("a stale list"),
            Some(ListFault::Partial) => self.stats.count("a partial list"),
            Some(ListFault::Empty) => self.stats.count("an empty list"),
            _ => {}
        }
        let fails = self.rng.gen_bool(0.1);
        self.reply(at, list_fault, fails);
    }

    fn reply(&mut self, at: usize, list_fault: Option<ListFault>, fails: bool) {
        match self.pending.remove(at) {
            PendingReply::ListIds | PendingReply::List if fails => self.feed(Event::Listed(provider(), None), None),
            PendingReply::ListIds => {
                let listed = self.cloud.list(list_fault, &mut self.rng);
                let ids = listed.iter().map(|instance| instance.external_id.to_string()).collect();
                self.feed(Event::ServerIdsListed(provider(), ids), None);
            }
            PendingReply::List => {
                let inventory = self.cloud.inventory(list_fault, &mut self.rng);
                let ours = inventory.instances().iter().filter(|instance| instance.belongs_to(&provider())).count();
                self.feed(Event::Listed(provider(), Some(inventory)), Some(ours));
            }
            PendingReply::Read(_) if fails => {
                self.stats.count("no reply of ZooKeeper");
                self.feed(Event::Proven(provider(), None), None);
            }
            PendingReply::Read(nodes) => {
                let proof = self.read(nodes, list_fault.is_some());
                self.pending.insert(at, PendingReply::Proof(proof));
            }
            PendingReply::Proof(proof) => self.feed(Event::Proven(provider(), Some(proof)), None),
        }
    }

    /// Reads nodes from ZooKeeper's leader. A partial reply lacks some of them, whether they exist or not.
    fn read(&mut self, nodes: Vec<NodeId>, is_partial: bool) -> Proof {
        let known = |node: NodeId| {
            let record = self.zookeeper.state.records.iter().find(|(number, _)| id_of(**number) == node);
            let entry = (node.clone(), record.map(|(_, record)| Box::new(record.node())));
            (!is_partial || self.rng.gen_bool(0.7)).then_some(entry)
        };
        let nodes = nodes.into_iter().filter_map(known).collect();
        Proof { nodes, issued_ids_below: self.zookeeper.state.next_number, uploads: None }
    }

    /// Phase without faults: within a few sweeps leaked servers are deleted, or the exceeded budget is reported.
    fn settle(&mut self) {
        self.is_in_service = true;
        self.zookeeper.deliver_changes(usize::MAX);
        self.zookeeper.mirror.connected = true;
        let mut exceeded = 0;
        for _ in 0..8 {
            self.cloud.servers.retain(|server| !server.is_stopping);
            while !self.pending.is_empty() {
                self.reply(0, None, false);
            }
            let before = self.stats.events.get("deletion budget exceeded").copied().unwrap_or(0);
            self.built.now = Timestamp(self.built.now.0 + 601.0);
            self.sweep();
            while !self.pending.is_empty() {
                self.reply(0, None, false);
            }
            exceeded = self.stats.events.get("deletion budget exceeded").copied().unwrap_or(0) - before;
        }
        let is_unwanted = |server: &Server| match server.owner {
            ServerOwner::Leaked => true,
            ServerOwner::Node(lifetime) => !self.lifetimes[lifetime].is_wanted,
            ServerOwner::Foreign => false,
        };
        let is_remaining = |server: &Server| {
            server.owner == ServerOwner::Leaked
                && !server.is_lost
                && !server.is_stopping
                && !self.reported_unissued.contains(&server.id)
        };
        let servers = &self.cloud.servers;
        let remaining: Vec<&str> =
            servers.iter().filter(|server| is_remaining(server)).map(|server| server.id.as_str()).collect();
        let is_excused = exceeded > 0 && servers.iter().filter(|server| is_unwanted(server)).count() > 10;
        if !remaining.is_empty() && !is_excused {
            self.stats.violations.push(format!("leaked servers remain: {remaining:?}"));
        }
    }
}
