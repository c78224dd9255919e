//! Fixtures: inputs of decisions from a few lines of YAML, with hosts, nodes, requests and other pools.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodepool_driver::facts::{LabelImage, LaunchConfig, LaunchLabel, Login, ProviderFacts};
use nodepool_model::config::{Config, Label, PoolConfig, ProviderConfig, WebappConfig, ZooKeeperConfig};
use nodepool_model::records::component::{ComponentKind, PoolComponent};
use nodepool_model::records::ids::{LauncherId, NodeId, PoolId, PoolName, ProviderName, RequestId};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::static_host::{HostCheck, HostIdentity, StaticHost};
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::{LockState, Snapshot, Versioned};
use nodepool_policy::inputs::Inputs;
use nodepool_policy::scheduler::shared_pools::SharedPoolState;
use python_yaml::tree::{Position, YamlNode, YamlValue};
use serde::Deserialize;

pub const NOW: Timestamp = Timestamp(10_000.0);
pub const LAUNCHER: &str = "launcher-lab-main";

/// Launch configuration of a pool `main` with these labels: one attempt, no host keys.
pub fn launch_config(labels: &[&str]) -> LaunchConfig {
    let label = LaunchLabel {
        need: Some(Resources::none().with("instances", 1.0)),
        image: Some(LabelImage::Cloud("image".to_owned())),
        login: Login::default(),
        host_key_checking: false,
        console_log: false,
        unavailable: None,
        backing: None,
    };
    LaunchConfig {
        attempts: 1,
        timeout: Seconds(60.0),
        boot_timeout: Seconds(60.0),
        zones: Vec::new(),
        resource_kinds: Vec::new(),
        labels: [("main".into(), labels.iter().map(|name| ((*name).into(), label.clone())).collect())].into(),
    }
}

/// Contents of a fixture. Every line is `id word word=value …`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct FixtureSpec {
    /// `max-concurrency=-1 priority=100 max-servers=5`
    pub pool: String,
    /// `h1 labels=a,b slots=2 check=passed|not-needed|failed|unresolved|pending`
    pub hosts: Vec<String>,
    /// `1 host=h1 slot=0 ready|in-use|… allocated=200-1 tenant=x locked age=5`
    pub nodes: Vec<String>,
    /// `200-1 a,b tenant=x provider=p reuse=no declined=l pending locked relative=5`
    pub requests: Vec<String>,
    /// `other provider=p labels=a priority=1 paused version=12.0.0`
    pub others: Vec<String>,
    /// `tenant name=amount`
    pub tenants: Vec<String>,
    /// `small min-ready=1 max-ready-age=10`
    pub labels: Vec<String>,
    pub max_hold_age: Option<f64>,
    pub disconnected: bool,
    pub unregistered: bool,
    /// Launcher ids of other pools of this process.
    pub started: Vec<String>,
    pub expect: String,
}

pub struct Fixture {
    pub config: Config,
    pub snapshot: Snapshot,
    pub facts: BTreeMap<ProviderName, Arc<ProviderFacts>>,
    pub shared_pools: SharedPoolState,
    pub now: Timestamp,
    /// Offset of the wall clock from monotonic time.
    pub clock_offset: Seconds,
}

impl Fixture {
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            config: &self.config,
            snapshot: &self.snapshot,
            facts: &self.facts,
            now: self.now,
            monotonic_now: self.monotonic_now(),
        }
    }

    pub fn monotonic_now(&self) -> MonotonicTime {
        MonotonicTime::at(self.now.0 - self.clock_offset.0)
    }

    pub fn advance_to(&mut self, time: MonotonicTime) {
        self.now = self.now + (time - self.monotonic_now());
    }

    /// Moves the wall clock by this offset; the monotonic time is unchanged.
    pub fn set_clock(&mut self, by: Seconds) {
        self.now = self.now + by;
        self.clock_offset = Seconds(self.clock_offset.0 + by.0);
    }
}

pub fn pool_id() -> PoolId {
    PoolId::new("lab", "main")
}

/// A line of a fixture: the first word, then `word word key=value`.
pub struct SpecLine<'a> {
    pub first: &'a str,
    words: Vec<&'a str>,
    values: BTreeMap<&'a str, &'a str>,
}

impl<'a> SpecLine<'a> {
    pub fn of(text: &'a str) -> Self {
        let mut words = text.split_whitespace();
        let first = words.next().unwrap_or_default();
        let (values, words): (Vec<&str>, Vec<&str>) = words.partition(|word| word.contains('='));
        Self { first, words, values: values.into_iter().map(|word| word.split_once('=').unwrap()).collect() }
    }

    pub fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.values.get(key).copied()
    }

    pub fn number(&self, key: &str) -> Option<f64> {
        self.get(key).map(|text| text.parse().unwrap())
    }

    fn list(&self, key: &str) -> Vec<&'a str> {
        self.get(key).map(|text| text.split(',').collect()).unwrap_or_default()
    }
}

pub fn node_id(text: &str) -> NodeId {
    NodeId::from(format!("{:0>10}", text))
}

pub fn request_id(text: &str) -> RequestId {
    let (priority, sequence) = text.split_once('-').expect("a request is named priority-sequence");
    RequestId::from(format!("{priority}-{sequence:0>10}"))
}

pub fn build(spec: &FixtureSpec) -> Fixture {
    let hosts: Vec<StaticHost> = spec.hosts.iter().map(|line| host(&SpecLine::of(line))).collect();
    let mut snapshot = Snapshot::default();
    snapshot.connected = !spec.disconnected;
    let mut zxid = 0;
    let mut next = || {
        zxid += 1;
        zxid
    };
    for line in &spec.nodes {
        let line = SpecLine::of(line);
        let id = node_id(line.first);
        let record = node(&line, &hosts);
        snapshot.put_node(id.clone(), versioned(record, next()));
        snapshot.set_node_lock(id, lock_state(&line));
    }
    for line in &spec.requests {
        let line = SpecLine::of(line);
        let id = request_id(line.first);
        snapshot.put_request(id.clone(), versioned(request(&line), next()));
        snapshot.set_request_lock(id, lock_state(&line));
    }
    let section = provider_section(&SpecLine::of(&format!("lab {}", spec.pool)), &hosts);
    let own = section.pools.values().next().unwrap().clone();
    if !spec.unregistered {
        let component = pool_component("lab", "main", LAUNCHER, &own.labels, own.priority);
        snapshot.put_pool("own".to_owned(), versioned(component, next()));
    }
    for line in &spec.others {
        let line = SpecLine::of(line);
        let labels = line.list("labels").into_iter().map(Into::into).collect();
        let priority = line.number("priority").unwrap_or(100.0) as i64;
        let provider = line.get("provider").unwrap_or("elsewhere");
        let mut component = pool_component(provider, "main", line.first, &labels, priority);
        component.paused = line.has("paused");
        component.version = line.get("version").map(str::to_owned);
        snapshot.put_pool(line.first.to_owned(), versioned(component, next()));
    }
    let facts = ProviderFacts {
        refreshed_at: NOW,
        static_hosts: hosts.into_iter().map(Arc::new).collect(),
        ..ProviderFacts::initial()
    };
    let mut shared_pools = SharedPoolState::default();
    spec.started.iter().for_each(|launcher| shared_pools.register(launcher.as_str().into()));
    Fixture {
        config: config(spec, section),
        snapshot,
        facts: BTreeMap::from([(ProviderName::from("lab"), Arc::new(facts))]),
        shared_pools,
        now: NOW,
        clock_offset: Seconds::ZERO,
    }
}

fn host(line: &SpecLine<'_>) -> StaticHost {
    let check = match line.get("check").unwrap_or("passed") {
        "passed" => HostCheck::Passed { at: NOW, host_keys: vec!["ssh-rsa KEY".to_owned()], address: None },
        "not-needed" => HostCheck::NotNeeded { address: None },
        "failed" => HostCheck::Failed { at: NOW, reason: "no route".to_owned() },
        // A host without key checks, whose name has no address.
        "unresolved" => HostCheck::Failed { at: NOW, reason: "no address".to_owned() },
        "pending" => HostCheck::Pending,
        other => panic!("no such check: {other}"),
    };
    StaticHost {
        identity: HostIdentity { name: line.first.to_owned(), username: "zuul".to_owned(), port: 22 },
        pool: PoolName::from("main"),
        labels: line.list("labels").into_iter().map(Into::into).collect(),
        slots: line.number("slots").unwrap_or(1.0) as u32,
        connection_type: "ssh".to_owned(),
        shell_type: None,
        python_path: "auto".to_owned(),
        timeout: Seconds(5.0),
        host_key_checking: !matches!(line.get("check"), Some("not-needed" | "unresolved")),
        configured_keys: Vec::new(),
        check,
    }
}

fn node(line: &SpecLine<'_>, hosts: &[StaticHost]) -> Node {
    let mut states = NodeState::ALL.into_iter().filter(|state| line.has(state.as_str()));
    let state = states.next_back().unwrap_or(NodeState::Ready);
    let mut node = Node::new(state, Timestamp(NOW.0 - line.number("age").unwrap_or(0.0)));
    node.provider = Some(line.get("provider").unwrap_or("lab").into());
    node.pool = Some("main".into());
    node.launcher = Some("static driver".to_owned());
    node.az = line.get("zone").map(str::to_owned);
    node.allocated_to = line.get("allocated").map(request_id);
    node.tenant_name = line.get("tenant").map(Into::into);
    node.resources =
        node.tenant_name.is_some().then(|| serde_json::Map::from_iter([("instances".into(), 1.into())]).into());
    node.slot = line.number("slot").map(|slot| slot as i64);
    node.hold_expiration = line.number("hold").map(|seconds| seconds as i64);
    let name = line.get("host").unwrap_or("h1");
    node.external_id = name.into();
    node.hostname = Some(name.to_owned());
    node.interface_ip = Some(name.to_owned());
    node.connection_type = Some("ssh".to_owned());
    node.python_path = Some("auto".to_owned());
    let host = hosts.iter().find(|host| host.identity.name == name);
    node.labels = match line.get("labels") {
        Some(_) => line.list("labels").into_iter().map(Into::into).collect(),
        None => host.map(|host| host.labels.clone()).unwrap_or_default(),
    };
    node.host_keys = host.and_then(|host| host.host_keys()).unwrap_or_default().to_vec();
    node.created_time = Some(node.state_time);
    node
}

fn request(line: &SpecLine<'_>) -> NodeRequest {
    let labels = line.words.first().copied().unwrap_or_default();
    let mut request = NodeRequest::new(labels.split(',').map(Into::into).collect(), "tester", NOW);
    request.tenant_name = line.get("tenant").map(Into::into);
    request.provider = line.get("provider").map(Into::into);
    request.reuse = line.get("reuse") != Some("no");
    request.relative_priority = line.number("relative").unwrap_or(0.0) as i64;
    request.declined_by = line.list("declined").into_iter().map(Into::into).collect();
    for (word, state) in
        [("pending", RequestState::Pending), ("fulfilled", RequestState::Fulfilled), ("failed", RequestState::Failed)]
    {
        if line.has(word) {
            request.state = state;
        }
    }
    request
}

fn lock_state(line: &SpecLine<'_>) -> LockState {
    let held = line.has("locked");
    let contenders = held.then(|| format!("{:032x}__lock__0000000000", 1)).into_iter().collect();
    LockState { exists: held || line.has("lock-directory"), contenders, mtime_ms: 0 }
}

fn provider_section(line: &SpecLine<'_>, hosts: &[StaticHost]) -> ProviderConfig {
    let section = YamlNode { at: Position::default(), value: YamlValue::Null };
    let labels: BTreeSet<_> = hosts.iter().flat_map(|host| host.labels.iter().cloned()).collect();
    let pool = PoolConfig {
        name: PoolName::from("main"),
        priority: line.number("priority").unwrap_or(100.0) as i64,
        max_servers: line.number("max-servers").map(|most| most as i64),
        limits: Resources::unlimited(),
        ignore_provider_quota: false,
        availability_zones: Vec::new(),
        node_attributes: None,
        labels,
        section: section.clone(),
    };
    ProviderConfig {
        name: "lab".into(),
        driver: "static".to_owned(),
        max_concurrency: line.number("max-concurrency").unwrap_or(-1.0) as i64,
        pools: BTreeMap::from([(pool.name.clone(), Arc::new(pool))]),
        label_images: Default::default(),
        section,
    }
}

fn config(spec: &FixtureSpec, section: ProviderConfig) -> Config {
    let labels = spec.labels.iter().map(|line| {
        let line = SpecLine::of(line);
        Label {
            name: line.first.into(),
            min_ready: line.number("min-ready").unwrap_or(0.0) as i64,
            max_ready_age: line.number("max-ready-age").map(Seconds),
        }
    });
    let tenants = spec.tenants.iter().map(|line| {
        let line = SpecLine::of(line);
        let limits = line.values.iter().fold(Resources::unlimited(), |limits, (name, amount)| {
            limits.with(name, amount.parse().expect("a limit is a number"))
        });
        (line.first.into(), limits)
    });
    Config {
        zookeeper: ZooKeeperConfig {
            servers: Vec::new(),
            tls: None,
            host_names: Default::default(),
            session_timeout: Seconds(10.0),
        },
        webapp: WebappConfig { port: 8005, listen_address: "127.0.0.1".to_owned() },
        labels: labels.map(|label| (label.name.clone(), label)).collect(),
        providers: BTreeMap::from([(section.name.clone(), Arc::new(section))]),
        out_of_service: BTreeMap::new(),
        diskimages: BTreeMap::new(),
        tenant_limits: tenants.collect(),
        max_hold_age: spec.max_hold_age.map(Seconds),
        elements_dir: None,
        images_dir: None,
        build_log_dir: None,
        build_log_retention: 7,
    }
}

fn pool_component(
    provider: &str,
    pool: &str,
    id: &str,
    labels: &BTreeSet<nodepool_model::records::ids::LabelName>,
    priority: i64,
) -> PoolComponent {
    PoolComponent {
        hostname: "host".to_owned(),
        id: Some(LauncherId::from(id)),
        kind: ComponentKind::Pool,
        model_api: 0,
        name: Some(pool.into()),
        paused: false,
        priority,
        provider_name: Some(provider.into()),
        state: "running".to_owned(),
        supported_labels: labels.clone(),
        version: None,
        webapp: None,
        extra: Default::default(),
    }
}

fn versioned<T>(record: T, mzxid: i64) -> Versioned<T> {
    Versioned { record: Arc::new(record), version: 0, mzxid, mtime_ms: 0 }
}
