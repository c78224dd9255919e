//! References that a cloud lacks, rejects or breaks: a request is declined with a reason or waits; no server leaks.

use nodepool_model::records::request::RequestState;
use nodepool_model::records::time::Seconds;
use reqwest::Method;
use serde_json::json;
use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::harness::{with_launcher, with_tuned_launcher};
use testkit::openstack_harness::{TestCloud, clouds};

#[test]
fn unknown_flavors_and_networks_decline_only_their_labels() {
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                let mut labels = vec![provider["pools"][0]["labels"][0].clone(); 4];
                (labels[1]["name"], labels[1]["flavor-name"]) = (json!("b"), json!("no-such-flavor"));
                (labels[2]["name"], labels[2]["networks"]) = (json!("c"), json!(["no-such-network"]));
                (labels[3]["name"], labels[3]["min-ram"]) = (json!("d"), json!(1_u64 << 40));
                provider["pools"][0]["labels"] = json!(labels);
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let good = harness.consumer.submit_labels(&["a"]).await;
                let reasons = [
                    ("b", "Unable to find flavor named no-such-flavor"),
                    ("c", "Unable to find network no-such-network"),
                    ("d", "Unable to find flavor with 1099511627776 MiB"),
                ];
                for (label, reason) in reasons {
                    let id = harness.consumer.submit_labels(&[label]).await;
                    assert_eq!(harness.wait_for_end(&id).await.state, RequestState::Failed);
                    harness.wait_for_reason(&id, reason).await;
                }
                harness.wait_until_fulfilled(&good).await;
                assert_eq!(harness.client.servers_of(&harness.provider).await.len(), 1);
                harness.accept_and_release(&good).await;
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}

#[test]
fn an_ambiguous_security_group_declines_its_label() {
    on_real_time(async {
        for cloud in clouds(&["--duplicates", "security-group"]).await {
            let client = cloud.client().await;
            let (mut name, mut created) = ("default".to_owned(), Vec::new());
            if cloud.is_real() {
                name = format!("test-{}", uuid::Uuid::new_v4().simple());
                for _ in 0..2 {
                    let group = json!({"security_group": {"name": name}});
                    let (status, answer) = client.call(Method::POST, "network", "/security-groups", Some(group)).await;
                    assert!(status.is_success(), "{answer}");
                    created.push(answer["security_group"]["id"].as_str().unwrap().to_owned());
                }
            }
            let configure = |provider: &str| {
                let mut provider = cloud.provider(provider);
                provider["pools"][0]["security-groups"] = json!([name]);
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let id = harness.consumer.submit_labels(&["a"]).await;
                assert_eq!(harness.wait_for_end(&id).await.state, RequestState::Failed);
                harness.wait_for_reason(&id, &format!("several security groups are named {name}, among them")).await;
                for group in &created {
                    harness.wait_for_reason(&id, group).await;
                }
            })
            .await;
            for group in created {
                client.call(Method::DELETE, "network", &format!("/security-groups/{group}"), None).await;
            }
        }
    });
}

#[test]
fn a_missing_image_is_declined_until_it_exists() {
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let image = format!("test-{}", uuid::Uuid::new_v4().simple());
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                provider["cloud-images"][0]["image-name"] = json!(image);
                vec![provider]
            };
            let often = |options: &mut nodepool::actors::process::context::LauncherOptions| {
                options.image_check_timeout = Seconds(0.5);
            };
            with_tuned_launcher(&cloud, configure, often, async |harness| {
                let early = harness.consumer.submit_labels(&["a"]).await;
                assert_eq!(harness.wait_for_end(&early).await.state, RequestState::Failed);
                harness.wait_for_reason(&early, &format!("the cloud has no active image {image}")).await;
                let uploaded = harness.client.upload_image(&image).await;
                let served = loop {
                    let id = harness.consumer.submit_labels(&["a"]).await;
                    if harness.wait_for_end(&id).await.state == RequestState::Fulfilled {
                        break id;
                    }
                };
                harness.accept_and_release(&served).await;
                harness.wait_until_empty().await;
                harness.client.delete_image(&uploaded).await;
            })
            .await;
        }
    });
}

#[test]
fn a_provider_without_its_image_fails_its_own_labels_only() {
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let configure = |name: &str| {
                let mut broken = cloud.provider(&format!("{name}-broken"));
                broken["cloud-images"][0]["image-name"] = json!("no-such-image");
                broken["pools"][0]["labels"][0]["name"] = json!("b");
                vec![cloud.provider(name), broken]
            };
            with_launcher(&cloud, configure, async |harness| {
                let bad = harness.consumer.submit_labels(&["b"]).await;
                let (good, _) = harness.obtain_nodes(&["a"]).await;
                assert_eq!(harness.wait_for_end(&bad).await.state, RequestState::Failed);
                harness.accept_and_release(&good).await;
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}

#[test]
fn the_text_of_a_404_is_the_reason_of_a_failed_request() {
    on_real_time(async {
        for path in ["/servers$", "/servers/detail$"] {
            let method = if path.ends_with("detail$") { "GET" } else { "POST" };
            let fault = format!("404 service=compute method={method} path={path}");
            let cloud = TestCloud::simulated(&["--fault", &fault]).await;
            with_launcher(
                &cloud,
                |name: &str| vec![cloud.provider(name)],
                async |harness| {
                    let id = harness.consumer.submit_labels(&["a"]).await;
                    harness.wait_for_reason(&id, "Injected fault").await;
                    cloud.simulation().knobs(json!({"faults": []})).await;
                    if harness.wait_for_end(&id).await.state == RequestState::Fulfilled {
                        harness.accept_and_release(&id).await;
                    }
                    harness.wait_until_empty().await;
                },
            )
            .await;
        }
    });
}

#[test]
fn a_cloud_without_useful_version_documents_boots_nodes() {
    on_real_time(async {
        for kind in ["404", "500", "html", "truncated"] {
            let fault = format!("{kind} service=compute path=/compute(/v2(.1)?)?/?$");
            let cloud = TestCloud::simulated(&["--fault", &fault]).await;
            with_launcher(
                &cloud,
                |name: &str| vec![cloud.provider(name)],
                async |harness| {
                    let (id, _) = harness.obtain_nodes(&["a"]).await;
                    harness.accept_and_release(&id).await;
                    harness.wait_until_empty().await;
                    let struck = cloud.simulation().state().await["faults_struck"].to_string();
                    assert!(!struck.contains('0'), "{kind}: {struck}");
                },
            )
            .await;
        }
    });
}

// Glance is missing from the catalog, or forbidden for this user.
#[test]
fn without_glance_images_named_by_id_still_boot() {
    on_real_time(async {
        // The image has the same id in every simulated cloud.
        let known = TestCloud::simulated(&[]).await.client().await.id_of("image", "images", "raw-1M").await;
        let images = ["--fault", "403 service=image path=/images"];
        for (flags, reason) in [(["--without", "image"], "no service of type image"), (images, "403")] {
            let cloud = TestCloud::simulated(&flags).await;
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                let mut by_id = provider["cloud-images"][0].clone();
                (by_id["name"], by_id["image-id"]) = (json!("by-id"), json!(known));
                by_id.as_object_mut().unwrap().remove("image-name");
                provider["cloud-images"].as_array_mut().unwrap().push(by_id);
                let mut label = provider["pools"][0]["labels"][0].clone();
                (label["name"], label["cloud-image"]) = (json!("b"), json!("by-id"));
                provider["pools"][0]["labels"].as_array_mut().unwrap().push(label);
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let named = harness.consumer.submit_labels(&["a"]).await;
                assert_eq!(harness.wait_for_end(&named).await.state, RequestState::Failed);
                harness.wait_for_reason(&named, "image raw-1M cannot be looked up").await;
                harness.wait_for_reason(&named, reason).await;
                let (id, _) = harness.obtain_nodes(&["b"]).await;
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}

#[test]
fn failed_servers_are_replaced_and_all_are_deleted() {
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let client = cloud.client().await;
            let flavors = client.get("compute", "/flavors").await;
            if !flavors["flavors"].as_array().unwrap().iter().any(|flavor| flavor["name"] == "broken") {
                println!("{} has no flavor whose servers break", cloud.name);
                continue;
            }
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                provider["launch-retries"] = json!(2);
                provider["pools"][0]["labels"][0]["flavor-name"] = json!("broken");
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let id = harness.consumer.submit_labels(&["a"]).await;
                let request = harness.wait_for_end(&id).await;
                assert_eq!((request.state, request.declined_by.len()), (RequestState::Failed, 1));
                harness.wait_until_empty().await;
                if !cloud.is_real() {
                    let state = cloud.simulation().state().await;
                    assert_eq!((&state["servers_created"], &state["double_creates"]), (&json!(2), &json!(0)));
                }
            })
            .await;
        }
    });
}

/// Clouds of a small project: four cores, enough for two servers of the flavor `medium`.
async fn small_clouds() -> Vec<TestCloud> {
    let mut clouds = vec![TestCloud::simulated(&["--quota-cores", "4", "--quota-servers", "3"]).await];
    let small = TestCloud::real().and_then(|cloud| cloud.sibling(&format!("{}-small", cloud.name)));
    clouds.extend(small);
    for cloud in &mut clouds {
        cloud.flavor = "medium".to_owned();
    }
    clouds
}

/// Asserts, on a project with capacity for two servers: a third one waits for the quota, and a request for three is
/// declined.
async fn assert_waits_for_quota(cloud: &TestCloud, short: &str) {
    with_launcher(
        cloud,
        |name| vec![cloud.provider(name)],
        async |harness| {
            let (first, nodes) = harness.obtain_nodes(&["a", "a"]).await;
            let recorded: Vec<&String> = nodes[0].resources.iter().flat_map(|all| all.keys()).collect();
            assert_eq!(recorded, ["cores", "instances", "ram"]);
            let never = harness.consumer.submit_labels(&["a", "a", "a"]).await;
            assert_eq!(harness.wait_for_end(&never).await.state, RequestState::Failed);
            let waiting = harness.consumer.submit_labels(&["a"]).await;
            harness.wait_for_reason(&waiting, short).await;
            let request = async || harness.consumer.request(&waiting).await.unwrap();
            let is_pending = async || request().await.state == RequestState::Pending;
            testkit::wait::until(
                "the request to wait for capacity",
                testkit::openstack_harness::harness::CLOUD_TIMEOUT,
                is_pending,
            )
            .await;
            harness.accept_and_release(&first).await;
            harness.wait_until_fulfilled(&waiting).await;
            harness.accept_and_release(&waiting).await;
            harness.wait_until_empty().await;
        },
    )
    .await;
}

#[test]
fn a_full_project_delays_requests_and_declines_oversized_ones() {
    on_real_time(async {
        for cloud in small_clouds().await {
            assert_waits_for_quota(&cloud, "cores").await;
        }
    });
}

// A 400 reply to a create call marks the provider facts as outdated.
#[test]
fn a_replaced_image_of_the_same_name_fails_no_request() {
    on_real_time(async {
        for mut cloud in clouds(&[]).await {
            let client = cloud.client().await;
            cloud.image = format!("replaced-{}", uuid::Uuid::new_v4().simple());
            let first = client.upload_image(&cloud.image).await;
            let served = with_launcher(
                &cloud,
                |name| vec![cloud.provider(name)],
                async |harness| {
                    let (id, _) = harness.obtain_nodes(&["a"]).await;
                    harness.accept_and_release(&id).await;
                    harness.wait_until_empty().await;
                    client.delete_image(&first).await;
                    client.upload_image(&cloud.image).await;
                    let (id, _) = harness.obtain_nodes(&["a"]).await;
                    harness.accept_and_release(&id).await;
                    harness.wait_until_empty().await;
                },
            );
            served.await;
            client.delete_image(&client.id_of("image", "images", &cloud.image).await).await;
        }
    });
}

#[test]
fn a_removed_zone_fails_no_request() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--zones", "z1,z2"]).await;
        with_launcher(
            &cloud,
            |name| vec![cloud.provider(name)],
            async |harness| {
                let (first, nodes) = harness.obtain_nodes(&["a"]).await;
                // Without the removal, the next request would get the other zone.
                let remaining = nodes[0].az.clone().unwrap();
                cloud.simulation().knobs(json!({"zones": [remaining]})).await;
                let (second, nodes) = harness.obtain_nodes(&["a", "a"]).await;
                assert!(nodes.iter().all(|node| node.az.as_ref() == Some(&remaining)), "{nodes:?}");
                harness.accept_and_release(&first).await;
                harness.accept_and_release(&second).await;
                harness.wait_until_empty().await;
            },
        )
        .await;
    });
}

#[test]
fn an_exhausted_network_delays_requests() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--quota-ports", "2"]).await;
        assert_waits_for_quota(&cloud, "ports").await;
        assert_eq!(cloud.simulation().state().await["quota_refusals"], 0);
    });
}

#[test]
fn an_unexpected_quota_error_only_delays_the_request() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--quota-floating-ips", "1"]).await;
        let configure = |name: &str| {
            let mut provider = cloud.provider(name);
            provider["pools"][0]["auto-floating-ip"] = json!(true);
            vec![provider]
        };
        with_launcher(&cloud, configure, async |harness| {
            let (first, _) = harness.obtain_nodes(&["a"]).await;
            let second = harness.consumer.submit_labels(&["a"]).await;
            let refused = async || cloud.simulation().state().await["servers_created"].as_u64() >= Some(2);
            testkit::wait::until("a second server", testkit::openstack_harness::harness::CLOUD_TIMEOUT, refused).await;
            // From now on the pool counts a floating IP for each server of this label.
            harness.wait_for_reason(&second, "floating-ips").await;
            harness.accept_and_release(&first).await;
            harness.wait_until_fulfilled(&second).await;
            harness.accept_and_release(&second).await;
            harness.wait_until_empty().await;
            assert_eq!(cloud.simulation().state().await["floating_ips"], 0);
        })
        .await;
    });
}

#[test]
fn a_server_fault_naming_the_quota_only_delays_the_request() {
    on_real_time(async {
        let fault = "Quota exceeded for cores: Requested 1, but already used 20 of 20 cores";
        let cloud = TestCloud::simulated(&["--boot-fails-every", "1", "--boot-failure", fault]).await;
        let configure = |name: &str| {
            let mut provider = cloud.provider(name);
            provider["launch-retries"] = json!(1);
            vec![provider]
        };
        with_launcher(&cloud, configure, async |harness| {
            let id = harness.consumer.submit_labels(&["a"]).await;
            let refused = async || cloud.simulation().state().await["servers_created"].as_u64() >= Some(2);
            testkit::wait::until("a second attempt", testkit::openstack_harness::harness::CLOUD_TIMEOUT, refused).await;
            cloud.simulation().knobs(json!({"boot_fails_every": 0})).await;
            harness.wait_until_fulfilled(&id).await;
            harness.accept_and_release(&id).await;
            harness.wait_until_empty().await;
        })
        .await;
    });
}

#[test]
fn a_cloud_without_neutron_or_cinder_launches_nodes() {
    on_real_time(async {
        for missing in ["neutron", "cinder"] {
            let cloud = TestCloud::simulated(&["--without", missing]).await;
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                let pool = &mut provider["pools"][0];
                // Without Neutron, network names cannot be resolved.
                (pool["networks"], pool["auto-floating-ip"]) = (json!([]), json!(true));
                let mut volume = pool["labels"][0].clone();
                (volume["name"], volume["boot-from-volume"]) = (json!("volume"), json!(true));
                pool["labels"].as_array_mut().unwrap().push(volume);
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                assert!(nodes[0].interface_ip.is_some(), "{nodes:?}");
                if missing == "cinder" {
                    let never = harness.consumer.submit_labels(&["volume"]).await;
                    assert_eq!(harness.wait_for_end(&never).await.state, RequestState::Failed);
                }
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}

/// The call that decides about floating IPs fails at start-up: the node waits, and is not ready without an address.
#[test]
fn a_server_with_several_ports_waits_for_the_port_list() {
    on_real_time(async {
        let flags = ["--networks", "private,second", "--fault", "500 times=2 service=network path=/subnets$"];
        let cloud = TestCloud::simulated(&flags).await;
        let configure = |name: &str| {
            let mut provider = cloud.provider(name);
            let pool = &mut provider["pools"][0];
            (pool["networks"], pool["auto-floating-ip"]) = (json!(["private", "second"]), json!(true));
            vec![provider]
        };
        with_launcher(&cloud, configure, async |harness| {
            let (id, nodes) = harness.obtain_nodes(&["a"]).await;
            assert!(nodes[0].public_ipv4.is_some(), "{nodes:?}");
            assert_eq!(cloud.simulation().state().await["servers_created"], 1);
            harness.accept_and_release(&id).await;
            harness.wait_until_empty().await;
        })
        .await;
    });
}

#[test]
fn unavailable_quotas_affect_only_pools_that_respect_them() {
    on_real_time(async {
        for status in ["403", "404", "500"] {
            let fault = format!("{status} service=compute path=/limits$");
            let cloud = TestCloud::simulated(&["--fault", &fault]).await;
            let configure = |name: &str| {
                let mut ignoring = cloud.provider(name);
                ignoring["pools"][0]["ignore-provider-quota"] = json!(true);
                let mut heeding = ignoring["pools"][0].clone();
                (heeding["name"], heeding["labels"][0]["name"]) = (json!("second"), json!("b"));
                heeding["ignore-provider-quota"] = json!(false);
                ignoring["pools"].as_array_mut().unwrap().push(heeding.clone());
                let mut all_heed = cloud.provider(&format!("{name}-heeding"));
                heeding["labels"][0]["name"] = json!("c");
                all_heed["pools"] = json!([heeding]);
                vec![ignoring, all_heed]
            };
            with_launcher(&cloud, configure, async |harness| {
                let (id, _) = harness.obtain_nodes(&["a"]).await;
                let second = harness.consumer.submit_labels(&["b"]).await;
                assert_eq!(harness.wait_for_end(&second).await.state, RequestState::Failed);
                harness.wait_for_reason(&second, "cannot read the cloud's limits").await;
                let third = harness.consumer.submit_labels(&["c"]).await;
                harness.wait_for_reason(&third, "cannot read the cloud's limits").await;
                // 403 and 404 are final, while a 500 is retried.
                match status {
                    "500" => {
                        cloud.simulation().knobs(json!({"faults": []})).await;
                        harness.wait_until_fulfilled(&third).await;
                        harness.accept_and_release(&third).await;
                    }
                    _ => assert_eq!(harness.wait_for_end(&third).await.state, RequestState::Failed),
                }
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}

// The last known limits are used if the limits can no longer be read.
#[test]
fn known_quotas_are_kept_when_they_become_unavailable() {
    on_real_time(async {
        let faults = ["--fault", "403 after=1 service=compute path=/limits$"];
        let cloud =
            TestCloud::simulated(&[&faults[..], &["--quota-servers", "1", "--boot-fails-every", "1"]].concat()).await;
        with_launcher(
            &cloud,
            |name| vec![cloud.provider(name)],
            async |harness| {
                // A failed launch triggers a refresh.
                let id = harness.consumer.submit_labels(&["a"]).await;
                assert_eq!(harness.wait_for_end(&id).await.state, RequestState::Failed);
                let struck = async || cloud.simulation().state().await["faults_struck"].to_string().contains('1');
                testkit::wait::until(
                    "the limits to be refused",
                    testkit::openstack_harness::harness::CLOUD_TIMEOUT,
                    struck,
                )
                .await;
                cloud.simulation().knobs(json!({"boot_fails_every": 0})).await;
                let never = harness.consumer.submit_labels(&["a", "a"]).await;
                assert_eq!(harness.wait_for_end(&never).await.state, RequestState::Failed);
                harness.wait_for_reason(&never, "needs instances 2, the limit is 1").await;
                let (id, _) = harness.obtain_nodes(&["a"]).await;
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            },
        )
        .await;
    });
}
