//! Leaked resources at the IBM VPC: each kind is deleted once, and counted; those of others and live images stay.

use std::time::Duration;

use bytes::Bytes;
use nodepool_model::records::image_upload::{UploadKey, UploadState};
use nodepool_model::records::node::NodeState;
use nodepool_zk::locks::lock;
use nodepool_zk::paths;
use reqwest::Client;
use serde_json::{Value, json};
use testkit::clouds::cloud_launcher::{CloudLauncher, TIMEOUT};
use testkit::clouds::moto::{BUCKET, Moto};
use testkit::clouds::simulated_ibm::{SimulatedIbm, ZONES};
use testkit::in_process_launcher::image_records::record_upload;
use testkit::in_process_launcher::{node_record, on_real_time};
use testkit::{real, wait};
use zookeeper_server::types::CreateMode;

use crate::driver::{QUICK, configuration};
use crate::uploads::section;

/// More than the interval of listings of volumes, images and objects.
const INTERVAL: Duration = Duration::from_secs(700);
/// A few more than the two listings that show and confirm a resource.
const MAX_PASSES: usize = 10;
const KINDS: [&str; 4] = ["instances", "floatingips", "volumes", "images"];

/// Calls the API without a driver.
struct Api<'a> {
    cloud: &'a SimulatedIbm,
    http: Client,
}

impl Api<'_> {
    fn url(&self, path: &str) -> String {
        format!("{}{path}?version=2025-06-03&generation=2&limit=100", self.cloud.base())
    }

    async fn list(&self, path: &str, key: &str) -> Vec<Value> {
        let sent = self.http.get(self.url(path)).send().await.unwrap();
        let mut page: Value = sent.json().await.unwrap();
        serde_json::from_value(page[key].take()).unwrap()
    }

    async fn id_of(&self, path: &str, key: &str, name: &str) -> Value {
        let all = self.list(path, key).await;
        let found = all.iter().find(|one| one["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {all:?}"))["id"].clone()
    }

    async fn create(&self, path: &str, body: Value) {
        let url = format!("{}{path}?version=2025-06-03&generation=2", self.cloud.base());
        let sent = self.http.post(url).json(&body).send().await.unwrap();
        assert!(sent.status().is_success(), "{}", sent.text().await.unwrap());
    }

    async fn group(&self, name: &str) -> Value {
        self.create("/v2/resource_groups", json!({"name": name})).await;
        json!({"id": self.id_of("/v2/resource_groups", "resources", name).await})
    }

    async fn instance(&self, name: &str, group: &Value, volume: &str) {
        let vpc = json!({"id": self.id_of("/v1/vpcs", "vpcs", "nodepool").await});
        let subnet = json!({"id": self.id_of("/v1/subnets", "subnets", "nodepool-1").await});
        let image = json!({"id": self.list("/v1/images", "images").await[0]["id"]});
        let volume = json!({"name": volume, "profile": {"name": "general-purpose"}, "resource_group": group});
        let boot = json!({"volume": volume, "delete_volume_on_instance_delete": false});
        let body = json!({
            "name": name, "profile": {"name": "bx2-2x8"}, "resource_group": group, "image": image, "vpc": vpc,
            "zone": {"name": ZONES[0]}, "primary_network_interface": {"subnet": subnet},
            "boot_volume_attachment": boot,
        });
        self.create("/v1/instances", body).await;
    }

    async fn floating_ip(&self, name: &str, group: &Value) {
        self.create("/v1/floating_ips", json!({"name": name, "resource_group": group, "zone": {"name": ZONES[0]}}))
            .await;
    }

    async fn image(&self, name: &str, group: &Value) {
        let body = json!({
            "name": name, "resource_group": group, "file": {"href": format!("cos://us-south/{BUCKET}/{name}.qcow2")},
            "operating_system": {"name": "debian-12-amd64"},
        });
        self.create("/v1/images", body).await;
    }

    async fn names(&self, path: &str, key: &str) -> Vec<String> {
        let all = self.list(path, key).await;
        let mut names: Vec<String> = all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        names.retain(|name| name.starts_with("np"));
        names.sort();
        names
    }
}

/// The id of a build that was created and deleted.
async fn issued_build(launcher: &CloudLauncher) -> String {
    let (zk, builds) = (&launcher.consumer.zk, paths::image_builds(&"built".into()));
    lock::make_path(zk, &builds).await.unwrap();
    let created = zk.create(&format!("{builds}/"), Bytes::new(), CreateMode::PersistentSequential).await;
    let (path, _) = created.unwrap();
    zk.delete(&path, -1).await.unwrap();
    paths::name(&path).to_owned()
}

/// Advances the clock of the launcher by an interval, and waits until it has listed volumes again.
async fn pass_interval(launcher: &CloudLauncher, cloud: &SimulatedIbm) {
    let listings = async || cloud.calls("list_volumes").await.len();
    let before = listings().await;
    launcher.advance_clock(INTERVAL).await;
    wait::until("another listing", TIMEOUT, async || listings().await > before).await;
}

/// The end of an image's name, which shows that it is of the provider `dallas`.
const DALLAS: &str = "fa2115f8";

#[test]
fn each_kind_of_leaked_resource_is_deleted_once_and_counted() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let moto = Moto::start().await;
        moto.bucket(BUCKET).await;
        let cloud = SimulatedIbm::start(&[&QUICK[..], &["--image-s", "0"]].concat()).await;
        let config = configuration(&section(&moto), "", &[("small", "")]);
        let mut launcher = CloudLauncher::prepare(config, cloud.driver());
        // ZooKeeper has issued the ids of three nodes and a build, which exist no more.
        let mut nodes = Vec::new();
        for _ in 0..3 {
            let node = launcher.consumer.create_node(&node_record(NodeState::Ready, None)).await;
            launcher.consumer.zk.delete(&paths::node(&node), -1).await.unwrap();
            nodes.push(node.to_string());
        }
        let build = issued_build(&launcher).await;
        let api = Api { cloud: &cloud, http: Client::new() };
        for (group, images) in [("np_dallas_main", "npimages_dallas"), ("np_austin_main", "npimages_austin")] {
            let (group, images) = (api.group(group).await, api.group(images).await);
            let is_ours =
                images == json!({"id": api.id_of("/v2/resource_groups", "resources", "npimages_dallas").await});
            // Names are unique in a region, so others have other nodes.
            let name = |index: usize| format!("np{}{}", nodes[index], if is_ours { "" } else { "9" });
            api.instance(&name(0), &group, &format!("{}-0123456789abcdef", name(1))).await;
            api.floating_ip(&name(2), &group).await;
            let hash = if is_ours { DALLAS } else { "00000000" };
            api.image(&format!("npimage0000000001-{build}-{hash}"), &images).await;
            if is_ours {
                // Nodepool 11 names no build, so its image may be in use.
                api.image("npimage0000000002", &images).await;
            }
        }
        launcher.run().await;
        let counter = |kind: &str| format!("nodepool.provider.dallas.leaked.{kind}");
        wait::until("the leaked instance to be counted", TIMEOUT, async || {
            launcher.counter(&counter("instances")) > 0.0
        })
        .await;
        let mut passes = 0;
        while !KINDS.iter().all(|kind| launcher.counter(&counter(kind)) > 0.0) {
            assert!(passes < MAX_PASSES, "a kind is not counted");
            passes += 1;
            pass_interval(&launcher, &cloud).await;
        }
        pass_interval(&launcher, &cloud).await;
        for kind in KINDS {
            assert_eq!(launcher.counter(&counter(kind)), 1.0, "{kind}");
        }
        let names = async |path, key| api.names(path, key).await;
        assert_eq!(names("/v1/instances", "instances").await, [format!("np{}9", nodes[0])]);
        assert_eq!(names("/v1/floating_ips", "floating_ips").await, [format!("np{}9", nodes[2])]);
        assert_eq!(names("/v1/volumes", "volumes").await, [format!("np{}9-0123456789abcdef", nodes[1])]);
        let others = [format!("npimage0000000001-{build}-00000000"), "npimage0000000002".to_owned()];
        assert_eq!(names("/v1/images", "images").await, others);
    });
}

#[test]
fn an_image_in_use_outlives_all_searches_for_leaks() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let moto = Moto::start().await;
        moto.bucket(BUCKET).await;
        let cloud = SimulatedIbm::start(&[&QUICK[..], &["--image-s", "0"]].concat()).await;
        let config = configuration(&section(&moto), "", &[("small", "")]);
        let mut launcher = CloudLauncher::prepare(config, cloud.driver());
        // The second build exists no more.
        let (build, gone) = (issued_build(&launcher).await, issued_build(&launcher).await);
        let key = UploadKey {
            provider: "dallas".into(),
            image: "built".into(),
            build: build.as_str().into(),
            upload: "0000000001".into(),
        };
        let api = Api { cloud: &cloud, http: Client::new() };
        let group = api.group("npimages_dallas").await;
        let name = |build: &str| format!("npimage0000000001-{build}-{DALLAS}");
        for build in [&build, &gone] {
            api.image(&name(build), &group).await;
        }
        let id = api.id_of("/v1/images", "images", &name(&build)).await;
        record_upload(&launcher.consumer.zk, &key, UploadState::Ready, 1.0, id.as_str()).await;
        launcher.run().await;
        for _ in 0..10 {
            pass_interval(&launcher, &cloud).await;
        }
        wait::until("the end of the other image", TIMEOUT, async || {
            api.names("/v1/images", "images").await == [name(&build)]
        })
        .await;
        for _ in 0..10 {
            pass_interval(&launcher, &cloud).await;
        }
        assert_eq!(api.names("/v1/images", "images").await, [name(&build)]);
    });
}
