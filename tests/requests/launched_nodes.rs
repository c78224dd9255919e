//! Requests served by nodes of a cloud: reused and launched nodes, attempts and timeouts, and declines.

use std::time::Duration;

use bytes::Bytes;
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{LabelName, NodeId, RequestId};
use nodepool_model::records::image_upload::{UploadKey, UploadState};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_zk::locks::lock;
use nodepool_zk::paths;
use serde_json::{Value, json};
use testkit::in_process_launcher::fake_cloud::{self, configuration, single_provider, start_fake_launcher};
use testkit::in_process_launcher::image_records::record_upload;
use testkit::in_process_launcher::{Consumer, on_paused_time, until};
use tokio::time::sleep;
use zookeeper_server::types::CreateMode;

fn request_for(labels: &[&str]) -> NodeRequest {
    let labels = labels.iter().map(|label| LabelName::from(*label)).collect();
    NodeRequest::new(labels, "tester", clock::now())
}

async fn node(consumer: &Consumer, id: &NodeId) -> Node {
    consumer.node(id).await.unwrap_or_else(|| panic!("node {id} does not exist"))
}

/// Launches a node and leaves it idle.
async fn idle(consumer: &Consumer, label: &str) -> NodeId {
    let id = consumer.submit_labels(&[label]).await;
    let node = consumer.fulfilled_nodes(&id).await.remove(0);
    consumer.zk.delete(&paths::request(&id), -1).await.unwrap();
    until("the node to be idle", async || consumer.node(&node).await.is_some_and(|node| node.is_idle())).await;
    node
}

// Asserts each state that a watch observes, and the records of the nodes as soon as the request lists them.
#[test]
fn a_request_becomes_pending_then_fulfilled_with_ready_unlocked_nodes() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) = start_fake_launcher(&single_provider(json!({}), json!({}))).await;
        let mut request = request_for(&["a", "b"]);
        request.tenant_name = Some("tenant-one".into());
        let id = consumer.submit(request).await;
        let mut states = vec![RequestState::Requested];
        while *states.last().unwrap() != RequestState::Fulfilled {
            // The watch is set before the read, so that no change is missed between them.
            let (_, changed) = consumer.zk.exists_and_watch(&paths::request(&id)).await.unwrap();
            let current = consumer.request(&id).await.unwrap();
            if current.state == *states.last().unwrap() {
                changed.await;
                continue;
            }
            states.push(current.state);
            for node in &current.nodes {
                let record = self::node(&consumer, node).await;
                assert_eq!((record.state, record.allocated_to.as_ref()), (NodeState::Ready, Some(&id)));
                assert_eq!(record.tenant_name.as_ref().map(|name| name.as_str()), Some("tenant-one"));
                assert_eq!((record.requestor.as_deref(), record.resources.is_some()), (Some("tester"), true));
                let contenders = lock::contenders(&consumer.zk, &paths::node_lock(node)).await;
                assert!(!contenders.is_ok_and(|contenders| !contenders.is_empty()), "node {node} is locked");
            }
        }
        assert_eq!(states, [RequestState::Requested, RequestState::Pending, RequestState::Fulfilled]);
    });
}

// Idle nodes are reused in the order of the requested labels. Allocated nodes and nodes of other pools are not reused.
#[test]
fn idle_nodes_are_assigned_in_order_of_the_requested_labels() {
    on_paused_time(async {
        // All nodes of a request share a zone, so the cloud has only one.
        let mut both = single_provider(json!({"fake": {"zones": ["az1"]}}), json!({}));
        let mut other = both["providers"][0]["pools"][0].clone();
        (other["name"], other["priority"]) = (json!("other"), json!(200));
        both["providers"][0]["pools"].as_array_mut().unwrap().push(other);
        let (_zookeeper, consumer, _process) = start_fake_launcher(&both).await;
        let (of_a, of_b) = (idle(&consumer, "a").await, idle(&consumer, "b").await);
        let mut elsewhere = node(&consumer, &of_a).await;
        (elsewhere.pool, elsewhere.external_id) = (Some("other".into()), Value::Null.into());
        let data = Bytes::from(json::to_bytes(&elsewhere));
        let (path, _) =
            consumer.zk.create(&paths::node_prefix(), data, CreateMode::PersistentSequential).await.unwrap();
        let elsewhere = NodeId::from(paths::name(&path));

        let mut new_one = request_for(&["a"]);
        new_one.reuse = false;
        let new_one = consumer.submit(new_one).await;
        let allocated = consumer.fulfilled_nodes(&new_one).await.remove(0);
        assert!(![&of_a, &elsewhere].contains(&&allocated));

        let id = consumer.submit_labels(&["a", "b", "a"]).await;
        let nodes = consumer.fulfilled_nodes(&id).await;
        assert_eq!(nodes[..2], [of_a, of_b]);
        assert!(![&allocated, &elsewhere].contains(&&nodes[2]));
        let mut labels = Vec::new();
        for id in &nodes {
            labels.push(node(&consumer, id).await.labels[0].to_string());
        }
        assert_eq!(labels, ["a", "b", "a"]);
        assert!(node(&consumer, &elsewhere).await.is_idle());
        assert_eq!(node(&consumer, &allocated).await.allocated_to, Some(new_one));
    });
}

#[test]
fn all_nodes_of_a_request_share_the_zone_of_a_reused_idle_node() {
    on_paused_time(async {
        let pool = json!({"availability-zones": ["az1", "az2"]});
        let (_zookeeper, consumer, _process) = start_fake_launcher(&single_provider(json!({}), pool)).await;
        let zone = async |id: &NodeId| node(&consumer, id).await.az.expect("the node has a zone");
        // The launcher alternates between the zones.
        let (one, other) = (idle(&consumer, "a").await, idle(&consumer, "b").await);
        let (of_one, of_other) = (zone(&one).await, zone(&other).await);
        assert_ne!(of_one, of_other);
        for (label, idle, expected) in [("b", other, of_other), ("a", one, of_one)] {
            let id = consumer.submit_labels(&[label, label, "a", "b"]).await;
            let nodes = consumer.fulfilled_nodes(&id).await;
            assert_eq!(nodes[0], idle);
            for id in &nodes {
                assert_eq!(zone(id).await, expected);
            }
            let nodes = consumer.accept(&id).await;
            consumer.use_and_release(nodes).await;
        }
        // No node is idle any more.
        let id = consumer.submit_labels(&["a", "b"]).await;
        let nodes = consumer.fulfilled_nodes(&id).await;
        assert_eq!(zone(&nodes[0]).await, zone(&nodes[1]).await);
    });
}

#[test]
fn a_request_that_a_pool_can_never_serve_is_declined() {
    let cases = [
        (json!({}), vec!["unknown"]),
        (json!({"max-servers": 0}), vec!["a"]),
        (json!({"max-servers": -1}), vec!["a"]),
        (json!({"max-servers": 1}), vec!["a", "b"]),
        (json!({"max-cores": 7}), vec!["a", "b"]),
        (json!({"max-ram": 8191}), vec!["a"]),
    ];
    for (pool, labels) in cases {
        on_paused_time(async {
            let (_zookeeper, consumer, _process) = start_fake_launcher(&single_provider(json!({}), pool.clone())).await;
            let id = consumer.submit_labels(&labels).await;
            let request = consumer.wait_for_end(&id).await;
            assert_eq!((request.state, request.declined_by.len()), (RequestState::Failed, 1), "{pool}");
            assert!(request.declined_by[0].as_str().contains("lab-main"), "{request:?}");
            assert!(request.nodes.is_empty() && consumer.nodes().await.is_empty(), "{pool}");
        });
    }
}

#[test]
fn an_image_that_only_one_provider_has_is_served_there() {
    on_paused_time(async {
        let label = json!([{"name": "a", "diskimage": "image", "flavor-name": "Fake Flavor"}]);
        let images = json!({"cloud-images": [], "diskimages": [{"name": "image"}]});
        let of = |name: &str| fake_cloud::provider(name, images.clone(), json!({"labels": label}));
        let mut both = configuration(&[of("one"), of("two")]);
        both["diskimages"] = json!([{"name": "image", "elements": ["vm"]}]);
        let (_zookeeper, consumer, _process) = start_fake_launcher(&both).await;
        let nowhere = consumer.submit_labels(&["a"]).await;
        let request = consumer.wait_for_end(&nowhere).await;
        assert_eq!((request.state, request.declined_by.len()), (RequestState::Failed, 2));
        let key = UploadKey {
            provider: "two".into(),
            image: "image".into(),
            build: "b1".into(),
            upload: "0000000001".into(),
        };
        record_upload(&consumer.zk, &key, UploadState::Ready, 1.0, Some("an-image")).await;
        let served = async || {
            let id = consumer.submit_labels(&["a"]).await;
            let request = consumer.wait_for_end(&id).await;
            (request.state == RequestState::Fulfilled).then_some(request)
        };
        let mut request = None;
        until("the upload to be known", async || {
            request = served().await;
            request.is_some()
        })
        .await;
        for _ in 0..5 {
            let request = served().await.expect("the provider keeps the image");
            let node = node(&consumer, &request.nodes[0]).await;
            assert_eq!(node.provider.as_ref().map(|name| name.as_str()), Some("two"));
            assert_eq!(node.image_id, Some(paths::image_upload(&key)));
        }
    });
}

#[test]
fn a_preferred_provider_serves_first_and_blocks_nothing() {
    on_paused_time(async {
        let label = json!([{"name": "a", "cloud-image": "image", "flavor-name": "Fake Flavor"}]);
        let [one, two] = ["one", "two"].map(|name| fake_cloud::provider(name, json!({}), json!({})));
        let three = fake_cloud::provider("three", json!({}), json!({"labels": label}));
        let (_zookeeper, consumer, _process) = start_fake_launcher(&configuration(&[one, two, three])).await;
        let cases = [
            ("a", "one", Some("one")),
            ("a", "two", Some("two")),
            ("a", "three", Some("three")),
            ("a", "unknown", None),
            ("b", "three", None),
        ];
        for (label, provider, expected) in cases {
            for _ in 0..3 {
                let mut request = request_for(&[label]);
                (request.provider, request.reuse) = (Some(provider.into()), false);
                let id = consumer.submit(request).await;
                let record = node(&consumer, &consumer.fulfilled_nodes(&id).await[0]).await;
                let by = record.provider.unwrap();
                assert!(expected.is_none_or(|expected| by.as_str() == expected), "{label} of {provider} by {by}");
            }
        }
    });
}

// A rejected create call, a failed boot and a timeout, with three attempts each.
#[test]
fn an_unlaunchable_node_fails_its_request_after_the_last_attempt() {
    let cases = [
        json!({"fake": {"create-fails-every": 1}}),
        json!({"fake": {"boot-fails-every": 1}}),
        json!({"fake": {"boot-time": 100}, "launch-timeout": 2}),
    ];
    for mut case in cases {
        case["launch-retries"] = json!(3);
        on_paused_time(async {
            let (_zookeeper, consumer, _process) = start_fake_launcher(&single_provider(case.clone(), json!({}))).await;
            let id = consumer.submit_labels(&["a"]).await;
            let began = clock::now();
            let request = consumer.wait_for_end(&id).await;
            assert_eq!((request.state, request.declined_by.len()), (RequestState::Failed, 1), "{case}");
            if case.get("launch-timeout").is_some() {
                let took = (clock::now() - began).0;
                assert!((6.0..9.0).contains(&took), "three attempts of two seconds take {took} s");
            }
            until("the node to be deleted", async || consumer.nodes().await.is_empty()).await;
        });
    }
}

// The good node is released while the request still exists.
#[test]
fn if_one_of_two_nodes_fails_the_other_is_released_at_once() {
    on_paused_time(async {
        let provider = json!({"launch-retries": 1, "fake": {"boot-fails-every": 2}});
        let (_zookeeper, consumer, _process) = start_fake_launcher(&single_provider(provider, json!({}))).await;
        let id = consumer.submit_labels(&["a", "a"]).await;
        let request = consumer.wait_for_end(&id).await;
        assert_eq!((request.state, request.nodes.len()), (RequestState::Failed, 0));
        until("the failed node to be deleted", async || consumer.nodes().await.len() == 1).await;
        let (good, node) = consumer.nodes().await.remove(0);
        assert!(node.is_idle(), "{node:?}");
        let next = consumer.submit_labels(&["a"]).await;
        assert_eq!(consumer.fulfilled_nodes(&next).await, [good]);
    });
}

// Ready nodes are released for other requests, and booting nodes are not awaited.
#[test]
fn a_deleted_request_frees_its_ready_nodes_and_its_lock() {
    on_paused_time(async {
        let provider =
            json!({"launch-retries": 2, "launch-timeout": 50, "fake": {"boot-time": 5, "boot-fails-every": 2}});
        let (_zookeeper, consumer, _process) = start_fake_launcher(&single_provider(provider, json!({}))).await;
        let id = consumer.submit_labels(&["a", "a"]).await;
        let count =
            async |state: NodeState| consumer.nodes().await.iter().filter(|(_, node)| node.state == state).count();
        until("one node to be ready and one to be in its second attempt", async || {
            count(NodeState::Ready).await == 1 && count(NodeState::Building).await == 1
        })
        .await;
        consumer.zk.delete(&paths::request(&id), -1).await.unwrap();
        until("the ready node to be idle", async || consumer.ready_nodes().await == 1).await;
        until("the other node to be deleted", async || consumer.nodes().await.len() == 1).await;
        let contenders = lock::contenders(&consumer.zk, &paths::request_lock(&id)).await;
        assert!(!contenders.is_ok_and(|contenders| !contenders.is_empty()), "the lock of the request is held");
        let next = consumer.submit_labels(&["a"]).await;
        consumer.fulfilled_nodes(&next).await;
        assert_eq!(consumer.nodes().await.len(), 1, "the next request reuses the node");
        assert_eq!(consumer.count("/nodepool/requests-lock").await, 0, "nothing remains to clean up");
    });
}

#[test]
fn a_lock_contender_does_not_delay_the_end_of_a_request() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_fake_launcher(&single_provider(json!({"fake": {"boot-time": 20}}), json!({}))).await;
        let id = consumer.submit_labels(&["a", "b"]).await;
        let directory = paths::request_lock(&id);
        until("the request to be accepted", async || consumer.count(&directory).await == 1).await;
        let prefix = paths::contender_prefix(&directory, "other");
        let contender = consumer.zk.create(&prefix, Bytes::new(), CreateMode::EphemeralSequential).await;
        let (contender, _) = contender.unwrap();
        consumer.fulfilled_nodes(&id).await;
        let (remaining, _) = consumer.zk.children(&directory).await.unwrap();
        assert_eq!(remaining, [paths::name(&contender)]);
    });
}

#[test]
fn a_locked_request_is_served_with_its_changes_after_unlocking() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) = start_fake_launcher(&single_provider(json!({}), json!({}))).await;
        let before = json::to_bytes(&request_for(&["unknown"]));
        // No pool can serve the first version of the request, so an unlocked one would be declined.
        lock::make_path(&consumer.zk, "/nodepool/requests-lock").await.unwrap();
        let path = "/nodepool/requests/200-0000009999";
        let id = RequestId::from(paths::name(path));
        let held =
            lock::try_lock(&consumer.zk, &paths::request_lock(&id), "").await.unwrap().expect("the lock is free");
        lock::make_path(&consumer.zk, "/nodepool/requests").await.unwrap();
        consumer.zk.create(path, before.clone().into(), CreateMode::Persistent).await.unwrap();
        let other = consumer.submit_labels(&["b"]).await;
        consumer.fulfilled_nodes(&other).await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(consumer.zk.get(path).await.unwrap().0, before, "the record is unchanged");
        let mut revised = request_for(&["a"]);
        revised.relative_priority = 7;
        consumer.zk.set(path, json::to_bytes(&revised).into(), -1).await.unwrap();
        held.release().await.unwrap();
        consumer.fulfilled_nodes(&id).await;
        assert_eq!(consumer.request(&id).await.unwrap().relative_priority, 7);
    });
}
