//! Leaked resources at the IBM VPC: each kind is deleted once, and counted; those of others and live images stay.

use std::time::Duration;

use bytes::Bytes;
use nodepool_model::records::image_upload::{UploadKey, UploadState};
use nodepool_model::records::node::NodeState;
use nodepool_zk::locks::lock;
use nodepool_zk::paths;
use testkit::clouds::cloud_launcher::{CloudLauncher, TIMEOUT};
use testkit::clouds::moto::{BUCKET, Moto};
use testkit::clouds::simulated_ibm::SimulatedIbm;
use testkit::in_process_launcher::image_records::record_upload;
use testkit::in_process_launcher::{node_record, on_real_time};
use testkit::{real, wait};
use zookeeper_server::types::CreateMode;

use crate::api::Api;
use crate::driver::{QUICK, configuration};
use crate::uploads::section;

/// More than the interval of listings of volumes, images and objects.
const INTERVAL: Duration = Duration::from_secs(700);
/// A few more than the two listings that show and confirm a resource.
const MAX_PASSES: usize = 10;
const KINDS: [&str; 4] = ["instances", "floatingips", "volumes", "images"];

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
        let api = Api::new(&cloud);
        for (group, images) in [("np_dallas_main", "npimages_dallas"), ("np_austin_main", "npimages_austin")] {
            let (group, images) = (api.create_group(group).await, api.create_group(images).await);
            let is_ours = images == api.group("npimages_dallas").await;
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
        let api = Api::new(&cloud);
        let group = api.create_group("npimages_dallas").await;
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
