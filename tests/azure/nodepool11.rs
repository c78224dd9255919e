//! The driver azure of Nodepool 11 on the simulated Azure, through a proxy that has the TLS of Microsoft's hosts: one
//! node from its request to its deletion, as ZooKeeper and Azure record it, beside ours.
//!
//! The tests run real processes on a real ZooKeeper, in real time.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::clouds::beside_nodepool11::{Program, Site};
use testkit::clouds::simulated_azure::{GROUP, LOCATION, NETWORK, SimulatedAzure};
use testkit::clouds::tls_proxy::TlsProxy;
use testkit::real;
use testkit::real::differences::differences;

/// The public address of the first machine.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 88, 0, 4);
const HOSTS: [&str; 2] = ["management.azure.com", "login.microsoftonline.com"];
/// Pages and operations have URLs of Microsoft's host.
const MICROSOFTS_LINKS: [&str; 2] = ["--base-url", "https://management.azure.com"];
const KEY: &str = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQDB nodepool";

/// The configuration of a provider with one label.
fn configuration(port: u16, auth: PathBuf) -> String {
    let image = json!({
        "name": "debian", "username": "worker", "key": KEY, "python-path": "/opt/python", "shell-type": "sh",
        "connection-port": port,
        "image-reference": {"publisher": "Debian", "offer": "debian-12", "sku": "12-gen2", "version": "latest"},
    });
    let label = json!({
        "name": "small", "cloud-image": "debian", "hardware-profile": {"vm-size": "Standard_D2s_v3"},
        "tags": {"team": "ci"}, "dynamic-tags": {"labels": "{request.labels[0]}"}, "volume-size": 40,
        "user-data": "hello", "custom-data": "world",
    });
    let pool = json!({
        "name": "main", "max-servers": 4, "ipv6": true, "node-attributes": {"rack": "r1"}, "labels": [label],
    });
    let provider = json!({
        "name": "az", "driver": "azure", "location": LOCATION, "resource-group": GROUP,
        "resource-group-location": LOCATION, "auth-path": auth, "network": NETWORK, "rate": 20, "boot-timeout": 60,
        "launch-retries": 1, "cloud-images": [image], "pools": [pool],
    });
    format!("labels: [{{name: small}}]\nproviders: [{provider}]\n")
}

/// A proxy with the TLS of Microsoft's hosts.
async fn proxy(cloud: &SimulatedAzure) -> TlsProxy {
    TlsProxy::start(&HOSTS.map(|host| (host, cloud.base()))).await
}

/// The record of a ready node, and the request that created its machine.
async fn serve(program: Program) -> Value {
    let mut flags = vec!["--boot-s", "1", "--delete-s", "0.5"];
    let environment_of = |proxy: &TlsProxy| match program {
        Program::Nodepool11 => proxy.environment(),
        Program::Ours => Vec::new(),
    };
    if matches!(program, Program::Nodepool11) {
        flags.extend(MICROSOFTS_LINKS);
    }
    let (site, cloud) = tokio::join!(Site::start(&[ADDRESS]), SimulatedAzure::start(&flags));
    let proxy = proxy(&cloud).await;
    let configuration = configuration(site.host.port(), cloud.auth_file());
    let process = site.launch(program, &environment_of(&proxy), &configuration, 1).await;
    let node = site.use_node("small", async |_| ()).await;
    site.stop(program, process).await;
    let keys: BTreeSet<String> = serde_json::from_value(node["host_keys"].clone()).expect("keys are a list of texts");
    assert_eq!(keys, site.host.keys().into_iter().collect());
    assert_eq!(cloud.resources().await, Vec::<String>::new());
    let creations = cloud.calls("vm.create").await;
    let [creation] = &creations[..] else { panic!("{creations:?}") };
    json!({"node": node, "machine": creation["body"]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_and_requests_of_both_are_the_same() {
    if real::skipped() {
        return;
    }
    let mut theirs = serve(Program::Nodepool11).await;
    let mut ours = serve(Program::Ours).await;
    for (name, value) in [("cloud", "Azure"), ("region", LOCATION), ("az", ""), ("username", "worker")] {
        assert_eq!(theirs["node"][name], value);
    }
    assert_eq!(theirs["node"]["interface_ip"], json!(ADDRESS));

    // Nodepool 11 forgets the size of a node that is ready.
    let resources = |record: &mut Value| record["node"]["resources"].take();
    assert_eq!(resources(&mut theirs), json!({"cores": 0, "instances": 1, "ram": 0}));
    assert_eq!(resources(&mut ours), json!({"cores": 2, "instances": 1, "ram": 8192, "standardDSv3Family": 2}));
    // Ours has a tag more, which tells installations apart, tags the interface and the addresses as well, and names
    // what Azure assumes.
    assert!(ours["machine"]["tags"].as_object_mut().unwrap().remove("nodepool_creation").is_some());
    let network = "/machine/properties/networkProfile";
    let interface = ours.pointer_mut(&format!("{network}/networkInterfaceConfigurations/0")).unwrap();
    assert_eq!(interface["tags"]["team"], "ci");
    interface.as_object_mut().unwrap().remove("tags");
    let properties = interface["properties"].as_object_mut().unwrap();
    assert_eq!(properties.remove("primary"), Some(json!(true)));
    for (index, version) in ["IPv4", "IPv6"].into_iter().enumerate() {
        let configuration = &mut properties["ipConfigurations"][index]["properties"];
        assert_eq!(configuration.as_object_mut().unwrap().remove("primary"), Some(json!(index == 0)));
        let public = configuration.get_mut("publicIPAddressConfiguration");
        if let Some(public) = public.and_then(Value::as_object_mut) {
            assert_eq!(public.remove("tags").unwrap()["team"], "ci");
            let removed = public["properties"].as_object_mut().unwrap().remove("publicIPAddressVersion");
            assert_eq!(removed, Some(json!(version)));
        }
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
        // Tags of parts need a newer version of the API.
        "networkApiVersion",
    ];
    assert_eq!(differences("", &theirs, &ours, &own), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_nodepool_11_is_used_and_deleted() {
    if real::skipped() {
        return;
    }
    let flags = [&["--boot-s", "1", "--delete-s", "0.5"], &MICROSOFTS_LINKS[..]].concat();
    let (site, cloud) = tokio::join!(Site::start(&[ADDRESS]), SimulatedAzure::start(&flags));
    let proxy = proxy(&cloud).await;
    // Ours reads Microsoft's endpoints, too, and reaches them through the proxy.
    let mut auth = cloud.auth().clone();
    auth.as_object_mut().unwrap().retain(|key, _| !key.ends_with("EndpointUrl"));
    let auth_file = cloud.auth_file().with_file_name("microsoft.json");
    std::fs::write(&auth_file, auth.to_string()).unwrap();
    let configuration = configuration(site.host.port(), auth_file);

    let theirs = site.launch(Program::Nodepool11, &proxy.environment(), &configuration, 1).await;
    let request = site.consumer.submit_labels(&["small"]).await;
    site.consumer.fulfilled_nodes(&request).await;
    site.stop(Program::Nodepool11, theirs).await;

    let ours = site.launch(Program::Ours, &proxy.environment(), &configuration, 1).await;
    let locked = site.consumer.accept(&request).await;
    site.consumer.use_and_release(locked).await;
    site.wait_until_empty().await;
    site.stop(Program::Ours, ours).await;
    assert_eq!(cloud.resources().await, Vec::<String>::new());
    assert_eq!(cloud.calls("vm.create").await.len(), 1);
}
