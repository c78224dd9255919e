//! Adoption by whole launchers, after the end of a session or the death of a launcher or consumer.

use std::time::Duration;

use nodepool::actors::process::context::{LauncherOptions, SessionEnd};
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::Seconds;
use nodepool_zk::locks::lock;
use nodepool_zk::paths;
use serde_json::json;
use testkit::in_process_launcher::fake_cloud::{self, provider, single_provider, start_fake_launcher};
use testkit::in_process_launcher::{
    Consumer, InProcessDaemon, SETTLE_TIME, node_record, on_paused_time, until, zookeeper,
};
use tokio::time::sleep;

#[test]
fn a_partly_fulfilled_request_restarts_with_its_ready_nodes() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        lock::make_path(&consumer.zk, "/nodepool/requests").await.unwrap();
        let mut request = NodeRequest::new(vec!["a".into(), "b".into(), "a".into()], "tester", clock::now());
        request.set_state(RequestState::Pending, clock::now());
        let id = consumer.submit(request).await;
        let mut good = node_record(NodeState::Ready, Some(&id));
        good.external_id = "a-server".into();
        let good = consumer.create_node(&good).await;
        let unfinished = consumer.create_node(&node_record(NodeState::Init, Some(&id))).await;
        let mut process = InProcessDaemon::new(&single_provider(json!({}), json!({})).to_string());
        process.run(&zookeeper);
        let request = consumer.wait_for_end(&id).await;
        assert_eq!((request.state, request.nodes.len()), (RequestState::Fulfilled, 3));
        assert!(request.nodes.contains(&good) && !request.nodes.contains(&unfinished), "{:?}", request.nodes);
        assert_eq!(consumer.node_state(&unfinished).await, None);
    });
}

#[test]
fn a_session_lost_during_a_launch_is_recovered_by_another() {
    on_paused_time(async {
        let configuration = single_provider(json!({"fake": {"boot-time": 20}}), json!({})).to_string();
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        let (mut first, mut second) = (InProcessDaemon::new(&configuration), InProcessDaemon::new(&configuration));
        let running = first.run(&zookeeper);
        until("its pool to be registered", async || consumer.count("/nodepool/components/pool").await == 1).await;
        let id = consumer.submit_labels(&["a", "b"]).await;
        until("its nodes to boot", async || {
            let nodes = consumer.nodes().await;
            nodes.iter().filter(|(_, node)| node.external_id.is_string()).count() == 2
        })
        .await;
        zookeeper.expire(first.session_id);
        let ended = zookeeper.last_zxid();
        assert_eq!(running.await.unwrap(), SessionEnd::Expired);
        sleep(SETTLE_TIME).await;
        assert_eq!(zookeeper.last_zxid(), ended, "nothing is written");
        assert_eq!(consumer.request(&id).await.unwrap().state, RequestState::Pending);
        second.run(&zookeeper);
        let request = consumer.wait_for_end(&id).await;
        assert_eq!((request.state, request.nodes.len()), (RequestState::Fulfilled, 2));
        until("the nodes of the first session to be deleted", async || consumer.nodes().await.len() == 2).await;
    });
}

#[test]
fn booting_nodes_of_a_dead_launcher_are_adopted_at_once() {
    on_paused_time(async {
        let configuration = single_provider(json!({"fake": {"boot-time": 20}}), json!({})).to_string();
        let zookeeper = zookeeper();
        let consumer = Consumer::of(&zookeeper);
        // The interval is so long that no periodic pass resumes the requests.
        let rarely_polling = |options: &mut LauncherOptions| options.watermark_sleep = Seconds(1000.0);
        let (mut first, mut second) = (
            InProcessDaemon::with(&configuration, rarely_polling),
            InProcessDaemon::with(&configuration, rarely_polling),
        );
        first.run(&zookeeper);
        until("its pool to be registered", async || consumer.count("/nodepool/components/pool").await == 1).await;
        let requests = [consumer.submit_labels(&["a", "b"]).await, consumer.submit_labels(&["a"]).await];
        until("its nodes to boot", async || {
            let nodes = consumer.nodes().await;
            nodes.iter().filter(|(_, node)| node.external_id.is_string()).count() == 3
        })
        .await;
        let booting: Vec<NodeId> = consumer.nodes().await.into_iter().map(|(id, _)| id).collect();
        // A launcher without this provider is notified at the same time, and must not reset the requests.
        let elsewhere = fake_cloud::configuration(&[provider("elsewhere", json!({}), json!({}))]).to_string();
        let mut third = InProcessDaemon::with(&elsewhere, rarely_polling);
        third.run(&zookeeper);
        until("another pool to be registered", async || consumer.count("/nodepool/components/pool").await == 2).await;
        second.run(&zookeeper);
        until("all pools to be registered", async || consumer.count("/nodepool/components/pool").await == 3).await;
        // The second launcher has completed its first clean-up pass.
        sleep(Duration::from_secs(5)).await;
        zookeeper.expire(first.session_id);
        let is_locked = async |id: &RequestId| {
            let directory = paths::request_lock(id);
            lock::contenders(&consumer.zk, &directory).await.is_ok_and(|contenders| !contenders.is_empty())
        };
        let expired = clock::now();
        until("both requests to be locked", async || is_locked(&requests[0]).await && is_locked(&requests[1]).await)
            .await;
        assert!((clock::now() - expired).0 < 1.0, "the requests are resumed at once");
        for id in &requests {
            let nodes = consumer.wait_for_end(id).await.nodes;
            assert!(nodes.iter().all(|node| booting.contains(node)), "{nodes:?} of {booting:?}");
        }
    });
}

#[test]
fn unaccepted_nodes_of_a_dead_consumer_are_kept_for_the_request() {
    on_paused_time(async {
        let (zookeeper, consumer, _process) = start_fake_launcher(&single_provider(json!({}), json!({}))).await;
        let dying = Consumer::of(&zookeeper);
        let accepted = dying.submit_labels(&["a"]).await;
        let fulfilled = dying.submit_labels(&["a"]).await;
        let unaccepted = dying.wait_for_end(&fulfilled).await.nodes.remove(0);
        dying.wait_for_end(&accepted).await;
        let (used, _lock) = dying.accept(&accepted).await.remove(0);
        dying.set_state(&used, NodeState::InUse).await;
        zookeeper.expire(dying.zk.session_id());
        until("the accepted node to be deleted", async || consumer.node(&used).await.is_none()).await;
        sleep(SETTLE_TIME).await;
        let node = consumer.node(&unaccepted).await.unwrap();
        assert_eq!((node.state, node.allocated_to.as_ref()), (NodeState::Ready, Some(&fulfilled)));
        consumer.zk.delete(&paths::request(&fulfilled), -1).await.unwrap();
        until("the node to be idle", async || consumer.node(&unaccepted).await.is_some_and(|node| node.is_idle()))
            .await;
    });
}
