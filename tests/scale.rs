//! What a launcher does at sizes that nobody plans for: nodes, waiting requests, pools, images, records as large as a znode.
//!
//! Small each time; NODEPOOL_LIMITS=full has the sizes of doc/reliability.md. One at a time tells what it takes of memory:
//! `NODEPOOL_LIMITS=full cargo test --release --test limits -- --exact --nocapture a_hundred_thousand_nodes`.

mod embedded_zk;
mod in_process_launcher;
mod scale_parameters;
mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, on_real_time, until, yaml, zookeeper};
use nodepool::actors::process::config_files::load;
use nodepool::actors::process::context::BUILT_IN_DRIVERS;
use nodepool::actors::process::files::ConfigFileSource;
use nodepool_model::records::ids::RequestId;
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_model::report::image_status::{self, AgeFormat};
use nodepool_model::report::list;
use nodepool_policy::images::{build_schedule, retention};
use nodepool_policy::inputs::Inputs;
use nodepool_zk::client::{ConnectOptions, connect};
use nodepool_zk::locks::lock;
use nodepool_zk::mirror::mirror::Mirror;
use nodepool_zk::{Zk, paths};
use scale_parameters::{Stopwatch, size};
use serde_json::json;
use support::wait;
use zookeeper_server::types::{CreateMode, Op};

async fn write_all(zk: &Zk, records: impl Iterator<Item = (String, String)>) {
    let mut ops = Vec::new();
    for (path, record) in records {
        ops.push(Op::create(path, record.into_bytes(), CreateMode::Persistent));
        if ops.len() == 500 {
            zk.multi(std::mem::take(&mut ops)).await.unwrap();
        }
    }
    zk.multi(ops).await.unwrap();
}

#[test]
fn a_hundred_thousand_nodes() {
    on_real_time(async {
        let nodes = size(2_000, 100_000);
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let hosts: Vec<String> =
            (0..nodes / 100).map(|host| format!("name: fake-{host}, labels: [a], max-parallel-jobs: 100")).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let mut process = InProcessDaemon::new(&yaml("lab", &hosts, ""));
        let mut measured = Stopwatch::start(&format!("{nodes} nodes"));
        process.run(&zookeeper);
        wait::until("the nodes", scale_parameters::SCALE_TIMEOUT, async || consumer.count(paths::NODES).await == nodes)
            .await;
        measured.lap("registered");
        let id = consumer.submit_labels(&["a"]).await;
        assert_eq!(wait_for_end(&consumer, &id).await.state, RequestState::Fulfilled);
        measured.lap("one request is served");
        let many = consumer.submit_labels(&vec!["a"; 1_000]).await;
        let served = wait_for_end(&consumer, &many).await;
        assert_eq!((served.state, served.nodes.len()), (RequestState::Fulfilled, 1_000));
        measured.lap("one for a thousand of them is served");
        let snapshot = process.shared.snapshot_feed.latest().unwrap();
        let rows = nodepool_model::report::status::nodes(&snapshot, None, nodepool::actors::runtime::clock::now());
        assert_eq!(rows.len(), nodes);
        let bytes = list::python_json(nodepool_model::report::status::NODE_COLUMNS, &rows).len();
        measured.lap(&format!("listed, {} MB", bytes / 1_000_000));
        consumer.zk.delete(&paths::request(&many), -1).await.unwrap();
        let last = served.nodes.last().unwrap();
        wait::until("a node to be free", scale_parameters::SCALE_TIMEOUT, async || {
            consumer.node(last).await.unwrap().is_idle()
        })
        .await;
        measured.lap("all are given back");
    });
}

#[test]
fn one_request_for_thousands_of_launched_nodes() {
    on_real_time(async {
        // Both are more than one transaction takes.
        let nodes = size(800, 5_000);
        let directory = tempfile::tempdir().unwrap();
        let server = embedded_zk::start(directory.path()).await;
        // All of them are on one thread here, the clients' pings too.
        let patient = ConnectOptions {
            session_timeout: scale_parameters::SCALE_TIMEOUT,
            ..embedded_zk::client(server.address().port())
        };
        let consumer = Consumer { zk: connect(patient.clone()).await.unwrap() };
        lock::make_path(&consumer.zk, paths::REQUESTS).await.unwrap();
        let mut process = InProcessDaemon::new(
            "zookeeper-servers: [{host: localhost}]\nlabels: [{name: a}]\nproviders:\n  - name: lab\n    driver: fake\n    cloud: \
             fake\n    rate: 0\n    fake: {max-cores: 1000000, max-instances: 1000000, max-ram: 1000000000}\n    cloud-images: \
             [{name: image, image-name: Fake Precise}]\n    pools: [{name: main, labels: [{name: a, cloud-image: image, \
             flavor-name: Fake Flavor}]}]\n",
        );
        process.run_on(connect(patient).await.unwrap());
        let mut measured = Stopwatch::start(&format!("one request for {nodes} nodes that are launched"));
        let id = consumer.submit_labels(&vec!["a"; nodes]).await;
        let served = wait_for_end(&consumer, &id).await;
        assert_eq!((served.state, served.nodes.len()), (RequestState::Fulfilled, nodes));
        let distinct: BTreeSet<_> = served.nodes.iter().collect();
        assert_eq!(distinct.len(), nodes, "no node twice");
        measured.lap("served");
        assert_eq!(consumer.count(paths::NODES).await, nodes, "and none is left over");
        for node in [served.nodes.first(), served.nodes.last()] {
            let node = consumer.node(node.unwrap()).await.unwrap();
            assert_eq!((node.state, node.allocated_to.as_ref()), (NodeState::Ready, Some(&id)));
        }
        server.stop().await;
    });
}

async fn wait_for_end(consumer: &Consumer, id: &RequestId) -> nodepool_model::records::request::NodeRequest {
    let state = async || consumer.request(id).await.expect("the request is there").state;
    let ended = async || matches!(state().await, RequestState::Fulfilled | RequestState::Failed);
    wait::until("the end of a request", scale_parameters::SCALE_TIMEOUT, ended).await;
    consumer.request(id).await.unwrap()
}

#[test]
fn ten_thousand_waiting_requests() {
    on_real_time(async {
        let requests = size(500, 10_000);
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let mut process = InProcessDaemon::new(&yaml("lab", &["name: fake-h1, labels: [a]"], ""));
        process.run(&zookeeper);
        wait::until("a node", scale_parameters::SCALE_TIMEOUT, async || consumer.count(paths::NODES).await == 1).await;
        let mut measured = Stopwatch::start(&format!("{requests} requests for one node"));
        let mut waiting = Vec::new();
        for _ in 0..requests {
            waiting.push(consumer.submit_labels(&["a"]).await);
        }
        measured.lap("asked");
        let unserved = consumer.submit_labels(&["nobody-has-this"]).await;
        assert_eq!(wait_for_end(&consumer, &unserved).await.state, RequestState::Failed);
        measured.lap("one that nobody can serve is declined");
        for id in &waiting[..20] {
            assert_eq!(wait_for_end(&consumer, id).await.state, RequestState::Fulfilled);
            let nodes = consumer.accept(id).await;
            consumer.use_and_release(nodes).await;
        }
        measured.lap("twenty are served, one after the other and in their order");
        for id in &waiting[20..] {
            assert!(consumer.request(id).await.unwrap().nodes.len() <= 1);
            consumer.zk.delete(&paths::request(id), -1).await.unwrap();
        }
        let last = consumer.submit_labels(&["a"]).await;
        assert_eq!(wait_for_end(&consumer, &last).await.state, RequestState::Fulfilled);
        measured.lap("all others are taken back, and the next is served");
    });
}

#[test]
fn five_hundred_pools() {
    on_real_time(async {
        let pools = size(25, 500);
        let labels: String = (0..pools).map(|pool| format!("  - name: l{pool}\n")).collect();
        let provider = |pool: usize| {
            format!(
                "  - {{name: p{pool}, driver: static, pools: [{{name: main, nodes: [{{name: fake-h{pool}, labels: [l{pool}, all], \
                 host-key-checking: false}}]}}]}}\n"
            )
        };
        let providers: String = (0..pools).map(provider).collect();
        let text = format!(
            "zookeeper-servers: [{{host: localhost}}]\nlabels:\n  - name: all\n{labels}providers:\n{providers}"
        );
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let mut measured = Stopwatch::start(&format!("{pools} pools"));
        let mut process = InProcessDaemon::new(&text);
        process.run(&zookeeper);
        wait::until("the nodes", scale_parameters::SCALE_TIMEOUT, async || consumer.count(paths::NODES).await == pools)
            .await;
        measured.lap("registered");
        let before = zookeeper.last_zxid();
        let unserved = consumer.submit_labels(&["nobody-has-this"]).await;
        let declined = wait_for_end(&consumer, &unserved).await;
        let transactions = zookeeper.last_zxid() - before;
        assert!(transactions < pools as i64, "{transactions} transactions of {pools} pools");
        assert_eq!((declined.state, declined.declined_by.len()), (RequestState::Failed, pools));
        measured.lap(&format!("one request is declined by all, in {transactions} transactions"));
        let before = zookeeper.last_zxid();
        let mut asked = Vec::new();
        for pool in 0..pools {
            asked.push(consumer.submit_labels(&[if pool % 2 == 0 { "all" } else { "l1" }]).await);
        }
        for id in asked.iter().step_by(2) {
            assert_eq!(wait_for_end(&consumer, id).await.state, RequestState::Fulfilled);
        }
        let given: BTreeSet<_> = {
            let mut given = Vec::new();
            for id in asked.iter().step_by(2) {
                given.extend(consumer.request(id).await.unwrap().nodes);
            }
            assert_eq!(given.len(), pools.div_ceil(2));
            given.into_iter().collect()
        };
        assert_eq!(given.len(), pools.div_ceil(2), "no node twice");
        let transactions = zookeeper.last_zxid() - before;
        // One that asks for each request, one that serves every other one; pools that race would need hundreds of times as many.
        assert!(transactions < 3 * pools as i64, "{transactions} transactions of {pools} pools");
        measured.lap(&format!("requests that any of them may serve are served, in {transactions} transactions"));
    });
}

#[test]
fn ten_thousand_images() {
    on_real_time(async {
        let images = size(500, 10_000);
        let zk: Zk = zookeeper().connect();
        let now = nodepool::actors::runtime::clock::now().0;
        for container in [paths::NODES, paths::IMAGES] {
            lock::make_path(&zk, container).await.unwrap();
        }
        let record = move |image: usize| {
            let build = format!("{}/i{image}/builds/0000000000", paths::IMAGES);
            let uploads = format!("{build}/providers/p/images");
            let state = json!({"state": "ready", "state_time": now, "formats": "qcow2", "builder_id": "b",
                "external_id": format!("e{image}"), "external_name": format!("i{image}-1"), "format": "qcow2"});
            let parents = [format!("{}/i{image}", paths::IMAGES), format!("{}/i{image}/builds", paths::IMAGES)];
            let deeper = [format!("{build}/providers"), format!("{build}/providers/p"), uploads.clone()];
            let empty = |path: String| (path, String::new());
            let records = [(format!("{uploads}/0000000000"), state.to_string())];
            parents
                .into_iter()
                .map(empty)
                .chain([(build, state.to_string())])
                .chain(deeper.into_iter().map(empty))
                .chain(records)
        };
        write_all(&zk, (0..images).flat_map(record)).await;
        let mut measured = Stopwatch::start(&format!("{images} images"));
        let mirror = Mirror::start(zk, &tokio::runtime::Handle::current()).await.unwrap();
        let snapshot = mirror.snapshot();
        measured.lap("read");
        let diskimages: String =
            (0..images).map(|image| format!("  - {{name: i{image}, formats: [qcow2]}}\n")).collect();
        let uploaded: String = (0..images).map(|image| format!("      - {{name: i{image}}}\n")).collect();
        let text = format!(
            "zookeeper-servers: [{{host: localhost}}]\nlabels: [{{name: a}}]\ndiskimages:\n{diskimages}providers:\n  - name: p\n    driver: fake\n    \
             diskimages:\n{uploaded}    pools: [{{name: main, max-servers: 1, labels: [{{name: a, diskimage: i0, min-ram: 1}}]}}]\n"
        );
        let files = ConfigFileSource::InMemory(Arc::new(std::sync::Mutex::new([("np.yaml".into(), text)].into())));
        let loaded = load(&files, Path::new("np.yaml"), None, BUILT_IN_DRIVERS).await.unwrap();
        assert_eq!(loaded.config.diskimages.len(), images);
        measured.lap("their configuration is loaded");
        let inputs = Inputs {
            config: &loaded.config,
            snapshot: &snapshot,
            facts: &Default::default(),
            now: nodepool::actors::runtime::clock::now(),
            monotonic_now: nodepool::actors::runtime::clock::monotonic_now(),
        };
        assert_eq!(build_schedule::due(&inputs).len(), 0, "all of them are there");
        assert_eq!(
            retention::due(&inputs, retention::RetentionScope::All, &Default::default()).len(),
            0,
            "and none too many"
        );
        measured.lap("decided on");
        let rows = image_status::uploads(&snapshot.images, AgeFormat::EpochSeconds);
        assert_eq!(rows.len(), images);
        let bytes = list::python_json(image_status::UPLOAD_COLUMNS, &rows).len();
        measured.lap(&format!("listed, {} MB", bytes / 1_000_000));
    });
}

/// A record of so many bytes in all.
fn padded(mut record: serde_json::Value, key: &str, bytes: usize) -> Bytes {
    record[key] = json!("");
    let left = bytes - record.to_string().len();
    record[key] = json!("x".repeat(left));
    Bytes::from(record.to_string())
}

/// What ZooKeeper takes of one znode.
const MAX_RECORD_BYTES: usize = 1 << 20;
/// What the coordinator takes of one packet, which has a path and rights besides; as much as Apache's by default.
const MAX_PACKET_BYTES: usize = 0xf_ffff - 100;

#[test]
fn records_as_large_as_a_znode() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        check_oversized_records(MAX_RECORD_BYTES, [zookeeper.connect(), zookeeper.connect()]).await;
    });
}

#[test]
fn records_as_large_as_a_packet_to_the_coordinator() {
    on_real_time(async {
        let directory = tempfile::tempdir().unwrap();
        let server = embedded_zk::start(directory.path()).await;
        let session = async || connect(embedded_zk::client(server.address().port())).await.unwrap();
        check_oversized_records(MAX_PACKET_BYTES, [session().await, session().await]).await;
        server.stop().await;
    });
}

/// What becomes of records of so many bytes, in a session for who writes them and one for a launcher.
async fn check_oversized_records(most: usize, [writer, launcher]: [Zk; 2]) {
    let consumer = Consumer { zk: writer };
    lock::make_path(&consumer.zk, paths::REQUESTS).await.unwrap();
    let mut process =
        InProcessDaemon::new(&yaml("lab", &["name: fake-h1, labels: [a]", "name: fake-h2, labels: [b]"], ""));
    let running = process.run_on(launcher);
    until("the nodes", async || consumer.ready_nodes().await == 2).await;
    // Each of them grows beyond what ZooKeeper takes by whatever a launcher writes into it.
    let request = |label: &str| json!({"state": "requested", "node_types": [label], "requestor": "zuul"});
    let mut stuck = Vec::new();
    for label in ["a", "b", "nobody-has-this"] {
        let data = padded(request(label), "requestor_data", most);
        let (path, _) =
            consumer.zk.create(&paths::request_prefix("100"), data, CreateMode::PersistentSequential).await.unwrap();
        stuck.push(RequestId::from(paths::name(&path)));
    }
    // One of a kind that fits is served all the same.
    let nodes = consumer.nodes().await;
    let (id, node) = nodes.iter().find(|(_, node)| node.labels == ["b".into()]).unwrap();
    let fits = padded(serde_json::to_value(node).unwrap(), "user_data", most - 10_000);
    consumer.zk.set(&paths::node(id), fits, -1).await.unwrap();
    for label in ["a", "b"] {
        let small = consumer.submit_labels(&[label]).await;
        assert_eq!(consumer.wait_for_end(&small).await.state, RequestState::Fulfilled, "{label}");
        let held = consumer.accept(&small).await;
        consumer.use_and_release(held).await;
    }
    until("the nodes to be registered anew", async || consumer.ready_nodes().await == 2).await;
    for id in stuck {
        let left = consumer.request(&id).await.expect("it is there");
        assert!(matches!(left.state, RequestState::Requested | RequestState::Pending), "{:?}", left.state);
    }
    // A node that has not a byte left is cleared away as any other.
    let (id, mut node) = consumer.nodes().await.into_iter().next().unwrap();
    node.state = NodeState::Used;
    let full = padded(serde_json::to_value(&node).unwrap(), "user_data", most);
    consumer.zk.set(&paths::node(&id), full, -1).await.unwrap();
    until("it to be gone", async || consumer.node(&id).await.is_none()).await;
    assert!(!running.is_finished(), "the session goes on");
}
