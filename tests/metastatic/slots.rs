//! Nodes in slots: their records, and which slot they get.

use std::collections::BTreeSet;
use std::time::Duration;

use nodepool::actors::runtime::messages::ExplainRequest;
use nodepool_model::records::node::NodeState;
use serde_json::json;
use testkit::in_process_launcher::fake_cloud::start_fake_launcher;
use testkit::in_process_launcher::{on_paused_time, until};

use crate::launcher_harness::{
    Blocked, OWNER, backing_nodes, configuration, finish, holder, slot_of, small_node, start, until_backing_nodes,
};

#[test]
fn a_node_has_the_connection_of_its_backing_node() {
    on_paused_time(async {
        let attributes = json!({"node-attributes": {"from": "pool"}});
        let (_zookeeper, consumer, _launcher) = start(json!({}), attributes).await;
        let (request, id) = small_node(&consumer).await;
        let [(backing_id, backing, record)] = &backing_nodes(&consumer).await[..] else { panic!("one backing node") };
        assert_eq!((backing.state, record.label.as_str(), record.slots), (NodeState::InUse, "small", 2));
        assert_eq!(holder(&consumer, backing_id).await.as_deref(), Some(OWNER));
        let node = consumer.node(&id).await.unwrap();
        assert_eq!(node.state, NodeState::Ready);
        assert_eq!(node.interface_ip, backing.interface_ip);
        assert!(node.interface_ip.is_some());
        assert_eq!((&node.username, &node.connection_type), (&backing.username, &backing.connection_type));
        assert_eq!((&node.connection_port, &node.host_keys), (&backing.connection_port, &backing.host_keys));
        assert_eq!((&node.python_path, &node.shell_type), (&backing.python_path, &backing.shell_type));
        assert_eq!((node.slot, node.image_id.as_deref()), (Some(0), Some("unused")));
        assert_eq!(node.external_id.as_str(), Some(id.as_str()));
        assert_eq!(json!(node.resources), json!({"cores": 0, "instances": 1, "ram": 0}));
        assert_eq!(node.attributes["from"], "pool");
        let metadata = json!({
            "nodepool_node_id": id, "nodepool_pool_name": "main", "nodepool_provider_name": "meta",
        });
        let expected = json!({"metadata": metadata, "backing_node": backing_id, "slot": 0, "node": id});
        assert_eq!(*node.driver_data, expected);
        finish(&consumer, &request).await;
        until("the node to be deleted", async || consumer.node(&id).await.is_none()).await;
        assert_eq!(backing_nodes(&consumer).await.len(), 1);
    });
}

#[test]
fn nodes_share_a_backing_node_until_it_is_full() {
    on_paused_time(async {
        let (_zookeeper, consumer, _launcher) = start(json!({}), json!({})).await;
        let mut slots = BTreeSet::new();
        for expected in [1, 1, 2] {
            let (_, node) = small_node(&consumer).await;
            slots.insert(slot_of(&consumer, &node).await);
            until_backing_nodes(&consumer, expected).await;
        }
        assert_eq!(slots.len(), 3);
    });
}

#[test]
fn a_request_for_many_nodes_requests_only_the_backing_nodes_it_needs() {
    on_paused_time(async {
        let (_zookeeper, consumer, _launcher) = start(json!({}), json!({})).await;
        let request = consumer.submit_labels(&["small"; 5]).await;
        let nodes = consumer.fulfilled_nodes(&request).await;
        let mut slots = BTreeSet::new();
        for node in &nodes {
            slots.insert(slot_of(&consumer, node).await);
        }
        assert_eq!((slots.len(), backing_nodes(&consumer).await.len()), (5, 3));
        // Its own requests have ended.
        assert_eq!(consumer.requests().await, [request]);
    });
}

#[test]
fn a_freed_slot_of_the_fullest_backing_node_is_used_first() {
    on_paused_time(async {
        let (_zookeeper, consumer, _launcher) = start(json!({"grace-time": 3600}), json!({})).await;
        let request = consumer.submit_labels(&["small"; 4]).await;
        let nodes = consumer.fulfilled_nodes(&request).await;
        let locked = consumer.accept(&request).await;
        let kept = slot_of(&consumer, &nodes[3]).await.backing_node;
        let (mut released, mut used) = (Vec::new(), Vec::new());
        for (node, lock) in locked {
            if node == nodes[3] { used.push((node, lock)) } else { released.push((node, lock)) }
        }
        consumer.use_and_release(released).await;
        until("three nodes to be deleted", async || consumer.nodes().await.len() == 3).await;
        let (_, node) = small_node(&consumer).await;
        assert_eq!(slot_of(&consumer, &node).await.backing_node, kept);
    });
}

#[test]
fn max_servers_counts_slots() {
    on_paused_time(async {
        let (_zookeeper, consumer, _launcher) = start(json!({}), json!({"max-servers": 1})).await;
        let (first, node) = small_node(&consumer).await;
        let second = consumer.submit_labels(&["small"]).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(consumer.request(&second).await.unwrap().nodes.is_empty());
        finish(&consumer, &first).await;
        let [other] = &consumer.fulfilled_nodes(&second).await[..] else { panic!("one node") };
        assert_ne!(*other, node);
        assert_eq!(backing_nodes(&consumer).await.len(), 1);
    });
}

#[test]
fn a_label_that_is_its_own_backing_label_is_out_of_service() {
    on_paused_time(async {
        let yaml = configuration(json!({"backing-label": "small"}), json!({}));
        let (_zookeeper, consumer, _launcher) = start_fake_launcher(&yaml).await;
        let request = consumer.submit_labels(&["small"]).await;
        let ended = consumer.wait_for_end(&request).await;
        assert_eq!(ended.state.as_str(), "failed");
    });
}

#[test]
fn many_requests_at_once_fill_their_backing_nodes() {
    on_paused_time(async {
        // The fake cloud has room for 20 servers.
        let (_zookeeper, consumer, _launcher) = start(json!({"max-parallel-jobs": 4}), json!({})).await;
        let mut requests = Vec::new();
        for _ in 0..80 {
            requests.push(consumer.submit_labels(&["small"]).await);
        }
        let mut slots = BTreeSet::new();
        for request in &requests {
            let node = consumer.fulfilled_nodes(request).await.remove(0);
            slots.insert(slot_of(&consumer, &node).await);
        }
        assert_eq!((slots.len(), backing_nodes(&consumer).await.len()), (80, 20));
    });
}

#[test]
fn launchers_tell_what_nodes_wait_for_and_which_slots_are_taken() {
    on_paused_time(async {
        let blocked = Blocked::start(json!({})).await;
        let (consumer, launcher, request) = (&blocked.consumer, &blocked.launcher, &blocked.request);
        let own = blocked.backing_requests().await.remove(0);
        let explains = async || {
            let asked = ExplainRequest(request.clone());
            let answers = launcher.shared.explain_registry.request_all(asked, Duration::from_secs(5)).await;
            format!("{answers:?}").contains(&format!("waiting for backing nodes (b), requested as {own}"))
        };
        until("the reason", explains).await;
        let node = blocked.unblock().await;
        let is_shown = async || {
            let shown = launcher.shared.snapshot_feed.backing_nodes().remove("meta").unwrap_or_default();
            let first = shown.first().filter(|_| shown.len() == 1);
            first.is_some_and(|status| status.slots == 2 && status.occupants == [(0, node.clone())])
        };
        until("its slot to be shown", is_shown).await;
        finish(consumer, request).await;
        let is_idle = async || {
            let shown = launcher.shared.snapshot_feed.backing_nodes().remove("meta").unwrap_or_default();
            shown.first().is_some_and(|status| status.occupants.is_empty() && status.released_in_s.is_some())
        };
        until("its release to be announced", is_idle).await;
    });
}
