//! Static nodes in a whole launcher: assignment, slots, sessions, reloads, and records that it deletes or keeps.

use std::time::Duration;

use bytes::Bytes;
use nodepool::actors::process::context::SessionEnd;
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{LabelName, NodeId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState, Writer};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::Seconds;
use nodepool_zk::locks::lock;
use nodepool_zk::memory::Fault;
use nodepool_zk::paths;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, start_launcher, until, yaml, zookeeper};
use zookeeper_server::types::CreateMode;

const TWO_HOSTS: &[&str] = &["name: fake-h1, labels: [a], max-parallel-jobs: 2", "name: fake-h2, labels: [b]"];

#[test]
fn a_ready_node_is_assigned_in_one_transaction() {
    on_paused_time(async {
        let (zookeeper, consumer, _process) = start_launcher(&yaml("lab", TWO_HOSTS, ""), 3).await;

        let mut request = NodeRequest::new(vec![LabelName::from("b"), LabelName::from("a")], "tester", clock::now());
        request.tenant_name = Some("tenant-one".into());
        let before = zookeeper.last_zxid();
        let id = consumer.submit(request).await;
        let ended = consumer.wait_for_end(&id).await;
        assert_eq!(ended.state, RequestState::Fulfilled);
        assert_eq!(zookeeper.last_zxid() - before, 2, "one transaction of the consumer, one of ours");
        let labels: Vec<_> = {
            let mut labels = Vec::new();
            for node in &ended.nodes {
                let node = consumer.node(node).await.unwrap();
                assert_eq!(node.allocated_to.as_ref(), Some(&id));
                assert_eq!(node.tenant_name.as_ref().map(|name| name.as_str()), Some("tenant-one"));
                assert_eq!((node.requestor.as_deref(), node.state), (Some("tester"), NodeState::Ready));
                labels.push(node.labels[0].to_string());
            }
            labels
        };
        assert_eq!(labels, ["b", "a"]);
        assert_eq!(consumer.count("/nodepool/requests-lock").await, 0, "nothing remains to clean up");
    });
}

// One scheduling pass accepts fewer requests than these. The periodic pass is too late to serve the others.
#[test]
fn hundreds_of_requests_are_served_without_polling() {
    on_paused_time(async {
        let text = yaml("lab", &["name: fake-h1, labels: [a], max-parallel-jobs: 300"], "");
        let process = InProcessDaemon::with(&text, |options| options.watermark_sleep = Seconds(100_000.0));
        let (_zookeeper, consumer, _process) = testkit::in_process_launcher::start_process(process, 300).await;
        let ids = futures::future::join_all((0..300).map(|_| consumer.submit_labels(&["a"]))).await;
        let mut assigned = std::collections::BTreeSet::new();
        for id in ids {
            assigned.extend(consumer.wait_for_end(&id).await.nodes);
        }
        assert_eq!(assigned.len(), 300);
    });
}

#[test]
fn a_used_static_node_is_reregistered_in_its_slot() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_launcher(&yaml("lab", &["name: fake-h1, labels: [a]"], ""), 1).await;
        for _ in 0..5 {
            let id = consumer.submit_labels(&["a"]).await;
            let first = consumer.wait_for_end(&id).await.nodes[0].clone();
            let nodes = consumer.accept(&id).await;
            consumer.use_and_release(nodes).await;
            until("the slot to be registered again", async || consumer.ready_nodes().await == 1).await;
            let (second, node) = consumer.nodes().await.pop().unwrap();
            assert_ne!(second, first);
            assert_eq!(node.slot, Some(0));
        }
        assert_eq!(consumer.count("/nodepool/nodes").await, 1);
    });
}

#[test]
fn nodes_of_a_withdrawn_request_are_released() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_launcher(&yaml("lab", &["name: fake-h1, labels: [a]"], ""), 1).await;
        let id = consumer.submit_labels(&["a"]).await;
        consumer.wait_for_end(&id).await;
        assert_eq!(consumer.ready_nodes().await, 0);
        consumer.zk.delete(&paths::request(&id), -1).await.unwrap();
        until("the node to be idle", async || consumer.ready_nodes().await == 1).await;
        let (_, node) = consumer.nodes().await.pop().unwrap();
        assert_eq!(node.slot, Some(0), "the node is the same one");
    });
}

#[test]
fn after_session_expiry_the_launcher_keeps_its_name() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let mut process = InProcessDaemon::new(&yaml("lab", &["name: fake-h1, labels: [a]"], ""));
        let running = process.run(&zookeeper);
        until("a node", async || consumer.ready_nodes().await == 1).await;
        let launcher = registered(&consumer).await;
        zookeeper.expire(process.session_id);
        assert_eq!(running.await.unwrap(), SessionEnd::Expired);
        let id = consumer.submit_labels(&["a"]).await;
        process.run(&zookeeper);
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
        assert_eq!(registered(&consumer).await, launcher);
    });
}

async fn registered(consumer: &Consumer) -> Vec<String> {
    let (names, _) = consumer.zk.children("/nodepool/components/pool").await.unwrap();
    let mut ids = Vec::new();
    for name in names {
        let (data, _) = consumer.zk.get(&format!("/nodepool/components/pool/{name}")).await.unwrap();
        let record: serde_json::Value = serde_json::from_slice(&data).unwrap();
        ids.push(record["id"].as_str().unwrap().to_owned());
    }
    ids
}

#[test]
fn two_launchers_fail_requests_that_both_declined() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let mut east = InProcessDaemon::new(&yaml("east", &["name: fake-h1, labels: [a]"], ""));
        east.run(&zookeeper);
        let mut west = InProcessDaemon::new(&yaml("west", &["name: fake-h2, labels: [a, b]"], ""));
        west.run(&zookeeper);
        until("two nodes", async || consumer.ready_nodes().await == 2).await;
        let (one, two) = (consumer.submit_labels(&["a"]).await, consumer.submit_labels(&["a"]).await);
        let (one, two) = (consumer.wait_for_end(&one).await, consumer.wait_for_end(&two).await);
        assert_ne!(one.nodes, two.nodes);
        let unserved = consumer.submit_labels(&["c"]).await;
        let unserved = consumer.wait_for_end(&unserved).await;
        assert_eq!((unserved.state, unserved.declined_by.len()), (RequestState::Failed, 2));
        assert!(unserved.nodes.is_empty());
    });
}

#[test]
fn a_write_with_unknown_outcome_is_applied_exactly_once() {
    for fault in [Fault::BeforeApplying, Fault::AfterApplying] {
        on_paused_time(async {
            let (zookeeper, consumer, process) =
                start_launcher(&yaml("lab", &["name: fake-h1, labels: [a], max-parallel-jobs: 3"], ""), 3).await;
            zookeeper.fail_next(process.session_id, 2, fault);
            let id = consumer.submit_labels(&["a"]).await;
            let ended = consumer.wait_for_end(&id).await;
            assert_eq!((ended.state, ended.nodes.len()), (RequestState::Fulfilled, 1), "{fault:?}");
            assert_eq!(consumer.ready_nodes().await, 2, "{fault:?}");
        });
    }
}

#[test]
fn after_a_short_disconnection_nothing_was_missed() {
    on_paused_time(async {
        let (zookeeper, consumer, process) = start_launcher(&yaml("lab", &["name: fake-h1, labels: [a]"], ""), 1).await;
        zookeeper.suspend(process.session_id);
        let id = consumer.submit_labels(&["a"]).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(consumer.request(&id).await.unwrap().state, RequestState::Requested);
        zookeeper.resume(process.session_id);
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
    });
}

#[test]
fn a_changed_file_is_applied_and_a_broken_one_is_not() {
    on_paused_time(async {
        let (_zookeeper, consumer, process) =
            start_launcher(&yaml("lab", &["name: fake-h1, labels: [a]"], ""), 1).await;
        let before = registered(&consumer).await;

        std::fs::write(&process.file, "providers: [").unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let id = consumer.submit_labels(&["a"]).await;
        let nodes = {
            assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
            consumer.accept(&id).await
        };
        consumer.use_and_release(nodes).await;

        std::fs::write(&process.file, yaml("lab", &["name: fake-h1, labels: [a, b], max-parallel-jobs: 2"], ""))
            .unwrap();
        until("two nodes with the new label", async || {
            let nodes = consumer.nodes().await;
            nodes.len() == 2 && nodes.iter().all(|(_, node)| node.is_idle() && node.labels.len() == 2)
        })
        .await;
        let id = consumer.submit_labels(&["b"]).await;
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
        assert_eq!(registered(&consumer).await, before, "the pool worker is not restarted");
    });
}

#[test]
fn a_removed_provider_is_unregistered_and_its_nodes_stay() {
    on_paused_time(async {
        let (_zookeeper, consumer, process) =
            start_launcher(&yaml("lab", &["name: fake-h1, labels: [a]"], ""), 1).await;
        std::fs::write(&process.file, yaml("other", &["name: fake-h2, labels: [b]"], "")).unwrap();
        until("the other provider's node", async || consumer.ready_nodes().await == 2).await;
        until("one registered pool", async || registered(&consumer).await.len() == 1).await;
        assert!(registered(&consumer).await[0].contains("other-main"));
    });
}

#[test]
fn empty_nodes_and_old_lock_directories_are_deleted() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_launcher(&yaml("lab", &["name: fake-h1, labels: [a]"], ""), 1).await;
        let (empty, stale) = (NodeId::from("0000009999"), "/nodepool/requests-lock/200-0000009999");
        for path in [paths::node(&empty), paths::node_lock(&empty), stale.to_owned()] {
            consumer.zk.create(&path, Bytes::new(), CreateMode::Persistent).await.unwrap();
        }
        until("the empty node to be deleted", async || consumer.count("/nodepool/nodes").await == 1).await;
        tokio::time::sleep(Duration::from_secs(8 * 3600 - 200)).await;
        assert!(consumer.zk.exists(stale).await.unwrap().is_some(), "the directory is younger than eight hours");
        tokio::time::sleep(Duration::from_secs(400)).await;
        assert!(consumer.zk.exists(stale).await.unwrap().is_none());
    });
}

#[test]
fn held_nodes_expire_at_the_moment_they_are_due() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_launcher(&yaml("lab", &["name: fake-h1, labels: [a]"], "max-hold-age: 20\n"), 1).await;
        let (id, mut node) = consumer.nodes().await.pop().unwrap();
        node.set_state(NodeState::Hold, Writer::Operator, clock::now());
        consumer.zk.set(&paths::node(&id), Bytes::from(json::to_bytes(&node)), -1).await.unwrap();
        tokio::time::sleep(Duration::from_millis(19_500)).await;
        assert_eq!(consumer.node(&id).await.unwrap().state, NodeState::Hold);
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(consumer.node(&id).await.is_none(), "held for more than 20 s");
    });
}

#[test]
fn unreadable_records_block_nothing_and_are_kept() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        lock::make_path(&consumer.zk, "/nodepool/nodes").await.unwrap();
        lock::make_path(&consumer.zk, "/nodepool/requests").await.unwrap();
        let unreadable: [&[u8]; 5] = [b"{", b"\xff\xfe", b"[]", br#"{"state": "asleep"}"#, br#"{"state": "ready"}"#];
        for (number, data) in unreadable.iter().enumerate() {
            let mode = CreateMode::Persistent;
            let data = Bytes::from_static(data);
            consumer.zk.create(&format!("/nodepool/nodes/000000{number:04}"), data.clone(), mode).await.unwrap();
            consumer.zk.create(&format!("/nodepool/requests/200-000000{number:04}"), data, mode).await.unwrap();
        }
        let mut process = InProcessDaemon::new(&yaml("lab", &["name: fake-h1, labels: [a]"], ""));
        process.run(&zookeeper);
        until("a node", async || {
            let (names, _) = consumer.zk.children("/nodepool/nodes").await.unwrap();
            names.len() == 6
        })
        .await;
        let id = consumer.submit_labels(&["a"]).await;
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(consumer.count("/nodepool/nodes").await, 6, "unreadable records are not deleted");
    });
}

#[test]
fn a_request_larger_than_a_transaction_is_served_in_chunks() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let mut process =
            InProcessDaemon::new(&yaml("lab", &["name: fake-h1, labels: [a], max-parallel-jobs: 1500"], ""));
        process.run(&zookeeper);
        until("1500 nodes", async || consumer.count("/nodepool/nodes").await == 1500).await;
        let id = consumer.submit_labels(&vec!["a"; 1200]).await;
        let ended = consumer.wait_for_end(&id).await;
        assert_eq!((ended.state, ended.nodes.len()), (RequestState::Fulfilled, 1200));
        let nodes: Vec<(NodeId, Node)> = consumer.nodes().await;
        assert_eq!(nodes.iter().filter(|(_, node)| node.allocated_to.as_ref() == Some(&id)).count(), 1200);
        let too_large = consumer.submit_labels(&vec!["a"; 10_000]).await;
        assert_eq!(consumer.wait_for_end(&too_large).await.state, RequestState::Failed);
    });
}

#[test]
fn stopping_deletes_the_registration_with_the_session() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let mut process = InProcessDaemon::new(&yaml("lab", &["name: fake-h1, labels: [a]"], ""));
        let running = process.run(&zookeeper);
        until("a node", async || consumer.ready_nodes().await == 1).await;
        process.stop();
        assert_eq!(running.await.unwrap(), SessionEnd::Stopped);
        until("the session to be closed", async || consumer.count("/nodepool/components/pool").await == 0).await;
    });
}
