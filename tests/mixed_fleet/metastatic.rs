//! Mixed fleet with metastatic nodes: a Nodepool 11 launcher and ours serve the same provider one after the other, and
//! each continues with the slots of the other.
//!
//! The test runs real processes on a real ZooKeeper. Our launcher serves the backing nodes, which are static hosts.

use std::collections::BTreeSet;
use std::time::Duration;

use nodepool_model::records::backing::{BackingRecord, Slot};
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::node::NodeState;
use nodepool_zk::client::{ConnectOptions, connect};
use nodepool_zk::locks::lock;
use nodepool_zk::paths;
use serde_json::{Map, Value};
use testkit::in_process_launcher::Consumer;
use testkit::real::{
    self,
    nodepool_process::NodepoolProcess,
    nodepool11,
    zookeeper::{Options, Server},
};
use testkit::{programs, wait};

const OWNER: &str = "NodePool:metastatic:inner";
/// Timeout for Python programs, which start slowly and poll most state once a second.
const FLEET_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const HOSTS: [&str; 2] = ["fake-1", "fake-2"];
const METASTATIC: &str = "
labels: [{name: small}]
providers:
  - name: inner
    driver: metastatic
    pools:
      - name: main
        node-attributes: {from: pool}
        labels: [{name: small, backing-label: big, max-parallel-jobs: 4, grace-time: 2}]
";

fn launcher(configuration: &str) -> NodepoolProcess {
    let arguments = ["-d", "--no-webapp", "--cleanup-interval", "2", "--delete-interval", "1"];
    NodepoolProcess::start(programs::launcher(), configuration, &arguments)
}

async fn consumer(server: &Server) -> Consumer {
    let address = server.plain_address();
    let (host, port) = address.rsplit_once(':').expect("an address ends with its port");
    let port = port.parse().expect("a port is a number");
    Consumer { zk: connect(ConnectOptions::plain(host, port)).await.expect("a running server accepts clients") }
}

/// Waits until this number of pools is registered.
async fn until_pools(consumer: &Consumer, number: usize) {
    let pools = "/nodepool/components/pool";
    let what = format!("{number} registered pools");
    wait::until(&what, FLEET_TIMEOUT, async || consumer.count(pools).await == number).await;
}

/// Requests one node and waits for it.
async fn small_node(consumer: &Consumer) -> (RequestId, NodeId) {
    let request = consumer.submit_labels(&["small"]).await;
    let node = consumer.fulfilled_nodes(&request).await.remove(0);
    (request, node)
}

async fn slot_of(consumer: &Consumer, node: &NodeId) -> Slot {
    Slot::of(&consumer.node(node).await.expect("the node exists")).expect("the node has a slot")
}

/// A record without the values that differ from node to node.
async fn comparable(consumer: &Consumer, id: &NodeId) -> Map<String, Value> {
    let mut record = consumer.raw_node(id).await;
    let own: &[&str] = &[
        "state_time",
        "created_time",
        "allocated_to",
        "external_id",
        "launcher",
        "slot",
        "interface_ip",
        "public_ipv4",
        "hostname",
        "requestor",
    ];
    let record = record.as_object_mut().expect("a record is an object");
    record.retain(|key, _| !own.contains(&key.as_str()));
    if let Some(data) = record.get_mut("driver_data").and_then(Value::as_object_mut) {
        for key in ["backing_node", "slot", "node"] {
            assert!(data.remove(key).is_some(), "driver_data of {id} has no {key}");
        }
        let metadata = data["metadata"].as_object_mut().expect("metadata are an object");
        assert_eq!(metadata.insert("nodepool_node_id".to_owned(), Value::Null), Some(id.as_str().into()));
    }
    if let Some(text) = record.get("user_data").and_then(Value::as_str) {
        let mut data: Map<String, Value> = serde_json::from_str(text).expect("user_data is a JSON text");
        assert!(data.insert("launched".to_owned(), Value::Null).is_some_and(|launched| launched.is_number()));
        record.insert("user_data".to_owned(), data.into());
    }
    record.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_launchers_continue_with_the_slots_of_the_other() {
    if real::skipped() {
        return;
    }
    let server = Server::start(Options::tls()).await;
    let head = nodepool11::zookeeper_section(&server);
    let metastatic = format!("{head}{METASTATIC}");
    let mut hosts = launcher(&(head.clone() + &nodepool11::static_sections("rack", "big", &HOSTS)));
    let consumer = consumer(&server).await;
    wait::until("the hosts", FLEET_TIMEOUT, async || consumer.ready_nodes().await == HOSTS.len()).await;

    let mut python = nodepool11::launcher(&metastatic);
    until_pools(&consumer, 2).await;
    let mut served = Vec::new();
    for _ in 0..3 {
        served.push(small_node(&consumer).await);
    }
    let theirs = served[0].1.clone();
    let backing = slot_of(&consumer, &theirs).await.backing_node;
    python.stop(STOP_TIMEOUT).await;
    until_pools(&consumer, 1).await;

    let mut ours = launcher(&metastatic);
    until_pools(&consumer, 2).await;
    served.push(small_node(&consumer).await);
    let fourth = slot_of(&consumer, &served[3].1).await;
    assert_eq!(fourth.backing_node, backing, "{}", ours.log());
    served.push(small_node(&consumer).await);
    let second = slot_of(&consumer, &served[4].1).await.backing_node;
    assert_ne!(second, backing);
    assert_eq!(comparable(&consumer, &theirs).await, comparable(&consumer, &served[3].1).await);
    assert_eq!(comparable(&consumer, &backing).await, comparable(&consumer, &second).await);
    assert!(ours.stop(STOP_TIMEOUT).await.success());
    until_pools(&consumer, 1).await;

    // Nodepool 11 fills our backing node, whose lock it must recognise as its own.
    let mut python = nodepool11::launcher(&metastatic);
    until_pools(&consumer, 2).await;
    served.push(small_node(&consumer).await);
    assert_eq!(slot_of(&consumer, &served[5].1).await.backing_node, second, "{}", python.log());
    python.stop(STOP_TIMEOUT).await;
    until_pools(&consumer, 1).await;
    let mut slots = BTreeSet::new();
    for (_, node) in &served {
        slots.insert(slot_of(&consumer, node).await);
    }
    assert_eq!(slots.len(), served.len());

    let mut ours = launcher(&metastatic);
    until_pools(&consumer, 2).await;
    for (request, _) in &served {
        let locked = consumer.accept(request).await;
        consumer.use_and_release(locked).await;
    }
    wait::until("all hosts to be idle again", FLEET_TIMEOUT, async || {
        let nodes = consumer.nodes().await;
        nodes.len() == HOSTS.len() && nodes.iter().all(|(_, node)| node.state == NodeState::Ready)
    })
    .await;
    for (id, node) in consumer.nodes().await {
        assert_eq!(BackingRecord::of(&node, OWNER), None);
        let contenders = lock::contenders(&consumer.zk, &paths::node_lock(&id)).await.expect("ZooKeeper answers");
        assert_eq!(contenders, Vec::<String>::new());
    }
    assert!(ours.stop(STOP_TIMEOUT).await.success());
    assert!(hosts.stop(STOP_TIMEOUT).await.success());
}
