//! Nodes on OpenStack from request to deletion: the same cases on the simulated cloud and on a real one.
//!
//! OS_CLIENT_CONFIG_FILE and OS_CLOUD name the real cloud; without them, only the simulated cloud is used.

use std::collections::BTreeMap;

use nodepool::actors::process::context::LauncherOptions;
use nodepool_model::records::node::Node;
use nodepool_zk::paths;
use serde_json::{Value, json};
use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::harness::{CLOUD_TIMEOUT, server_of, with_launcher, with_tuned_launcher};
use testkit::openstack_harness::{TestCloud, clouds};
use testkit::wait;

/// Compares the record of a node with Nova's record of its server.
fn assert_matches_nova(node: &Node, server: &Value, cloud: &TestCloud) {
    assert_eq!(json!(node.az), server["OS-EXT-AZ:availability_zone"]);
    assert_eq!(json!(node.host_id), server["hostId"]);
    let addresses = server["addresses"][&cloud.network].as_array().expect("the server is on the network");
    let address = addresses.iter().find(|address| address["version"] == 4).expect("the server has an IPv4 address");
    assert_eq!(json!(node.private_ipv4), address["addr"]);
}

#[test]
fn a_node_matches_its_label_and_its_record_matches_the_cloud() {
    on_real_time(async {
        for cloud in clouds(&["--zones", "z1,z2"]).await {
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                provider["cloud-images"][0]["config-drive"] = json!(true);
                let pool = &mut provider["pools"][0];
                pool["security-groups"] = json!(["default"]);
                pool["node-attributes"] = json!({"rack": "r1"});
                let label = &mut pool["labels"][0];
                label["userdata"] = json!("#cloud-config\npackages: [größer]\n");
                label["instance-properties"] = json!({"site": "lab", "groups": "own,groups"});
                label["dynamic-instance-properties"] = json!({"for": "{request.requestor} wants {request.labels[0]}"});
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                let (node, server) = (&nodes[0], harness.client.server(server_of(&nodes[0])).await);
                assert_eq!(node.cloud.as_deref(), Some(cloud.name.as_str()));
                assert_eq!((node.image_id.as_deref(), node.username.as_deref()), (Some("image"), Some("zuul")));
                assert_eq!((node.region.as_deref(), node.host_keys.len()), (None, 0));
                assert_eq!(*node.attributes, json!({"rack": "r1"}));
                assert_eq!(node.interface_ip, node.private_ipv4);
                assert_eq!((&node.public_ipv4, &node.public_ipv6), (&Some(String::new()), &Some(String::new())));
                assert_matches_nova(node, &server, &cloud);
                let number = &harness.consumer.request(&id).await.unwrap().nodes[0];
                assert_eq!(server["name"], json!(format!("np{number}")));
                assert_eq!(
                    server["metadata"],
                    json!({
                        "groups": "own,groups", "site": "lab", "for": "tester wants a",
                        "nodepool_node_id": number, "nodepool_pool_name": "main",
                        "nodepool_provider_name": harness.provider,
                        "nodepool_image_name": "image", "nodepool_node_label": "a",
                    })
                );
                assert_eq!((&server["config_drive"], &server["key_name"]), (&json!("True"), &Value::Null));
                assert_eq!(server["security_groups"], json!([{"name": "default"}]));
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}

#[test]
fn flavors_images_and_networks_resolve_by_name_and_id() {
    on_real_time(async {
        for cloud in clouds(&["--zones", "z1,z2,z3"]).await {
            let client = cloud.client().await;
            let flavors = client.get("compute", "/flavors/detail").await;
            let flavors = flavors["flavors"].as_array().unwrap();
            let flavor = flavors.iter().find(|flavor| flavor["name"] == *cloud.flavor).expect("the flavor exists");
            let image = client.id_of("image", "images", &cloud.image).await;
            let network = client.id_of("network", "networks", &cloud.network).await;
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                provider["cloud-images"] = json!([
                    {"name": "by-id", "image-id": image}, {"name": "id-as-name", "image-name": image},
                    {"name": cloud.image},
                ]);
                // With `min-ram`, a substring of the flavor's name suffices.
                let part = &cloud.flavor[..cloud.flavor.len() - 1];
                provider["pools"][0]["labels"] = json!([
                    {"name": "a", "cloud-image": "by-id", "flavor-name": flavor["id"], "networks": [network]},
                    {"name": "b", "cloud-image": "id-as-name", "min-ram": flavor["ram"], "flavor-name": part},
                    {"name": "c", "cloud-image": cloud.image, "flavor-name": cloud.flavor},
                ]);
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let (id, nodes) = harness.obtain_nodes(&["b", "a", "c"]).await;
                for (node, label) in nodes.iter().zip(["b", "a", "c"]) {
                    let server = harness.client.server(server_of(node)).await;
                    assert_eq!((&server["flavor"]["id"], &server["image"]["id"]), (&flavor["id"], &json!(image)));
                    assert_eq!(node.labels, [label.into()]);
                    assert_matches_nova(node, &server, &cloud);
                    let need = json!({"cores": flavor["vcpus"], "instances": 1, "ram": flavor["ram"]});
                    assert_eq!(json!(node.resources), need);
                }
                assert!(nodes[0].az.is_some() && nodes.iter().all(|node| node.az == nodes[0].az), "{nodes:?}");
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}

#[test]
fn only_zones_of_the_pool_are_used_and_unknown_zones_fail() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--zones", "z1,z2,z3"]).await;
        let configure = |name: &str| {
            let mut provider = cloud.provider(name);
            provider["launch-retries"] = json!(2);
            provider["pools"][0]["availability-zones"] = json!(["z3"]);
            let mut unknown_zone = provider["pools"][0].clone();
            unknown_zone["name"] = json!("unknown-zone");
            unknown_zone["availability-zones"] = json!(["no-such-zone"]);
            unknown_zone["labels"][0]["name"] = json!("b");
            provider["pools"].as_array_mut().unwrap().push(unknown_zone);
            vec![provider]
        };
        with_launcher(&cloud, configure, async |harness| {
            let (id, nodes) = harness.obtain_nodes(&["a", "a"]).await;
            assert!(nodes.iter().all(|node| node.az.as_deref() == Some("z3")), "{nodes:?}");
            let declined = harness.consumer.submit_labels(&["b"]).await;
            let request = harness.wait_for_end(&declined).await;
            assert!(request.nodes.is_empty() && request.declined_by.len() == 2, "{request:?}");
            harness.accept_and_release(&id).await;
            harness.wait_until_empty().await;
        })
        .await;
    });
}

#[test]
fn a_reused_node_decides_the_zone_of_the_others() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--zones", "z1,z2"]).await;
        with_launcher(
            &cloud,
            |name| vec![cloud.provider(name)],
            async |harness| {
                // One idle node in each zone; the zone of a launch is random.
                let mut idle = BTreeMap::new();
                let mut others = Vec::new();
                while idle.len() < 2 {
                    let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                    let node = harness.consumer.request(&id).await.unwrap().nodes[0].clone();
                    others.extend(idle.insert(nodes[0].az.clone(), (id, node)));
                }
                for (id, _) in &others {
                    harness.accept_and_release(id).await;
                }
                wait::until("the other nodes to be deleted", CLOUD_TIMEOUT, async || {
                    harness.consumer.nodes().await.len() == 2
                })
                .await;
                for (id, _) in idle.values() {
                    harness.consumer.zk.delete(&paths::request(id), -1).await.unwrap();
                }
                wait::until("two idle nodes", CLOUD_TIMEOUT, async || harness.consumer.ready_nodes().await == 2).await;
                let (id, nodes) = harness.obtain_nodes(&["a", "a"]).await;
                assert_eq!(nodes[0].az, nodes[1].az);
                let assigned = harness.consumer.request(&id).await.unwrap().nodes;
                assert_eq!(idle.values().filter(|(_, node)| assigned.contains(node)).count(), 1, "{assigned:?}");
                harness.accept_and_release(&id).await;
                let (id, _) = harness.obtain_nodes(&["a"]).await;
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            },
        )
        .await;
    });
}

#[test]
fn a_withdrawn_request_leaves_no_server_without_leak_detection() {
    on_real_time(async {
        for cloud in clouds(&["--boot-time-s", "3"]).await {
            let rarely = |options: &mut LauncherOptions| options.cleanup_interval.0 = 3600.0;
            with_tuned_launcher(
                &cloud,
                |name| vec![cloud.provider(name)],
                rarely,
                async |harness| {
                    let id = harness.consumer.submit_labels(&["a"]).await;
                    wait::until("the creation to be answered", CLOUD_TIMEOUT, async || {
                        harness.consumer.nodes().await.iter().any(|(_, node)| node.external_id.as_str().is_some())
                    })
                    .await;
                    harness.consumer.zk.delete(&paths::request(&id), -1).await.unwrap();
                    harness.wait_until_empty().await;
                },
            )
            .await;
        }
    });
}

#[test]
fn key_and_second_ipv6_network_are_recorded() {
    on_real_time(async {
        for cloud in clouds(&["--networks", "private,dual", "--ipv6"]).await {
            let client = cloud.client().await;
            let networks = client.get("network", "/networks?name=dual").await;
            let has_key = !client.get("compute", "/os-keypairs/test").await.is_null();
            if networks["networks"].as_array().is_none_or(Vec::is_empty) || !has_key {
                println!("{} has no network `dual` or no key `test`", cloud.name);
                continue;
            }
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                let label = &mut provider["pools"][0]["labels"][0];
                (label["key-name"], label["networks"]) = (json!("test"), json!(["dual"]));
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                let server = harness.client.server(server_of(&nodes[0])).await;
                assert_eq!(server["key_name"], "test");
                let networks: Vec<&String> = server["addresses"].as_object().unwrap().keys().collect();
                assert_eq!(networks, ["dual"], "the label's networks replace those of the pool");
                let of_version = |version: u64| {
                    let all = server["addresses"]["dual"].as_array().unwrap().iter();
                    all.filter(move |address| address["version"] == version).map(|address| address["addr"].clone())
                };
                assert_eq!(json!(nodes[0].private_ipv4), of_version(4).next().unwrap());
                assert_eq!(json!(nodes[0].public_ipv6), of_version(6).next().unwrap());
                let reached = json!(nodes[0].interface_ip);
                assert!(of_version(4).chain(of_version(6)).any(|address| address == reached), "{nodes:?}");
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}

#[test]
fn without_networks_the_cloud_or_the_clouds_yaml_default_chooses() {
    on_real_time(async {
        for (networks, expected) in [("private", "private"), ("private,second", "second")] {
            let cloud = TestCloud::simulated(&["--networks", networks]).await;
            if networks != expected {
                cloud.set("networks", json!([{"name": expected, "default_interface": true}]));
            }
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                provider["pools"][0]["networks"] = json!([]);
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                let server = harness.client.server(server_of(&nodes[0])).await;
                let on: Vec<&String> = server["addresses"].as_object().unwrap().keys().collect();
                assert_eq!(on, [expected]);
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}

#[test]
fn a_boot_volume_is_deleted_with_its_server() {
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let client = cloud.client().await;
            if !client.has("volume") {
                println!("{} has no block storage", cloud.name);
                continue;
            }
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                let label = &mut provider["pools"][0]["labels"][0];
                (label["boot-from-volume"], label["volume-size"]) = (json!(true), json!(2));
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                let resources = nodes[0].resources.as_ref().unwrap();
                assert_eq!((&resources["volumes"], &resources["volume-gb"]), (&json!(1), &json!(2)));
                let server = harness.client.server(server_of(&nodes[0])).await;
                assert_eq!(server["image"], "");
                let volume = server["os-extended-volumes:volumes_attached"][0]["id"].as_str().unwrap().to_owned();
                let volume = format!("/volumes/{volume}");
                assert_eq!(harness.client.get("volume", &volume).await["volume"]["size"], 2);
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
                wait::until("the volume to be deleted", CLOUD_TIMEOUT, async || {
                    harness.client.get("volume", &volume).await.is_null()
                })
                .await;
            })
            .await;
        }
    });
}

#[test]
fn a_floating_ip_is_deleted_before_its_server() {
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let client = cloud.client().await;
            let external = client.get("network", "/networks?router:external=true").await;
            if external["networks"].as_array().is_none_or(Vec::is_empty) {
                println!("{} has no network for floating IPs", cloud.name);
                continue;
            }
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                provider["pools"][0]["auto-floating-ip"] = json!(true);
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                let address = nodes[0].public_ipv4.clone().expect("the node has a public address");
                assert_eq!(nodes[0].interface_ip.as_ref(), Some(&address));
                assert!(nodes[0].private_ipv4.is_some() && nodes[0].private_ipv4.as_ref() != Some(&address));
                assert_eq!(harness.client.floating_ips_at(&address).await, 1);
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
                let is_deleted = async || harness.client.floating_ips_at(&address).await == 0;
                wait::until("the floating address to be deleted", CLOUD_TIMEOUT, is_deleted).await;
            })
            .await;
        }
    });
}
