//! The driver aws of Nodepool 11 on moto and on the simulated EC2: one node from its request to its deletion, as
//! ZooKeeper and EC2 record it.
//!
//! The tests run real processes on a real ZooKeeper, in real time.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use nodepool_model::records::ids::NodeId;
use serde_json::{Value, json};
use testkit::clouds::beside_nodepool11::{Program, Site};
use testkit::clouds::moto::{BUCKET, Moto, REGION};
use testkit::clouds::simulated_ec2::SimulatedEc2;
use testkit::real;
use testkit::real::differences::differences;
use testkit::real::nodepool_process::NodepoolProcess;

use crate::contract::Resources;
use crate::ec2::{self, Ec2};

/// Flags of a simulation that accepts the calls of `Ec2`, which does not sign.
const FLAGS: [&str; 6] = ["--access-key", "testing", "--check-signatures", "false", "--snapshot-s", "0"];

const LABELS: [&str; 2] = ["spot", "fleet"];

/// The AWS of a test.
#[derive(Clone, Copy)]
enum Peer {
    Moto,
    Simulated,
}

impl Peer {
    /// The addresses at which launchers reach the first instance of each pool.
    fn addresses(self) -> [Ipv4Addr; 2] {
        match self {
            Peer::Moto => [Ipv4Addr::new(127, 77, 1, 4), Ipv4Addr::new(127, 77, 2, 4)],
            Peer::Simulated => [Ipv4Addr::new(127, 77, 0, 4), Ipv4Addr::new(127, 78, 0, 4)],
        }
    }

    /// Private and public address of the fleet's instance.
    fn of_fleet(self) -> (Value, Value) {
        let address = self.addresses()[1];
        match self {
            Peer::Moto => (json!(address), Value::Null),
            // The second zone has the second quarter of the network.
            Peer::Simulated => (json!("127.77.64.4"), json!(address)),
        }
    }
}

enum RunningPeer {
    Moto(Moto),
    Simulated(SimulatedEc2),
}

impl RunningPeer {
    async fn start(peer: Peer) -> (RunningPeer, Resources) {
        match peer {
            Peer::Moto => {
                let moto = Moto::start().await;
                let site = moto.site().await;
                (RunningPeer::Moto(moto), Resources::of(site))
            }
            Peer::Simulated => {
                let cloud = SimulatedEc2::start(&FLAGS).await;
                let resources = Resources::of_simulation(cloud.base()).await;
                (RunningPeer::Simulated(cloud), resources)
            }
        }
    }

    fn base(&self) -> &str {
        match self {
            RunningPeer::Moto(moto) => moto.base(),
            RunningPeer::Simulated(cloud) => cloud.base(),
        }
    }

    fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        match self {
            RunningPeer::Moto(moto) => moto.environment(),
            RunningPeer::Simulated(cloud) => {
                let mut variables = cloud.environment();
                variables.retain(|(name, _)| *name != "AWS_ACCESS_KEY_ID");
                variables.push(("AWS_ACCESS_KEY_ID", "testing".into()));
                variables
            }
        }
    }
}

/// A site with an AWS of its own.
struct Fleet {
    site: Site,
    peer: RunningPeer,
    ec2: Ec2,
    resources: Resources,
}

impl Fleet {
    async fn start(peer: Peer) -> Fleet {
        let addresses = peer.addresses();
        let (site, (peer, resources)) = tokio::join!(Site::start(&addresses), RunningPeer::start(peer));
        Fleet { site, ec2: Ec2::new(peer.base()), peer, resources }
    }

    /// The configuration of a provider with one label of each kind of instance.
    fn configuration(&self) -> String {
        let image = json!({
            "name": "base", "image-id": self.resources.image, "username": "worker", "python-path": "/opt/python",
            "shell-type": "sh", "connection-port": self.site.host.port(),
        });
        let volume = json!({"volume-type": "gp3", "volume-size": 20, "iops": 4000, "throughput": 200});
        let label = |name: &str, more: Value| {
            let mut label = json!({"name": name, "cloud-image": "base", "key-name": self.resources.key_name, "tags": {"team": "ci"}});
            for keys in [&volume, &more] {
                let keys = keys.as_object().expect("keys are a map").clone();
                label.as_object_mut().expect("a label is a map").extend(keys);
            }
            label
        };
        let spot = json!({"instance-type": "t3.medium", "use-spot": true, "imdsv2": "required", "userdata": "hello"});
        let fleet = json!({"instance-types": ["t3.small", "t3.medium"], "allocation-strategy": "prioritized"});
        let labels =
            [label("spot", spot), label("fleet", json!({"fleet": fleet, "dynamic-tags": {"r": "{request.id}"}}))];
        // For fleets, Nodepool 11 leaves public addresses to the subnet. Those of the simulation assign them.
        let is_public = |name: &Value| name == "fleet" && matches!(self.peer, RunningPeer::Simulated(_));
        // Each label has its own subnet, so that both nodes have known addresses.
        let pools: Vec<Value> = labels
            .into_iter()
            .zip(&self.resources.subnets)
            .map(|(label, subnet)| {
                json!({
                    "name": format!("pool-{}", label["name"].as_str().unwrap_or_default()), "max-servers": 4,
                    "subnet-id": subnet, "public-ipv4": is_public(&label["name"]), "security-group-id": self.resources.security_group,
                    "node-attributes": {"rack": "r1"}, "labels": [label],
                })
            })
            .collect();
        let provider = json!({
            "name": "west", "driver": "aws", "region-name": REGION, "rate": 20, "boot-timeout": 60, "launch-retries": 1,
            "object-storage": {"bucket-name": BUCKET}, "cloud-images": [image], "pools": pools,
        });
        let labels = json!(LABELS.map(|name| json!({"name": name})));
        format!("labels: {labels}\nproviders: [{provider}]\n")
    }

    async fn launch(&self, program: Program) -> NodepoolProcess {
        self.site.launch(program, &self.peer.environment(), &self.configuration(), LABELS.len()).await
    }

    /// The instance of a node as DescribeInstances returns it, with the fields that a launcher decides.
    async fn instance(&self, node: &Value) -> Value {
        let id = node["external_id"]["instance"].as_str().expect("external_id names the instance");
        let answer = self.ec2.call("DescribeInstances", &[("InstanceId.1", id)]).await.expect_ok();
        let instance = answer.find("instancesSet").child("item");
        let volume_id = instance.find("volumeId").text();
        let volumes = self.ec2.call("DescribeVolumes", &[("VolumeId.1", volume_id)]).await.expect_ok();
        let volume = volumes.find("volumeSet").child("item");
        let texts = |element: &ec2::Element, names: &[&str]| -> Value {
            names.iter().map(|name| ((*name).to_owned(), Value::from(element.text_of(name)))).collect()
        };
        json!({
            "instance": texts(instance, &["imageId", "instanceType", "keyName", "instanceLifecycle", "subnetId"]),
            "httpTokens": instance.text_of("httpTokens"),
            "group": instance.find("groupSet").text_of("groupId"),
            "tags": ec2::tags(instance),
            "volume": texts(volume, &["size", "volumeType", "iops", "throughput"]),
            "volume tags": ec2::tags(volume),
        })
    }

    /// Numbers of instances that are not terminated, and of volumes.
    async fn usage(&self) -> (usize, usize) {
        let instances = self.ec2.call("DescribeInstances", &[]).await.expect_ok();
        let states = instances.all("instanceState");
        let alive = states.iter().filter(|state| state.text_of("name") != Some("terminated")).count();
        let volumes = self.ec2.call("DescribeVolumes", &[]).await.expect_ok();
        (alive, volumes.find("volumeSet").children("item").len())
    }

    /// Requests a node of each label. Returns their records when they are ready, and their instances, by label.
    async fn use_nodes(&self, process: &NodepoolProcess) -> Value {
        let mut requests = Vec::new();
        for label in LABELS {
            requests.push(self.site.consumer.submit_labels(&[label]).await);
        }
        let mut records = json!({});
        for (label, request) in LABELS.iter().zip(&requests) {
            let nodes: Vec<NodeId> = self.site.consumer.fulfilled_nodes(request).await;
            let node = self.site.consumer.raw_node(&nodes[0]).await;
            records[label] = json!({"aws": self.instance(&node).await, "node": node});
        }
        assert_eq!(self.usage().await, (2, 2), "{}", process.log());
        for request in &requests {
            let locked = self.site.consumer.accept(request).await;
            self.site.consumer.use_and_release(locked).await;
        }
        self.site.wait_until_empty().await;
        assert_eq!(self.usage().await, (0, 0), "{}", process.log());
        records
    }
}

/// The records of a spot node and of a node of a fleet when they are ready, and their instances, by label.
async fn records(program: Program, peer: Peer) -> Value {
    let fleet = Fleet::start(peer).await;
    let process = fleet.launch(program).await;
    let records = fleet.use_nodes(&process).await;
    fleet.site.stop(program, process).await;
    for label in LABELS {
        // Nodepool 11 stores some keys twice.
        let found: BTreeSet<String> =
            serde_json::from_value(records[label]["node"]["host_keys"].clone()).expect("keys are a list of texts");
        assert_eq!(found, fleet.site.host.keys().into_iter().collect(), "{label}");
    }
    records
}

/// The facts of a record that are the same in each run.
fn facts(record: &Value) -> Value {
    let node = &record["node"];
    let names = [
        "state",
        "cloud",
        "region",
        "az",
        "public_ipv4",
        "private_ipv4",
        "interface_ip",
        "public_ipv6",
        "host_id",
        "image_id",
        "username",
        "python_path",
        "shell_type",
        "connection_type",
        "attributes",
        "resources",
        "node_properties",
        "hostname",
        "driver_data",
    ];
    names.iter().map(|name| ((*name).to_owned(), node[*name].clone())).collect()
}

/// Checks the records of Nodepool 11.
async fn serve_nodes(peer: Peer) {
    let records = records(Program::Nodepool11, peer).await;
    println!("{records:#}");
    let addresses = peer.addresses();
    let mut expected = json!({
        "state": "ready", "cloud": "AWS", "region": REGION, "az": "us-west-2a", "public_ipv4": null,
        "private_ipv4": addresses[0], "interface_ip": addresses[0], "public_ipv6": null, "host_id": null,
        "image_id": "base", "username": "worker", "python_path": "/opt/python", "shell_type": "sh",
        "connection_type": "ssh", "attributes": {"rack": "r1"}, "node_properties": {"fleet": false, "spot": true},
        "hostname": null, "driver_data": null,
        "resources": {"cores": 1, "instances": 1, "ram": 4096, "L-34B43A08": 2, "L-7A658B76": 20},
    });
    assert_eq!(facts(&records["spot"]), expected);
    let (private, public) = peer.of_fleet();
    // The first type of the list, on demand, and what it takes.
    for (key, value) in [
        ("az", json!("us-west-2b")),
        ("private_ipv4", private),
        ("public_ipv4", public),
        ("interface_ip", json!(addresses[1])),
        ("node_properties", json!({"fleet": true, "spot": false})),
        ("resources", json!({"cores": 1, "instances": 1, "ram": 2048, "L-1216C47A": 2, "L-7A658B76": 20})),
    ] {
        expected[key] = value;
    }
    assert_eq!(facts(&records["fleet"]), expected);
    for label in LABELS {
        let aws = &records[label]["aws"];
        let volume = json!({"size": "20", "volumeType": "gp3", "iops": "4000", "throughput": "200"});
        assert_eq!(aws["volume"], volume, "{label}");
        assert_eq!((&aws["tags"]["team"], &aws["volume tags"]["team"]), (&json!("ci"), &json!("ci")), "{label}");
        assert_eq!(aws["tags"]["nodepool_provider_name"], "west", "{label}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodepool_11_serves_nodes_of_moto() {
    if real::skipped() {
        return;
    }
    serve_nodes(Peer::Moto).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodepool_11_serves_nodes_of_the_simulated_ec2() {
    if real::skipped() {
        return;
    }
    serve_nodes(Peer::Simulated).await;
}

/// Compares the records of both programs, each with an AWS of its own.
async fn compare_records(peer: Peer) {
    let (theirs, ours) = tokio::join!(records(Program::Nodepool11, peer), records(Program::Ours, peer));
    let own = [
        "state_time",
        "created_time",
        "launcher",
        // The requests of both labels are accepted in any order.
        "Name",
        "nodepool_node_id",
        "event_id",
        // Each has an AWS and an sshd of its own.
        "instance",
        "imageId",
        "group",
        "subnetId",
        "aws:ec2:fleet-id",
        "aws:ec2launchtemplate:id",
        "host_keys",
        "connection_port",
        "ssh_port",
    ];
    let found = differences("", &theirs, &ours, &own);
    assert_eq!(found, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_both_are_the_same() {
    if real::skipped() {
        return;
    }
    compare_records(Peer::Moto).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_both_on_the_simulated_ec2_are_the_same() {
    if real::skipped() {
        return;
    }
    compare_records(Peer::Simulated).await;
}
