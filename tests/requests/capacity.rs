//! Requests for which a pool lacks capacity: one waits as pending, and the pool is registered as paused.

use nodepool_model::records::ids::RequestId;
use nodepool_model::records::request::RequestState;
use nodepool_zk::memory::MemoryZooKeeper;
use nodepool_zk::paths;
use testkit::in_process_launcher::fake_cloud::{is_paused, registration};
use testkit::in_process_launcher::{Consumer, InProcessDaemon, on_paused_time, until, zookeeper};
use tokio::task::JoinHandle;

/// Starts a launcher whose pools have the label `a` of a fake cloud. Each pool has a name, a priority and a limit of
/// servers.
async fn started(
    zookeeper: &MemoryZooKeeper,
    pools: &[(&str, i64, usize)],
) -> (Consumer, InProcessDaemon, JoinHandle<()>) {
    let pools: Vec<_> = pools
        .iter()
        .map(|(name, priority, max_servers)| {
            format!(
                "      - {{name: {name}, priority: {priority}, max-servers: {max_servers}, labels: [{{name: a, cloud-image: image, \
                 flavor-name: Fake Flavor}}]}}\n"
            )
        })
        .collect();
    let yaml = format!(
        "zookeeper-servers: [{{host: localhost}}]\nlabels: [{{name: a}}]\nproviders:\n  - name: lab\n    driver: fake\n    cloud: \
         fake\n    cloud-images: [{{name: image, image-name: Fake Precise, username: zuul}}]\n    pools:\n{}",
        pools.concat()
    );
    let count = pools.len();
    let consumer = Consumer::of(zookeeper);
    let mut process = InProcessDaemon::new(&yaml);
    let running = process.run(zookeeper);
    let ended = tokio::task::spawn_local(async move { drop(running.await) });
    until("its pools to be registered", async || consumer.count("/nodepool/components/pool").await == count).await;
    (consumer, process, ended)
}

async fn state(consumer: &Consumer, id: &RequestId) -> RequestState {
    consumer.request(id).await.unwrap().state
}

async fn wait_for_state(consumer: &Consumer, id: &RequestId, state: RequestState) {
    until(&format!("request {id} to become {state:?}"), async || self::state(consumer, id).await == state).await;
}

#[test]
fn the_first_request_lacking_capacity_pauses_the_pool() {
    on_paused_time(async {
        let (consumer, _process, _) = started(&zookeeper(), &[("main", 100, 2)]).await;
        let first = consumer.submit_labels(&["a", "a"]).await;
        consumer.wait_for_end(&first).await;
        let used = consumer.accept(&first).await;
        assert!(!is_paused(&consumer, "main").await);
        let second = consumer.submit_labels(&["a"]).await;
        wait_for_state(&consumer, &second, RequestState::Pending).await;
        until("the pool to be paused", async || is_paused(&consumer, "main").await).await;
        let third = consumer.submit_labels(&["a", "a"]).await;
        let unknown = consumer.submit_labels(&["unknown"]).await;
        assert_eq!(consumer.wait_for_end(&unknown).await.state, RequestState::Failed);
        assert_eq!(state(&consumer, &second).await, RequestState::Pending);
        assert_eq!(state(&consumer, &third).await, RequestState::Requested);
        assert_eq!(consumer.nodes().await.len(), 2, "no node is created for them");

        consumer.use_and_release(used).await;
        assert_eq!(consumer.wait_for_end(&second).await.state, RequestState::Fulfilled);
        wait_for_state(&consumer, &third, RequestState::Pending).await;
        let used = consumer.accept(&second).await;
        consumer.use_and_release(used).await;
        assert_eq!(consumer.wait_for_end(&third).await.state, RequestState::Fulfilled);
        until("the pool to be resumed", async || !is_paused(&consumer, "main").await).await;
    });
}

#[test]
fn a_full_preferred_pool_leaves_requests_to_the_next() {
    on_paused_time(async {
        let (consumer, _process, _) = started(&zookeeper(), &[("first", 1, 1), ("second", 100, 1)]).await;
        let mut in_use = Vec::new();
        for pool in ["first", "second"] {
            let id = consumer.submit_labels(&["a"]).await;
            let request = consumer.wait_for_end(&id).await;
            assert_eq!(request.state, RequestState::Fulfilled);
            let node = consumer.node(&request.nodes[0]).await.unwrap();
            assert_eq!(node.pool.as_ref().map(|name| name.as_str()), Some(pool));
            in_use.extend(consumer.accept(&id).await);
        }
        // Both pools are full now, so one of them accepts the request and waits for capacity.
        let third = consumer.submit_labels(&["a"]).await;
        wait_for_state(&consumer, &third, RequestState::Pending).await;
    });
}

// The registration of a short pause would send two events per request to every client that watches components.
#[test]
fn a_full_pool_is_not_paused_if_another_pool_serves_at_once() {
    on_paused_time(async {
        let (consumer, _process, _) = started(&zookeeper(), &[("one", 100, 1), ("other", 100, 1)]).await;
        let (mut pools, mut in_use) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let id = consumer.submit_labels(&["a"]).await;
            let request = consumer.wait_for_end(&id).await;
            let node = consumer.node(&request.nodes[0]).await.unwrap();
            pools.push(node.pool.unwrap());
            in_use.extend(consumer.accept(&id).await);
        }
        assert_ne!(pools[0], pools[1]);
        assert_eq!(registration(&consumer, pools[0].as_str()).await.1, 0);
        // Both pools are full now, so the pause lasts and is registered.
        let third = consumer.submit_labels(&["a"]).await;
        wait_for_state(&consumer, &third, RequestState::Pending).await;
        until("a paused pool", async || is_paused(&consumer, "one").await || is_paused(&consumer, "other").await).await;
    });
}

#[test]
fn a_request_deleted_while_waiting_blocks_no_others() {
    on_paused_time(async {
        let (consumer, _process, _) = started(&zookeeper(), &[("main", 100, 1)]).await;
        let first = consumer.submit_labels(&["a"]).await;
        consumer.wait_for_end(&first).await;
        let used = consumer.accept(&first).await;
        let second = consumer.submit_labels(&["a"]).await;
        wait_for_state(&consumer, &second, RequestState::Pending).await;
        consumer.zk.delete(&paths::request(&second), -1).await.unwrap();
        until("the pool to be resumed", async || !is_paused(&consumer, "main").await).await;
        let third = consumer.submit_labels(&["a"]).await;
        wait_for_state(&consumer, &third, RequestState::Pending).await;
        consumer.use_and_release(used).await;
        assert_eq!(consumer.wait_for_end(&third).await.state, RequestState::Fulfilled);
    });
}

#[test]
fn a_waiting_request_is_served_by_the_next_launcher() {
    on_paused_time(async {
        let zookeeper = zookeeper();
        let (consumer, process, ended) = started(&zookeeper, &[("main", 100, 1)]).await;
        let first = consumer.submit_labels(&["a"]).await;
        consumer.wait_for_end(&first).await;
        let _in_use = consumer.accept(&first).await;
        let second = consumer.submit_labels(&["a"]).await;
        wait_for_state(&consumer, &second, RequestState::Pending).await;
        process.stop();
        ended.await.unwrap();
        let (_, _process, _) = started(&zookeeper, &[("main", 100, 2)]).await;
        assert_eq!(consumer.wait_for_end(&second).await.state, RequestState::Fulfilled);
    });
}
