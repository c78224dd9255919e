//! Min-ready requests of a launcher: to pools of other launchers, which the test simulates, and to its own fake cloud.
//! Its own pools of static hosts do not serve them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::fake_nodes::cloud;
use crate::quotas::{state, submit_as};
use bytes::Bytes;
use nodepool::actors::process::context::SessionEnd;
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{LabelName, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_zk::locks::lock;
use nodepool_zk::memory::{Fault, MemoryZooKeeper};
use nodepool_zk::paths;
use nodepool_zk::txn::delete_tree;
use serde_json::json;
use testkit::delayed_replies::delayed_replies;
use testkit::in_process_launcher::fake_cloud::{is_paused, single_provider, start_fake_launcher};
use testkit::in_process_launcher::foreign_pool::ForeignPool;
use testkit::in_process_launcher::{
    Consumer, InProcessDaemon, SETTLE_TIME, on_paused_time, started, until, yaml, zookeeper,
};
use tokio::time::sleep;

/// A launcher with a static host of label `a` and `min_ready` for label `b`.
fn config_with_min_ready(min_ready: i64, more: &str) -> String {
    let text = yaml("lab", &["name: fake-h1, labels: [a]"], more);
    text.replacen("  - name: b\n", &format!("  - name: b\n    min-ready: {min_ready}\n"), 1)
}

async fn start_with_foreign_pool(yaml: &str) -> (MemoryZooKeeper, Consumer, InProcessDaemon, ForeignPool) {
    let zookeeper = zookeeper();
    let consumer = Consumer::of(&zookeeper);
    let cloud = ForeignPool::register(&zookeeper, "cloud", &["b"]).await;
    let mut process = InProcessDaemon::new(yaml);
    process.run(&zookeeper);
    until("our own node", async || consumer.ready_nodes().await == 1).await;
    (zookeeper, consumer, process, cloud)
}

/// Waits until this many requests are open, and asserts that they are the same ones after [`SETTLE_TIME`].
async fn wait_for_requests(consumer: &Consumer, count: usize) -> Vec<RequestId> {
    until(&format!("{count} requests"), async || consumer.requests().await.len() == count).await;
    let ids = consumer.requests().await;
    sleep(SETTLE_TIME).await;
    assert_eq!(consumer.requests().await, ids);
    ids
}

/// Number of requests created so far: the sequence number of a new one.
async fn requests_ever_created(consumer: &Consumer) -> i64 {
    let id = consumer.submit_labels(&["unknown"]).await;
    consumer.zk.delete(&paths::request(&id), -1).await.unwrap();
    id.sequence().parse().unwrap()
}

#[test]
fn each_missing_node_is_one_ephemeral_request_of_the_lowest_precedence() {
    on_paused_time(async {
        let (_zookeeper, consumer, process, _cloud) = start_with_foreign_pool(&config_with_min_ready(2, "")).await;
        let mut events = BTreeSet::new();
        for id in wait_for_requests(&consumer, 2).await {
            assert_eq!((id.priority(), id.sequence().len()), ("900", 10), "{id}");
            let (data, stat) = consumer.zk.get(&paths::request(&id)).await.unwrap();
            assert_eq!(stat.ephemeral_owner, process.session_id);
            let record: serde_json::Value = serde_json::from_slice(&data).unwrap();
            assert_eq!(record["requestor"], "NodePool:min-ready");
            assert_eq!(record["node_types"], serde_json::json!(["b"]));
            assert_eq!((&record["reuse"], &record["state"]), (&false.into(), &"requested".into()));
            assert_eq!(
                record["declined_by"],
                serde_json::json!([]),
                "our own pool, which lacks the label, does not decline"
            );
            let event = record["event_id"].as_str().unwrap().to_owned();
            assert!(event.len() == 32 && event.bytes().all(|byte| byte.is_ascii_hexdigit()), "{event}");
            events.insert(event);
        }
        assert_eq!(events.len(), 2, "each request has its own event id");
        assert_eq!(requests_ever_created(&consumer).await, 2);
    });
}

#[test]
fn fulfilled_min_ready_requests_are_deleted_and_nodes_freed() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process, cloud) = start_with_foreign_pool(&config_with_min_ready(2, "")).await;
        let mut fulfilled = Vec::new();
        for id in wait_for_requests(&consumer, 2).await {
            let node = cloud.fulfill(&id).await.pop().unwrap();
            fulfilled.push((node.clone(), consumer.node(&node).await.unwrap()));
        }
        until("both nodes to be idle", async || consumer.ready_nodes().await == 3).await;
        until("both requests to be deleted", async || consumer.requests().await.is_empty()).await;
        for (id, mut before) in fulfilled {
            before.allocated_to = None;
            assert_eq!(consumer.node(&id).await.unwrap(), before, "only the allocation changes");
        }
        sleep(SETTLE_TIME).await;
        assert_eq!(requests_ever_created(&consumer).await, 2, "min-ready is satisfied");
    });
}

// Found by simulation seed 45544: a request whose create reply was lost was never finished, and its node stayed
// allocated.
#[test]
fn a_min_ready_request_with_a_lost_reply_is_finished_too() {
    on_paused_time(async {
        let (zookeeper, consumer, process, cloud) = start_with_foreign_pool(&config_with_min_ready(1, "")).await;
        let node = cloud.fulfill(&wait_for_requests(&consumer, 1).await[0]).await.pop().unwrap();
        until("the node to be idle", async || consumer.ready_nodes().await == 2).await;
        sleep(SETTLE_TIME).await;
        zookeeper.fail_next(process.session_id, 1, Fault::AfterApplying);
        delete_tree::delete_tree(&*consumer.zk, &paths::node(&node)).await.unwrap();
        let id = wait_for_requests(&consumer, 1).await.remove(0);
        cloud.fulfill(&id).await;
        until("the node to be idle", async || consumer.ready_nodes().await == 2).await;
        until("the request to be deleted", async || consumer.requests().await.is_empty()).await;
        sleep(SETTLE_TIME).await;
        assert_eq!(requests_ever_created(&consumer).await, 2, "the request counts, so no second one is created");
    });
}

// Regression: the events of the transaction that ends a request arrive before its reply. The launcher applied only the
// deletion of the request, lacked a node, and requested another one.
#[test]
fn no_node_too_many_is_requested_while_a_request_ends() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let cloud = ForeignPool::register(&zookeeper, "cloud", &["b"]).await;
        let (zk, release_replies) = delayed_replies(zookeeper.connect(), true);
        let mut process = InProcessDaemon::new(&config_with_min_ready(1, ""));
        process.run_on(zk);
        until("our own node", async || consumer.ready_nodes().await == 1).await;
        let id = wait_for_requests(&consumer, 1).await.remove(0);

        release_replies.send_replace(false);
        cloud.fulfill(&id).await;
        until("the request to be deleted", async || !consumer.requests().await.contains(&id)).await;
        sleep(SETTLE_TIME).await;
        assert_eq!(requests_ever_created(&consumer).await, 1, "the node is there, although no reply says so");

        release_replies.send_replace(true);
        sleep(SETTLE_TIME).await;
        assert_eq!(requests_ever_created(&consumer).await, 2, "one of them is of this test");
    });
}

#[test]
fn only_missing_nodes_are_requested_whoever_has_the_others() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let (consumer, label) = (Consumer::of(&zookeeper), LabelName::from("b"));
        let cloud = ForeignPool::register(&zookeeper, "cloud", &["b"]).await;
        cloud.launch(&label, None).await;
        let last = cloud.launch(&label, None).await;
        let mut process = InProcessDaemon::new(&config_with_min_ready(2, ""));
        process.run(&zookeeper);
        until("our own node", async || consumer.ready_nodes().await == 3).await;
        sleep(SETTLE_TIME).await;
        assert_eq!(requests_ever_created(&consumer).await, 0, "idle nodes of other pools count");

        // One of them is allocated to a request.
        let mut node = consumer.node(&last).await.unwrap();
        node.allocated_to = Some(consumer.submit_labels(&["c"]).await);
        cloud.zk.set(&paths::node(&last), Bytes::from(json::to_bytes(&node)), -1).await.unwrap();
        until("one request", async || min_ready(&consumer).await.len() == 1).await;
        sleep(SETTLE_TIME).await;
        assert_eq!(min_ready(&consumer).await.len(), 1, "one node is missing");
    });
}

async fn min_ready(consumer: &Consumer) -> Vec<RequestId> {
    consumer.requests().await.into_iter().filter(|id| id.priority() == "900").collect()
}

#[test]
fn a_label_of_static_hosts_alone_creates_no_requests() {
    on_paused_time(async {
        let text = config_with_min_ready(2, "").replace("labels: [a]", "labels: [a, b]");
        let (zookeeper, consumer, _process) = testkit::in_process_launcher::start_launcher(&text, 1).await;
        sleep(SETTLE_TIME).await;
        assert_eq!(requests_ever_created(&consumer).await, 0);
        // Min-ready requests are created as soon as another pool has the label.
        let cloud = ForeignPool::register(&zookeeper, "cloud", &["b"]).await;
        let id = wait_for_requests(&consumer, 1).await.remove(0);
        cloud.fulfill(&id).await;
        until("the request to be deleted", async || consumer.requests().await.is_empty()).await;
        // No min-ready request exists after that pool is unregistered.
        cloud.unregister().await;
        let id = consumer.submit_labels(&["b"]).await;
        consumer.wait_for_end(&id).await;
        sleep(SETTLE_TIME).await;
        assert!(min_ready(&consumer).await.is_empty());
    });
}

#[test]
fn other_pools_launch_labels_that_our_static_hosts_have_too() {
    on_paused_time(async {
        let text = config_with_min_ready(2, "").replace("labels: [a]", "labels: [a, b]");
        let (zookeeper, consumer, _process) = testkit::in_process_launcher::start_launcher(&text, 1).await;
        let cloud = ForeignPool::register(&zookeeper, "cloud", &["b"]).await;
        let pool = async || {
            let (names, _) = consumer.zk.children("/nodepool/components/pool").await.unwrap();
            let ours = names.into_iter().find(|name| !name.starts_with("elsewhere")).unwrap();
            consumer.zk.get(&format!("/nodepool/components/pool/{ours}")).await.unwrap()
        };
        let before = pool().await;
        // Our own idle node counts, so only one is missing.
        let id = wait_for_requests(&consumer, 1).await.remove(0);
        let request = consumer.request(&id).await.unwrap();
        assert_eq!(
            (request.state, request.declined_by.len()),
            (RequestState::Requested, 1),
            "our own pool declines instead of waiting"
        );
        assert_ne!(request.declined_by, std::slice::from_ref(&cloud.launcher));
        assert_eq!(pool().await, before, "our own pool is never paused");
        cloud.fulfill(&id).await;
        until("the node to be idle", async || consumer.ready_nodes().await == 2).await;
    });
}

#[test]
fn min_ready_backoff_doubles_up_to_a_minute_until_success() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process, cloud) = start_with_foreign_pool(&config_with_min_ready(1, "")).await;
        for expected in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            pause_after_failure_is(expected, &consumer, &cloud).await;
        }
        let id = next_request(&consumer).await;
        let node = cloud.fulfill(&id).await.remove(0);
        until("the request to be deleted", async || consumer.requests().await.is_empty()).await;
        until("the node to be idle", async || consumer.node(&node).await.unwrap().is_idle()).await;
        consumer.set_state(&node, NodeState::InUse).await;
        pause_after_failure_is(1.0, &consumer, &cloud).await;
    });
}

async fn next_request(consumer: &Consumer) -> RequestId {
    until("a request", async || !consumer.requests().await.is_empty()).await;
    consumer.requests().await.remove(0)
}

async fn pause_after_failure_is(expected: f64, consumer: &Consumer, cloud: &ForeignPool) {
    let id = next_request(consumer).await;
    let failed_at = clock::now();
    cloud.fail(&id).await;
    until("the failed request to be deleted", async || !consumer.requests().await.contains(&id)).await;
    next_request(consumer).await;
    let pause = (clock::now() - failed_at).0;
    assert!((expected - 0.01..expected + 0.5).contains(&pause), "{pause} s instead of {expected} s");
}

#[test]
fn a_tenant_at_its_limit_does_not_block_min_ready() {
    on_paused_time(async {
        let limit = "tenant-resource-limits:\n  - tenant-name: small\n    max-servers: 0\n";
        let (_zookeeper, consumer, _process, cloud) = start_with_foreign_pool(&config_with_min_ready(1, limit)).await;
        let id = wait_for_requests(&consumer, 1).await.remove(0);
        assert_eq!(consumer.request(&id).await.unwrap().tenant_name, None, "no tenant's limit applies");
        cloud.fulfill(&id).await;
        until("the node to be idle", async || consumer.ready_nodes().await == 2).await;
    });
}

#[test]
fn min_ready_requests_are_recreated_by_the_next_session() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let cloud = ForeignPool::register(&zookeeper, "cloud", &["b"]).await;
        let mut process = InProcessDaemon::new(&config_with_min_ready(1, ""));
        let running = process.run(&zookeeper);
        let old = next_request(&consumer).await;
        zookeeper.expire(process.session_id);
        assert_eq!(running.await.unwrap(), SessionEnd::Expired);
        assert!(consumer.requests().await.is_empty(), "min-ready requests are ephemeral");
        process.run(&zookeeper);
        let new = next_request(&consumer).await;
        assert_ne!(new, old);
        cloud.fulfill(&new).await;
        until("the node to be idle", async || consumer.ready_nodes().await == 2).await;
    });
}

#[test]
fn a_deleted_min_ready_request_is_recreated() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process, _cloud) = start_with_foreign_pool(&config_with_min_ready(1, "")).await;
        let removed = next_request(&consumer).await;
        consumer.zk.delete(&paths::request(&removed), -1).await.unwrap();
        assert_ne!(wait_for_requests(&consumer, 1).await, [removed]);
        assert_eq!(requests_ever_created(&consumer).await, 2);
    });
}

// Nodepool 11 unlocks the nodes of a request before it writes the request `fulfilled`. An operator may lock a node at
// any time.
#[test]
fn a_locked_node_is_freed_on_unlock_without_retries_before() {
    on_paused_time(async {
        let (zookeeper, consumer, _process, cloud) = start_with_foreign_pool(&config_with_min_ready(1, "")).await;
        let id = next_request(&consumer).await;
        let node = cloud.launch(&LabelName::from("b"), Some(&id)).await;
        let held = lock::try_lock(&cloud.zk, &paths::node_lock(&node), "").await.unwrap().unwrap();
        let mut request = consumer.request(&id).await.unwrap();
        request.nodes.push(node.clone());
        request.set_state(RequestState::Fulfilled, clock::now());
        cloud.zk.set(&paths::request(&id), Bytes::from(json::to_bytes(&request)), -1).await.unwrap();

        let before = zookeeper.last_zxid();
        sleep(Duration::from_secs(60)).await;
        let writes = zookeeper.last_zxid() - before;
        assert!(writes < 600, "{writes} writes in a minute for one locked node");
        let record = consumer.node(&node).await.unwrap();
        assert_eq!(
            (record.state, record.allocated_to.as_ref()),
            (NodeState::Ready, Some(&id)),
            "a locked node is not changed"
        );
        held.release().await.unwrap();
        until("the node to be idle", async || consumer.node(&node).await.unwrap().is_idle()).await;
        until("the request to be deleted", async || consumer.requests().await.is_empty()).await;
    });
}

#[test]
fn min_ready_requests_nothing_that_cannot_be_launched() {
    on_paused_time(async {
        let yaml = "zookeeper-servers: [{host: localhost}]\nlabels: [{name: a, min-ready: 1}, {name: b, min-ready: 1}]\nproviders:\n  \
                    - name: lab\n    driver: fake\n    cloud: fake\n    cloud-images: [{name: image, image-name: Fake Precise, username: zuul}]\n    pools:\n      \
                    - name: main\n        labels:\n          - {name: a, cloud-image: image, flavor-name: Fake Flavor}\n          \
                    - {name: b, cloud-image: image, flavor-name: No Such Flavor}\n";
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let mut process = InProcessDaemon::new(yaml);
        process.run(&zookeeper);
        until("a node of the label that can be launched", async || consumer.ready_nodes().await == 1).await;
        sleep(SETTLE_TIME).await;
        assert_eq!(requests_ever_created(&consumer).await, 1, "the other label is not requested");
    });
}

#[test]
fn min_ready_nodes_are_created_and_new_ones_share_their_zone() {
    on_paused_time(async {
        let yaml = cloud("", "    fake: {boot-time: 5}\n").replace("{name: a}", "{name: a, min-ready: 2}");
        let (consumer, _process) = started(&yaml).await;
        until("two nodes to be ready", async || consumer.ready_nodes().await == 2).await;
        until("the min-ready requests to be deleted", async || consumer.requests().await.is_empty()).await;
        let idle_nodes: Vec<_> = consumer.nodes().await.into_iter().map(|(id, _)| id).collect();
        let id = consumer.submit_labels(&["a", "b", "a"]).await;
        let request = consumer.wait_for_end(&id).await;
        assert!(idle_nodes.contains(&request.nodes[0]), "{idle_nodes:?} {:?}", request.nodes);
        let mut zones = Vec::new();
        for id in &request.nodes {
            zones.push(consumer.node(id).await.unwrap().az);
        }
        // Zones alternate, but all nodes of a request share the zone of its first reused node.
        assert!(zones[0].is_some() && zones.iter().all(|zone| *zone == zones[0]), "{zones:?}");
        until("two other nodes to be ready", async || {
            let idle = consumer.nodes().await.into_iter().filter(|(_, node)| node.is_idle()).count();
            idle == 2
        })
        .await;
    });
}

#[test]
fn min_ready_is_independent_of_tenant_limits() {
    on_paused_time(async {
        let mut configuration = single_provider(json!({}), json!({}));
        configuration["tenant-resource-limits"] = json!([{"tenant-name": "none", "max-servers": 0, "max-cores": 0}]);
        configuration["labels"][0]["min-ready"] = json!(1);
        let (_zookeeper, consumer, _process) = start_fake_launcher(&configuration).await;
        until("a node to be ready", async || consumer.ready_nodes().await == 1).await;
        let limited = submit_as(&consumer, Some("none"), "200", &["a"]).await;
        sleep(SETTLE_TIME).await;
        assert_eq!(state(&consumer, &limited).await, RequestState::Requested);
        assert_eq!(consumer.ready_nodes().await, 1, "an idle node counts towards no tenant");
    });
}

#[test]
fn min_ready_without_capacity_fails_and_pauses_no_pool() {
    on_paused_time(async {
        let mut configuration = single_provider(json!({}), json!({"max-servers": 1}));
        configuration["labels"][1]["min-ready"] = json!(1);
        let (_zookeeper, consumer, _process) = start_fake_launcher(&configuration).await;
        until("a node to be ready", async || consumer.ready_nodes().await == 1).await;
        let id = consumer.submit_labels(&["b"]).await;
        consumer.wait_for_end(&id).await;
        let used = consumer.accept(&id).await;
        let mut failed = Vec::new();
        until("several min-ready requests to fail", async || {
            assert!(!is_paused(&consumer, "main").await);
            for id in consumer.requests().await {
                // The request may be deleted between the two reads.
                let Some(request) = consumer.request(&id).await else { continue };
                assert_ne!(request.state, RequestState::Pending);
                if request.state == RequestState::Failed && !failed.contains(&id) {
                    failed.push(id);
                }
            }
            failed.len() >= 3
        })
        .await;
        let states: Vec<_> = consumer.nodes().await.into_iter().map(|(_, node)| node.state).collect();
        assert_eq!(states, [NodeState::Ready], "only the node in use exists");
        consumer.use_and_release(used).await;
        until("the next node to be ready", async || consumer.ready_nodes().await == 1).await;
    });
}
