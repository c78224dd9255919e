//! Zuul's own classes with our launcher on the simulated EC2: nodes with host keys, requested, used and returned.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::json;
use testkit::clouds::moto::as_paths;
use testkit::clouds::simulated_ec2::{REGION, SimulatedEc2};
use testkit::real::nodepool_process::NodepoolProcess;
use testkit::real::python::{self, Interpreter};
use testkit::real::zookeeper::{Options, Server};
use testkit::real::{self, nodepool11, ports, sshd, tls};
use testkit::{programs, wait};

use crate::simulated::configuration;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Private addresses of the first two instances.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 77, 0, 4), Ipv4Addr::new(127, 77, 0, 5)];

/// An sshd at the addresses of both instances.
async fn instances_sshd() -> sshd::Host {
    let port = ports::reserve_at(ADDRESSES[0].into());
    let second = format!("ListenAddress {}:{}", ADDRESSES[1], port.number);
    let options = sshd::Options { address: ADDRESSES[0].into(), settings: vec![second], ..sshd::Options::default() };
    sshd::Host::start_on(options, port).await
}

#[tokio::test]
async fn zuul_10_and_13_use_nodes_of_ec2() {
    if real::skipped() {
        return;
    }
    let flags = ["--boot-s", "0.1", "--terminate-s", "0.1"];
    let (server, cloud, host) =
        tokio::join!(Server::start(Options::tls()), SimulatedEc2::start(&flags), instances_sshd());
    let config = configuration("", "public-ipv4: false", &[("small", "")])
        .replacen("zookeeper-servers: [{host: localhost}]\n", &nodepool11::zookeeper_section(&server), 1)
        .replacen("host-key-checking: false", "host-key-checking: true", 1)
        .replacen("username: worker", &format!("username: worker, connection-port: {}", host.port()), 1);
    let environment = cloud.environment();
    let arguments = ["-d", "--no-webapp"];
    let launcher = NodepoolProcess::start_in(&as_paths(&environment), programs::launcher(), &config, &arguments);
    let servers = server.address();
    let paths = ["client.pem", "client.key", "ca.pem"].map(|name| tls::file(name).to_string_lossy().into_owned());
    for (interpreter, address) in Interpreter::ZUUL.into_iter().zip(ADDRESSES) {
        let arguments = [&*servers, &paths[0], &paths[1], &paths[2]];
        let mut zuul = python::spawn(interpreter, "zuul_client.py", &arguments);
        let request = zuul.call(json!({"do": "submit", "labels": ["small"]})).await;
        assert_eq!(zuul.call(json!({"do": "wait", "request": request})).await, "fulfilled", "{}", launcher.log());
        let node = zuul.call(json!({"do": "accept", "request": request})).await[0].take();
        assert_eq!((&node["state"], &node["cloud"], &node["region"]), (&json!("ready"), &json!("AWS"), &json!(REGION)));
        assert_eq!((&node["interface_ip"], &node["connection_port"]), (&json!(address), &json!(host.port())));
        assert_eq!((&node["username"], &node["connection_type"]), (&json!("worker"), &json!("ssh")));
        let keys: BTreeSet<String> = serde_json::from_value(node["host_keys"].clone()).unwrap();
        assert_eq!(keys, host.keys().into_iter().collect());
        zuul.call(json!({"do": "use", "request": request})).await;
        assert_eq!(cloud.state().await["regions"][REGION]["instances"]["running"], 1);
        zuul.call(json!({"do": "give_back", "request": request})).await;
        wait::until("the node to be deleted", TIMEOUT, async || {
            zuul.call(json!({"do": "list"})).await["nodes"] == json!({})
        })
        .await;
        assert_eq!(cloud.state().await["regions"][REGION]["instances"]["running"], json!(null));
    }
}
