//! Limits of pools, clouds and tenants: launches within the limits, and requests beyond them.

use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{LabelName, RequestId};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_zk::locks::lock;
use nodepool_zk::paths;
use serde_json::{Value, json};
use testkit::in_process_launcher::fake_cloud::{is_paused, single_provider, start_fake_launcher};
use testkit::in_process_launcher::{Consumer, SETTLE_TIME, on_paused_time, until};
use tokio::time::sleep;

pub async fn state(consumer: &Consumer, id: &RequestId) -> RequestState {
    consumer.request(id).await.unwrap().state
}

pub async fn wait_for_state(consumer: &Consumer, id: &RequestId, state: RequestState) {
    until(&format!("request {id} to become {state:?}"), async || self::state(consumer, id).await == state).await;
}

/// Asserts with capacity for one node: no node is created for a second request until the node of the first is deleted.
pub async fn assert_waits_for_capacity(configuration: &Value) {
    let (_zookeeper, consumer, _process) = start_fake_launcher(configuration).await;
    let first = consumer.submit_labels(&["a"]).await;
    assert_eq!(consumer.wait_for_end(&first).await.state, RequestState::Fulfilled, "{configuration}");
    let used = consumer.accept(&first).await;
    let second = consumer.submit_labels(&["b"]).await;
    wait_for_state(&consumer, &second, RequestState::Pending).await;
    until("the pool to be paused", async || is_paused(&consumer, "main").await).await;
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
    until("the pool to be resumed", async || !is_paused(&consumer, "main").await).await;
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
pub async fn submit_as(consumer: &Consumer, tenant: Option<&str>, precedence: &str, labels: &[&str]) -> RequestId {
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
        until("the pool to be resumed", async || !is_paused(&consumer, "main").await).await;
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

// A reloaded limit applies to a request that already waits.
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
        until("the pool to be resumed", async || !is_paused(&consumer, "main").await).await;
    });
}

// `max-concurrency` counts the requests with booting nodes. Ready nodes do not count.
#[test]
fn concurrent_launches_respect_max_concurrency() {
    on_paused_time(async {
        let slow = json!({"max-concurrency": 1, "fake": {"boot-time": 20}});
        let (_zookeeper, consumer, _process) = start_fake_launcher(&single_provider(slow, json!({}))).await;
        let mut submitted = Vec::new();
        for label in ["a", "b", "a"] {
            submitted.push(consumer.submit_labels(&[label]).await);
        }
        until("all requests to be served", async || {
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
