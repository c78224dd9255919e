//! Arbitrary znode bytes as records: written back unchanged, indexed in the snapshot, decided on and rendered.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use nodepool::actors::web::live_view::{self, PageState};
use nodepool_driver::driver::Driver;
use nodepool_driver::facts::ProviderFacts;
use nodepool_drivers::static_nodes;
use nodepool_model::config::Config;
use nodepool_model::config::resolve::{Source, resolve};
use nodepool_model::metrics::statsd_metrics;
use nodepool_model::records::component::{Component, PoolComponent};
use nodepool_model::records::ids::{LauncherId, PoolId, ProviderName};
use nodepool_model::records::image_build::ImageBuild;
use nodepool_model::records::image_upload::ImageUpload;
use nodepool_model::records::json;
use nodepool_model::records::node::Node;
use nodepool_model::records::request::NodeRequest;
use nodepool_model::records::static_host::HostCheck;
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::report::event_history::EventHistory;
use nodepool_model::report::image_status::{self, AgeFormat};
use nodepool_model::report::{list, status};
use nodepool_model::snapshot::{LockState, Snapshot};
use nodepool_policy::cleanup::planner;
use nodepool_policy::images::{build_schedule, retention};
use nodepool_policy::inputs::Inputs;
use nodepool_policy::pool;
use nodepool_zk::mirror::bulk::Subtree;
use nodepool_zk::mirror::records::{Decoded, decode};
use nodepool_zk::paths::{self, ZnodePath};
use python_yaml::parse::parse;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use zookeeper_server::types::Stat;

/// Paths of records, each with a document. If the first byte of a record says so, the record replaces keys of the
/// document, so that most records concern our provider and its hosts. `#` is replaced by a unique number.
const DOCUMENTS: [(&str, &str); 11] = [
    (
        "/nodepool/nodes/#",
        r#"{"state": "ready", "state_time": 1.6e9, "provider": "p", "pool": "main", "type": ["a"], "hostname": "fake",
            "username": "zuul", "connection_port": 22, "slot": 0, "tenant_name": "t", "resources": {"instances": 1}}"#,
    ),
    (
        "/nodepool/requests/200-#",
        r#"{"state": "requested", "node_types": ["a"], "tenant_name": "t", "requestor": "z"}"#,
    ),
    ("/nodepool/components/pool/host#", r#"{"kind": "pool", "id": "other", "supported_labels": ["a", "b"]}"#),
    ("/nodepool/components/launcher/host#", r#"{"kind": "launcher"}"#),
    ("/nodepool/components/builder/host#", r#"{"kind": "builder", "hostname": "nb01", "version": "11.0.0"}"#),
    (
        "/nodepool/images/i/builds/#",
        r#"{"state": "ready", "state_time": 1.6e9, "builder": "nb01", "builder_id": "x", "formats": "qcow2,raw"}"#,
    ),
    (
        "/nodepool/images/i/builds/0000000000/providers/p/images/#",
        r#"{"state": "ready", "state_time": 1.6e9, "external_id": "e", "external_name": "i-1", "format": "qcow2"}"#,
    ),
    ("/nodepool/images/i/pause", "{}"),
    ("/nodepool/images/i/request-build", "{}"),
    // Nodes of Kubernetes contain credentials.
    (
        "/nodepool/nodes/#",
        r#"{"state": "ready", "provider": "k", "pool": "main", "type": ["pod"], "connection_type": "kubectl",
            "connection_port": {"name": "pod", "token": "hunter2", "ca_crt": "x"}}"#,
    ),
    // The record is a path, which may be that of a lock's contender.
    (LOCK_PATH, ""),
];
const LOCK_PATH: &str = "";
/// Part of a document; not rendered unless the input contains it as well.
const SECRET: &str = "hunter2";
/// A pool decides nothing unless the snapshot contains its own registration.
const OWN_POOL: &[u8] =
    br#"{"kind": "pool", "id": "l", "name": "main", "provider_name": "p", "supported_labels": ["a", "b"]}"#;
const NOW: Timestamp = Timestamp(1.7e9);

// Input: records separated by line breaks. The first byte of each selects its path, and whether it changes the document
// of that path.
pub fn check(data: &[u8]) {
    let mut subtree = Subtree::default();
    let mut locks = Vec::new();
    let stat = |number: usize| Stat { mzxid: number as i64 + 1, ..Stat::default() };
    subtree.insert("/nodepool/components/pool/own0000000000", &Bytes::from_static(OWN_POOL), &stat(0));
    for (number, line) in data.split(|byte| *byte == b'\n').enumerate() {
        let Some((selector, record)) = line.split_first() else { continue };
        let (path, document) = DOCUMENTS[usize::from(*selector) % DOCUMENTS.len()];
        if path == LOCK_PATH {
            locks.extend(std::str::from_utf8(record).ok().map(parse_round_trip));
            continue;
        }
        let is_change = usize::from(*selector) / DOCUMENTS.len() % 2 == 1;
        let record = if is_change { changed(document, record) } else { record.to_vec() };
        check_record(&record);
        subtree.insert(&path.replace('#', &format!("{number:010}")), &Bytes::from(record), &stat(number));
    }
    let mut snapshot = Snapshot::default();
    snapshot.connected = true;
    subtree.merge_into(&mut snapshot);
    for znode_path in locks {
        let lock_state =
            |name: String| LockState { exists: true, contenders: [name].into_iter().collect(), mtime_ms: 0 };
        match znode_path {
            ZnodePath::NodeContender(id, name) => snapshot.set_node_lock(id, lock_state(name)),
            ZnodePath::RequestContender(id, name) => snapshot.set_request_lock(id, lock_state(name)),
            _ => {}
        }
    }
    decide(&snapshot);
    let rendered = rendered(&snapshot);
    let is_written = data.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()) || data.contains(&b'\\');
    assert!(is_written || !rendered.contains(SECRET), "{rendered}");
}

/// The document with its keys replaced by those of the record; the record itself if it is not an object.
fn changed(document: &str, record: &[u8]) -> Vec<u8> {
    let Ok(Value::Object(changes)) = serde_json::from_slice(record) else { return record.to_vec() };
    let Ok(mut merged) = serde_json::from_str::<Map<String, Value>>(document) else { panic!("ours are objects") };
    merged.extend(changes);
    Value::Object(merged).to_string().into_bytes()
}

/// Parses a path, and checks that formatting the result returns the same path.
fn parse_round_trip(path: &str) -> ZnodePath {
    let znode_path = paths::parse(path);
    let again = match &znode_path {
        ZnodePath::Node(id) => paths::node(id),
        ZnodePath::NodeLock(id) => paths::node_lock(id),
        ZnodePath::NodeContender(id, name) => format!("{}/{name}", paths::node_lock(id)),
        ZnodePath::Request(id) => paths::request(id),
        ZnodePath::RequestLock(id) => paths::request_lock(id),
        ZnodePath::RequestContender(id, name) => format!("{}/{name}", paths::request_lock(id)),
        ZnodePath::Component { kind, name } => paths::component(*kind, name),
        ZnodePath::Image(image) => paths::image(image),
        ZnodePath::ImageBuild(image, build) => paths::image_build(image, build),
        ZnodePath::ImageUpload(key) => paths::image_upload(key),
        _ => path.to_owned(),
    };
    assert_eq!(again, path);
    znode_path
}

/// Decodes a record as each kind.
fn check_record(bytes: &[u8]) {
    let written_records = [check_kind::<Node>(bytes), check_kind::<NodeRequest>(bytes)];
    check_kind::<ImageBuild>(bytes);
    check_kind::<ImageUpload>(bytes);
    check_kind::<Component>(bytes);
    check_kind::<PoolComponent>(bytes);
    let Ok(Value::Object(given)) = json::from_bytes::<Value>(bytes) else { return };
    // Unknown keys, such as those of Zuul or of future versions, must be preserved.
    for written in written_records.into_iter().flatten() {
        let written: Map<String, Value> = serde_json::from_slice(&written).expect("records are objects");
        let lost = given.iter().find(|(key, value)| !value.is_null() && !written.contains_key(*key));
        assert!(lost.is_none(), "{lost:?} of {given:?} is lost in {written:?}");
    }
}

/// Decodes a record, and checks that it survives writing and reading; returns the written bytes.
fn check_kind<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) -> Option<Vec<u8>> {
    match decode::<T>(bytes) {
        Decoded::Record(record) => {
            let written = json::to_bytes(&record);
            assert!(written.is_ascii(), "Python reads ASCII in any locale");
            let again: T = json::from_bytes(&written).expect("written records can be read");
            assert_eq!(again, record);
            assert_eq!(json::to_bytes(&again), written);
            Some(written)
        }
        Decoded::Unreadable(reason) => {
            assert!(reason.contains("bytes") && reason.len() < 1000 + bytes.len(), "{reason}");
            None
        }
        Decoded::Empty => None,
    }
}

type DecisionInputs = (Arc<Config>, BTreeMap<ProviderName, Arc<ProviderFacts>>);

fn decide(snapshot: &Snapshot) {
    static INPUTS: OnceLock<DecisionInputs> = OnceLock::new();
    let (config, facts) = INPUTS.get_or_init(|| {
        let config = config();
        let facts = facts(&config);
        (config, facts)
    });
    let inputs = Inputs { config, snapshot, facts, now: NOW, monotonic_now: MonotonicTime::at(NOW.0) };
    let mut pool_core = pool::Pool::new(PoolId::new("p", "main"), LauncherId::from("l"));
    pool_core.step(pool::Event::Wake, &inputs);
    pool_core.step(pool::Event::Tick, &inputs);
    let mut planner = planner::CleanupPlanner::new(Seconds(28_800.0));
    planner.step(planner::Event::Wake, &inputs);
    planner.step(planner::Event::Sweep, &inputs);
    build_schedule::due(&inputs);
    build_schedule::next_due(&inputs);
    for scope in [retention::RetentionScope::Marked, retention::RetentionScope::All] {
        retention::due(&inputs, scope, &BTreeMap::new());
    }
}

/// All output of the snapshot for operators.
fn rendered(snapshot: &Snapshot) -> String {
    let mut history = EventHistory::new(NOW);
    history.record_differences(&Snapshot::default(), snapshot, NOW);
    let state = PageState { revision: 1, snapshot: Arc::new(snapshot.clone()), ended: history.ended_requests() };
    let full = live_view::full_update(&state);
    let patch = live_view::patch(&PageState::default(), &state);
    for text in [&full, &patch] {
        assert!(serde_json::from_str::<Value>(text).is_ok(), "the live page reads JSON, not {text}");
    }
    let nodes = status::nodes(snapshot, None, NOW);
    let lists = [
        list::python_json(status::NODE_COLUMNS, &nodes),
        list::python_json(status::REQUEST_COLUMNS, &status::requests(snapshot)),
        list::python_json(
            image_status::BUILD_COLUMNS,
            &image_status::builds(&snapshot.images, AgeFormat::EpochSeconds),
        ),
        list::python_json(
            image_status::UPLOAD_COLUMNS,
            &image_status::uploads(&snapshot.images, AgeFormat::EpochSeconds),
        ),
        list::python_json(
            image_status::IMAGE_COLUMNS,
            &image_status::images(&snapshot.images, AgeFormat::Elapsed(NOW)),
        ),
    ];
    let mut shown = full + &patch + &list::table(status::NODE_COLUMNS, &nodes).to_string();
    for text in lists {
        assert!(serde_json::from_slice::<Value>(&text).is_ok(), "{}", String::from_utf8_lossy(&text));
        shown += &String::from_utf8_lossy(&text);
    }
    let samples = statsd_metrics::global_gauges(snapshot);
    samples.iter().for_each(|sample| assert!(!sample.value.is_nan(), "{}", sample.name));
    shown
}

fn config() -> Arc<Config> {
    let text = "labels: [{name: a, max-ready-age: 5}, {name: b}]\nmax-hold-age: 5\n\
        tenant-resource-limits: [{tenant-name: t, max-servers: 2}]\ndiskimages: [{name: i, formats: [qcow2]}]\n\
        providers: [{name: p, driver: static, pools: [{name: main, node-attributes: {x: 1}, nodes: [\
        {name: fake, labels: [a], max-parallel-jobs: 3}, {name: passed, labels: [a, b]}, \
        {name: failed, labels: [b]}, {name: pending, labels: [a]}]}]}]";
    let root = parse(text, &mut Vec::new()).expect("this text parses");
    resolve(Source { file: "fuzz", root: &root }, None, &["static"]).config.expect("this configuration resolves")
}

/// The hosts of the configuration, each with another result of its last check.
fn facts(config: &Config) -> BTreeMap<ProviderName, Arc<ProviderFacts>> {
    let name = ProviderName::from("p");
    let mut facts = static_nodes::open(&config.providers[&name]).expect("the section is valid").facts();
    facts.refreshed_at = Timestamp(NOW.0 - 1.0);
    for host in &mut facts.static_hosts {
        let host = Arc::make_mut(host);
        host.check = match host.identity.name.as_str() {
            "fake" => HostCheck::NotNeeded { address: None },
            "passed" => {
                HostCheck::Passed { at: NOW, host_keys: vec!["ssh-rsa KEY".to_owned()], address: "::1".parse().ok() }
            }
            "failed" => HostCheck::Failed { at: NOW, reason: "no route".to_owned() },
            _ => HostCheck::Pending,
        };
    }
    BTreeMap::from([(name, Arc::new(facts))])
}
