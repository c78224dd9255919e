//! Several pools: two of one provider, those of launchers that crashed, and those of a provider that fails to start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool::actors::runtime::messages::ExplainRequest;
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::component::PoolComponent;
use nodepool_model::records::ids::{LabelName, LauncherId, RequestId};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::Timestamp;
use nodepool_zk::locks::lock;
use nodepool_zk::paths;
use python_yaml::diagnostics::Diagnostic;
use testkit::delayed_replies::delayed_replies;
use testkit::in_process_launcher::foreign_pool::ForeignPool;
use testkit::in_process_launcher::{
    Consumer, InProcessDaemon, SETTLE_TIME, on_paused_time, start_launcher, until, yaml, zookeeper,
};
use testkit::instant_driver::{InstantDriver, Notifications, YAML};
use tokio::time::sleep;
use zookeeper_server::types::CreateMode;

/// Configuration of one provider. Its pool `east` has three slots of label `a`, its pool `west` three of label `b`.
fn two_pools(more: &str) -> String {
    let pool = |name: &str, label: &str| {
        format!(
            "      - name: {name}\n        nodes: [{{name: fake-{name}, labels: [{label}], max-parallel-jobs: 3, \
             host-key-checking: false}}]\n"
        )
    };
    let pools = pool("east", "a") + &pool("west", "b");
    format!(
        "zookeeper-servers: [{{host: localhost}}]\nlabels: [{{name: a}}, {{name: b}}]\nproviders:\n  - name: lab\n    \
         driver: static\n{more}    pools:\n{pools}"
    )
}

async fn components(consumer: &Consumer) -> BTreeMap<String, PoolComponent> {
    let (names, _) = consumer.zk.children("/nodepool/components/pool").await.unwrap();
    let mut found = BTreeMap::new();
    for name in names {
        let (data, _) = consumer.zk.get(&format!("/nodepool/components/pool/{name}")).await.unwrap();
        let record: PoolComponent = json::from_bytes(&data).unwrap();
        found.insert(record.name.as_ref().unwrap().to_string(), record);
    }
    found
}

#[test]
fn each_pool_of_a_provider_serves_its_own_labels_with_its_own_nodes() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) = start_launcher(&two_pools(""), 6).await;
        let registered = components(&consumer).await;
        assert_eq!(registered.len(), 2);
        for (pool, label) in [("east", "a"), ("west", "b")] {
            assert_eq!(registered[pool].provider_name.as_ref().unwrap().as_str(), "lab");
            assert_eq!(registered[pool].supported_labels, [label.into()].into(), "{pool}");
            let id = consumer.submit_labels(&[label, label]).await;
            for node in consumer.wait_for_end(&id).await.nodes {
                let node = consumer.node(&node).await.unwrap();
                assert_eq!(node.pool.unwrap().as_str(), pool);
                assert_eq!(node.hostname.unwrap(), format!("fake-{pool}"));
                assert_eq!((node.labels, node.provider.unwrap().as_str()), (vec![label.into()], "lab"));
            }
        }
        // All nodes of a request are from one pool.
        let mixed = consumer.submit_labels(&["a", "b"]).await;
        let mixed = consumer.wait_for_end(&mixed).await;
        assert_eq!(mixed.state, RequestState::Failed);
        let mut declined = mixed.declined_by;
        declined.sort();
        let mut ids: Vec<LauncherId> = registered.into_values().map(|pool| pool.id.unwrap()).collect();
        ids.sort();
        assert_eq!(declined, ids);
    });
}

/// Submits one request per pool; returns the number of fulfilled ones, and the reasons of the others. Replies to writes
/// are delayed, so that a fulfilled request still counts as being handled.
async fn served_at_once(limit: &str) -> (usize, Vec<String>) {
    let zookeeper = zookeeper();
    let consumer = Consumer::of(&zookeeper);
    let mut process = InProcessDaemon::new(&two_pools(limit));
    let (zk, release_replies) = delayed_replies(zookeeper.connect(), true);
    process.run_on(zk);
    until("6 nodes", async || consumer.ready_nodes().await == 6).await;
    release_replies.send_replace(false);
    let submitted = [consumer.submit_labels(&["a"]).await, consumer.submit_labels(&["b"]).await];
    sleep(SETTLE_TIME).await;
    let (mut served, mut why) = (0, Vec::new());
    for id in &submitted {
        match consumer.request(id).await.unwrap().state {
            RequestState::Fulfilled => served += 1,
            _ => why.extend(reasons(&process, id).await),
        }
    }
    release_replies.send_replace(true);
    for id in &submitted {
        assert_eq!(consumer.wait_for_end(id).await.state, RequestState::Fulfilled);
    }
    (served, why)
}

async fn reasons(process: &InProcessDaemon, id: &RequestId) -> Vec<String> {
    let replies = process.shared.explain_registry.request_all(ExplainRequest(id.clone()), Duration::from_secs(5)).await;
    replies.into_iter().filter_map(|(_, why)| why.ok().flatten()).map(|why| why.reason).collect()
}

#[test]
fn max_concurrency_counts_the_requests_of_all_pools_of_the_provider() {
    on_paused_time(async {
        let (served, why) = served_at_once("    max-concurrency: 1\n").await;
        assert_eq!(served, 1);
        assert!(why.iter().any(|reason| reason == "max-concurrency: 1 requests are being handled"), "{why:?}");
    });
    on_paused_time(async {
        assert_eq!(served_at_once("    max-concurrency: 2\n").await, (2, vec![]));
    });
    on_paused_time(async {
        assert_eq!(served_at_once("").await, (2, vec![]));
    });
}

#[test]
fn a_label_is_awaited_until_its_launchers_registration_expires() {
    on_paused_time(async {
        let (zookeeper, consumer, _process) =
            start_launcher(&yaml("lab", &["name: fake-h1, labels: [a]"], ""), 1).await;
        let own = components(&consumer).await.remove("main").unwrap().id.unwrap();
        // This pool does not respond, and its session has not expired yet.
        let dead = ForeignPool::register(&zookeeper, "cloud", &["c"]).await;
        let id = consumer.submit_labels(&["c"]).await;
        sleep(SETTLE_TIME).await;
        let waiting = consumer.request(&id).await.unwrap();
        assert_eq!((waiting.state, waiting.declined_by.len()), (RequestState::Requested, 0));
        let other = consumer.submit_labels(&["a"]).await;
        assert_eq!(
            consumer.wait_for_end(&other).await.state,
            RequestState::Fulfilled,
            "other requests do not wait for it"
        );

        zookeeper.expire(dead.zk.session_id());
        let ended = consumer.wait_for_end(&id).await;
        assert_eq!((ended.state, ended.declined_by), (RequestState::Failed, vec![own]));
    });
}

#[test]
fn nodes_of_a_provider_that_cannot_start_stay_as_they_are() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        lock::make_path(&consumer.zk, "/nodepool/nodes").await.unwrap();
        let mut before = Vec::new();
        for state in [NodeState::Ready, NodeState::Used, NodeState::InUse, NodeState::Deleting] {
            let mut node = Node::new(state, Timestamp(1.0));
            (node.provider, node.pool) = (Some("broken".into()), Some("main".into()));
            (node.hostname, node.labels) = (Some("fake-h2".to_owned()), vec!["b".into()]);
            let data = Bytes::from(json::to_bytes(&node));
            consumer.zk.create(&paths::node_prefix(), data, CreateMode::PersistentSequential).await.unwrap();
            before.push(node);
        }
        let broken = "  - name: broken\n    driver: static\n    pools:\n      - name: main\n        nodes: [{name: \
                      fake-h2, labels: [b], connection-port: 70000}]\n";
        let mut process = InProcessDaemon::new(&yaml("lab", &["name: fake-h1, labels: [a]"], broken));
        process.run(&zookeeper);
        until("the node of the working provider", async || consumer.nodes().await.len() == 5).await;
        let id = consumer.submit_labels(&["b"]).await;
        assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Failed, "no pool has the label");
        sleep(SETTLE_TIME).await;
        let nodes = consumer.nodes().await;
        let after: Vec<Node> = nodes.into_iter().map(|(_, node)| node).take(4).collect();
        assert_eq!(after, before);
    });
}

/// A driver that fails to open until the flag is set, like that of a cloud whose clouds.yaml does not exist yet.
struct DelayedDrivers(Arc<AtomicBool>);

impl ExtraDrivers for DelayedDrivers {
    fn names(&self) -> Vec<&'static str> {
        vec!["fake"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        match self.0.load(Relaxed) {
            true => InstantDriver(Notifications::default()).open(section, start),
            false => Err(vec![Diagnostic::error(section.section.at, "no clouds.yaml")]),
        }
    }
}

#[test]
fn a_failed_provider_start_is_retried_without_a_file_change() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let is_available = Arc::<AtomicBool>::default();
        let mut process =
            InProcessDaemon::with_drivers(YAML, |_| {}, Some(Box::new(DelayedDrivers(is_available.clone()))));
        process.run(&zookeeper);
        let pools = async || consumer.count("/nodepool/components/pool").await;
        // The provider fails to start at first, and again after a reload that replaces it.
        for cloud in ["one", "two"] {
            sleep(SETTLE_TIME).await;
            assert_eq!(pools().await, 0);
            let id = consumer.submit_labels(&["a"]).await;
            until("the reason to be known", async || {
                reasons(&process, &id).await == ["the provider is out of service: no clouds.yaml"]
            })
            .await;
            is_available.store(true, Relaxed);
            assert_eq!(consumer.wait_for_end(&id).await.state, RequestState::Fulfilled);
            assert_eq!(pools().await, 1);
            let nodes = consumer.accept(&id).await;
            consumer.use_and_release(nodes).await;
            until("its node to be deleted", async || consumer.nodes().await.is_empty()).await;
            is_available.store(false, Relaxed);
            sleep(SETTLE_TIME).await;
            assert_eq!(pools().await, 1, "a running provider is not restarted");
            std::fs::write(&process.file, YAML.replace("cloud: fake\n", &format!("cloud: {cloud}\n"))).unwrap();
            until("the pool to be unregistered", async || pools().await == 0).await;
        }
    });
}

#[test]
fn a_tenant_limited_request_keeps_its_rank_in_other_pools() {
    on_paused_time(async {
        let limits = "tenant-resource-limits: [{tenant-name: t, max-servers: 3}]\n";
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        lock::make_path(&consumer.zk, "/nodepool/nodes").await.unwrap();
        // A pool of another launcher has two servers of the tenant.
        let mut node = Node::new(NodeState::InUse, Timestamp(1.0));
        (node.provider, node.pool, node.tenant_name) = (Some("cloud".into()), Some("main".into()), Some("t".into()));
        node.resources = Some(serde_json::Map::from_iter([("instances".to_owned(), 2.into())]).into());
        let data = Bytes::from(json::to_bytes(&node));
        let create = consumer.zk.create(&paths::node_prefix(), data, CreateMode::PersistentSequential);
        let (theirs, _) = create.await.unwrap();
        let mut process = InProcessDaemon::new(&(two_pools("") + limits));
        process.run(&zookeeper);
        until("6 nodes", async || consumer.ready_nodes().await == 6).await;

        let submit = async |labels: &[&str]| {
            let labels = labels.iter().map(|label| LabelName::from(*label)).collect();
            let mut request = NodeRequest::new(labels, "tester", Timestamp(1.0));
            request.tenant_name = Some("t".into());
            consumer.submit(request).await
        };
        let (large, small) = (submit(&["a", "a"]).await, submit(&["b"]).await);
        sleep(SETTLE_TIME).await;
        for (id, wants, free) in [(&large, 2, 1), (&small, 1, -1)] {
            assert_eq!(consumer.request(id).await.unwrap().state, RequestState::Requested);
            let reason = format!("tenant t is at its limit: needs instances {wants}, free {free}");
            assert!(reasons(&process, id).await.contains(&reason), "{:?}", reasons(&process, id).await);
        }
        // Requests of other tenants are served, regardless of their rank.
        let other = consumer.submit_labels(&["b"]).await;
        assert_eq!(consumer.wait_for_end(&other).await.state, RequestState::Fulfilled);

        consumer.zk.delete(&theirs, -1).await.unwrap();
        for id in [&large, &small] {
            assert_eq!(consumer.wait_for_end(id).await.state, RequestState::Fulfilled);
        }
    });
}
