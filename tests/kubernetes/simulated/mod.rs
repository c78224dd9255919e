//! The knobs and faults of the simulated cluster.

mod faults;
mod openshift;
mod timings;
mod watches;

use crate::client::Client;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::clouds::simulated_kubernetes::SimulatedKubernetes;

/// A cluster, and its user `nodepool`.
async fn start(flags: &[&str]) -> (SimulatedKubernetes, Client) {
    let simulated = SimulatedKubernetes::start(flags).await;
    let client = Client::connect(&simulated.kubeconfig(), "nodepool");
    (simulated, client)
}

/// A pod with one container.
fn plain_pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "image:1"}]}})
}

/// The text of an entry of a secret.
fn decoded(value: &Value) -> String {
    String::from_utf8(STANDARD.decode(value.as_str().unwrap()).unwrap()).unwrap()
}
