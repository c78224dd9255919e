//! Logins: passwords, application credentials, tokens, regions and TLS. A provider that cannot log in does not affect
//! others.

use nodepool_model::records::ids::RequestId;
use nodepool_model::records::request::RequestState;
use serde_json::{Value, json};
use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::harness::{CLOUD_TIMEOUT, OpenStackHarness, server_of, with_launcher};
use testkit::openstack_harness::{TestCloud, clouds};
use testkit::{real, wait};

#[test]
fn an_application_credential_works_like_a_password() {
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let Some(credential) = cloud.sibling(&format!("{}-appcred", cloud.name)) else {
                println!("{} has no application credential", cloud.name);
                continue;
            };
            let configure = |name: &str| vec![credential.provider(name)];
            with_launcher(&cloud, configure, async |harness| {
                let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                assert_eq!(nodes[0].cloud.as_ref(), Some(&credential.name));
                assert!(!harness.client.server(server_of(&nodes[0])).await.is_null());
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}

#[test]
fn a_token_works_like_a_password_until_it_expires() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&[]).await;
        let token = cloud.client().await.token();
        let auth_url = format!("{}/identity/v3", cloud.simulation().base());
        cloud.add(
            "with-token",
            json!({"auth_type": "token", "auth": {"auth_url": auth_url, "token": token,
            "project_name": "nodepool", "project_domain_id": "default"}}),
        );
        let configure = |name: &str| {
            let mut provider = cloud.provider(name);
            provider["cloud"] = json!("with-token");
            vec![provider]
        };
        with_launcher(&cloud, configure, async |harness| {
            let (id, nodes) = harness.obtain_nodes(&["a"]).await;
            assert_eq!(nodes[0].cloud.as_deref(), Some("with-token"));
            harness.accept_and_release(&id).await;
            harness.wait_until_empty().await;
        })
        .await;
    });
}

#[test]
fn the_region_is_used_and_recorded() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&["--region", "north"]).await;
        // A provider without `region-name` would use the first region.
        cloud.set("regions", json!(["south", "north"]));
        let configure = |name: &str| {
            let mut provider = cloud.provider(name);
            provider["region-name"] = json!("north");
            vec![provider]
        };
        with_launcher(&cloud, configure, async |harness| {
            let (id, nodes) = harness.obtain_nodes(&["a"]).await;
            assert_eq!(nodes[0].region.as_deref(), Some("north"));
            harness.accept_and_release(&id).await;
            harness.wait_until_empty().await;
        })
        .await;
    });
}

#[test]
fn a_busy_keystone_is_retried_after_its_retry_after() {
    on_real_time(async {
        let fault = "429 times=1 path=^/identity/v3/auth/tokens$";
        let cloud = TestCloud::simulated(&["--retry-after-s", "4", "--fault", fault]).await;
        let started = tokio::time::Instant::now();
        with_launcher(
            &cloud,
            |name| vec![cloud.provider(name)],
            async |harness| {
                let (id, _) = harness.obtain_nodes(&["a"]).await;
                assert!(started.elapsed().as_secs() >= 4, "the login waits for Retry-After");
                harness.accept_and_release(&id).await;
                harness.wait_until_empty().await;
            },
        )
        .await;
    });
}

/// PEM file of a certificate authority that has signed no certificate.
fn other_authority(folder: &std::path::Path) -> std::path::PathBuf {
    let path = folder.join("other-ca.pem");
    let generated = rcgen::generate_simple_self_signed(["other".to_owned()]).unwrap();
    std::fs::write(&path, generated.cert.pem()).unwrap();
    path
}

#[test]
fn tls_uses_the_authority_of_clouds_yaml() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let (cloud, folder) = (TestCloud::simulated_with_tls(&[]).await, tempfile::tempdir().unwrap());
        let text = std::fs::read_to_string(&cloud.clouds_yaml).unwrap();
        let mut file: Value = serde_yaml::from_str(&text).unwrap();
        let good = file["clouds"][&cloud.name].take();
        let with = |key: &str, value: Value| {
            let mut changed = good.clone();
            changed[key] = value;
            changed
        };
        let mut unchecked = with("verify", json!(false));
        unchecked.as_object_mut().unwrap().remove("cacert");
        let mut unknown = good.clone();
        unknown.as_object_mut().unwrap().remove("cacert");
        let mut nameless = good.clone();
        nameless["auth"]["auth_url"] = json!("https://keystone.invalid/v3");
        let other = with("cacert", json!(other_authority(folder.path())));
        let all = [("unchecked", unchecked), ("unknown", unknown), ("nameless", nameless), ("other", other)];
        all.into_iter().for_each(|(name, entry)| cloud.add(name, entry));
        let configure = |name: &str| {
            let unusable_providers = ["unchecked", "unknown", "nameless", "other"].map(|named| {
                let mut provider = cloud.provider(&format!("{name}-{named}"));
                provider["cloud"] = json!(named);
                provider["pools"][0]["labels"][0]["name"] = json!(named);
                provider
            });
            std::iter::once(cloud.provider(name)).chain(unusable_providers).collect()
        };
        with_launcher(&cloud, configure, async |harness| {
            for label in ["a", "unchecked"] {
                let (id, _) = harness.obtain_nodes(&[label]).await;
                harness.accept_and_release(&id).await;
            }
            for (label, reason) in [("unknown", "certificate"), ("other", "certificate"), ("nameless", "dns error")] {
                let id = harness.consumer.submit_labels(&[label]).await;
                harness.wait_for_reason(&id, &format!("cloud {label}: ")).await;
                harness.wait_for_reason(&id, reason).await;
            }
            harness.wait_until_empty().await;
        })
        .await;
    });
}

/// Replaces clouds.yaml by a copy with additional clouds, whose logins fail.
fn with_unusable_clouds(cloud: &mut TestCloud, folder: &std::path::Path) {
    let name = cloud.name.clone();
    cloud.copy_clouds_yaml(folder, |file| {
        let good = file["clouds"][name].clone();
        let mut wrong = good.clone();
        wrong["auth"]["password"] = json!("wrong");
        let mut elsewhere = good.clone();
        elsewhere["region_name"] = json!("Nowhere");
        let mut dead = good;
        dead["auth"]["auth_url"] = json!("http://127.0.0.1:1/v3");
        for (name, cloud) in [("wrong-password", wrong), ("elsewhere", elsewhere), ("dead", dead)] {
            file["clouds"][name] = cloud;
        }
    });
}

#[test]
fn a_failed_login_is_reported_and_affects_no_other_provider() {
    on_real_time(async {
        for mut cloud in clouds(&[]).await {
            let folder = tempfile::tempdir().unwrap();
            with_unusable_clouds(&mut cloud, folder.path());
            let configure = |name: &str| {
                let cases = [
                    ("password", "wrong-password", None),
                    ("elsewhere", "elsewhere", None),
                    ("dead", "dead", None),
                    ("unknown", "no-such-cloud", None),
                    ("region", cloud.name.as_str(), Some("Nowhere")),
                ];
                let unusable_providers = cases.iter().map(|(label, named, region)| {
                    let mut provider = cloud.provider(&format!("{name}-{label}"));
                    provider["cloud"] = json!(named);
                    if let Some(region) = region {
                        provider["region-name"] = json!(region);
                    }
                    provider["pools"][0]["labels"][0]["name"] = json!(label);
                    provider
                });
                std::iter::once(cloud.provider(name)).chain(unusable_providers).collect()
            };
            with_launcher(&cloud, configure, async |harness| {
                let good = harness.consumer.submit_labels(&["a"]).await;
                harness.wait_until_fulfilled(&good).await;
                let reasons = [
                    ("password", "cloud wrong-password: "),
                    ("password", "401"),
                    ("elsewhere", "no compute endpoint for region Nowhere"),
                    ("dead", "cloud dead: "),
                ];
                for (label, reason) in reasons {
                    let id = harness.consumer.submit_labels(&[label]).await;
                    harness.wait_for_reason(&id, reason).await;
                }
                // A provider whose cloud is not in clouds.yaml has no pool, so the other pools decline its labels.
                for label in ["unknown", "region"] {
                    let id = harness.consumer.submit_labels(&[label]).await;
                    assert_eq!(harness.wait_for_end(&id).await.state, RequestState::Failed);
                }
                harness.accept_and_release(&good).await;
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}

/// Submits requests until one is fulfilled.
async fn submit_until_fulfilled(harness: &OpenStackHarness, label: &str) -> RequestId {
    wait::until_some(&format!("label {label} to be served"), CLOUD_TIMEOUT, async || {
        let id = harness.consumer.submit_labels(&[label]).await;
        (harness.wait_for_end(&id).await.state == RequestState::Fulfilled).then_some(id)
    })
    .await
}

#[test]
fn a_changed_clouds_yaml_applies_without_a_reload() {
    on_real_time(async {
        let cloud = TestCloud::simulated(&[]).await;
        let text = std::fs::read_to_string(&cloud.clouds_yaml).unwrap();
        let mut file: Value = serde_yaml::from_str(&text).unwrap();
        let good = file["clouds"][&cloud.name].take();
        let mut wrong = good.clone();
        wrong["auth"]["password"] = json!("wrong");
        cloud.add("changing", wrong.clone());
        let configure = |name: &str| {
            let mut provider = cloud.provider(name);
            provider["cloud"] = json!("changing");
            let mut unknown = provider.clone();
            (unknown["name"], unknown["cloud"]) = (json!(format!("{name}-later")), json!("later"));
            unknown["pools"][0]["labels"][0]["name"] = json!("b");
            vec![provider, unknown]
        };
        with_launcher(&cloud, configure, async |harness| {
            let id = harness.consumer.submit_labels(&["a"]).await;
            harness.wait_for_reason(&id, "401").await;
            cloud.add("changing", good.clone());
            cloud.add("later", good.clone());
            // It also starts the provider that failed to start before.
            for label in ["a", "b"] {
                let id = submit_until_fulfilled(harness, label).await;
                harness.accept_and_release(&id).await;
            }
            harness.wait_until_empty().await;

            cloud.add("changing", wrong.clone());
            wait::until("the new password to be used", CLOUD_TIMEOUT, async || {
                let id = harness.consumer.submit_labels(&["a"]).await;
                let state = harness.wait_for_end(&id).await.state;
                match state {
                    RequestState::Fulfilled => harness.accept_and_release(&id).await,
                    _ => harness.wait_for_reason(&id, "401").await,
                }
                state == RequestState::Failed
            })
            .await;
            // A provider that cannot log in cannot delete its servers either.
            cloud.add("changing", good.clone());
            harness.wait_until_empty().await;
        })
        .await;
    });
}
