//! Who may log in and where: passwords, application credentials, regions; and that a provider that cannot harms no other.

use nodepool::model::request::RequestState;
use serde_json::{Value, json};

use crate::grown::on_real_time;
use crate::stack::scene::{server_of, with_launcher};
use crate::stack::{Cloud, clouds};

#[test]
fn an_application_credential_is_as_good_as_a_password() {
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let Some(credential) = cloud.sibling(&format!("{}-appcred", cloud.name)) else {
                println!("{} has no application credential", cloud.name);
                continue;
            };
            let configure = |name: &str| vec![credential.provider(name)];
            with_launcher(&cloud, configure, async |scene| {
                let (id, nodes) = scene.serve(&["a"]).await;
                assert_eq!(nodes[0].cloud.as_ref(), Some(&credential.name));
                assert!(!scene.client.server(server_of(&nodes[0])).await.is_null());
                scene.use_up(&id).await;
                scene.empties().await;
            })
            .await;
        }
    });
}

/// The cloud with others in its clouds.yaml that nobody can log in to.
fn with_strangers(cloud: &mut Cloud, folder: &std::path::Path) {
    let text = std::fs::read_to_string(&cloud.clouds_yaml).unwrap();
    let mut file: Value = serde_yaml::from_str(&text).unwrap();
    let good = file["clouds"][&cloud.name].clone();
    let mut wrong = good.clone();
    wrong["auth"]["password"] = json!("wrong");
    let mut elsewhere = good.clone();
    elsewhere["region_name"] = json!("Nowhere");
    let mut dead = good;
    dead["auth"]["auth_url"] = json!("http://127.0.0.1:1/v3");
    for (name, cloud) in [("wrong-password", wrong), ("elsewhere", elsewhere), ("dead", dead)] {
        file["clouds"][name] = cloud;
    }
    cloud.clouds_yaml = folder.join("clouds.yaml");
    std::fs::write(&cloud.clouds_yaml, file.to_string()).unwrap();
}

#[test]
fn a_provider_that_cannot_log_in_says_so_and_others_work() {
    on_real_time(async {
        for mut cloud in clouds(&[]).await {
            let folder = tempfile::tempdir().unwrap();
            with_strangers(&mut cloud, folder.path());
            let configure = |name: &str| {
                let cases = [
                    ("password", "wrong-password", None),
                    ("elsewhere", "elsewhere", None),
                    ("dead", "dead", None),
                    ("unknown", "no-such-cloud", None),
                    ("region", cloud.name.as_str(), Some("Nowhere")),
                ];
                let strangers = cases.iter().map(|(label, named, region)| {
                    let mut provider = cloud.provider(&format!("{name}-{label}"));
                    provider["cloud"] = json!(named);
                    if let Some(region) = region {
                        provider["region-name"] = json!(region);
                    }
                    provider["pools"][0]["labels"][0]["name"] = json!(label);
                    provider
                });
                std::iter::once(cloud.provider(name)).chain(strangers).collect()
            };
            with_launcher(&cloud, configure, async |scene| {
                let good = scene.consumer.ask(&["a"]).await;
                scene.fulfilled(&good).await;
                let reasons = [
                    ("password", "cloud wrong-password: "),
                    ("password", "401"),
                    ("elsewhere", "no compute endpoint for region Nowhere"),
                    ("dead", "cloud dead: "),
                ];
                for (label, reason) in reasons {
                    let id = scene.consumer.ask(&[label]).await;
                    scene.says(&id, reason).await;
                }
                // What is not in clouds.yaml has no pool that could say anything, so those of others decline.
                for label in ["unknown", "region"] {
                    let id = scene.consumer.ask(&[label]).await;
                    assert_eq!(scene.ended(&id).await.state, RequestState::Failed);
                }
                scene.use_up(&good).await;
                scene.empties().await;
            })
            .await;
        }
    });
}
