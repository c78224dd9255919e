//! Leaked resources of launches and uploads at the simulated EC2: each kind is deleted once, and counted.

use std::time::Duration;

use bytes::Bytes;
use nodepool_model::records::node::NodeState;
use nodepool_zk::locks::lock;
use nodepool_zk::paths;
use testkit::clouds::moto::BUCKET;
use testkit::clouds::simulated_ec2::IMAGE;
use testkit::in_process_launcher::{node_record, on_real_time};
use testkit::real;
use testkit::wait;
use zookeeper_server::types::CreateMode;

use crate::contract::Resources;
use crate::ec2::{Answer, Ec2, authorization, tags};
use crate::launcher_harness::{LauncherHarness, TIMEOUT};
use crate::simulated::configuration;

/// More than the interval of listings of volumes, images and objects.
const INTERVAL: Duration = Duration::from_secs(700);
/// A few more than the two listings that show and confirm a resource.
const MAX_PASSES: usize = 10;
const KINDS: [&str; 5] = ["instances", "volumes", "amis", "snapshots", "objects"];

/// Marks of a resource, as tags.
type Marks<'a> = [(&'a str, &'a str)];

/// Creates resources with these marks.
struct Creator<'a> {
    ec2: &'a Ec2,
    resources: &'a Resources,
}

impl Creator<'_> {
    /// Calls an action with the marks as tags of a resource of this type.
    async fn create(&self, action: &str, kind: &str, parameters: &[(&str, &str)], marks: &Marks<'_>) -> String {
        let keys: Vec<[String; 2]> = (1..=marks.len())
            .map(|number| ["Key", "Value"].map(|part| format!("TagSpecification.1.Tag.{number}.{part}")))
            .collect();
        let mut all = parameters.to_vec();
        all.push(("TagSpecification.1.ResourceType", kind));
        for ([key, value], (name, text)) in keys.iter().zip(marks) {
            all.extend([(key.as_str(), *name), (value.as_str(), *text)]);
        }
        let answer = self.ec2.ok(action, &all).await;
        let element = match kind {
            "image" => "imageId",
            "instance" => "instanceId",
            "snapshot" => "snapshotId",
            _ => "volumeId",
        };
        answer.find(element).text().to_owned()
    }

    async fn instance(&self, marks: &Marks<'_>) {
        let parameters = [("ImageId", IMAGE), ("InstanceType", "t3.medium"), ("MinCount", "1"), ("MaxCount", "1")];
        self.create("RunInstances", "instance", &parameters, marks).await;
    }

    async fn volume(&self, marks: &Marks<'_>) -> String {
        let parameters = [("Size", "8"), ("AvailabilityZone", "us-west-2a")];
        self.create("CreateVolume", "volume", &parameters, marks).await
    }

    /// A snapshot of a volume that exists no more.
    async fn snapshot(&self, marks: &Marks<'_>) -> String {
        let volume = self.volume(&[("team", "ci")]).await;
        let snapshot = self.create("CreateSnapshot", "snapshot", &[("VolumeId", &volume)], marks).await;
        self.ec2.ok("DeleteVolume", &[("VolumeId", &volume)]).await;
        snapshot
    }

    async fn image(&self, name: &str, marks: &Marks<'_>) {
        let snapshot = self.snapshot(&[("team", "ci")]).await;
        let parameters = [
            ("Name", name),
            ("Architecture", "x86_64"),
            ("RootDeviceName", "/dev/sda1"),
            ("BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
            ("BlockDeviceMapping.1.Ebs.SnapshotId", &snapshot),
        ];
        self.create("RegisterImage", "image", &parameters, marks).await;
    }

    async fn object(&self, name: &str, marks: &Marks<'_>) {
        let marks: Vec<String> = marks.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let url = format!("{}/{}/{name}", self.ec2.base, self.resources.bucket);
        let request = self.ec2.http.put(url).header("Authorization", authorization("s3")).body("x");
        let response = request.header("x-amz-tagging", marks.join("&")).send().await.expect("S3 answers");
        Answer::read(response).await.expect("the answer is complete").expect_ok();
    }

    /// One resource of each kind of this provider. The instance and the volume have nodes of their own, and the others
    /// have uploads of their own.
    async fn leak(&self, provider: &str, nodes: &[&str; 2], build: &str) {
        let of_node = |node| [("nodepool_provider_name", provider), ("nodepool_node_id", node)];
        let of_upload = |upload| {
            [("nodepool_provider_name", provider), ("nodepool_build_id", build), ("nodepool_upload_id", upload)]
        };
        self.instance(&of_node(nodes[0])).await;
        self.volume(&of_node(nodes[1])).await;
        self.image(&format!("image of {provider}"), &of_upload("0000000001")).await;
        self.snapshot(&of_upload("0000000002")).await;
        self.object(&format!("{provider}-1700000000.raw"), &of_upload("0000000003")).await;
    }
}

/// The id of a build that was created and deleted.
async fn issued_build(harness: &LauncherHarness) -> String {
    let (zk, builds) = (&harness.consumer.zk, paths::image_builds(&"debian".into()));
    lock::make_path(zk, &builds).await.unwrap();
    let created = zk.create(&format!("{builds}/"), Bytes::new(), CreateMode::PersistentSequential).await;
    let (path, _) = created.unwrap();
    zk.delete(&path, -1).await.unwrap();
    paths::name(&path).to_owned()
}

/// Advances the clock of the launcher by an interval, and waits until it has listed volumes again.
async fn pass_interval(harness: &LauncherHarness) {
    let listings = async || harness.cloud.calls("DescribeVolumes").await.len();
    let before = listings().await;
    harness.advance_clock(INTERVAL).await;
    wait::until("another listing", TIMEOUT, async || listings().await > before).await;
}

#[test]
fn each_kind_of_leaked_resource_is_deleted_once_and_counted() {
    if real::skipped() {
        return;
    }
    on_real_time(async {
        let provider = format!("object-storage: {{bucket-name: {BUCKET}}}, diskimages: [{{name: debian}}]");
        let config = configuration(&provider, "", &[("small", "")]);
        let config = config.replacen("labels:", "diskimages: [{name: debian, elements: [vm]}]\nlabels:", 1);
        let mut harness = LauncherHarness::prepare(config, &["--snapshot-s", "0"]).await;
        let resources = Resources::of_simulation(harness.cloud.base()).await;
        // ZooKeeper has issued the ids of two nodes and a build, which exist no more.
        let mut nodes = Vec::new();
        for _ in 0..2 {
            let node = harness.consumer.create_node(&node_record(NodeState::Ready, None)).await;
            harness.consumer.zk.delete(&paths::node(&node), -1).await.unwrap();
            nodes.push(node.to_string());
        }
        let build = issued_build(&harness).await;
        let nodes = [nodes[0].as_str(), nodes[1].as_str()];
        let creator = Creator { ec2: &harness.ec2, resources: &resources };
        creator.leak("west", &nodes, &build).await;
        creator.leak("east", &nodes, &build).await;
        harness.run().await;
        let counter = |kind: &str| format!("nodepool.provider.west.leaked.{kind}");
        wait::until("the leaked instance to be counted", TIMEOUT, async || {
            harness.counter(&counter("instances")) > 0.0
        })
        .await;
        let mut passes = 0;
        while !KINDS.iter().all(|kind| harness.counter(&counter(kind)) > 0.0) {
            assert!(passes < MAX_PASSES, "a kind is not counted");
            passes += 1;
            pass_interval(&harness).await;
        }
        pass_interval(&harness).await;
        for kind in KINDS {
            assert_eq!(harness.counter(&counter(kind)), 1.0, "{kind}");
        }
        // The resources with equal ids and another provider name still exist.
        let state = harness.cloud.state().await;
        assert_eq!(harness.by_state("instances").await["running"], 1);
        assert_eq!(harness.by_state("volumes").await["available"], 1, "{state}");
        assert_eq!(harness.ec2.objects(&resources.bucket).await, ["east-1700000000.raw"]);
        let own = [("Owner.1", "self")];
        let images = harness.ec2.ok("DescribeImages", &own).await;
        let names: Vec<&str> =
            images.find("imagesSet").children("item").iter().map(|one| one.child("name").text()).collect();
        assert!(names.contains(&"image of east") && !names.contains(&"image of west"), "{names:?}");
        let snapshots = harness.ec2.ok("DescribeSnapshots", &own).await;
        let marked = |provider: &str| {
            let items = snapshots.find("snapshotSet").children("item");
            items
                .iter()
                .filter(|one| tags(one).get("nodepool_provider_name").is_some_and(|name| name == provider))
                .count()
        };
        assert_eq!((marked("east"), marked("west")), (1, 0));
    });
}
