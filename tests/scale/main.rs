//! Scale tests: very many nodes, waiting requests, pools and images, and records as large as a znode. Launcher and
//! ZooKeeper run in the test's process.
//!
//! Sizes are small by default; NODEPOOL_LIMITS=full uses the sizes of doc/reliability.md. To measure memory, run one
//! test alone:
//! `NODEPOOL_LIMITS=full cargo test --release --test scale -- --exact --nocapture a_hundred_thousand_nodes`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
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
use serde_json::json;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, on_real_time, until, yaml, zookeeper};
use testkit::scale_parameters::{Stopwatch, size};
use testkit::wait;
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
        let mut stopwatch = Stopwatch::start(&format!("{nodes} nodes"));
        process.run(&zookeeper);
        wait::until("the nodes to be registered", testkit::scale_parameters::SCALE_TIMEOUT, async || {
            consumer.count(paths::NODES).await == nodes
        })
        .await;
        stopwatch.lap("registered");
        let id = consumer.submit_labels(&["a"]).await;
        assert_eq!(wait_for_end(&consumer, &id).await.state, RequestState::Fulfilled);
        stopwatch.lap("one request is served");
        let many = consumer.submit_labels(&vec!["a"; 1_000]).await;
        let served = wait_for_end(&consumer, &many).await;
        assert_eq!((served.state, served.nodes.len()), (RequestState::Fulfilled, 1_000));
        stopwatch.lap("one request for 1,000 nodes is served");
        let snapshot = process.shared.snapshot_feed.latest().unwrap();
        let rows = nodepool_model::report::status::nodes(&snapshot, None, nodepool::actors::runtime::clock::now());
        assert_eq!(rows.len(), nodes);
        let bytes = list::python_json(nodepool_model::report::status::NODE_COLUMNS, &rows).len();
        stopwatch.lap(&format!("listed, {} MB", bytes / 1_000_000));
        consumer.zk.delete(&paths::request(&many), -1).await.unwrap();
        let last = served.nodes.last().unwrap();
        wait::until("a node to be free", testkit::scale_parameters::SCALE_TIMEOUT, async || {
            consumer.node(last).await.unwrap().is_idle()
        })
        .await;
        stopwatch.lap("all are released");
    });
}

#[test]
fn one_request_for_thousands_of_launched_nodes() {
    on_real_time(async {
        // Both sizes exceed one transaction.
        let nodes = size(800, 5_000);
        let directory = tempfile::tempdir().unwrap();
        let server = testkit::embedded_zk::start(directory.path()).await;
        // Everything runs on one thread, including the clients' pings.
        let patient = ConnectOptions {
            session_timeout: testkit::scale_parameters::SCALE_TIMEOUT,
            ..testkit::embedded_zk::client(server.address().port())
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
        let mut stopwatch = Stopwatch::start(&format!("one request for {nodes} nodes that are launched"));
        let id = consumer.submit_labels(&vec!["a"; nodes]).await;
        let served = wait_for_end(&consumer, &id).await;
        assert_eq!((served.state, served.nodes.len()), (RequestState::Fulfilled, nodes));
        let distinct: BTreeSet<_> = served.nodes.iter().collect();
        assert_eq!(distinct.len(), nodes, "no node twice");
        stopwatch.lap("served");
        assert_eq!(consumer.count(paths::NODES).await, nodes, "no other node exists");
        for node in [served.nodes.first(), served.nodes.last()] {
            let node = consumer.node(node.unwrap()).await.unwrap();
            assert_eq!((node.state, node.allocated_to.as_ref()), (NodeState::Ready, Some(&id)));
        }
        server.stop().await;
    });
}

async fn wait_for_end(consumer: &Consumer, id: &RequestId) -> nodepool_model::records::request::NodeRequest {
    let state = async || consumer.request(id).await.expect("the request exists").state;
    let ended = async || matches!(state().await, RequestState::Fulfilled | RequestState::Failed);
    wait::until("the end of a request", testkit::scale_parameters::SCALE_TIMEOUT, ended).await;
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
        wait::until("a node to be registered", testkit::scale_parameters::SCALE_TIMEOUT, async || {
            consumer.count(paths::NODES).await == 1
        })
        .await;
        let mut stopwatch = Stopwatch::start(&format!("{requests} requests for one node"));
        let mut waiting = Vec::new();
        for _ in 0..requests {
            waiting.push(consumer.submit_labels(&["a"]).await);
        }
        stopwatch.lap("submitted");
        let unserved = consumer.submit_labels(&["unserved"]).await;
        assert_eq!(wait_for_end(&consumer, &unserved).await.state, RequestState::Failed);
        stopwatch.lap("an unserved one fails");
        for id in &waiting[..20] {
            assert_eq!(wait_for_end(&consumer, id).await.state, RequestState::Fulfilled);
            let nodes = consumer.accept(id).await;
            consumer.use_and_release(nodes).await;
        }
        stopwatch.lap("twenty are served, one after the other and in their order");
        for id in &waiting[20..] {
            assert!(consumer.request(id).await.unwrap().nodes.len() <= 1);
            consumer.zk.delete(&paths::request(id), -1).await.unwrap();
        }
        let last = consumer.submit_labels(&["a"]).await;
        assert_eq!(wait_for_end(&consumer, &last).await.state, RequestState::Fulfilled);
        stopwatch.lap("all others are cancelled, and the next is served");
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
        let mut stopwatch = Stopwatch::start(&format!("{pools} pools"));
        let mut process = InProcessDaemon::new(&text);
        process.run(&zookeeper);
        wait::until("the nodes to be registered", testkit::scale_parameters::SCALE_TIMEOUT, async || {
            consumer.count(paths::NODES).await == pools
        })
        .await;
        stopwatch.lap("registered");
        let before = zookeeper.last_zxid();
        let unserved = consumer.submit_labels(&["unserved"]).await;
        let declined = wait_for_end(&consumer, &unserved).await;
        let transactions = zookeeper.last_zxid() - before;
        assert!(transactions < pools as i64, "{transactions} transactions of {pools} pools");
        assert_eq!((declined.state, declined.declined_by.len()), (RequestState::Failed, pools));
        stopwatch.lap(&format!("one request is declined by all, in {transactions} transactions"));
        let before = zookeeper.last_zxid();
        let mut submitted = Vec::new();
        for pool in 0..pools {
            submitted.push(consumer.submit_labels(&[if pool % 2 == 0 { "all" } else { "l1" }]).await);
        }
        for id in submitted.iter().step_by(2) {
            assert_eq!(wait_for_end(&consumer, id).await.state, RequestState::Fulfilled);
        }
        let assigned: BTreeSet<_> = {
            let mut assigned = Vec::new();
            for id in submitted.iter().step_by(2) {
                assigned.extend(consumer.request(id).await.unwrap().nodes);
            }
            assert_eq!(assigned.len(), pools.div_ceil(2));
            assigned.into_iter().collect()
        };
        assert_eq!(assigned.len(), pools.div_ceil(2), "no node twice");
        let transactions = zookeeper.last_zxid() - before;
        // One transaction submits each request, and one serves every other request. Racing pools would need hundreds of
        // times as many.
        assert!(transactions < 3 * pools as i64, "{transactions} transactions of {pools} pools");
        stopwatch.lap(&format!("requests that any of them may serve are served, in {transactions} transactions"));
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
        let mut stopwatch = Stopwatch::start(&format!("{images} images"));
        let mirror = Mirror::start(zk, &tokio::runtime::Handle::current()).await.unwrap();
        let snapshot = mirror.snapshot();
        stopwatch.lap("read");
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
        stopwatch.lap("their configuration is loaded");
        let inputs = Inputs {
            config: &loaded.config,
            snapshot: &snapshot,
            facts: &Default::default(),
            now: nodepool::actors::runtime::clock::now(),
            monotonic_now: nodepool::actors::runtime::clock::monotonic_now(),
        };
        assert_eq!(build_schedule::due(&inputs).len(), 0, "all images are built");
        assert_eq!(
            retention::due(&inputs, retention::RetentionScope::All, &Default::default()).len(),
            0,
            "no image exceeds the retention limit"
        );
        stopwatch.lap("decided on");
        let rows = image_status::uploads(&snapshot.images, AgeFormat::EpochSeconds);
        assert_eq!(rows.len(), images);
        let bytes = list::python_json(image_status::UPLOAD_COLUMNS, &rows).len();
        stopwatch.lap(&format!("listed, {} MB", bytes / 1_000_000));
    });
}

/// Pads a key so that the record has this size.
fn padded(mut record: serde_json::Value, key: &str, bytes: usize) -> Bytes {
    record[key] = json!("");
    let left = bytes - record.to_string().len();
    record[key] = json!("x".repeat(left));
    Bytes::from(record.to_string())
}

/// Maximum size of a znode.
const MAX_RECORD_BYTES: usize = 1 << 20;
/// Maximum size of a packet to the coordinator, minus path and ACL. Apache ZooKeeper has the same maximum by default.
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
        let server = testkit::embedded_zk::start(directory.path()).await;
        let session = async || connect(testkit::embedded_zk::client(server.address().port())).await.unwrap();
        check_oversized_records(MAX_PACKET_BYTES, [session().await, session().await]).await;
        server.stop().await;
    });
}

/// Checks records of this size, with one session for the writer and one for the launcher.
async fn check_oversized_records(most: usize, [writer, launcher]: [Zk; 2]) {
    let consumer = Consumer { zk: writer };
    lock::make_path(&consumer.zk, paths::REQUESTS).await.unwrap();
    let mut process =
        InProcessDaemon::new(&yaml("lab", &["name: fake-h1, labels: [a]", "name: fake-h2, labels: [b]"], ""));
    let running = process.run_on(launcher);
    until("the nodes to be registered", async || consumer.ready_nodes().await == 2).await;
    // Any write of a launcher would make these records exceed the limit.
    let request = |label: &str| json!({"state": "requested", "node_types": [label], "requestor": "zuul"});
    let mut stuck = Vec::new();
    for label in ["a", "b", "unserved"] {
        let data = padded(request(label), "requestor_data", most);
        let (path, _) =
            consumer.zk.create(&paths::request_prefix("100"), data, CreateMode::PersistentSequential).await.unwrap();
        stuck.push(RequestId::from(paths::name(&path)));
    }
    // Requests that fit are served all the same.
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
    until("the nodes to be registered again", async || consumer.ready_nodes().await == 2).await;
    for id in stuck {
        let request = consumer.request(&id).await.expect("a stuck request is not deleted");
        assert!(matches!(request.state, RequestState::Requested | RequestState::Pending), "{:?}", request.state);
    }
    // A node whose record has no byte left is deleted like any other.
    let (id, mut node) = consumer.nodes().await.into_iter().next().unwrap();
    node.state = NodeState::Used;
    let full = padded(serde_json::to_value(&node).unwrap(), "user_data", most);
    consumer.zk.set(&paths::node(&id), full, -1).await.unwrap();
    until("the full node to be deleted", async || consumer.node(&id).await.is_none()).await;
    assert!(!running.is_finished(), "the session continues");
}
