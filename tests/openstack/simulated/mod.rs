//! The simulated OpenStack: its knobs have their documented effect, and openstacksdk accepts it as a cloud.

mod calls;
mod lists;
mod oddities;
mod sdk;
mod servers;
mod throttle;

use crate::cloud::Cloud;
use serde_json::{Value, json};
use testkit::clouds::simulated_openstack::SimulatedOpenStack;

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
