//! Host keys of servers of an OpenStack cloud: scans that fail, or succeed at the first or second attempt, and nodes
//! whose server was deleted.
//!
//! Tested on the simulated cloud; two cases also on a real one if OS_CLIENT_CONFIG_FILE and OS_CLOUD name it.

use nodepool_model::records::request::RequestState;
use serde_json::{Value, json};
use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::harness::{CLOUD_TIMEOUT, OpenStackHarness, server_of, with_launcher};
use testkit::openstack_harness::{TestCloud, clouds};
use testkit::real::{self, ports, sshd};
use testkit::wait;

/// A provider that scans host keys at this port, for at most this many seconds.
fn checked(cloud: &TestCloud, name: &str, port: u16, seconds: u64) -> Value {
    let mut provider = cloud.provider(name);
    (provider["boot-timeout"], provider["launch-retries"]) = (json!(seconds), json!(2));
    provider["cloud-images"][0]["connection-port"] = json!(port);
    provider["pools"][0]["host-key-checking"] = json!(true);
    provider
}

#[test]
fn servers_without_host_keys_fail_the_request_and_are_deleted() {
    on_real_time(async {
        let (cloud, port) = (TestCloud::simulated(&[]).await, ports::reserve());
        let configure = |name: &str| vec![checked(&cloud, name, port.number, 1)];
        with_launcher(&cloud, configure, async |harness| {
            let id = harness.consumer.submit_labels(&["a"]).await;
            let request = harness.wait_for_end(&id).await;
            assert_eq!((request.state, request.declined_by.len()), (RequestState::Failed, 1));
            assert_eq!(cloud.simulation().state().await["servers_created"], 2, "two servers for two attempts");
            harness.wait_until_empty().await;
        })
        .await;
    });
}

/// Waits for a server other than `than`; returns its id and address.
async fn address_of_another(
    harness: &OpenStackHarness,
    cloud: &TestCloud,
    than: Option<&str>,
) -> (String, std::net::IpAddr) {
    wait::until_some("a server with an address", CLOUD_TIMEOUT, async || {
        let servers = harness.client.servers_of(&harness.provider).await;
        let server = servers.iter().find(|server| server["id"].as_str() != than)?;
        let address = server["addresses"].get(&cloud.network)?[0]["addr"].as_str()?.parse().ok()?;
        Some((server["id"].as_str()?.to_owned(), address))
    })
    .await
}

// No sshd runs at the address of the first server. One runs at the address of the second.
#[test]
fn a_failed_key_scan_is_retried_with_another_server() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let (cloud, port) = (TestCloud::simulated(&[]).await, ports::reserve());
        let number = port.number;
        let configure = |name: &str| vec![checked(&cloud, name, number, 8)];
        with_launcher(&cloud, configure, async |harness| {
            let id = harness.consumer.submit_labels(&["a"]).await;
            let (first, _) = address_of_another(harness, &cloud, None).await;
            let (second, address) = address_of_another(harness, &cloud, Some(&first)).await;
            let host = sshd::Host::start_on(sshd::Options { address, ..Default::default() }, port).await;
            let nodes = harness.wait_until_fulfilled(&id).await;
            assert_eq!(server_of(&nodes[0]), second);
            let mut keys = nodes[0].host_keys.clone();
            keys.sort();
            assert_eq!(keys, host.keys());
            let state = cloud.simulation().state().await;
            assert_eq!((&state["servers_created"], &state["double_creates"]), (&json!(2), &json!(0)));
            harness.accept_and_release(&id).await;
            harness.wait_until_empty().await;
        })
        .await;
    });
}

#[test]
fn a_node_whose_server_was_deleted_elsewhere_is_deleted() {
    on_real_time(async {
        for cloud in testkit::openstack_harness::clouds(&[]).await {
            with_launcher(
                &cloud,
                |name| vec![cloud.provider(name)],
                async |harness| {
                    let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                    harness.client.delete_server(server_of(&nodes[0])).await;
                    let servers = async || harness.client.servers_of(&harness.provider).await;
                    wait::until("the server to be deleted", CLOUD_TIMEOUT, async || servers().await.is_empty()).await;
                    harness.accept_and_release(&id).await;
                    harness.wait_until_empty().await;
                },
            )
            .await;
        }
    });
}

#[test]
fn host_keys_are_scanned_at_the_servers_address() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let port = ports::reserve();
            let number = port.number;
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                provider["boot-timeout"] = json!(120);
                provider["cloud-images"][0]["connection-port"] = json!(number);
                provider["pools"][0]["host-key-checking"] = json!(true);
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let id = harness.consumer.submit_labels(&["a"]).await;
                let address = wait::until_some("the server's address", CLOUD_TIMEOUT, async || {
                    let servers = harness.client.servers_of(&harness.provider).await;
                    let addresses = servers.first()?["addresses"].get(&cloud.network)?.as_array()?.clone();
                    addresses[0]["addr"].as_str()?.parse::<std::net::IpAddr>().ok()
                })
                .await;
                if !address.is_loopback() {
                    println!("skipped on {}, whose servers are outside this machine: {address}", cloud.name);
                    return;
                }
                let host = sshd::Host::start_on(sshd::Options { address, ..Default::default() }, port).await;
                let nodes = harness.wait_until_fulfilled(&id).await;
                let mut keys = nodes[0].host_keys.clone();
                keys.sort();
                keys.dedup();
                assert_eq!(keys, host.keys());
                assert_eq!(*nodes[0].connection_port, json!(host.port()));
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}
