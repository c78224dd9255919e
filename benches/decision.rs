//! Cost of a decision of the functional core with few and with many nodes: it must not grow with their number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use divan::{Bencher, black_box};
use nodepool_driver::facts::{BackingLabel, LaunchConfig, LaunchLabel, Login, ProviderFacts};
use nodepool_model::config::Config;
use nodepool_model::config::resolve::{Source, resolve};
use nodepool_model::records::backing::Slot;
use nodepool_model::records::component::{ComponentKind, PoolComponent};
use nodepool_model::records::ids::{LauncherId, NodeId, PoolId, ProviderName, RequestId};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::NodeRequest;
use nodepool_model::records::static_host::{HostCheck, HostIdentity, StaticHost};
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::{LockState, Snapshot, Versioned};
use nodepool_policy::backing::planner::{BackingAction, BackingInputs, BackingPlanner};
use nodepool_policy::inputs::Inputs;
use nodepool_policy::pool::{Effect, Event, Pool};
use nodepool_policy::scheduler::allocate::{Verdict, verdict as decide};
use nodepool_policy::scheduler::pool_context::{PoolContext, StaticHostIndex};
use nodepool_policy::scheduler::reservations::Reservations;
use python_yaml::parse;

const NODES: [usize; 4] = [100, 1_000, 10_000, 100_000];
const LAUNCHER: &str = "bench-1-PoolWorker.static-bench-main-0";
const NOW: Timestamp = Timestamp(1_700_000_000.0);

fn main() {
    divan::main();
}

/// A provider with many hosts, all of them idle nodes, and some open requests.
struct DecisionHarness {
    id: PoolId,
    launcher: LauncherId,
    config: Arc<Config>,
    snapshot: Snapshot,
    facts: BTreeMap<ProviderName, Arc<ProviderFacts>>,
}

impl DecisionHarness {
    fn new(nodes: usize, requests: usize, label: &str) -> Self {
        let id = PoolId::new("static-bench", "main");
        let launcher = LauncherId::from(LAUNCHER);
        let facts = Arc::new(ProviderFacts {
            refreshed_at: NOW,
            static_hosts: (0..nodes).map(|index| Arc::new(host(index))).collect(),
            ..ProviderFacts::initial()
        });
        let mut snapshot = Snapshot::default();
        snapshot.connected = true;
        for index in 0..nodes {
            snapshot.put_node(NodeId::from(format!("{index:010}")), stored(node(index)));
        }
        for index in 0..requests {
            let mut request = NodeRequest::new(vec![label.into()], "zuul", NOW);
            request.tenant_name = Some("example".into());
            snapshot.put_request(RequestId::from(format!("200-{index:010}")), stored(request));
        }
        snapshot.put_pool("bench0000000000".to_owned(), stored(registration(&id, &launcher)));
        let facts = BTreeMap::from([(id.provider.clone(), facts)]);
        Self { id, launcher, config: config(), snapshot, facts }
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            config: &self.config,
            snapshot: &self.snapshot,
            facts: &self.facts,
            now: NOW,
            monotonic_now: MonotonicTime::at(NOW.0),
        }
    }
}

fn stored<T>(record: T) -> Versioned<T> {
    Versioned { record: Arc::new(record), version: 0, mzxid: 1, mtime_ms: 0 }
}

fn config() -> Arc<Config> {
    let text = "labels: [{name: bench}, {name: scarce}]\n\
        providers:\n  - name: static-bench\n    driver: static\n    pools:\n      - name: main\n        nodes:\n          \
        - {name: 127.0.0.1, labels: [bench, scarce], host-key-checking: false}\n";
    let root = parse::parse(text, &mut Vec::new()).expect("the text is YAML");
    let resolved = resolve(Source { file: "bench.yaml", root: &root }, None, &["static"]);
    resolved.config.expect("the text is a configuration")
}

fn address(index: usize) -> String {
    format!("10.{}.{}.{}", index >> 16 & 255, index >> 8 & 255, index & 255)
}

fn host(index: usize) -> StaticHost {
    StaticHost {
        identity: HostIdentity { name: address(index), username: "zuul".to_owned(), port: 22 },
        pool: "main".into(),
        // Only one host has the label that many requests need.
        labels: if index == 0 { vec!["bench".into(), "scarce".into()] } else { vec!["bench".into()] },
        slots: 1,
        connection_type: "ssh".to_owned(),
        shell_type: None,
        python_path: "auto".to_owned(),
        timeout: Seconds(5.0),
        host_key_checking: false,
        configured_keys: Vec::new(),
        check: HostCheck::NotNeeded { address: None },
    }
}

fn node(index: usize) -> Node {
    let mut node = Node::new(NodeState::Ready, NOW);
    node.provider = Some("static-bench".into());
    node.pool = Some("main".into());
    node.labels = vec!["bench".into()];
    node.hostname = Some(address(index));
    node.username = Some("zuul".to_owned());
    node.slot = Some(0);
    node
}

fn registration(id: &PoolId, launcher: &LauncherId) -> PoolComponent {
    PoolComponent {
        hostname: "bench".to_owned(),
        id: Some(launcher.clone()),
        kind: ComponentKind::Pool,
        model_api: 0,
        name: Some(id.pool.clone()),
        paused: false,
        priority: 100,
        provider_name: Some(id.provider.clone()),
        state: "running".to_owned(),
        supported_labels: ["bench".into(), "scarce".into()].into(),
        version: None,
        webapp: None,
        extra: serde_json::Map::new(),
    }
}

/// The verdict on one request that can be fulfilled at once.
#[divan::bench(args = NODES)]
fn verdict(bencher: Bencher<'_, '_>, nodes: usize) {
    let harness = DecisionHarness::new(nodes, 1, "bench");
    let inputs = harness.inputs();
    let provider = &harness.config.providers[&harness.id.provider];
    let hosts = StaticHostIndex::new(harness.facts[&harness.id.provider].clone(), &harness.id);
    let pool_context = PoolContext {
        id: &harness.id,
        launcher: &harness.launcher,
        provider,
        pool: &provider.pools[&harness.id.pool],
        hosts: &hosts,
    };
    let (id, request) = harness.snapshot.requests().next().expect("there is a request");
    let reservations = Reservations::default();
    bencher.bench_local(|| {
        let verdict = decide(black_box(id), request, &pool_context, &reservations, &inputs);
        assert!(matches!(verdict, Verdict::Accept(_)), "{verdict:?}");
        verdict
    });
}

/// A complete scheduling pass with one open request: decision, transaction, and handling of its result.
#[divan::bench(args = NODES)]
fn scheduling_pass(bencher: Bencher<'_, '_>, nodes: usize) {
    let harness = DecisionHarness::new(nodes, 1, "bench");
    let inputs = harness.inputs();
    let mut pool = Pool::new(harness.id.clone(), harness.launcher.clone());
    bencher.bench_local(|| {
        let effects = pool.step(Event::Wake, &inputs);
        let [Effect::Fulfill(plan)] = &effects[..] else { panic!("{effects:?}") };
        pool.step(Event::Fulfilled(plan.request.id.clone(), Ok(())), &inputs)
    });
}

/// A scheduling pass with many requests that have to wait, and 10,000 nodes.
#[divan::bench(args = [100, 1_000, 10_000])]
fn waiting(bencher: Bencher<'_, '_>, requests: usize) {
    let harness = DecisionHarness::new(10_000, requests, "scarce");
    let inputs = harness.inputs();
    let mut pool = Pool::new(harness.id.clone(), harness.launcher.clone());
    bencher.bench_local(|| {
        let effects = pool.step(Event::Wake, &inputs);
        assert!(effects.is_empty(), "{effects:?}");
    });
}

/// Backing nodes with four slots each, all taken but one, and a node that gets it.
struct SlotsHarness {
    snapshot: Snapshot,
    planner: BackingPlanner,
    launch_config: Arc<LaunchConfig>,
    own: BTreeSet<NodeId>,
}

const SLOTS: u32 = 4;
const OWNER: &str = "NodePool:metastatic:slots-bench";

impl SlotsHarness {
    fn new(nodes: usize) -> Self {
        let planner = BackingPlanner::new("slots-bench".into(), "bench".to_owned());
        let mut harness =
            Self { snapshot: Snapshot::default(), planner, launch_config: launch_config(), own: BTreeSet::new() };
        harness.snapshot.connected = true;
        for backing in 0..nodes / SLOTS as usize {
            let id = NodeId::from(format!("{backing:010}"));
            let mut node = Node::new(NodeState::InUse, NOW);
            let record = serde_json::json!({"owner": OWNER, "label": "small", "slots": SLOTS, "launched": NOW});
            node.user_data = record.to_string().as_str().into();
            harness.put(&id, node);
            for number in 0..SLOTS - u32::from(backing == 0) {
                let mut node = small_node();
                let occupant = NodeId::from(format!("1{:09}", backing * SLOTS as usize + number as usize));
                Slot { backing_node: id.clone(), number }.put(&occupant, &mut node);
                harness.put(&occupant, node);
            }
        }
        for action in harness.plan() {
            if let BackingAction::Verify { node, holder } = &action {
                harness.planner.verified(node, holder.clone(), OWNER.as_bytes(), MonotonicTime::at(NOW.0));
                harness.end(&action);
            }
        }
        harness.plan();
        harness
    }

    fn put(&mut self, id: &NodeId, node: Node) {
        self.snapshot.put_node(id.clone(), stored(node));
        let contenders = ["x__lock__0000000000".to_owned()].into();
        self.snapshot.set_node_lock(id.clone(), LockState { exists: true, contenders, mtime_ms: 0 });
    }

    fn plan(&mut self) -> Vec<BackingAction> {
        self.planner.plan(&BackingInputs {
            snapshot: &self.snapshot,
            unread: &BTreeSet::new(),
            launch_config: &self.launch_config,
            own: &self.own,
            now: NOW,
            monotonic_now: MonotonicTime::at(NOW.0),
        })
    }

    fn end(&mut self, action: &BackingAction) {
        if let Some(key) = action.key() {
            self.planner.ended(&key, &Ok(()), MonotonicTime::at(NOW.0));
        }
    }

    /// A node that needs a slot appears, gets the free one, and disappears.
    fn serve(&mut self) -> usize {
        let id = NodeId::from("2000000000");
        self.own.insert(id.clone());
        self.put(&id, small_node());
        let actions = self.plan();
        actions.iter().for_each(|action| self.end(action));
        self.snapshot.remove_node(&id);
        self.own.clear();
        actions.len() + self.plan().len()
    }
}

fn small_node() -> Node {
    let mut node = Node::new(NodeState::Building, NOW);
    (node.provider, node.labels) = (Some("slots-bench".into()), vec!["small".into()]);
    node
}

fn launch_config() -> Arc<LaunchConfig> {
    let backing = BackingLabel {
        label: "big".into(),
        slots: SLOTS,
        grace_time: Seconds(60.0),
        min_retention_time: Seconds::ZERO,
        max_age: None,
        max_failures: None,
    };
    let label = LaunchLabel {
        need: None,
        image: None,
        login: Login::default(),
        host_key_checking: false,
        console_log: false,
        unavailable: None,
        backing: Some(Arc::new(backing)),
    };
    Arc::new(LaunchConfig {
        attempts: 3,
        timeout: Seconds(60.0),
        boot_timeout: Seconds(60.0),
        zones: Vec::new(),
        resource_kinds: Vec::new(),
        labels: BTreeMap::from([("main".into(), BTreeMap::from([("small".into(), label)]))]),
    })
}

/// A slot for one node, among many that are taken.
#[divan::bench(args = NODES)]
fn a_free_slot(bencher: Bencher, nodes: usize) {
    let mut harness = SlotsHarness::new(nodes);
    assert_eq!(harness.serve(), 1);
    bencher.bench_local(|| black_box(harness.serve()));
}
