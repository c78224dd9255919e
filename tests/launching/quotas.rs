//! Limits of pools, clouds and tenants: launches within them, and requests beyond them.

use std::time::Duration;

use crate::in_process_launcher::fake_cloud::{is_paused, single_provider, start_fake_launcher};
use crate::in_process_launcher::{Consumer, on_paused_time, until};
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{LabelName, RequestId};
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_zk::locks::lock;
use nodepool_zk::memory::Fault;
use nodepool_zk::paths;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// Longer than any interval of a launcher: every action that is due has been performed.
const SETTLE_TIME: Duration = Duration::from_secs(300);

async fn state(consumer: &Consumer, id: &RequestId) -> RequestState {
    consumer.request(id).await.unwrap().state
}

async fn wait_for_state(consumer: &Consumer, id: &RequestId, state: RequestState) {
    until(&format!("request {id} becomes {state:?}"), async || self::state(consumer, id).await == state).await;
}

/// With capacity for one node, the second request has no node of its own until the node of the first is deleted.
async fn assert_waits_for_capacity(configuration: &Value) {
    let (_zookeeper, consumer, _process) = start_fake_launcher(configuration).await;
    let first = consumer.submit_labels(&["a"]).await;
    assert_eq!(consumer.wait_for_end(&first).await.state, RequestState::Fulfilled, "{configuration}");
    let used = consumer.accept(&first).await;
    let second = consumer.submit_labels(&["b"]).await;
    wait_for_state(&consumer, &second, RequestState::Pending).await;
    until("the pool is paused", async || is_paused(&consumer, "main").await).await;
    let never = consumer.submit_labels(&["a", "a"]).await;
    assert_eq!(consumer.wait_for_end(&never).await.state, RequestState::Failed, "{configuration}");
    sleep(SETTLE_TIME).await;
    assert_eq!(state(&consumer, &second).await, RequestState::Pending, "{configuration}");
    assert_eq!(consumer.nodes().await.len(), 1, "no node is created for it: {configuration}");
    let before = used[0].0.as_str().parse::<i64>().unwrap();
    consumer.use_and_release(used).await;
    let served = consumer.wait_for_end(&second).await;
    assert_eq!(served.state, RequestState::Fulfilled, "{configuration}");
    assert_eq!(
        served.nodes[0].as_str().parse::<i64>().unwrap(),
        before + 1,
        "no other node was created meanwhile: {configuration}"
    );
    until("the pool is resumed", async || !is_paused(&consumer, "main").await).await;
}

// Servers, cores and memory of a pool.
#[test]
fn a_request_beyond_the_pool_limit_waits() {
    for limit in [json!({"max-servers": 1}), json!({"max-cores": 7}), json!({"max-ram": 16_383})] {
        on_paused_time(async { assert_waits_for_capacity(&single_provider(json!({}), limit)).await });
    }
}

// The cloud's own limits count unless `ignore-provider-quota` is set.
#[test]
fn a_request_beyond_the_cloud_quota_waits() {
    for limit in [json!({"max-instances": 1}), json!({"max-cores": 7}), json!({"max-ram": 16_383})] {
        on_paused_time(async {
            let pool = json!({"ignore-provider-quota": false});
            assert_waits_for_capacity(&single_provider(json!({"fake": limit}), pool)).await;
        });
    }
}

/// Submits a request of this tenant with this precedence.
async fn submit_as(consumer: &Consumer, tenant: Option<&str>, precedence: &str, labels: &[&str]) -> RequestId {
    let labels = labels.iter().map(|label| LabelName::from(*label)).collect();
    let mut request = NodeRequest::new(labels, "tester", clock::now());
    request.tenant_name = tenant.map(Into::into);
    consumer.submit_with_precedence(precedence, request).await
}

#[test]
fn requests_lacking_capacity_are_served_by_rank() {
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_fake_launcher(&single_provider(json!({}), json!({"max-servers": 1}))).await;
        let first = consumer.submit_labels(&["a"]).await;
        consumer.wait_for_end(&first).await;
        let mut used = consumer.accept(&first).await;
        let waiting = submit_as(&consumer, None, "300", &["a"]).await;
        wait_for_state(&consumer, &waiting, RequestState::Pending).await;
        let low = submit_as(&consumer, None, "200", &["a"]).await;
        let high = submit_as(&consumer, None, "100", &["a"]).await;
        for (next, behind) in [(&waiting, vec![&high, &low]), (&high, vec![&low]), (&low, vec![])] {
            consumer.use_and_release(used).await;
            assert_eq!(consumer.wait_for_end(next).await.state, RequestState::Fulfilled);
            for id in behind {
                assert_ne!(state(&consumer, id).await, RequestState::Fulfilled, "{id} was served before {next}");
            }
            used = consumer.accept(next).await;
        }
    });
}

// The label of the waiting request is changed to one that cannot be launched.
#[test]
fn a_waiting_request_is_declined_when_its_label_fails() {
    on_paused_time(async {
        let mut configuration = single_provider(json!({}), json!({"max-servers": 1}));
        let (_zookeeper, consumer, process) = start_fake_launcher(&configuration).await;
        let first = consumer.submit_labels(&["a"]).await;
        consumer.wait_for_end(&first).await;
        let used = consumer.accept(&first).await;
        let waiting = consumer.submit_labels(&["b"]).await;
        wait_for_state(&consumer, &waiting, RequestState::Pending).await;
        configuration["providers"][0]["pools"][0]["labels"][1]["flavor-name"] = json!("No Such Flavor");
        std::fs::write(&process.file, configuration.to_string()).unwrap();
        let declined = consumer.wait_for_end(&waiting).await;
        assert_eq!((declined.state, declined.declined_by.len()), (RequestState::Failed, 1));
        until("the pool is resumed", async || !is_paused(&consumer, "main").await).await;
        let lock = lock::contenders(&consumer.zk, &paths::request_lock(&waiting)).await;
        assert!(lock.is_ok_and(|contenders| contenders.is_empty()), "its lock is released");
        let second = consumer.submit_labels(&["a"]).await;
        wait_for_state(&consumer, &second, RequestState::Pending).await;
        consumer.use_and_release(used).await;
        assert_eq!(consumer.wait_for_end(&second).await.state, RequestState::Fulfilled);
    });
}

// A limit of the cloud applies to all pools together, a limit of a pool to that pool.
#[test]
fn pools_share_cloud_limits_but_not_pool_limits() {
    for (limit, is_shared) in [(json!({"max-servers": 1}), false), (json!({}), true)] {
        on_paused_time(async {
            let of_provider = if is_shared { json!({"fake": {"max-cores": 7}}) } else { json!({}) };
            let mut configuration = single_provider(of_provider, limit.clone());
            let mut second = configuration["providers"][0]["pools"][0].clone();
            second["name"] = json!("second");
            let labels = second["labels"].as_array_mut().unwrap();
            labels.remove(0);
            configuration["providers"][0]["pools"][0]["labels"].as_array_mut().unwrap().remove(1);
            configuration["providers"][0]["pools"].as_array_mut().unwrap().push(second);
            let (_zookeeper, consumer, _process) = start_fake_launcher(&configuration).await;
            let first = consumer.submit_labels(&["a"]).await;
            assert_eq!(consumer.wait_for_end(&first).await.state, RequestState::Fulfilled);
            let used = consumer.accept(&first).await;
            let second = consumer.submit_labels(&["b"]).await;
            if is_shared {
                wait_for_state(&consumer, &second, RequestState::Pending).await;
                assert!(!is_paused(&consumer, "main").await);
                consumer.use_and_release(used).await;
            }
            assert_eq!(consumer.wait_for_end(&second).await.state, RequestState::Fulfilled);
        });
    }
}

// A changed limit is applied to a waiting request.
#[test]
fn a_waiting_request_is_served_when_its_pool_limit_rises() {
    on_paused_time(async {
        let mut configuration = single_provider(json!({}), json!({"max-servers": 1}));
        let (_zookeeper, consumer, process) = start_fake_launcher(&configuration).await;
        let first = consumer.submit_labels(&["a"]).await;
        consumer.wait_for_end(&first).await;
        let _in_use = consumer.accept(&first).await;
        let waiting = consumer.submit_labels(&["b"]).await;
        wait_for_state(&consumer, &waiting, RequestState::Pending).await;
        configuration["providers"][0]["pools"][0]["max-servers"] = json!(2);
        std::fs::write(&process.file, configuration.to_string()).unwrap();
        assert_eq!(consumer.wait_for_end(&waiting).await.state, RequestState::Fulfilled);
        until("the pool is resumed", async || !is_paused(&consumer, "main").await).await;
    });
}

// Requests with booting nodes count; nodes that are ready do not.
#[test]
fn concurrent_launches_respect_max_concurrency() {
    on_paused_time(async {
        let slow = json!({"max-concurrency": 1, "fake": {"boot-time": 20}});
        let (_zookeeper, consumer, _process) = start_fake_launcher(&single_provider(slow, json!({}))).await;
        let mut submitted = Vec::new();
        for label in ["a", "b", "a"] {
            submitted.push(consumer.submit_labels(&[label]).await);
        }
        until("all are served", async || {
            let nodes = consumer.nodes().await;
            assert!(nodes.iter().filter(|(_, node)| node.state == NodeState::Building).count() <= 1);
            let mut served = 0;
            for id in &submitted {
                served += usize::from(state(&consumer, id).await == RequestState::Fulfilled);
            }
            served == submitted.len()
        })
        .await;
    });
    on_paused_time(async {
        let (_zookeeper, consumer, _process) =
            start_fake_launcher(&single_provider(json!({"max-concurrency": 0}), json!({}))).await;
        let id = consumer.submit_labels(&["a"]).await;
        sleep(SETTLE_TIME).await;
        let request = consumer.request(&id).await.unwrap();
        assert_eq!((request.state, request.declined_by), (RequestState::Requested, vec![]));
    });
}

#[test]
fn a_tenant_at_its_limit_waits_and_others_are_served() {
    for limit in [json!({"max-servers": 1}), json!({"max-cores": 7}), json!({"max-ram": 16_383})] {
        on_paused_time(async {
            let mut configuration = single_provider(json!({}), json!({}));
            configuration["tenant-resource-limits"] = json!([limit]);
            configuration["tenant-resource-limits"][0]["tenant-name"] = json!("small");
            let (_zookeeper, consumer, _process) = start_fake_launcher(&configuration).await;
            let first = submit_as(&consumer, Some("small"), "200", &["a"]).await;
            assert_eq!(consumer.wait_for_end(&first).await.state, RequestState::Fulfilled);
            let used = consumer.accept(&first).await;
            let second = submit_as(&consumer, Some("small"), "200", &["b"]).await;
            let other = submit_as(&consumer, Some("other"), "200", &["b", "a"]).await;
            assert_eq!(consumer.wait_for_end(&other).await.state, RequestState::Fulfilled, "{limit}");
            sleep(SETTLE_TIME).await;
            let request = consumer.request(&second).await.unwrap();
            assert_eq!((request.state, request.declined_by), (RequestState::Requested, vec![]), "{limit}");
            assert_eq!(consumer.count(&paths::request_lock(&second)).await, 0, "the request is unlocked: {limit}");
            assert!(!is_paused(&consumer, "main").await, "{limit}");
            consumer.use_and_release(used).await;
            assert_eq!(consumer.wait_for_end(&second).await.state, RequestState::Fulfilled, "{limit}");
        });
    }
}

#[test]
fn min_ready_is_independent_of_tenant_limits() {
    on_paused_time(async {
        let mut configuration = single_provider(json!({}), json!({}));
        configuration["tenant-resource-limits"] = json!([{"tenant-name": "none", "max-servers": 0, "max-cores": 0}]);
        configuration["labels"][0]["min-ready"] = json!(1);
        let (_zookeeper, consumer, _process) = start_fake_launcher(&configuration).await;
        until("a node is ready", async || consumer.ready_nodes().await == 1).await;
        let limited = submit_as(&consumer, Some("none"), "200", &["a"]).await;
        sleep(SETTLE_TIME).await;
        assert_eq!(state(&consumer, &limited).await, RequestState::Requested);
        assert_eq!(consumer.ready_nodes().await, 1, "an idle node counts towards no tenant");
    });
}

#[test]
fn min_ready_without_capacity_fails_and_pauses_no_pool() {
    on_paused_time(async {
        let mut configuration = single_provider(json!({}), json!({"max-servers": 1}));
        configuration["labels"][1]["min-ready"] = json!(1);
        let (_zookeeper, consumer, _process) = start_fake_launcher(&configuration).await;
        until("a node is ready", async || consumer.ready_nodes().await == 1).await;
        let id = consumer.submit_labels(&["b"]).await;
        consumer.wait_for_end(&id).await;
        let used = consumer.accept(&id).await;
        let mut failed = Vec::new();
        until("several min-ready requests fail", async || {
            assert!(!is_paused(&consumer, "main").await);
            for id in consumer.requests().await {
                // The request may be deleted between the two reads.
                let Some(request) = consumer.request(&id).await else { continue };
                assert_ne!(request.state, RequestState::Pending);
                if request.state == RequestState::Failed && !failed.contains(&id) {
                    failed.push(id);
                }
            }
            failed.len() >= 3
        })
        .await;
        let states: Vec<_> = consumer.nodes().await.into_iter().map(|(_, node)| node.state).collect();
        assert_eq!(states, [NodeState::Ready], "only the node in use exists");
        consumer.use_and_release(used).await;
        until("the next is ready", async || consumer.ready_nodes().await == 1).await;
    });
}

// A node whose release was not written remained in state building, and used the capacity for which its request waited.
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
        until("both of the second boot", async || {
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
        assert!(began.elapsed() < Duration::from_secs(120), "there was no capacity for {:?}", began.elapsed());
    });
}
