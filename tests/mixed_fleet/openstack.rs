//! Mixed fleet with OpenStack nodes: our launcher serves Zuul's own classes, and runs beside a Nodepool 11 launcher.
//!
//! The tests run real processes on a real ZooKeeper and the simulated OpenStack.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::NodeId;
use nodepool_model::records::request::RequestState;
use nodepool_zk::Zk;
use nodepool_zk::client::{ConnectOptions, connect};
use nodepool_zk::locks::lock;
use serde_json::{Value, json};
use testkit::in_process_launcher::Consumer;
use testkit::openstack_harness::TestCloud;
use testkit::real::{
    self,
    nodepool_process::NodepoolProcess,
    nodepool11,
    python::{self, Interpreter, Script},
    tls,
    zookeeper::{Options, Server},
};
use testkit::{programs, wait};
use tokio::time::timeout;

/// Timeout for Python programs, which start slowly, more so on a busy machine, and poll most state once a second.
const FLEET_TIMEOUT: Duration = Duration::from_secs(150);
/// Minimum number of served requests.
const REQUESTS: usize = 40;
/// Minimum number of requests that each launcher serves.
const EACH: usize = 5;

fn configuration(server: &Server, provider: &Value) -> String {
    let labels = json!([{"name": "a"}]);
    format!("{}labels: {labels}\nproviders: [{provider}]\n", nodepool11::zookeeper_section(server))
}

/// Our launcher as an operator starts it, with clouds.yaml named by the environment.
fn launcher(server: &Server, cloud: &TestCloud, provider: &Value) -> NodepoolProcess {
    let executable = programs::launcher();
    let environment = [("OS_CLIENT_CONFIG_FILE", cloud.clouds_yaml.as_path())];
    NodepoolProcess::start_in(&environment, executable, &configuration(server, provider), &["-d", "--no-webapp"])
}

async fn session(server: &Server) -> Zk {
    let (host, port) =
        server.plain_address().rsplit_once(':').map(|(host, port)| (host.to_owned(), port.parse().unwrap())).unwrap();
    connect(ConnectOptions::plain(&host, port)).await.unwrap()
}

async fn servers(cloud: &TestCloud) -> Value {
    cloud.simulation().state().await["servers"].take()
}

fn zuul(interpreter: Interpreter, server: &Server) -> Script {
    let paths = ["client.pem", "client.key", "ca.pem"].map(|name| tls::file(name).to_string_lossy().into_owned());
    python::spawn(interpreter, "zuul_client.py", &[&server.address(), &paths[0], &paths[1], &paths[2]])
}

#[tokio::test]
async fn zuul_10_and_13_use_nodes_of_a_cloud() {
    if real::skipped() {
        return;
    }
    let server = Server::start(Options::tls()).await;
    let cloud = TestCloud::simulated(&[]).await;
    let launcher = launcher(&server, &cloud, &cloud.provider("ours"));
    for interpreter in Interpreter::ZUUL {
        let mut zuul = zuul(interpreter, &server);
        let request = zuul.call(json!({"do": "submit", "labels": ["a", "a"]})).await;
        assert_eq!(zuul.call(json!({"do": "wait", "request": request})).await, "fulfilled", "{}", launcher.log());
        let nodes = zuul.call(json!({"do": "accept", "request": request})).await;
        assert_eq!((nodes.as_array().unwrap().len(), &nodes[1]["state"]), (2, &json!("ready")));
        assert_eq!((&nodes[0]["cloud"], &nodes[0]["provider"]), (&json!("simulated"), &json!("ours")));
        assert_eq!((&nodes[0]["username"], &nodes[0]["connection_port"]), (&json!("zuul"), &json!(22)));
        assert_ne!(nodes[0]["interface_ip"], nodes[1]["interface_ip"]);
        zuul.call(json!({"do": "use", "request": request})).await;
        zuul.call(json!({"do": "give_back", "request": request})).await;
        wait::until("the servers to be deleted", FLEET_TIMEOUT, async || servers(&cloud).await == 0).await;
        let nodes_are_deleted = async || zuul.call(json!({"do": "list"})).await["nodes"] == json!({});
        wait::until("the nodes to be deleted", FLEET_TIMEOUT, nodes_are_deleted).await;
    }
}

/// The request of each assigned node, the node of each server, and the number of assigned nodes per provider.
#[derive(Default)]
struct ConsistencyChecker {
    assigned: BTreeMap<NodeId, String>,
    servers: BTreeMap<String, NodeId>,
    served: BTreeMap<String, usize>,
}

impl ConsistencyChecker {
    fn is_enough(&self) -> bool {
        let served = |provider: &str| self.served.get(provider).copied().unwrap_or(0);
        served("ours") >= EACH && served("theirs") >= EACH && self.assigned.len() >= REQUESTS
    }
}

/// Submits requests and accepts, uses and releases their nodes, until enough requests are served.
async fn run_consumer(consumer: Consumer, checker: Arc<Mutex<ConsistencyChecker>>) {
    while !checker.lock().unwrap().is_enough() {
        let id = consumer.submit_labels(&["a"]).await;
        let ended = wait::until_some(&format!("the end of request {id}"), FLEET_TIMEOUT, async || {
            let request = consumer.request(&id).await.expect("only the requestor deletes its request");
            matches!(request.state, RequestState::Fulfilled | RequestState::Failed).then_some(request)
        })
        .await;
        assert_eq!(ended.state, RequestState::Fulfilled, "{ended:?}");
        for node in &ended.nodes {
            let record = consumer.node(node).await.expect("a node of a fulfilled request exists");
            let mut checker = checker.lock().unwrap();
            let earlier = checker.assigned.insert(node.clone(), id.to_string());
            assert_eq!(earlier, None, "node {node} is assigned to a second request, {id}");
            let server = record.external_id.as_str().expect("the node has a server").to_owned();
            assert_eq!(checker.servers.insert(server, node.clone()), None, "two nodes have the same server");
            *checker.served.entry(record.provider.expect("the node has a provider").to_string()).or_default() += 1;
        }
        let nodes = consumer.accept(&id).await;
        consumer.use_and_release(nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_fleet_shares_a_cloud_and_its_requests() {
    if real::skipped() {
        return;
    }
    let server = Server::start(Options::tls()).await;
    let cloud = TestCloud::simulated(&["--boot-time-s", "0.5"]).await;
    // The Python launcher uses addresses of 127.0.0.0/8 only if the cloud is marked as private.
    cloud.set("private", json!(true));
    let provider = |name: &str, most: u64| {
        let mut provider = cloud.provider(name);
        provider["pools"][0]["max-servers"] = json!(most);
        provider
    };
    let began = clock::now();
    let ours = launcher(&server, &cloud, &provider("ours", 3));
    let environment = [("OS_CLIENT_CONFIG_FILE", cloud.clouds_yaml.as_path())];
    let theirs = nodepool11::launcher_in(&environment, &configuration(&server, &provider("theirs", 8)));
    let zk = session(&server).await;
    let consumer = Consumer { zk: zk.clone() };
    for container in ["/nodepool/requests", "/nodepool/nodes"] {
        lock::make_path(&zk, container).await.unwrap();
    }
    let both = async || consumer.count("/nodepool/components/pool").await == 2;
    wait::until("both launchers to be registered", FLEET_TIMEOUT, both).await;
    let checker = Arc::new(Mutex::new(ConsistencyChecker::default()));
    let consumers = (0..14).map(|_| run_consumer(consumer.clone(), checker.clone()));
    let outcome = timeout(FLEET_TIMEOUT, AssertUnwindSafe(join_all(consumers)).catch_unwind()).await;
    if !matches!(outcome, Ok(Ok(_))) {
        let served = checker.lock().unwrap().served.clone();
        panic!("{outcome:?} with {served:?} served\n--- ours\n{}\n--- theirs\n{}", ours.log(), theirs.log());
    }
    wait::until("the nodes to be deleted", FLEET_TIMEOUT, async || consumer.nodes().await.is_empty()).await;
    wait::until("the servers to be deleted", FLEET_TIMEOUT, async || servers(&cloud).await == 0).await;
    let state = cloud.simulation().state().await;
    assert_eq!(state["double_creates"], 0, "{state}");
    assert_eq!(state["servers_created"], checker.lock().unwrap().assigned.len(), "every server was assigned");
    println!("{:?} in {} s", checker.lock().unwrap().served, clock::now().0 - began.0);
}
