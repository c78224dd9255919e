//! Clean-up of unused objects in a cloud, and of nothing else: leaked servers, unattached floating IPs, leaked ports.
//!
//! Tested in real time on the simulated cloud, and on a real one if OS_CLIENT_CONFIG_FILE and OS_CLOUD name it.
//! NODEPOOL_TEST_OS_SOLE=1 declares that the real cloud has no other users, which two of the cases require there.

use bytes::Bytes;
use nodepool_model::records::time::Seconds;
use nodepool_zk::{Zk, paths};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::harness::{CLOUD_TIMEOUT, OpenStackHarness, server_of, with_tuned_launcher};
use testkit::openstack_harness::{TestCloud, clouds};
use testkit::wait;
use zookeeper_server::types::CreateMode;

/// Creates and deletes a node; returns its id.
async fn id_of_a_deleted_node(harness: &OpenStackHarness) -> String {
    let zk: Zk = harness.zookeeper.connect();
    let (path, _) =
        zk.create(&paths::node_prefix(), Bytes::from("{}"), CreateMode::PersistentSequential).await.unwrap();
    zk.delete(&path, -1).await.unwrap();
    paths::name(&path).to_owned()
}

/// Creates a server with the metadata of a provider and of a deleted node; returns its id.
async fn leaked_server(cloud: &TestCloud, harness: &OpenStackHarness, provider: &str) -> String {
    let number = id_of_a_deleted_node(harness).await;
    let metadata = json!({"nodepool_provider_name": provider, "nodepool_node_id": number});
    let network = harness.client.id_of("network", "networks", &cloud.network).await;
    let image = harness.client.id_of("image", "images", &cloud.image).await;
    let flavor = harness.client.id_of("compute", "flavors", &cloud.flavor).await;
    let server = json!({"name": "leaked", "flavorRef": flavor, "imageRef": image, "networks": [{"uuid": network}],
        "metadata": metadata});
    let body = Some(json!({"server": server}));
    let (status, answer) = harness.client.call(Method::POST, "compute", "/servers", body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    answer["server"]["id"].as_str().expect("a server has an id").to_owned()
}

/// Creates a floating IP of an external network, attached to no port; returns its id.
async fn unattached_floating_ip(harness: &OpenStackHarness) -> String {
    let networks = harness.client.get("network", "/networks?router:external=true").await;
    let network = networks["networks"][0]["id"].as_str().expect("the cloud has floating IPs").to_owned();
    let body = Some(json!({"floatingip": {"floating_network_id": network}}));
    let (status, answer) = harness.client.call(Method::POST, "network", "/floatingips", body).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    answer["floatingip"]["id"].as_str().expect("a floating IP has an id").to_owned()
}

/// Creates a port as a deleted server leaves it; returns its id.
async fn leaked_port(cloud: &TestCloud, harness: &OpenStackHarness) -> String {
    let network = harness.client.id_of("network", "networks", &cloud.network).await;
    let port = json!({"network_id": network, "device_owner": "compute:nova", "device_id": "a deleted server"});
    let (status, answer) = harness.client.call(Method::POST, "network", "/ports", Some(json!({"port": port}))).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    assert_eq!(answer["port"]["status"], "DOWN");
    answer["port"]["id"].as_str().expect("a port has an id").to_owned()
}

/// Waits until this path of the cloud replies 404.
async fn wait_until_deleted(harness: &OpenStackHarness, service: &str, path: &str) {
    let is_deleted = async || harness.client.call(Method::GET, service, path, None).await.0 == StatusCode::NOT_FOUND;
    wait::until(&format!("{path} to be deleted"), CLOUD_TIMEOUT, is_deleted).await;
}

/// The clouds for a case that deletes objects without our metadata, regardless of their creator.
async fn clouds_without_other_users(flags: &[&str]) -> Vec<TestCloud> {
    let is_sole = std::env::var("NODEPOOL_TEST_OS_SOLE").is_ok_and(|value| value == "1");
    let is_fit = |cloud: &TestCloud| {
        let is_fit = is_sole || !cloud.is_real();
        if !is_fit {
            println!("skipped on {}: NODEPOOL_TEST_OS_SOLE=1 declares that it has no other users", cloud.name);
        }
        is_fit
    };
    clouds(flags).await.into_iter().filter(is_fit).collect()
}

/// Runs the test with a launcher that sweeps every half second instead of once a minute.
async fn with_short_cleanup_interval(
    cloud: &TestCloud,
    change: impl Fn(&mut Value),
    test: impl AsyncFnOnce(&mut OpenStackHarness),
) {
    let configure = |name: &str| {
        let mut provider = cloud.provider(name);
        change(&mut provider);
        vec![provider]
    };
    with_tuned_launcher(cloud, configure, |options| options.cleanup_interval = Seconds(0.5), test).await;
}

#[test]
fn a_leaked_server_is_deleted_and_foreign_ones_stay() {
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let test = async |harness: &mut OpenStackHarness| {
                let ours = leaked_server(&cloud, harness, &harness.provider).await;
                let others = leaked_server(&cloud, harness, "other").await;
                let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                wait_until_deleted(harness, "compute", &format!("/servers/{ours}")).await;
                assert_eq!(harness.client.server(&others).await["name"], "leaked");
                harness.client.delete_server(&others).await;
                assert_eq!(nodes.len(), 1);
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            };
            with_short_cleanup_interval(&cloud, |_| {}, test).await;
        }
    });
}

#[test]
fn unattached_floating_ips_are_deleted_if_configured() {
    on_real_time(async {
        for cloud in clouds_without_other_users(&[]).await {
            let change = |provider: &mut Value| {
                provider["clean-floating-ips"] = json!(true);
                provider["pools"][0]["auto-floating-ip"] = json!(true);
            };
            let test = async |harness: &mut OpenStackHarness| {
                let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                let attached = nodes[0].public_ipv4.clone().expect("it has a floating IP");
                let leaked = unattached_floating_ip(harness).await;
                wait_until_deleted(harness, "network", &format!("/floatingips/{leaked}")).await;
                assert_eq!(harness.client.floating_ips_at(&attached).await, 1);
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
                assert_eq!(harness.client.floating_ips_at(&attached).await, 0);
            };
            with_short_cleanup_interval(&cloud, change, test).await;
        }
    });
}

#[test]
fn leaked_ports_are_deleted_and_ports_in_use_stay() {
    on_real_time(async {
        // The port of a booting server is DOWN, here for several runs of the clean-up.
        for cloud in clouds_without_other_users(&["--port-stays-every", "1", "--boot-time-s", "4"]).await {
            let test = async |harness: &mut OpenStackHarness| {
                let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                // The simulated cloud leaks the server's own port, see below; a real cloud seldom does.
                if cloud.is_real() {
                    let leaked = leaked_port(&cloud, harness).await;
                    wait_until_deleted(harness, "network", &format!("/ports/{leaked}")).await;
                }
                let of_server = format!("/ports?device_id={}", server_of(&nodes[0]));
                let ports = async || harness.client.get("network", &of_server).await["ports"].clone();
                assert_eq!(ports().await[0]["status"], "ACTIVE");
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
                wait::until("the server's port to be deleted", CLOUD_TIMEOUT, async || ports().await == json!([]))
                    .await;
            };
            with_short_cleanup_interval(&cloud, |provider| provider["port-cleanup-interval"] = json!(1), test).await;
        }
    });
}

#[test]
fn port_cleanup_survives_other_cleanup_failures() {
    on_real_time(async {
        let faults = ["404 path=/floatingips$", "403 times=1 method=DELETE path=/ports/"];
        let flags = ["--port-stays-every", "1", "--fault", faults[0], "--fault", faults[1]];
        let cloud = TestCloud::simulated(&flags).await;
        let change = |provider: &mut Value| {
            (provider["port-cleanup-interval"], provider["clean-floating-ips"]) = (json!(1), json!(true));
        };
        let test = async |harness: &mut OpenStackHarness| {
            let (id, _) = harness.obtain_nodes(&["a", "a"]).await;
            harness.accept_and_release(&id).await;
            harness.wait_until_empty().await;
            let are_deleted = async || harness.client.get("network", "/ports").await["ports"] == json!([]);
            wait::until("the ports to be deleted", CLOUD_TIMEOUT, are_deleted).await;
        };
        with_short_cleanup_interval(&cloud, change, test).await;
    });
}
