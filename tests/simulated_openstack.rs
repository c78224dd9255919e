//! The simulated OpenStack: its knobs have their documented effect, and openstacksdk accepts it as a cloud.

#[path = "simulated_openstack/calls.rs"]
mod calls;
#[path = "openstack_contract/cloud.rs"]
#[allow(dead_code)] // the contract uses all of it
mod cloud;
#[path = "simulated_openstack/lists.rs"]
mod lists;
#[path = "simulated_openstack/sdk.rs"]
mod sdk;
#[path = "simulated_openstack/servers.rs"]
mod servers;
mod support;
#[path = "simulated_openstack/throttle.rs"]
mod throttle;

use cloud::Cloud;
use serde_json::{Value, json};
use support::real::simulated_openstack::SimulatedOpenStack;

/// A cloud with these flags, and a client that is logged in.
async fn start(flags: &[&str]) -> (SimulatedOpenStack, Cloud) {
    let simulated = SimulatedOpenStack::start(flags).await;
    let cloud = Cloud::connect(&simulated.clouds_yaml(), "simulated").await;
    (simulated, cloud)
}

/// Creates a server and returns its id.
async fn server(cloud: &Cloud, name: &str) -> String {
    cloud.create(&cloud.server_request(name).await).await
}

/// The ids in the list of servers, newest first.
async fn listed(cloud: &Cloud) -> Vec<String> {
    let answer = cloud.get("compute", "/servers").await.expect(200);
    ids(answer.get("servers"))
}

fn ids(servers: &Value) -> Vec<String> {
    let id = |server: &Value| server["id"].as_str().expect("an id is text").to_owned();
    servers.as_array().expect("servers are a list").iter().map(id).collect()
}

/// Enables one fault, and disables all others.
async fn fault(simulated: &SimulatedOpenStack, fault: &str) {
    simulated.knobs(json!({"faults": [fault]})).await;
}
