//! Backing nodes: how they are acquired, kept and given back, also after interruptions.

use std::time::Duration;

use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::RequestState;
use nodepool_zk::paths;
use serde_json::json;
use testkit::in_process_launcher::{InProcessDaemon, on_paused_time, until};

use crate::launcher_harness::{
    Blocked, OWNER, backing_nodes, configuration, finish, holder, slot_of, small_node, start, until_backing_nodes,
};

#[test]
fn an_empty_backing_node_is_released_after_the_grace_time() {
    on_paused_time(async {
        let (_zookeeper, consumer, _launcher) = start(json!({"grace-time": 60}), json!({})).await;
        let (request, node) = small_node(&consumer).await;
        finish(&consumer, &request).await;
        until("the node to be deleted", async || consumer.node(&node).await.is_none()).await;
        tokio::time::sleep(Duration::from_secs(58)).await;
        assert_eq!(backing_nodes(&consumer).await.len(), 1);
        tokio::time::sleep(Duration::from_secs(4)).await;
        until("the backing node to be deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

#[test]
fn the_minimum_retention_time_extends_the_grace_time() {
    on_paused_time(async {
        let label = json!({"grace-time": 1, "min-retention-time": 120});
        let (_zookeeper, consumer, _launcher) = start(label, json!({})).await;
        let (request, _) = small_node(&consumer).await;
        finish(&consumer, &request).await;
        tokio::time::sleep(Duration::from_secs(110)).await;
        assert_eq!(backing_nodes(&consumer).await.len(), 1);
        tokio::time::sleep(Duration::from_secs(12)).await;
        until("the backing node to be deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

#[test]
fn a_backing_node_beyond_its_maximum_age_gets_no_more_nodes() {
    on_paused_time(async {
        let label = json!({"grace-time": 3600, "max-age": 100});
        let (_zookeeper, consumer, _launcher) = start(label, json!({})).await;
        let (first, node) = small_node(&consumer).await;
        let old = slot_of(&consumer, &node).await.backing_node;
        tokio::time::sleep(Duration::from_secs(101)).await;
        let (_, other) = small_node(&consumer).await;
        assert_ne!(slot_of(&consumer, &other).await.backing_node, old);
        finish(&consumer, &first).await;
        until("the old backing node to be deleted", async || consumer.node(&old).await.is_none()).await;
        assert_eq!(backing_nodes(&consumer).await.len(), 1);
    });
}

#[test]
fn a_restarted_launcher_continues_with_its_backing_nodes() {
    on_paused_time(async {
        let (zookeeper, consumer, launcher) = start(json!({"grace-time": 20}), json!({})).await;
        let (first, one) = small_node(&consumer).await;
        launcher.stop();
        let mut next = InProcessDaemon::new(&configuration(json!({"grace-time": 20}), json!({})).to_string());
        next.run(&zookeeper);
        let (second, other) = small_node(&consumer).await;
        let (one, other) = (slot_of(&consumer, &one).await, slot_of(&consumer, &other).await);
        assert_eq!(one.backing_node, other.backing_node);
        assert_ne!(one.number, other.number);
        for request in [first, second] {
            finish(&consumer, &request).await;
        }
        until("all nodes to be deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

#[test]
fn a_lost_request_for_a_backing_node_is_made_again() {
    on_paused_time(async {
        let blocked = Blocked::start(json!({})).await;
        // As an operator could do.
        let lost = blocked.backing_requests().await.remove(0);
        blocked.consumer.zk.delete(&paths::request(&lost), -1).await.unwrap();
        until("another one", async || blocked.backing_requests().await.len() == 1).await;
        assert_ne!(blocked.backing_requests().await[0], lost);
        blocked.unblock().await;
    });
}

#[test]
fn a_failed_request_for_a_backing_node_fails_the_attempt_and_disappears() {
    on_paused_time(async {
        let (_zookeeper, consumer, _launcher) = start(json!({"backing-label": "unknown"}), json!({})).await;
        let request = consumer.submit_labels(&["small"]).await;
        assert_eq!(consumer.wait_for_end(&request).await.state, RequestState::Failed);
        until("its own requests to be deleted", async || consumer.requests().await == [request.clone()]).await;
    });
}

#[test]
fn a_request_that_no_node_waits_for_ends_after_the_grace_time() {
    on_paused_time(async {
        let blocked = Blocked::start(json!({"grace-time": 30})).await;
        let consumer = &blocked.consumer;
        consumer.zk.delete(&paths::request(&blocked.request), -1).await.unwrap();
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert_eq!(consumer.requests().await.len(), 2);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(consumer.requests().await, std::slice::from_ref(&blocked.blocker));
    });
}

#[test]
fn no_slot_of_a_backing_node_that_is_gone_is_given_out() {
    on_paused_time(async {
        let (_zookeeper, consumer, _launcher) = start(json!({}), json!({})).await;
        let (_, node) = small_node(&consumer).await;
        let gone = slot_of(&consumer, &node).await.backing_node;
        let path = paths::node(&gone);
        nodepool_zk::txn::delete_tree::delete_tree(&*consumer.zk, &path).await.unwrap();
        let (_, other) = small_node(&consumer).await;
        assert_ne!(slot_of(&consumer, &other).await.backing_node, gone);
        assert_eq!(backing_nodes(&consumer).await.len(), 1);
    });
}

#[test]
fn user_data_without_our_lock_are_ignored() {
    on_paused_time(async {
        let (_zookeeper, consumer, _launcher) = start(json!({}), json!({})).await;
        let forger = consumer.submit_labels(&["a"]).await;
        let forged = consumer.fulfilled_nodes(&forger).await.remove(0);
        let locked = consumer.accept(&forger).await;
        let (data, stat) = consumer.zk.get(&paths::node(&forged)).await.unwrap();
        let mut node: serde_json::Value = serde_json::from_slice(&data).unwrap();
        let text = json!({"owner": OWNER, "label": "small", "slots": 9, "failed": false, "launched": 1.0}).to_string();
        (node["user_data"], node["state"]) = (json!(text), json!("in-use"));
        consumer.zk.set(&paths::node(&forged), node.to_string().into(), stat.version).await.unwrap();
        let (_, node) = small_node(&consumer).await;
        assert_ne!(slot_of(&consumer, &node).await.backing_node, forged);
        assert_eq!(consumer.node_state(&forged).await, Some(NodeState::InUse));
        drop(locked);
    });
}

#[test]
fn backing_nodes_of_a_removed_label_are_released_without_grace() {
    on_paused_time(async {
        let (_zookeeper, consumer, launcher) = start(json!({"grace-time": 3600}), json!({})).await;
        let (request, node) = small_node(&consumer).await;
        let mut yaml = configuration(json!({"grace-time": 3600}), json!({}));
        yaml["providers"][1]["pools"][0]["labels"] = json!([]);
        std::fs::write(&launcher.file, yaml.to_string()).unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(consumer.node_state(&node).await, Some(NodeState::Ready));
        finish(&consumer, &request).await;
        until("all nodes to be deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

#[test]
fn an_interrupted_release_is_completed() {
    on_paused_time(async {
        let (_zookeeper, consumer, _launcher) = start(json!({"grace-time": 3600}), json!({})).await;
        let (request, node) = small_node(&consumer).await;
        let backing = slot_of(&consumer, &node).await.backing_node;
        finish(&consumer, &request).await;
        // A Nodepool 11 launcher writes the state first, and unlocks the node then.
        consumer.set_state(&backing, NodeState::Used).await;
        until("the backing node to be deleted", async || consumer.node(&backing).await.is_none()).await;
    });
}

#[test]
fn the_backing_node_of_a_request_is_acquired_also_after_a_reload() {
    on_paused_time(async {
        let blocked = Blocked::start(json!({"grace-time": 20})).await;
        let mut changed = blocked.configuration.clone();
        changed["providers"][1]["boot-timeout"] = json!(77);
        blocked.reload(&changed);
        tokio::time::sleep(Duration::from_secs(10)).await;
        blocked.unblock().await;
        let consumer = &blocked.consumer;
        until_backing_nodes(consumer, 1).await;
        let backing = backing_nodes(consumer).await.remove(0).0;
        assert_eq!(holder(consumer, &backing).await.as_deref(), Some(OWNER));
        finish(consumer, &blocked.request).await;
        until("all nodes to be deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

#[test]
fn requests_of_backing_nodes_end_with_the_session() {
    on_paused_time(async {
        let mut blocked = Blocked::start(json!({})).await;
        let before = blocked.backing_requests().await;
        blocked.zookeeper.expire(blocked.launcher.session_id);
        blocked.launcher.run(&blocked.zookeeper);
        let is_new = async || {
            let open = blocked.backing_requests().await;
            open.len() == 1 && open != before
        };
        until("a new one", is_new).await;
        blocked.unblock().await;
    });
}

#[test]
fn launches_of_a_removed_provider_still_get_their_slots() {
    on_paused_time(async {
        for is_added_again in [false, true] {
            let blocked = Blocked::start(json!({})).await;
            let mut without = blocked.configuration.clone();
            without["providers"].as_array_mut().unwrap().pop();
            blocked.reload(&without);
            tokio::time::sleep(Duration::from_secs(10)).await;
            if is_added_again {
                blocked.reload(&blocked.configuration);
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
            blocked.unblock().await;
            let consumer = &blocked.consumer;
            finish(consumer, &blocked.request).await;
            // Without the provider, another launcher may be about to serve its nodes.
            let expected = if is_added_again { 0 } else { 2 };
            until("the nodes to be deleted", async || consumer.nodes().await.len() == expected).await;
        }
    });
}
