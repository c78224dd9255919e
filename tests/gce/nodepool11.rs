//! The driver gce of Nodepool 11 on the simulated Compute Engine, through a proxy that has the TLS of Google's host:
//! one node from its request to its deletion, as ZooKeeper and the Compute Engine record it, beside ours.
//!
//! The tests run real processes on a real ZooKeeper, in real time.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::clouds::beside_nodepool11::{Program, Site};
use testkit::clouds::simulated_gce::{PROJECT, REGION, SimulatedGce, ZONES};
use testkit::clouds::tls_proxy::TlsProxy;
use testkit::real;
use testkit::real::differences::differences;

use crate::driver::KEY;

/// The external address of the first instance.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 88, 0, 2);

/// The configuration of a provider with one label.
fn configuration(port: u16) -> String {
    let image = json!({
        "name": "debian", "image-project": "debian-cloud", "image-family": "debian-12", "username": "worker",
        "key": KEY, "python-path": "/opt/python", "shell-type": "sh", "connection-port": port,
    });
    let label = json!({
        "name": "small", "cloud-image": "debian", "instance-type": "e2-medium", "volume-type": "pd-ssd",
        "volume-size": 20,
    });
    let pool = json!({"name": "main", "max-servers": 4, "node-attributes": {"rack": "r1"}, "labels": [label]});
    let provider = json!({
        "name": "iowa", "driver": "gce", "project": PROJECT, "region": REGION, "zone": ZONES[0], "rate": 20,
        "boot-timeout": 60, "launch-retries": 1, "cloud-images": [image], "pools": [pool],
    });
    format!("labels: [{{name: small}}]\nproviders: [{provider}]\n")
}

/// The record of a ready node, and the request that created its instance.
async fn serve(program: Program) -> Value {
    let flags = ["--boot-s", "1", "--delete-s", "0.5"];
    let (site, cloud) = tokio::join!(Site::start(&[ADDRESS]), SimulatedGce::start_with_tokens(&flags));
    let proxy = TlsProxy::start(&[("compute.googleapis.com", cloud.base())]).await;
    let environment: Vec<(&str, PathBuf)> = match program {
        Program::Nodepool11 => {
            let mut environment = proxy.environment();
            environment.extend(cloud.environment().into_iter().filter(|(name, _)| *name == CREDENTIALS));
            environment
        }
        Program::Ours => cloud.environment(),
    };
    let process = site.launch(program, &environment, &configuration(site.host.port()), 1).await;
    let node = site.use_node("small", async |_| ()).await;
    site.stop(program, process).await;
    let keys: BTreeSet<String> = serde_json::from_value(node["host_keys"].clone()).expect("keys are a list of texts");
    assert_eq!(keys, site.host.keys().into_iter().collect());
    let state = cloud.state().await;
    assert_eq!(state["projects"][PROJECT]["instances"], json!({}), "{state}");
    let inserts = cloud.calls("instances.insert").await;
    let [insert] = &inserts[..] else { panic!("{inserts:?}") };
    json!({"node": node, "insert": insert["body"]})
}

const CREDENTIALS: &str = "GOOGLE_APPLICATION_CREDENTIALS";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_and_requests_of_both_are_the_same() {
    if real::skipped() {
        return;
    }
    let mut theirs = serve(Program::Nodepool11).await;
    let mut ours = serve(Program::Ours).await;
    for (name, value) in [("cloud", "Google"), ("region", REGION), ("az", ZONES[0]), ("username", "worker")] {
        assert_eq!(theirs["node"][name], value);
    }
    assert_eq!(theirs["node"]["interface_ip"], json!(ADDRESS));

    // Ours has one item more, which tells installations apart.
    let items = |record: &mut Value| -> BTreeSet<String> {
        let items = record["insert"]["metadata"]["items"].take();
        let names = items.as_array().expect("metadata are a list").iter().filter_map(|item| item["key"].as_str());
        names.map(str::to_owned).collect()
    };
    let (their_items, mut our_items) = (items(&mut theirs), items(&mut ours));
    assert!(our_items.remove("nodepool_creation"));
    assert_eq!(our_items, their_items);
    // Google takes the type by its URL, and by the end of it.
    for record in [&mut theirs, &mut ours] {
        let kind = record["insert"]["machineType"].as_str().expect("a type is a text").to_owned();
        assert!(kind.ends_with("zones/us-central1-a/machineTypes/e2-medium"), "{kind}");
        record["insert"]["machineType"] = Value::Null;
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
        // Each simulation has its own port.
        "sourceImage",
    ];
    assert_eq!(differences("", &theirs, &ours, &own), Vec::<String>::new());
}
