//! Mixed fleet: our launcher runs beside a Nodepool 11 launcher and serves Zuul's own classes. Nodepool 11 and Zuul
//! read its records.
//!
//! The tests run real processes on a real ZooKeeper. NODEPOOL_SEED repeats the random draws of the workload.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{LabelName, RequestId};
use nodepool_model::records::json as records;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_policy::scheduler::min_ready;
use nodepool_zk::locks::lock;
use nodepool_zk::{Zk, paths};
use serde_json::{Value, json};
use testkit::real::{
    self,
    nodepool_process::NodepoolProcess,
    nodepool11,
    python::{self, Interpreter, Script},
    tls,
    zookeeper::{Options, Server},
};
use testkit::wait;
use testkit::workload::consistency_checker::{ConsistencyChecker, LauncherSetup};
use testkit::workload::harness::{self, Host, WorkloadHarness};
use testkit::workload::state_poller::StatePoller;
use testkit::workload::{Workload, WorkloadSpec};
use tokio::sync::OnceCell;
use zookeeper_server::types::{CreateMode, ZkError};

/// Timeout for Python programs, which start slowly, more so on a busy machine, and poll most state once a second.
const FLEET_TIMEOUT: Duration = Duration::from_secs(120);
/// Shorter than the ten seconds between periodic runs of our launcher, so that a change within it is due to an event.
const SHORT_TIMEOUT: Duration = Duration::from_secs(5);

async fn server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_init(|| Server::start(Options::tls())).await
}

/// A chroot of its own on the shared server, with the harness of our launcher and the address for Python clients.
struct NodeFleetHarness {
    harness: WorkloadHarness,
    /// `host:port/chroot` with TLS.
    secure: String,
}

impl NodeFleetHarness {
    async fn new(hosts: &'static [Host]) -> NodeFleetHarness {
        let server = server().await;
        let secure = server.chroot("peers").await;
        let (_, chroot) = secure.split_once('/').expect("a chroot begins with a slash");
        let harness = WorkloadHarness {
            addresses: server.plain_address(),
            chroot: format!("/{chroot}"),
            provider: "ours",
            hosts,
            session: Duration::from_secs(10),
            padding: 0,
        };
        NodeFleetHarness { harness, secure }
    }

    /// The head of a configuration for the Python programs.
    async fn section(&self) -> String {
        let chroot = format!("    chroot: {}\nzookeeper-tls:", self.harness.chroot);
        nodepool11::zookeeper_section(server().await).replacen("zookeeper-tls:", &chroot, 1)
    }

    fn script(&self, interpreter: Interpreter, script: &str) -> Script {
        let paths = ["client.pem", "client.key", "ca.pem"].map(|name| tls::file(name).to_string_lossy().into_owned());
        python::spawn(interpreter, script, &[&self.secure, &paths[0], &paths[1], &paths[2]])
    }
}

// --- a Python launcher beside ours ---

const OURS_AND_THEIRS: &[Host] = &[
    Host { name: "fake-a1", label: "a", slots: 3 },
    Host { name: "127.0.1.1", label: "a", slots: 1 },
    Host { name: "127.0.1.2", label: "a", slots: 1 },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_fleet_splits_the_requests() {
    if real::skipped() {
        return;
    }
    let harness = NodeFleetHarness::new(OURS_AND_THEIRS).await;
    let ours = WorkloadHarness { hosts: &OURS_AND_THEIRS[..1], ..harness.harness.clone() }.launcher();
    let sections = nodepool11::static_sections("theirs", "a", &["127.0.1.1", "127.0.1.2"]);
    let mut python = nodepool11::launcher(&(harness.section().await + &sections));
    let zk = harness.harness.connect().await;
    harness.harness.wait_until_nodes_settled(&zk, FLEET_TIMEOUT).await;

    // The Python launcher polls once a second, and takes several seconds to register a used host again.
    let checker = Arc::new(ConsistencyChecker::new(
        Duration::from_secs(60),
        &harness.harness.slots(),
        LauncherSetup::OnePerProvider,
    ));
    let label_lists = vec![vec!["a"], vec!["a"], vec!["a", "a"]];
    let workload_spec =
        WorkloadSpec { label_lists, unserved_label: Some("z"), consumers: 6, max_use: Duration::from_millis(400) };
    let workload = Workload::start(&zk, &checker, workload_spec, harness::seed()).await;
    let poller = StatePoller::start(&harness.harness.connect().await, &checker);
    wait::until("both launchers to serve requests", FLEET_TIMEOUT, async || {
        harness::assert_no_violations(&checker, &[&ours, &python]);
        checker.served_by("ours") >= 20 && checker.served_by("theirs") >= 4
    })
    .await;
    workload.stop().await;
    drop(poller);
    harness::assert_no_violations(&checker, &[&ours, &python]);
    harness.harness.wait_until_nodes_settled(&zk, FLEET_TIMEOUT).await;

    both_have_to_decline(&zk, &ours, &python).await;
    // The Python launcher leaves lock contenders of deleted requests behind; they are deleted with its session.
    python.kill();
    harness.harness.wait_until_settled(&zk, 1, FLEET_TIMEOUT).await;
    eprintln!("ours assigned {} nodes, theirs {}", checker.served_by("ours"), checker.served_by("theirs"));
}

async fn both_have_to_decline(zk: &Zk, ours: &NodepoolProcess, python: &NodepoolProcess) {
    let id = submit(zk, "z").await;
    let request = ended(zk, &id, FLEET_TIMEOUT).await;
    assert_eq!(request.state, RequestState::Failed, "{}\n{}", ours.log(), python.log());
    let declined = |provider: &str| request.declined_by.iter().any(|launcher| launcher.as_str().contains(provider));
    assert!(request.declined_by.len() == 2 && declined("ours-main") && declined("theirs-main"), "{request:?}");
    zk.delete(&paths::request(&id), -1).await.unwrap();
}

async fn submit(zk: &Zk, label: &str) -> RequestId {
    let request = NodeRequest::new(vec![label.into()], "tester", clock::now());
    let data = Bytes::from(records::to_bytes(&request));
    let (path, _) = zk.create(&paths::request_prefix("200"), data, CreateMode::PersistentSequential).await.unwrap();
    RequestId::from(paths::name(&path))
}

async fn read(zk: &Zk, id: &RequestId) -> NodeRequest {
    records::from_bytes(&zk.get(&paths::request(id)).await.unwrap().0).unwrap()
}

async fn ended(zk: &Zk, id: &RequestId, within: Duration) -> NodeRequest {
    wait::until_some(&format!("the end of {id}"), within, async || {
        let request = read(zk, id).await;
        matches!(request.state, RequestState::Fulfilled | RequestState::Failed).then_some(request)
    })
    .await
}

// --- kazoo's locks on requests ---

#[tokio::test]
async fn a_request_locked_by_kazoo_waits_and_others_do_not() {
    if real::skipped() {
        return;
    }
    let harness = NodeFleetHarness::new(&[Host { name: "fake-a1", label: "a", slots: 2 }]).await;
    let zk = harness.harness.connect().await;
    let mut kazoo = harness.script(Interpreter::Reference, "kazoo_lock.py");
    for container in ["/nodepool/requests", "/nodepool/requests-lock"] {
        lock::make_path(&zk, container).await.unwrap();
    }
    let locked = submit(&zk, "a").await;
    let directory = paths::request_lock(&locked);
    assert_eq!(kazoo.call(json!({"do": "acquire", "path": directory})).await, true);
    let _launcher = harness.harness.launcher();
    let other = submit(&zk, "a").await;
    assert_eq!(ended(&zk, &other, FLEET_TIMEOUT).await.state, RequestState::Fulfilled);
    // The launcher has reconciled both requests, and a second node is idle.
    assert_eq!(read(&zk, &locked).await.state, RequestState::Requested);
    kazoo.call(json!({"do": "release", "path": directory})).await;
    assert_eq!(ended(&zk, &locked, SHORT_TIMEOUT).await.state, RequestState::Fulfilled);

    // Again and again, kazoo takes the lock shortly before or after the launcher's scheduling pass. The launcher writes
    // nothing while kazoo holds the lock.
    zk.delete(&paths::request(&locked), -1).await.unwrap();
    for _ in 0..20 {
        let id = submit(&zk, "a").await;
        let directory = paths::request_lock(&id);
        if kazoo.call(json!({"do": "acquire", "path": directory, "blocking": false})).await == true {
            let (before, _) = zk.get(&paths::request(&id)).await.unwrap();
            let contenders = kazoo.call(json!({"do": "contenders", "path": directory})).await;
            let (after, _) = zk.get(&paths::request(&id)).await.unwrap();
            assert_eq!(before, after, "the request was written while kazoo held its lock: {contenders}");
            kazoo.call(json!({"do": "release", "path": directory})).await;
        }
        assert_eq!(ended(&zk, &id, SHORT_TIMEOUT).await.state, RequestState::Fulfilled);
        zk.delete(&paths::request(&id), -1).await.unwrap();
    }
}

// --- Zuul's own classes ---

const SMALL: &[Host] = &[Host { name: "fake-1", label: "a", slots: 1 }, Host { name: "fake-2", label: "a", slots: 1 }];

/// Waits until Zuul lists exactly nodes in these states.
async fn until_states(zuul: &mut Script, expected: &[&str], within: Duration) {
    wait::until(&format!("the nodes to be {expected:?}"), within, async || {
        let listed = zuul.call(json!({"do": "list"})).await["nodes"].take();
        let mut found: Vec<&str> = listed.as_object().unwrap().values().map(|state| state.as_str().unwrap()).collect();
        found.sort_unstable();
        found == expected
    })
    .await;
}

/// Submits a request and waits until it is fulfilled.
async fn fulfilled(zuul: &mut Script, labels: &[&str]) -> Value {
    let request = zuul.call(json!({"do": "submit", "labels": labels})).await;
    assert_eq!(zuul.call(json!({"do": "wait", "request": request})).await, "fulfilled");
    request
}

async fn zuul_is_served(interpreter: Interpreter) {
    let harness = NodeFleetHarness::new(SMALL).await;
    let zk = harness.harness.connect().await;
    let mut zuul = harness.script(interpreter, "zuul_client.py");
    let _launcher = harness.harness.launcher();
    until_states(&mut zuul, &["ready", "ready"], FLEET_TIMEOUT).await;
    let launchers = zuul.call(json!({"do": "list"})).await["launchers"].take();
    assert_eq!(launchers[0]["labels"], json!(["a"]));

    // A request is fulfilled. Its node is locked, used and released, and the host is registered again.
    let request = fulfilled(&mut zuul, &["a"]).await;
    let nodes = zuul.call(json!({"do": "accept", "request": request})).await;
    assert_eq!((nodes.as_array().unwrap().len(), &nodes[0]["state"]), (1, &json!("ready")));
    assert_eq!((&nodes[0]["allocated_to"], &nodes[0]["tenant_name"]), (&request, &json!("tenant")));
    zuul.call(json!({"do": "use", "request": request})).await;
    until_states(&mut zuul, &["in-use", "ready"], SHORT_TIMEOUT).await;
    zuul.call(json!({"do": "give_back", "request": request})).await;
    until_states(&mut zuul, &["ready", "ready"], SHORT_TIMEOUT).await;
    assert_eq!(zuul.call(json!({"do": "node", "node": nodes[0]["id"]})).await, Value::Null);

    // A request is accepted, but the build is cancelled: the same node is idle again.
    let request = fulfilled(&mut zuul, &["a"]).await;
    let nodes = zuul.call(json!({"do": "accept", "request": request})).await;
    zuul.call(json!({"do": "unlock", "request": request})).await;
    wait::until("the node to be free", SHORT_TIMEOUT, async || {
        zuul.try_call(&json!({"do": "node", "node": nodes[0]["id"]})).await.unwrap()["allocated_to"] == Value::Null
    })
    .await;
    // A request is fulfilled, but cancelled before it is accepted.
    let request = fulfilled(&mut zuul, &["a", "a"]).await;
    zuul.call(json!({"do": "cancel", "request": request})).await;
    wait_revise_and_hold(&mut zuul, &zk).await;
}

/// Both hosts are busy, then held: a request waits, is revised meanwhile, and gets the first node that becomes idle.
async fn wait_revise_and_hold(zuul: &mut Script, zk: &Zk) {
    let pair = fulfilled(zuul, &["a", "a"]).await;
    assert_eq!(zuul.call(json!({"do": "accept", "request": pair})).await.as_array().unwrap().len(), 2);
    zuul.call(json!({"do": "use", "request": pair})).await;
    let waiting = zuul.call(json!({"do": "submit", "labels": ["a"], "relative_priority": 3})).await;
    let id = RequestId::from(waiting.as_str().unwrap());
    let (stale, stat) = zk.get(&paths::request(&id)).await.unwrap();
    let unserved = zuul.call(json!({"do": "submit", "labels": ["absent"]})).await;
    assert_eq!(zuul.call(json!({"do": "wait", "request": unserved})).await, "failed");
    // A waiting request is not locked, so Zuul can revise it.
    assert_eq!(zuul.call(json!({"do": "revise", "request": waiting, "relative_priority": 1})).await, 1);
    // A revision with an old version fails.
    let rejected = zk.set(&paths::request(&id), stale, stat.version).await;
    assert_eq!(rejected, Err(ZkError::BadVersion));
    let hold = zuul.call(json!({"do": "hold", "request": pair})).await;
    until_states(zuul, &["hold", "hold"], SHORT_TIMEOUT).await;
    assert_eq!(zuul.call(json!({"do": "state", "request": waiting})).await, "requested");
    zuul.call(json!({"do": "end_hold", "hold": hold})).await;
    assert_eq!(zuul.call(json!({"do": "wait", "request": waiting})).await, "fulfilled");
    let record = zuul.call(json!({"do": "request", "request": waiting})).await;
    assert_eq!((&record["relative_priority"], &record["node_types"]), (&json!(1), &json!(["a"])));
    zuul.call(json!({"do": "accept", "request": waiting})).await;
    zuul.call(json!({"do": "use", "request": waiting})).await;
    until_states(zuul, &["in-use", "ready"], SHORT_TIMEOUT).await;
}

#[tokio::test]
async fn zuul_10_is_served() {
    if !real::skipped() {
        zuul_is_served(Interpreter::Zuul10).await;
    }
}

#[tokio::test]
async fn zuul_13_is_served() {
    if !real::skipped() {
        zuul_is_served(Interpreter::Zuul13).await;
    }
}

// Zuul's executor is killed while its nodes are in use.
#[tokio::test]
async fn nodes_of_a_dead_zuul_are_released() {
    if real::skipped() {
        return;
    }
    let harness = NodeFleetHarness::new(SMALL).await;
    let zk = harness.harness.connect().await;
    let mut zuul = harness.script(Interpreter::Zuul13, "zuul_client.py");
    let _launcher = harness.harness.launcher();
    let request = fulfilled(&mut zuul, &["a", "a"]).await;
    zuul.call(json!({"do": "accept", "request": request})).await;
    zuul.call(json!({"do": "use", "request": request})).await;
    zuul.kill();
    harness.harness.wait_until_settled(&zk, 1, FLEET_TIMEOUT).await;
}

// --- our records, read by Python programs ---

#[tokio::test]
async fn python_reads_our_records_and_writes_the_same_bytes() {
    if real::skipped() {
        return;
    }
    let harness = NodeFleetHarness::new(SMALL).await;
    let zk = harness.harness.connect().await;
    let mut nodepool = harness.script(Interpreter::Reference, "records.py");
    let _launcher = harness.harness.launcher();
    harness.harness.wait_until_nodes_settled(&zk, FLEET_TIMEOUT).await;
    let (names, _) = zk.children("/nodepool/nodes").await.unwrap();
    for name in &names {
        let (data, _) = zk.get(&format!("/nodepool/nodes/{name}")).await.unwrap();
        is_the_same(&mut nodepool, "node", &data, 37).await;
    }
    let id = submit(&zk, "a").await;
    let request = ended(&zk, &id, FLEET_TIMEOUT).await;
    let (data, _) = zk.get(&paths::node(&request.nodes[0])).await.unwrap();
    is_the_same(&mut nodepool, "node", &data, 37).await;
    // Our min-ready requests are fulfilled too quickly to be read, so the function that creates them builds this one.
    let min_ready =
        min_ready::request(&LabelName::from("a"), "0123456789abcdef0123456789abcdef".to_owned(), clock::now());
    let fulfilled = zk.get(&paths::request(&id)).await.unwrap().0;
    let failed = submit(&zk, "z").await;
    ended(&zk, &failed, FLEET_TIMEOUT).await;
    let failed = zk.get(&paths::request(&failed)).await.unwrap().0;
    for data in [fulfilled, failed, records::to_bytes(&min_ready).into()] {
        is_the_same(&mut nodepool, "request", &data, 13).await;
        for interpreter in Interpreter::ZUUL {
            let mut zuul = python::spawn(interpreter, "records.py", &[]);
            let ours: Value = serde_json::from_slice(&data).unwrap();
            let read = zuul.call(json!({"do": "request", "text": text(&data)})).await;
            assert_eq!(read["labels"], ours["node_types"]);
            // Zuul writes an object for the missing requestor data.
            let record = read["record"].as_object().unwrap().iter().filter(|(key, _)| *key != "requestor_data");
            for (key, value) in record {
                assert_eq!(value, &ours[key], "{interpreter:?}: {key}");
            }
        }
    }
    our_pool_is_registered(&mut nodepool, &zk).await;
}

/// Asserts that Python reads every key and writes the same bytes.
async fn is_the_same(nodepool: &mut Script, kind: &str, data: &Bytes, keys: usize) {
    let read = nodepool.call(json!({"do": kind, "text": text(data)})).await;
    let ours: Value = serde_json::from_slice(data).unwrap();
    assert_eq!(ours.as_object().unwrap().len(), keys, "{ours}");
    assert_eq!(read["record"], ours);
    assert_eq!(read["written"], text(data));
}

fn text(data: &Bytes) -> String {
    String::from_utf8(data.to_vec()).unwrap()
}

/// Asserts that the Python registry lists our pool with all keys that it knows, and ignores the key `webapp`.
async fn our_pool_is_registered(nodepool: &mut Script, zk: &Zk) {
    let (names, _) = zk.children("/nodepool/components/pool").await.unwrap();
    let path = format!("/nodepool/components/pool/{}", names[0]);
    let (data, stat) = zk.get(&path).await.unwrap();
    let mut ours: Value = serde_json::from_slice(&data).unwrap();
    ours["webapp"] = json!("host.example.org:8005");
    zk.set(&path, Bytes::from(ours.to_string()), stat.version).await.unwrap();
    ours["priority"] = json!(7);
    zk.set(&path, Bytes::from(ours.to_string()), stat.version + 1).await.unwrap();
    let expected = json!([{
        "id": ours["id"], "name": "main", "provider": "ours", "labels": ["a"], "priority": 7, "paused": false,
        "state": "running", "hostname": ours["hostname"],
    }]);
    wait::until("Python to list our pool", FLEET_TIMEOUT, async || {
        nodepool.call(json!({"do": "pools"})).await == expected
    })
    .await;
}
