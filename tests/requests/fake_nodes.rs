//! Nodes of the fake cloud from launch to deletion, with failed attempts, an exhausted quota and deleted requests.

use nodepool::actors::runtime::clock;
use nodepool::actors::runtime::messages::ExplainRequest;
use nodepool_model::records::ids::NodeId;
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::RequestState;
use nodepool_zk::locks::lock;
use nodepool_zk::paths;
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, started, until, zookeeper};
use zookeeper_server::types::CreateMode;

/// Configuration of one pool of a fake cloud, with the labels `a` and `b`. `pool` and `provider` are further lines of
/// their sections.
pub fn cloud(pool: &str, provider: &str) -> String {
    format!(
        "zookeeper-servers: [{{host: localhost}}]\nlabels: [{{name: a}}, {{name: b}}]\nproviders:\n  - name: lab\n    \
         driver: fake\n    cloud: fake\n{provider}    cloud-images: [{{name: image, image-name: Fake Precise, username: zuul}}]\n    pools:\n      \
         - name: main\n{pool}        labels:\n          - {{name: a, cloud-image: image, flavor-name: Fake Flavor}}\n          \
         - {{name: b, cloud-image: image, flavor-name: Unreal Flavor}}\n"
    )
}

// Also asserts that the record of a launched node is complete.
#[test]
fn a_used_node_is_deleted_with_its_server() {
    on_paused_time(async {
        let (consumer, _process) = started(&cloud("        node-attributes: {rack: r1}\n", "")).await;
        let id = consumer.submit_labels(&["a"]).await;
        let request = consumer.wait_for_end(&id).await;
        assert_eq!((request.state, request.nodes.len()), (RequestState::Fulfilled, 1));
        let node = consumer.node(&request.nodes[0]).await.unwrap();
        assert_eq!((node.state, node.allocated_to.as_ref()), (NodeState::Ready, Some(&id)));
        assert_eq!(node.host_keys, ["ssh-rsa FAKEKEY"]);
        assert_eq!(node.interface_ip.as_deref(), Some("fake"));
        assert_eq!((node.username.as_deref(), node.connection_type.as_deref()), (Some("zuul"), Some("ssh")));
        assert_eq!(node.image_id.as_deref(), Some("image"));
        assert!(node.external_id.is_string() && node.az.is_some(), "{node:?}");
        let resources = serde_json::json!({"cores": 4, "instances": 1, "ram": 8192});
        assert_eq!(serde_json::json!(node.resources.clone().unwrap()), resources);
        assert_eq!(*node.attributes, serde_json::json!({"rack": "r1"}));

        let nodes = consumer.accept(&id).await;
        consumer.use_and_release(nodes).await;
        until("the node to be deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

#[test]
fn nodes_are_listed_in_the_order_of_the_requested_labels() {
    on_paused_time(async {
        let (consumer, _process) = started(&cloud("", "")).await;
        let id = consumer.submit_labels(&["b", "a", "b"]).await;
        let request = consumer.wait_for_end(&id).await;
        let mut labels = Vec::new();
        for id in &request.nodes {
            labels.push(consumer.node(id).await.unwrap().labels[0].to_string());
        }
        assert_eq!(labels, ["b", "a", "b"]);
    });
}

#[test]
fn a_request_waits_for_capacity() {
    on_paused_time(async {
        let (consumer, _process) = started(&cloud("        max-servers: 2\n", "")).await;
        let first = consumer.submit_labels(&["a", "a"]).await;
        consumer.wait_for_end(&first).await;
        let first_nodes = consumer.accept(&first).await;
        let second = consumer.submit_labels(&["a"]).await;
        let third = consumer.submit_labels(&["a", "a", "a"]).await;
        let third = consumer.wait_for_end(&third).await;
        assert_eq!(third.state, RequestState::Failed, "the request can never be served");
        let is_pending = async || consumer.request(&second).await.unwrap().state == RequestState::Pending;
        until("the second request to wait for capacity", is_pending).await;
        consumer.use_and_release(first_nodes).await;
        assert_eq!(consumer.wait_for_end(&second).await.state, RequestState::Fulfilled);
    });
}

#[test]
fn a_failed_server_is_replaced_until_attempts_are_exhausted() {
    on_paused_time(async {
        let every_second = "    fake: {boot-fails-every: 2}\n";
        let (consumer, _process) = started(&cloud("", every_second)).await;
        for _ in 0..4 {
            let id = consumer.submit_labels(&["a"]).await;
            assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
        }
    });
    on_paused_time(async {
        let (consumer, _process) =
            started(&cloud("", "    launch-retries: 2\n    fake: {boot-fails-every: 1}\n")).await;
        let id = consumer.submit_labels(&["a"]).await;
        let request = consumer.wait_for_end(&id).await;
        assert_eq!((request.state, request.declined_by.len()), (RequestState::Failed, 1));
        until("the failed node to be deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

// No launch continues for a deleted request.
#[test]
fn a_deleted_request_leaves_no_nodes_behind() {
    on_paused_time(async {
        let (consumer, _process) = started(&cloud("", "    fake: {boot-time: 20}\n")).await;
        let id = consumer.submit_labels(&["a", "b"]).await;
        let building = async |node: &Node| node.state == NodeState::Building && !node.external_id.is_null();
        until("both nodes to be `building`", async || {
            let nodes = consumer.nodes().await;
            let mut count = 0;
            for (_, node) in &nodes {
                count += usize::from(building(node).await);
            }
            count == 2
        })
        .await;
        consumer.zk.delete(&paths::request(&id), -1).await.unwrap();
        until("all nodes to be deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

#[test]
fn throttling_fails_no_request() {
    on_paused_time(async {
        let (consumer, _process) = started(&cloud("", "    fake: {throttle-every: 2, retry-after: 1}\n")).await;
        let ids = [
            consumer.submit_labels(&["a"]).await,
            consumer.submit_labels(&["a"]).await,
            consumer.submit_labels(&["b"]).await,
        ];
        for id in &ids {
            assert_eq!(consumer.wait_for_end(id).await.state, RequestState::Fulfilled);
        }
    });
}

// The transactions: claim, begin, record of the server's id, and `ready` with `fulfilled`; then `deleting`, and the
// deletion of the node.
#[test]
fn a_node_lifecycle_takes_six_transactions() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let mut process = InProcessDaemon::new(&cloud("", ""));
        process.run(&zookeeper);
        until("its pool to be registered", async || consumer.count("/nodepool/components/pool").await == 1).await;
        let id = consumer.submit_labels(&["a"]).await;
        let submitted = zookeeper.last_zxid();
        consumer.wait_for_end(&id).await;
        assert_eq!(zookeeper.last_zxid() - submitted, 4);
        let nodes = consumer.accept(&id).await;
        consumer.use_and_release(nodes).await;
        let used = zookeeper.last_zxid();
        until("the node to be deleted", async || consumer.nodes().await.is_empty()).await;
        assert_eq!(zookeeper.last_zxid() - used, 2);
    });
}

#[test]
fn an_exhausted_quota_fails_no_request() {
    on_paused_time(async {
        let yaml = cloud("        ignore-provider-quota: true\n", "    fake: {max-instances: 1}\n");
        let (consumer, _process) = started(&yaml).await;
        let first = consumer.submit_labels(&["a"]).await;
        consumer.wait_for_end(&first).await;
        let second = consumer.submit_labels(&["b"]).await;
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        let waiting = consumer.request(&second).await.unwrap();
        assert_ne!(waiting.state, RequestState::Failed);
        assert!(waiting.declined_by.is_empty());
        let nodes = consumer.accept(&first).await;
        consumer.use_and_release(nodes).await;
        assert_eq!(consumer.wait_for_end(&second).await.state, RequestState::Fulfilled);
    });
}

#[test]
fn an_unknown_flavor_declines_only_its_label() {
    on_paused_time(async {
        let yaml = cloud("", "").replace("Unreal Flavor", "No Such Flavor");
        let (consumer, process) = started(&yaml).await;
        let (good, bad) = (consumer.submit_labels(&["a"]).await, consumer.submit_labels(&["b"]).await);
        assert_eq!(consumer.wait_for_end(&good).await.state, RequestState::Fulfilled);
        assert_eq!(consumer.wait_for_end(&bad).await.state, RequestState::Failed);
        let replies =
            process.shared.explain_registry.request_all(ExplainRequest(bad), std::time::Duration::from_secs(5)).await;
        let why = replies.into_iter().find_map(|(_, why)| why.ok().flatten()).unwrap().reason;
        assert!(why.starts_with("node type(s) [b] not available: Unable to find flavor"), "{why}");
    });
}

#[test]
fn server_deletion_is_retried_until_it_succeeds() {
    on_paused_time(async {
        let (consumer, process) = started(&cloud("", "    fake: {delete-fails-every: 2}\n")).await;
        let first = consumer.submit_labels(&["a", "a", "a"]).await;
        consumer.wait_for_end(&first).await;
        let nodes = consumer.accept(&first).await;
        consumer.use_and_release(nodes).await;
        until("all nodes to be deleted", async || consumer.nodes().await.is_empty()).await;
        drop(process);
    });
}

#[test]
fn foreign_servers_reduce_the_available_capacity() {
    on_paused_time(async {
        let (consumer, _process) = started(&cloud("", "    fake: {max-cores: 12}\n")).await;
        let first = consumer.submit_labels(&["a", "a", "a"]).await;
        assert_eq!(consumer.wait_for_end(&first).await.state, RequestState::Fulfilled);
        let waiting = consumer.submit_labels(&["b"]).await;
        let never = consumer.submit_labels(&["b", "b", "b", "b"]).await;
        assert_eq!(consumer.wait_for_end(&never).await.state, RequestState::Failed);
        let is_pending = async || consumer.request(&waiting).await.unwrap().state == RequestState::Pending;
        until("the request to wait for capacity", is_pending).await;
        // The consumer deletes the unserved request, which no longer waits.
        consumer.zk.delete(&paths::request(&waiting), -1).await.unwrap();
        let nodes = consumer.accept(&first).await;
        consumer.use_and_release(nodes).await;
        until("all nodes to be deleted", async || consumer.nodes().await.is_empty()).await;
    });
}

#[test]
fn nodes_of_a_provider_that_cannot_open_are_kept() {
    on_paused_time(async {
        let yaml = cloud("", "") + "  - {name: shut, driver: openstack, cloud: no-such-cloud, pools: []}\n";
        let (consumer, _process) = started(&yaml).await;
        let used = async |provider: &str| {
            let mut node = Node::new(NodeState::Used, clock::now());
            (node.provider, node.external_id) = (Some(provider.into()), "a-server".into());
            lock::make_path(&consumer.zk, "/nodepool/nodes").await.unwrap();
            let data = json::to_bytes(&node).into();
            let (path, _) =
                consumer.zk.create(&paths::node_prefix(), data, CreateMode::PersistentSequential).await.unwrap();
            NodeId::from(paths::name(&path))
        };
        let (of_shut, of_lab) = (used("shut").await, used("lab").await);
        until("the node of the other provider to be deleted", async || consumer.node(&of_lab).await.is_none()).await;
        assert_eq!(consumer.node(&of_shut).await.map(|node| node.state), Some(NodeState::Used));
    });
}
