//! Limits that depend on the inventory of a cloud: volumes, ignored limits, and usage of others in the project. Runs on
//! the simulated cloud only.

use nodepool_model::records::ids::RequestId;
use nodepool_model::records::request::RequestState;
use serde_json::{Value, json};
use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::TestCloud;
use testkit::openstack_harness::harness::{CLOUD_TIMEOUT, OpenStackHarness, with_launcher};
use testkit::wait;

async fn is_pending(harness: &OpenStackHarness, id: &RequestId) {
    let request = async || harness.consumer.request(id).await.expect("the request exists").state;
    wait::until("the request to wait", CLOUD_TIMEOUT, async || request().await == RequestState::Pending).await;
}

/// Asserts that with capacity for one volume a request for two fails, and the second of two requests for one waits.
async fn second_volume_waits(flags: &[&str], pool_keys: Value, reason: &str) {
    let cloud = TestCloud::simulated(flags).await;
    let configure = |name: &str| {
        let mut provider = cloud.provider(name);
        let pool = &mut provider["pools"][0];
        pool.as_object_mut().unwrap().extend(pool_keys.as_object().unwrap().clone());
        let label = &mut pool["labels"][0];
        (label["boot-from-volume"], label["volume-size"]) = (json!(true), json!(2));
        vec![provider]
    };
    with_launcher(&cloud, configure, async |harness| {
        let (first, _) = harness.obtain_nodes(&["a"]).await;
        let never = harness.consumer.submit_labels(&["a", "a"]).await;
        assert_eq!(harness.wait_for_end(&never).await.state, RequestState::Failed, "{reason}");
        harness.wait_for_reason(&never, reason).await;
        let second = harness.consumer.submit_labels(&["a"]).await;
        is_pending(harness, &second).await;
        harness.wait_for_reason(&second, reason).await;
        assert_eq!(cloud.simulation().state().await["servers_created"], 1, "{reason}");
        harness.accept_and_release(&first).await;
        harness.wait_until_fulfilled(&second).await;
        harness.accept_and_release(&second).await;
        harness.wait_until_empty().await;
    })
    .await;
}

#[test]
fn a_pool_limits_number_and_size_of_volumes() {
    on_real_time(async {
        second_volume_waits(&[], json!({"max-volumes": 1}), "volumes").await;
        second_volume_waits(&[], json!({"max-volume-gb": 3}), "volume-gb").await;
    });
}

#[test]
fn a_project_limits_number_and_size_of_volumes() {
    on_real_time(async {
        second_volume_waits(&["--quota-volumes", "1"], json!({}), "volumes").await;
        second_volume_waits(&["--quota-gigabytes", "3"], json!({}), "volume-gb").await;
    });
}

#[test]
fn a_stale_quota_blocks_only_pools_that_respect_it() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--quota-servers", "1"]).await;
        let configure = |name: &str| {
            let mut provider = cloud.provider(name);
            provider["pools"][0]["ignore-provider-quota"] = json!(false);
            let mut ignoring = provider["pools"][0].clone();
            (ignoring["name"], ignoring["ignore-provider-quota"]) = (json!("second"), json!(true));
            ignoring["labels"][0]["name"] = json!("b");
            provider["pools"].as_array_mut().unwrap().push(ignoring);
            vec![provider]
        };
        with_launcher(&cloud, configure, async |harness| {
            let (first, _) = harness.obtain_nodes(&["a"]).await;
            cloud.simulation().knobs(json!({"quota_servers": 5})).await;
            let heeding = harness.consumer.submit_labels(&["a"]).await;
            is_pending(harness, &heeding).await;
            let (ignoring, _) = harness.obtain_nodes(&["b", "b"]).await;
            assert_eq!(harness.consumer.request(&heeding).await.unwrap().state, RequestState::Pending);
            harness.accept_and_release(&ignoring).await;
            harness.accept_and_release(&first).await;
            harness.wait_until_fulfilled(&heeding).await;
            harness.accept_and_release(&heeding).await;
            harness.wait_until_empty().await;
        })
        .await;
    });
}

#[test]
fn foreign_servers_count_towards_the_project_limits() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--quota-servers", "2"]).await;
        let client = cloud.client().await;
        let image = client.id_of("image", "images", &cloud.image).await;
        let flavor = client.id_of("compute", "flavors", &cloud.flavor).await;
        let network = client.id_of("network", "networks", &cloud.network).await;
        let foreign = json!({"server": {"name": "of-others", "flavorRef": flavor, "imageRef": image,
            "networks": [{"uuid": network}]}});
        let (status, answer) = client.call(reqwest::Method::POST, "compute", "/servers", Some(foreign)).await;
        assert!(status.is_success(), "{answer}");
        let foreign = answer["server"]["id"].as_str().expect("a server has an id").to_owned();
        with_launcher(
            &cloud,
            |name| vec![cloud.provider(name)],
            async |harness| {
                let never = harness.consumer.submit_labels(&["a", "a"]).await;
                assert_eq!(harness.wait_for_end(&never).await.state, RequestState::Failed);
                harness.wait_for_reason(&never, "needs instances 2, the limit is 1").await;
                let (first, _) = harness.obtain_nodes(&["a"]).await;
                let second = harness.consumer.submit_labels(&["a"]).await;
                is_pending(harness, &second).await;
                harness.accept_and_release(&first).await;
                harness.wait_until_fulfilled(&second).await;
                harness.accept_and_release(&second).await;
                harness.wait_until_empty().await;
            },
        )
        .await;
        client.delete_server(&foreign).await;
    });
}
