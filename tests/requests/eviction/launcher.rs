//! Eviction in a whole launcher: it deletes an idle node for a request that lacks capacity.

use std::time::Duration;

use crate::fake_nodes::cloud;
use crate::quotas::wait_for_state;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::RequestState;
use nodepool_zk::memory::Fault;
use nodepool_zk::paths;
use serde_json::json;
use testkit::in_process_launcher::fake_cloud::{single_provider, start_fake_launcher};
use testkit::in_process_launcher::{on_paused_time, started, until};
use tokio::time::{Instant, sleep};

#[test]
fn the_oldest_idle_node_is_evicted_for_capacity() {
    on_paused_time(async {
        let (consumer, _process) = started(&cloud("        max-servers: 3\n", "")).await;
        let (mut requests, mut idle) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let id = consumer.submit_labels(&["a"]).await;
            idle.extend(consumer.wait_for_end(&id).await.nodes);
            requests.push(id);
        }
        for id in &requests {
            consumer.zk.delete(&paths::request(id), -1).await.unwrap();
        }
        until("all nodes to be idle", async || consumer.ready_nodes().await == 3).await;
        let id = consumer.submit_labels(&["b"]).await;
        let request = consumer.wait_for_end(&id).await;
        assert_eq!(request.state, RequestState::Fulfilled);
        let remaining: Vec<_> = consumer.nodes().await.into_iter().map(|(id, _)| id).collect();
        assert_eq!(
            remaining,
            [idle[1].clone(), idle[2].clone(), request.nodes[0].clone()],
            "only the oldest is deleted"
        );
    });
}

#[test]
fn a_node_that_the_request_will_reuse_is_not_evicted() {
    on_paused_time(async {
        let (consumer, _process) = started(&cloud("        max-servers: 2\n", "")).await;
        let busy = consumer.submit_labels(&["b"]).await;
        consumer.wait_for_end(&busy).await;
        let nodes = consumer.accept(&busy).await;
        let first = consumer.submit_labels(&["a"]).await;
        let idle = consumer.wait_for_end(&first).await.nodes;
        consumer.zk.delete(&paths::request(&first), -1).await.unwrap();
        until("the node to be idle", async || consumer.ready_nodes().await == 1).await;
        let id = consumer.submit_labels(&["a", "b"]).await;
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        assert_eq!(consumer.node(&idle[0]).await.unwrap().state, NodeState::Ready);
        consumer.use_and_release(nodes).await;
        let request = consumer.wait_for_end(&id).await;
        assert_eq!((request.state, &request.nodes[0]), (RequestState::Fulfilled, &idle[0]));
    });
}

// Regression: a node whose release was not written remained `building`, and used the capacity for which its request
// waited.
#[test]
fn a_node_whose_eviction_failed_is_deleted_later() {
    on_paused_time(async {
        let faults = json!({"boot-time": 5, "boot-quota-every": 4});
        let (zookeeper, consumer, process) =
            start_fake_launcher(&single_provider(json!({"fake": faults}), json!({"max-servers": 2}))).await;
        let first = consumer.submit_labels(&["a", "a"]).await;
        consumer.wait_for_end(&first).await;
        let used = consumer.accept(&first).await;
        let second = consumer.submit_labels(&["a", "a"]).await;
        wait_for_state(&consumer, &second, RequestState::Pending).await;
        sleep(Duration::from_secs(5)).await;
        consumer.use_and_release(used).await;
        until("both nodes of the second request to boot", async || {
            let nodes = consumer.nodes().await;
            let boots = |node: &Node| node.state == NodeState::Building && node.external_id.as_str().is_some();
            nodes.iter().filter(|(_, node)| boots(node)).count() == 2
        })
        .await;
        sleep(Duration::from_secs_f64(4.5)).await;
        // One node fails on quota. Neither its deletion nor the state of the other one is written.
        zookeeper.fail_next(process.session_id, 40, Fault::BeforeApplying);
        let began = Instant::now();
        let ended = consumer.wait_for_end(&second).await;
        assert_eq!((ended.state, ended.nodes.len()), (RequestState::Fulfilled, 2));
        assert!(began.elapsed() < Duration::from_secs(120), "the request waited {:?} for capacity", began.elapsed());
    });
}
