//! Sick backing nodes: failures are counted, and too many of them retire a backing node.

use std::time::Duration;

use nodepool_model::records::backing::BackingRecord;
use nodepool_model::records::ids::NodeId;
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::RequestState;
use nodepool_zk::paths;
use serde_json::{Value, json};
use testkit::in_process_launcher::fake_cloud::start_fake_launcher;
use testkit::in_process_launcher::{Consumer, on_paused_time, on_real_time, until};

use crate::launcher_harness::{OWNER, backing_nodes, configuration, finish, slot_of, small_node, start};

#[test]
fn a_failed_scan_retires_the_backing_node_of_the_attempt() {
    on_real_time(async {
        let mut yaml = configuration(json!({"grace-time": 3600, "host-key-checking": true}), json!({}));
        yaml["providers"][1]["boot-timeout"] = json!(1);
        // Nothing listens there.
        let host = |number: u32| json!({"name": format!("127.9.9.{number}"), "labels": ["a"], "connection-port": 1, "host-key-checking": false});
        let hosts: Vec<Value> = (1..=5).map(host).collect();
        yaml["providers"][0] = json!({"name": "lab", "driver": "static", "pools": [{"name": "main", "nodes": hosts}]});
        let (_zookeeper, consumer, _launcher) = start_fake_launcher(&yaml).await;
        until("the hosts to be registered", async || consumer.ready_nodes().await == 5).await;
        let request = consumer.submit_labels(&["small"]).await;
        assert_eq!(consumer.wait_for_end(&request).await.state, RequestState::Failed);
        // One per attempt; each was released as soon as it was retired and empty, and its host registered again.
        until("all hosts to be idle", async || consumer.ready_nodes().await == 5).await;
        let newest = consumer.nodes().await.pop().unwrap().0;
        assert_eq!(newest.as_str(), "0000000008", "five hosts, the node, and three hosts again");
    });
}

async fn return_after(consumer: &Consumer, seconds: u64) -> NodeId {
    let (request, node) = small_node(consumer).await;
    let backing = slot_of(consumer, &node).await.backing_node;
    let locked = consumer.accept(&request).await;
    for (id, _) in &locked {
        consumer.set_state(id, NodeState::InUse).await;
    }
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    for (id, lock) in locked {
        consumer.set_state(&id, NodeState::Used).await;
        lock.release().await.unwrap();
    }
    until("the node to be deleted", async || consumer.node(&node).await.is_none()).await;
    backing
}

#[test]
fn nodes_that_are_returned_early_retire_a_backing_node_only_if_configured() {
    on_paused_time(async {
        for (label, retires) in
            [(json!({"grace-time": 3600, "max-failures": 2}), true), (json!({"grace-time": 3600}), false)]
        {
            let (_zookeeper, consumer, _launcher) = start(label, json!({})).await;
            let first = return_after(&consumer, 10).await;
            assert_eq!(return_after(&consumer, 90).await, first, "a long use does not count");
            assert_eq!(return_after(&consumer, 59).await, first);
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert_eq!(consumer.node(&first).await.is_none(), retires, "{retires}");
        }
    });
}

#[test]
fn a_retired_backing_node_keeps_its_nodes_and_gets_no_more() {
    on_paused_time(async {
        let (_zookeeper, consumer, _launcher) = start(json!({"grace-time": 3600}), json!({})).await;
        let (request, node) = small_node(&consumer).await;
        let retired = slot_of(&consumer, &node).await.backing_node;
        // As `nodepool retire` writes it.
        let (data, stat) = consumer.zk.get(&paths::node(&retired)).await.unwrap();
        let mut record: Node = json::from_bytes(&data).unwrap();
        let user_data = BackingRecord::of(&record, OWNER).unwrap();
        record.user_data = user_data.retired().to_user_data();
        consumer.zk.set(&paths::node(&retired), json::to_bytes(&record).into(), stat.version).await.unwrap();
        let (_, other) = small_node(&consumer).await;
        assert_ne!(slot_of(&consumer, &other).await.backing_node, retired);
        assert_eq!(
            (consumer.node_state(&node).await, backing_nodes(&consumer).await.len()),
            (Some(NodeState::Ready), 2)
        );
        finish(&consumer, &request).await;
        until("the retired backing node to be deleted", async || consumer.node(&retired).await.is_none()).await;
        assert_eq!(backing_nodes(&consumer).await.len(), 1);
    });
}
