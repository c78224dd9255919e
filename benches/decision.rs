//! Cost of a decision of the functional core with few and with many nodes: it must not grow with their number.

use std::collections::BTreeMap;
use std::sync::Arc;

use divan::{Bencher, black_box};
use nodepool_driver::facts::ProviderFacts;
use nodepool_model::config::Config;
use nodepool_model::config::resolve::{Source, resolve};
use nodepool_model::records::component::{ComponentKind, PoolComponent};
use nodepool_model::records::ids::{LauncherId, NodeId, PoolId, ProviderName, RequestId};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::NodeRequest;
use nodepool_model::records::static_host::{HostCheck, HostIdentity, StaticHost};
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::{Snapshot, Versioned};
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
