//! Tests of the simulation without a network and in paused time: calls are parsed and answered as the port would do.

mod faults;
mod identity;
mod inserts;
mod instances;
mod lists;
mod operations;
mod places;

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use hyper::Request;
use serde_json::{Value, json};

use crate::api::simulation::Simulation;
use crate::options::Options;
use crate::server::call::Call;
use crate::server::http::Endpoint;
use crate::server::response::Response;

const PROJECT: &str = "/compute/v1/projects/simulated";
const INSTANCES: &str = "/compute/v1/projects/simulated/zones/us-central1-a/instances";

/// A simulation that accepts calls without tokens.
struct Cloud(Rc<Endpoint>);

/// Status and JSON of a response; status 0 means that the connection was closed.
type Answer = (u16, Value);

impl Cloud {
    fn new(flags: &[&str]) -> Self {
        Self::with_tokens(&[&["--anonymous"], flags].concat())
    }

    fn with_tokens(flags: &[&str]) -> Self {
        let options = Options::parse_from(["simulated-gce"].iter().chain(flags));
        options.check().unwrap();
        Self(Endpoint::new(Simulation::new(options, "http://api".to_owned(), "http://control".to_owned())))
    }

    async fn send(&self, method: &str, uri: &str, headers: &[(&str, &str)], body: &[u8]) -> Option<Response> {
        let mut request = Request::builder().method(method).uri(uri.replace(' ', "%20").replace('"', "%22"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        self.0.respond(&Call::new(parts, Bytes::copy_from_slice(body))).await
    }

    async fn call(&self, method: &str, uri: &str, body: &[u8]) -> Answer {
        match self.send(method, uri, &[], body).await {
            Some(response) => (response.status, serde_json::from_slice(&response.body).unwrap_or_default()),
            None => (0, Value::Null),
        }
    }

    async fn get(&self, uri: &str) -> Value {
        let (status, json) = self.call("GET", uri, b"").await;
        assert_eq!(status, 200, "{uri}: {json}");
        json
    }

    async fn insert(&self, body: &Value) -> Answer {
        self.call("POST", INSTANCES, body.to_string().as_bytes()).await
    }

    /// Inserts an instance, and returns the name of the operation.
    async fn inserted(&self, body: &Value) -> String {
        let (status, json) = self.insert(body).await;
        assert_eq!(status, 200, "{json}");
        text(&json["name"])
    }

    async fn operation(&self, name: &str) -> Value {
        self.get(&format!("{PROJECT}/zones/us-central1-a/operations/{name}")).await
    }

    /// The status of an instance; empty if it does not exist.
    async fn status(&self, name: &str) -> String {
        let (status, json) = self.call("GET", &format!("{INSTANCES}/{name}"), b"").await;
        if status == 404 { String::new() } else { text(&json["status"]) }
    }

    async fn knobs(&self, knobs: Value) {
        let (status, json) = self.call("POST", "/sim/knobs", knobs.to_string().as_bytes()).await;
        assert_eq!(status, 200, "{json}");
    }

    async fn sim(&self, method: &str, path: &str) -> Value {
        let (status, json) = self.call(method, &format!("/sim/{path}"), b"").await;
        assert_eq!(status, 200, "{path}: {json}");
        json
    }

    async fn usage(&self, metric: &str) -> f64 {
        let region = self.get(&format!("{PROJECT}/regions/us-central1")).await;
        let quotas = region["quotas"].as_array().unwrap();
        quotas.iter().find(|quota| quota["metric"] == metric).unwrap()["usage"].as_f64().unwrap()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Status and reason of an error, of which all parts are checked.
fn reason((status, json): Answer) -> (u16, String) {
    let error = &json["error"];
    assert_eq!((&error["code"], error["message"].is_string()), (&json!(status), true), "{json}");
    (status, text(&error["errors"][0]["reason"]))
}

fn refused(status: u16, reason: &str) -> (u16, String) {
    (status, reason.to_owned())
}

/// The body of an insert that succeeds, with these fields changed.
fn body(name: &str, changes: Value) -> Value {
    let mut body = json!({
        "name": name, "machineType": "zones/us-central1-a/machineTypes/n2-standard-4",
        "disks": [{"boot": true, "autoDelete": true, "initializeParams": {
            "sourceImage": "projects/debian-cloud/global/images/family/debian-12", "diskSizeGb": "20"}}],
        "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [
            {"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]}],
    });
    for (field, value) in changes.as_object().unwrap() {
        body[field] = value.clone();
    }
    body
}

fn plain(name: &str) -> Value {
    body(name, json!({}))
}

async fn pass(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}
