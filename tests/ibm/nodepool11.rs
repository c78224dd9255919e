//! The driver ibmvpc of Nodepool 11 on the simulated IBM VPC, through a proxy that has the TLS of IBM's hosts: one node
//! from its request to its deletion, as ZooKeeper and the IBM VPC record it, beside ours.
//!
//! The tests run real processes on a real ZooKeeper, in real time.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::clouds::beside_nodepool11::{Program, Site};
use testkit::clouds::simulated_ibm::{REGION, SimulatedIbm, ZONES};
use testkit::clouds::tls_proxy::TlsProxy;
use testkit::real;
use testkit::real::differences::differences;

/// The floating IP of the first instance.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 96, 0, 4);
const HOSTS: [&str; 3] = ["us-south.iaas.cloud.ibm.com", "iam.cloud.ibm.com", "resource-controller.cloud.ibm.com"];

/// The configuration of a provider with one label.
fn configuration(port: u16, credentials: PathBuf) -> String {
    let image = json!({
        "name": "debian", "image-filter": {"operating-system": {"name": "debian-12-amd64"}, "status": "available"},
        "username": "worker", "keys": ["nodepool"], "python-path": "/opt/python", "shell-type": "sh",
        "connection-port": port,
    });
    let label = json!({"name": "small", "cloud-image": "debian", "profile": "cx2-2x4", "user-data": "hello"});
    let pool = json!({
        "name": "main", "max-servers": 4, "public-ipv4": true, "node-attributes": {"rack": "r1"}, "labels": [label],
    });
    let provider = json!({
        "name": "dallas", "driver": "ibmvpc", "vpc": "nodepool", "region": REGION, "zone": ZONES[0],
        "subnet": "nodepool-1", "rate": 20, "boot-timeout": 60, "launch-retries": 1, "cloud-images": [image],
        "credentials-file": credentials, "quota": {"instances": 5}, "pools": [pool],
    });
    format!("labels: [{{name: small}}]\nproviders: [{provider}]\n")
}

/// The record of a ready node, and the requests that created its resources.
async fn serve(program: Program) -> Value {
    let flags = ["--boot-s", "1", "--delete-s", "0.5", "--legacy-fields"];
    let (site, cloud) = tokio::join!(Site::start(&[ADDRESS]), SimulatedIbm::start_with_tokens(&flags));
    // Nodepool 11 cannot use a group that it has just created.
    cloud.control("group?name=np_dallas_main").await;
    let proxy = TlsProxy::start(&HOSTS.map(|host| (host, cloud.base()))).await;
    let environment: Vec<(&str, PathBuf)> = match program {
        Program::Nodepool11 => proxy.environment(),
        Program::Ours => Vec::new(),
    };
    let configuration = configuration(site.host.port(), cloud.credentials_file());
    let process = site.launch(program, &environment, &configuration, 1).await;
    let node = site.use_node("small", async |_| ()).await;
    site.stop(program, process).await;
    let keys: BTreeSet<String> = serde_json::from_value(node["host_keys"].clone()).expect("keys are a list of texts");
    assert_eq!(keys, site.host.keys().into_iter().collect());
    assert_eq!((cloud.count("instances").await, cloud.count("floating_ips").await), (0, 0));
    let bodies = async |action: &str| {
        let calls = cloud.calls(action).await;
        let [call] = &calls[..] else { panic!("{calls:?}") };
        call["body"].clone()
    };
    json!({
        "node": node, "instance": bodies("create_instance").await, "address": bodies("create_floating_ip").await,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_and_requests_of_both_are_the_same() {
    if real::skipped() {
        return;
    }
    let mut theirs = serve(Program::Nodepool11).await;
    let mut ours = serve(Program::Ours).await;
    for (name, value) in [("cloud", "IBM"), ("region", REGION), ("az", ZONES[0]), ("username", "worker")] {
        assert_eq!(theirs["node"][name], value);
    }
    assert_eq!(theirs["node"]["interface_ip"], json!(ADDRESS));

    // Nodepool 11 counts GiB where MiB are documented.
    assert_eq!(
        (theirs["node"]["resources"]["ram"].take(), ours["node"]["resources"]["ram"].take()),
        (json!(4), json!(4096))
    );
    // Ours has names that tell creations apart, and attaches the address from the beginning.
    let boot = |record: &mut Value| record["instance"]["boot_volume_attachment"].take();
    let (their_boot, our_boot) = (boot(&mut theirs), boot(&mut ours));
    assert_eq!(our_boot["volume"]["profile"], their_boot["volume"]["profile"]);
    assert_eq!(our_boot["delete_volume_on_instance_delete"], their_boot["delete_volume_on_instance_delete"]);
    for (record, key) in [(&mut theirs, "zone"), (&mut ours, "target")] {
        assert!(record["address"][key].is_object(), "{record}");
        record["address"].as_object_mut().expect("a body is a map").remove(key);
    }
    let own = [
        "state_time",
        "created_time",
        "launcher",
        "event_id",
        // Each has an sshd of its own.
        "host_keys",
        "connection_port",
        "ssh_port",
    ];
    assert_eq!(differences("", &theirs, &ours, &own), Vec::<String>::new());
}
