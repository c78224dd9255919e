//! Metastatic nodes of Nodepool 11: its launcher and ours continue with each other's slots, and write the same records.
//!
//! The tests run real processes on a real ZooKeeper, in real time. The backing nodes are static hosts, which another
//! launcher of ours serves.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::Signal;
use nodepool_model::records::backing::{BACKING_PRIORITY, BackingRecord, Slot};
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_zk::client::{ConnectOptions, connect};
use nodepool_zk::locks::lock;
use nodepool_zk::paths;
use serde_json::{Value, json};
use testkit::in_process_launcher::Consumer;
use testkit::real::{
    self,
    differences::differences,
    nodepool_process::NodepoolProcess,
    nodepool11,
    zookeeper::{Options, Server},
};
use testkit::{programs, wait};
use tokio::sync::OnceCell;

use crate::launcher_harness::{OWNER, finish, holder, slot_of};

/// Timeout for Python programs, which start slowly, more so on a busy machine, and poll most state once a second.
const FLEET_TIMEOUT: Duration = Duration::from_secs(120);
const HOSTS: [&str; 2] = ["127.0.7.1", "127.0.7.2"];
const SLOTS: usize = 4;

/// A Nodepool 11 launcher checks for empty backing nodes when it starts and then every minute. Without a grace time, it
/// releases them at the first check.
const METASTATIC: &str = "
labels: [{name: small}]
providers:
  - name: meta
    driver: metastatic
    pools:
      - name: main
        node-attributes: {pool: metastatic, place: slot}
        labels: [{name: small, backing-label: big, max-parallel-jobs: 4, grace-time: 0}]
";

/// A static provider with the label `big`. The connection data of its hosts differ from the defaults.
fn static_provider(hosts: &[&str]) -> String {
    let node = |name: &&str| {
        json!({
            "name": name, "labels": "big", "username": "worker", "max-parallel-jobs": 1, "host-key-checking": false,
            "connection-port": 2222, "python-path": "/opt/python", "shell-type": "sh", "timeout": 7,
        })
    };
    let nodes: Vec<Value> = hosts.iter().map(node).collect();
    let attributes = json!({"rack": "r1", "place": "host"});
    let pool = json!({"name": "main", "node-attributes": attributes, "nodes": nodes});
    let provider = json!({"name": "rack", "driver": "static", "pools": [pool]});
    format!("labels: [{{name: big}}]\nproviders: [{provider}]\n")
}

#[derive(Clone, Copy)]
enum Program {
    Nodepool11,
    Ours,
}

/// A chroot of its own on the shared server, and the launcher of the hosts.
struct Fleet {
    consumer: Consumer,
    /// The head of a configuration: the address of ZooKeeper.
    head: String,
    hosts: NodepoolProcess,
}

impl Fleet {
    /// Returns when all hosts are idle.
    async fn start(hosts: &[&str]) -> Fleet {
        static SERVER: OnceCell<Server> = OnceCell::const_new();
        let server = SERVER.get_or_init(|| Server::start(Options::tls())).await;
        let address = server.chroot("metastatic").await;
        let chroot = &address[address.find('/').expect("a chroot begins with a slash")..];
        let head = nodepool11::zookeeper_section(server).replacen(
            "zookeeper-tls:",
            &format!("    chroot: {chroot}\nzookeeper-tls:"),
            1,
        );
        let plain = server.plain_address();
        let (host, port) = plain.rsplit_once(':').expect("an address ends with its port");
        let options = ConnectOptions::plain(host, port.parse().expect("a port is a number"));
        let zk = connect(ConnectOptions { chroot: chroot.to_owned(), ..options }).await;
        let consumer = Consumer { zk: zk.expect("a running server accepts clients") };
        let launcher = launcher(&(head.clone() + &static_provider(hosts)));
        let fleet = Fleet { consumer, head, hosts: launcher };
        fleet.until_hosts_idle(hosts.len()).await;
        fleet
    }

    /// Starts a launcher of the metastatic provider. Requests of its label would fail before its pool is registered.
    async fn launch(&self, program: Program) -> NodepoolProcess {
        let configuration = self.head.clone() + METASTATIC;
        let process = match program {
            Program::Nodepool11 => nodepool11::launcher(&configuration),
            Program::Ours => launcher(&configuration),
        };
        self.until_pools(2).await;
        process
    }

    /// Stops a launcher of the metastatic provider.
    async fn stop(&self, program: Program, mut process: NodepoolProcess) {
        process.signal(match program {
            // At SIGTERM, Nodepool 11 exits without closing its session.
            Program::Nodepool11 => Signal::SIGUSR1,
            Program::Ours => Signal::SIGTERM,
        });
        let status = process.wait(FLEET_TIMEOUT).await;
        assert!(status.success(), "{status}");
        self.until_pools(1).await;
    }

    /// Stops the launcher of the hosts.
    async fn end(mut self) {
        assert!(self.hosts.stop(FLEET_TIMEOUT).await.success());
    }

    async fn until_pools(&self, number: usize) {
        let what = format!("{number} registered pools");
        let pools = "/nodepool/components/pool";
        wait::until(&what, FLEET_TIMEOUT, async || self.consumer.count(pools).await == number).await;
    }

    /// Waits until there are no nodes but those of the hosts, and all of them are idle.
    async fn until_hosts_idle(&self, hosts: usize) {
        wait::until("idle hosts", FLEET_TIMEOUT, async || {
            let nodes = self.consumer.nodes().await;
            nodes.len() == hosts && nodes.iter().all(|(_, node)| node.is_idle())
        })
        .await;
    }

    /// Submits requests, each for one node, at once.
    async fn submit(&self, number: usize) -> Vec<RequestId> {
        let mut requests = Vec::new();
        for _ in 0..number {
            requests.push(self.consumer.submit_labels(&["small"]).await);
        }
        requests
    }

    /// Slots of the nodes that fulfil these requests.
    async fn slots(&self, requests: &[RequestId]) -> Vec<Slot> {
        let mut slots = Vec::new();
        for request in requests {
            let nodes = self.consumer.fulfilled_nodes(request).await;
            slots.push(slot_of(&self.consumer, &nodes[0]).await);
        }
        slots
    }

    /// Waits until the hosts are idle again, and checks that nothing of these backing nodes is left.
    async fn until_released(&self, backing_nodes: &BTreeSet<NodeId>) {
        self.until_hosts_idle(backing_nodes.len()).await;
        for (id, node) in self.consumer.nodes().await {
            assert!(!backing_nodes.contains(&id), "the host of {id} was not registered again");
            assert_eq!((BackingRecord::of_any_owner(&node), node.user_data.as_str()), (None, None));
            // The launcher of the hosts may lock a node for a moment.
            let directory = paths::node_lock(&id);
            wait::until("an unlocked node", FLEET_TIMEOUT, async || {
                lock::contenders(&self.consumer.zk, &directory).await.expect("ZooKeeper answers").is_empty()
            })
            .await;
        }
        assert_eq!(self.consumer.requests().await, []);
    }
}

fn launcher(configuration: &str) -> NodepoolProcess {
    NodepoolProcess::start(programs::launcher(), configuration, &["-d", "--no-webapp"])
}

/// One launcher fills three slots. Its successor fills the fourth and a new backing node. Then all nodes are returned.
/// Returns the successor and both backing nodes.
async fn continued(fleet: &Fleet, first: Program, second: Program) -> (NodepoolProcess, BTreeSet<NodeId>) {
    let process = fleet.launch(first).await;
    let mut requests = fleet.submit(SLOTS - 1).await;
    let mut slots = fleet.slots(&requests).await;
    fleet.stop(first, process).await;

    let process = fleet.launch(second).await;
    for _ in 0..2 {
        let next = fleet.submit(1).await;
        slots.extend(fleet.slots(&next).await);
        requests.extend(next);
    }
    let [old, new] = [0, SLOTS].map(|request| slots[request].backing_node.clone());
    assert_ne!(old, new, "{}", process.log());
    let mut expected: Vec<Slot> = (0..SLOTS as u32).map(|number| Slot { backing_node: old.clone(), number }).collect();
    expected.push(Slot { backing_node: new.clone(), number: 0 });
    slots[..SLOTS].sort();
    assert_eq!(slots, expected, "{}", process.log());
    for backing_node in [&old, &new] {
        assert_eq!(holder(&fleet.consumer, backing_node).await.as_deref(), Some(OWNER));
    }
    for request in &requests {
        finish(&fleet.consumer, request).await;
    }
    (process, [old, new].into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_launcher_continues_with_the_slots_of_nodepool_11() {
    if real::skipped() {
        return;
    }
    let fleet = Fleet::start(&HOSTS).await;
    let (process, backing_nodes) = continued(&fleet, Program::Nodepool11, Program::Ours).await;
    fleet.until_released(&backing_nodes).await;
    fleet.stop(Program::Ours, process).await;
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodepool_11_continues_with_our_slots() {
    if real::skipped() {
        return;
    }
    let fleet = Fleet::start(&HOSTS).await;
    let (process, backing_nodes) = continued(&fleet, Program::Ours, Program::Nodepool11).await;
    let are_deleted = async || fleet.consumer.nodes().await.len() == HOSTS.len();
    wait::until("the nodes in slots to be deleted", FLEET_TIMEOUT, are_deleted).await;
    fleet.stop(Program::Nodepool11, process).await;
    // The first clean-up of another launcher releases empty backing nodes at once.
    let process = fleet.launch(Program::Nodepool11).await;
    fleet.until_released(&backing_nodes).await;
    fleet.stop(Program::Nodepool11, process).await;
    fleet.end().await;
}

/// The request for a backing node while it waits, the backing node with its lock, and two nodes in its slots.
async fn records(program: Program) -> Value {
    let fleet = Fleet::start(&HOSTS[..1]).await;
    let consumer = &fleet.consumer;
    let process = fleet.launch(program).await;
    // The only host is used.
    let blocker = consumer.submit_labels(&["big"]).await;
    consumer.fulfilled_nodes(&blocker).await;
    let locked = consumer.accept(&blocker).await;
    let request = consumer.submit_labels(&["small"]).await;
    let backing_request = wait::until_some("a request for a backing node", FLEET_TIMEOUT, async || {
        let mut requests = consumer.requests().await.into_iter();
        requests.find(|id| id.as_str().starts_with(&format!("{BACKING_PRIORITY}-")))
    })
    .await;
    let waiting: Value = consumer.read(&paths::request(&backing_request)).await.expect("it waits for the host");
    consumer.use_and_release(locked).await;

    let first = consumer.fulfilled_nodes(&request).await.remove(0);
    let backing_node = slot_of(consumer, &first).await.backing_node;
    let mut backing_record = consumer.raw_node(&backing_node).await;
    let user_data = backing_record["user_data"].as_str().expect("user_data is a text");
    backing_record["user_data"] = serde_json::from_str(user_data).expect("the text is JSON");
    let lock = lock_record(consumer, &backing_node).await;
    add_cloud_data(consumer, &backing_node).await;
    let request = consumer.submit_labels(&["small"]).await;
    let second = consumer.fulfilled_nodes(&request).await.remove(0);
    let records = json!({
        "request": waiting,
        "backing node": backing_record,
        "lock": lock,
        "first node": consumer.raw_node(&first).await,
        "second node": consumer.raw_node(&second).await,
    });
    fleet.stop(program, process).await;
    fleet.end().await;
    records
}

async fn lock_record(consumer: &Consumer, node: &NodeId) -> Value {
    let directory = paths::node_lock(node);
    let contenders = lock::contenders(&consumer.zk, &directory).await.expect("ZooKeeper answers");
    let (data, stat) = consumer.zk.get(&format!("{directory}/{}", contenders[0])).await.expect("the lock is held");
    json!({
        "contenders": contenders.len(),
        "data": String::from_utf8_lossy(&data),
        "ephemeral": stat.ephemeral_owner != 0,
    })
}

/// Writes the fields that only nodes of clouds have.
async fn add_cloud_data(consumer: &Consumer, node: &NodeId) {
    let (data, stat) = consumer.zk.get(&paths::node(node)).await.expect("the node exists");
    let mut record: Value = serde_json::from_slice(&data).expect("a record is JSON");
    for key in ["cloud", "az", "region", "host_id", "image_id", "private_ipv4", "public_ipv6", "tenant_name"] {
        record[key] = format!("{key} of the backing node").into();
    }
    record["host_keys"] = json!(["ssh-ed25519 AAAA"]);
    record["connection_type"] = "winrm".into();
    let data = record.to_string().into();
    consumer.zk.set(&paths::node(node), data, stat.version).await.expect("only the owner of the lock writes the node");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_both_are_the_same() {
    if real::skipped() {
        return;
    }
    let (mut theirs, mut ours) = tokio::join!(records(Program::Nodepool11), records(Program::Ours));
    // A request of ours names its label and its worker, and has the time from which the age of the backing node counts.
    for key in ["requestor_data", "created_time"] {
        assert_eq!(theirs["request"][key].take(), Value::Null);
        assert_ne!(ours["request"][key].take(), Value::Null);
    }
    assert_eq!(
        differences("", &theirs, &ours, &["state_time", "created_time", "launched", "launcher", "event_id"]),
        Vec::<String>::new()
    );
    // Both have put two nodes into slots of one backing node, and have copied what it has.
    assert_eq!(theirs["second node"]["driver_data"]["slot"], 1);
    assert_eq!(theirs["second node"]["region"], "region of the backing node");
}
