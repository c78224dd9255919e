//! Tests of the simulation without a network and in paused time: calls are parsed and answered as the port would do.

mod control;
mod faults;
mod floating_ips;
mod identity;
mod images;
mod instances;
mod leftovers;
mod lists;
mod resources;
mod validation;

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

/// A simulation that accepts calls without tokens.
struct Cloud(Rc<Endpoint>);

/// Status and JSON of a response; status 0 means that the connection was closed.
type Answer = (u16, Value);

impl Cloud {
    fn new(flags: &[&str]) -> Self {
        Self::with_tokens(&[&["--anonymous"], flags].concat())
    }

    fn with_tokens(flags: &[&str]) -> Self {
        let options = Options::parse_from(["simulated-ibm"].iter().chain(flags));
        options.check().unwrap();
        Self(Endpoint::new(Simulation::new(options, "http://api".to_owned(), "http://control".to_owned())))
    }

    async fn send(&self, method: &str, uri: &str, headers: &[(&str, &str)], body: &[u8]) -> Option<Response> {
        let mut request = Request::builder().method(method).uri(uri);
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

    /// Calls a path below `/v1`.
    async fn vpc(&self, method: &str, path: &str, body: Value) -> Answer {
        let separator = if path.contains('?') { '&' } else { '?' };
        let uri = format!("/v1/{path}{separator}version=2025-06-03&generation=2");
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.call(method, &uri, &body).await
    }

    async fn get(&self, path: &str) -> Value {
        let (status, json) = self.vpc("GET", path, Value::Null).await;
        assert_eq!(status, 200, "{path}: {json}");
        json
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (status, json) = self.vpc("POST", path, body).await;
        assert_eq!(status, 201, "{path}: {json}");
        json
    }

    /// The id of the only resource of a list with this name.
    async fn id(&self, list: &str, name: &str) -> String {
        let found = self.get(&format!("{list}?limit=100")).await;
        let rows = found[list].as_array().unwrap();
        text(&rows.iter().find(|row| row["name"] == name).unwrap()["id"])
    }

    /// The body of a creation that succeeds, with these fields changed; null removes a field.
    async fn body(&self, name: &str, changes: Value) -> Value {
        let mut body = json!({
            "name": name, "profile": {"name": "cx2-2x4"}, "zone": {"name": "us-south-1"},
            "image": {"id": self.id("images", "ibm-debian-12-9-minimal-amd64-2").await},
            "vpc": {"id": self.id("vpcs", "nodepool").await},
            "primary_network_interface": {"subnet": {"id": self.id("subnets", "nodepool-1").await}},
            "boot_volume_attachment": {"volume": {"name": name, "profile": {"name": "general-purpose"}}},
        });
        for (field, value) in changes.as_object().unwrap() {
            body[field] = value.clone();
        }
        body
    }

    async fn create(&self, name: &str, changes: Value) -> Answer {
        self.vpc("POST", "instances", self.body(name, changes).await).await
    }

    /// Creates an instance, and returns its JSON.
    async fn created(&self, name: &str) -> Value {
        let (status, json) = self.create(name, json!({})).await;
        assert_eq!(status, 201, "{json}");
        json
    }

    /// The status of an instance; empty if it does not exist.
    async fn status(&self, id: &str) -> String {
        let (status, json) = self.vpc("GET", &format!("instances/{id}"), Value::Null).await;
        if status == 404 { String::new() } else { text(&json["status"]) }
    }

    async fn delete(&self, path: &str) -> Answer {
        self.vpc("DELETE", path, Value::Null).await
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

    async fn count(&self, list: &str) -> u64 {
        self.get(list).await["total_count"].as_u64().unwrap()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Status and code of an error of the VPC API, of which all parts are checked.
fn code((status, json): Answer) -> (u16, String) {
    let error = &json["errors"][0];
    let has_parts = error["message"].is_string() && error["more_info"].is_string() && json["trace"].is_string();
    assert!(has_parts, "{status} {json}");
    (status, text(&error["code"]))
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

async fn pass(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}
