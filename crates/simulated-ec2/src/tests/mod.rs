//! Tests of the simulation without a network: calls are parsed, received and executed as the port would do.

mod faults;
mod launches;
mod services;
mod signatures;

use bytes::Bytes;
use clap::Parser;
use hyper::Request;
use serde_json::{Value, json};
use simulated_service::effects::CallOutcome;
use simulated_service::server::Simulation as _;

use crate::api::simulation::Simulation;
use crate::options::Options;
use crate::server::call::Call;
use crate::server::response::Response;

/// Parameters of a launch that succeeds.
const LAUNCH: &str = "ImageId=ami-00000000000000001&InstanceType=t3.medium&MinCount=1&MaxCount=1";

/// A simulation without waiting times that does not check signatures.
struct Cloud(Simulation);

/// Status and text of a response; status 0 means that the connection was closed.
type Answer = (u16, String);

impl Cloud {
    fn new(flags: &[&str]) -> Self {
        let quick = ["simulated-ec2", "--boot-s", "0", "--terminate-s", "0", "--snapshot-s", "0", "--import-s", "0"];
        let unchecked = ["--check-signatures", "false"];
        let options = Options::parse_from(quick.iter().chain(&unchecked).chain(flags));
        options.check().unwrap();
        Self(Simulation::new(options, "http://api".to_owned(), "http://control".to_owned()))
    }

    fn send(&mut self, call: &Call) -> Option<Response> {
        self.0.advance();
        match self.0.receive(call).1 {
            CallOutcome::Respond(response) => Some(response),
            CallOutcome::Disconnect(_) => None,
            CallOutcome::Execute(execution) => self.0.execute(call, &execution),
        }
    }

    fn call(&mut self, service: &str, method: &str, uri: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let credential = format!("Credential=simulated/20261128/us-west-2/{service}/aws4_request");
        let authorization = format!("AWS4-HMAC-SHA256 {credential}, SignedHeaders=host, Signature=00");
        let mut request = Request::builder().method(method).uri(uri).header("authorization", authorization);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let call = Call::new(parts, Bytes::copy_from_slice(body), "us-west-2");
        match self.send(&call) {
            Some(answer) => (answer.status, String::from_utf8_lossy(&answer.body).into_owned()),
            None => (0, String::new()),
        }
    }

    fn ec2(&mut self, action: &str, parameters: &str) -> Answer {
        let body = format!("Action={action}&Version=2016-11-15&{parameters}");
        let form = [("content-type", "application/x-www-form-urlencoded; charset=utf-8")];
        self.call("ec2", "POST", "/", &form, body.as_bytes())
    }

    /// The text of a call that succeeds.
    fn done(&mut self, action: &str, parameters: &str) -> String {
        let (status, text) = self.ec2(action, parameters);
        assert_eq!(status, 200, "{action} {parameters}: {text}");
        text
    }

    /// Status and code of a call that fails.
    fn refused(&mut self, action: &str, parameters: &str) -> (u16, String) {
        let (status, text) = self.ec2(action, parameters);
        (status, first(&text, "Code"))
    }

    /// Launches an instance, and returns its id.
    fn launch(&mut self, parameters: &str) -> String {
        first(&self.done("RunInstances", &format!("{LAUNCH}&{parameters}")), "instanceId")
    }

    fn knobs(&mut self, knobs: Value) {
        let (status, text) = self.call("", "PUT", "/sim/knobs", &[], knobs.to_string().as_bytes());
        assert_eq!(status, 200, "{text}");
    }

    fn sim(&mut self, method: &str, uri: &str) -> Value {
        let (status, text) = self.call("", method, uri, &[], b"");
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Number of instances by state.
    fn instances(&mut self) -> Value {
        self.sim("GET", "/sim/state")["regions"]["us-west-2"]["instances"].clone()
    }
}

/// The text of the first element with this name, or nothing.
fn first(text: &str, name: &str) -> String {
    all(text, name).into_iter().next().unwrap_or_default()
}

fn all(text: &str, name: &str) -> Vec<String> {
    crate::services::s3::elements(text, name)
}

#[test]
fn unknown_actions_and_versions_are_refused() {
    let mut cloud = Cloud::new(&[]);
    assert_eq!(cloud.refused("RunInstance", ""), (400, "InvalidAction".to_owned()));
    assert_eq!(cloud.refused("RunInstances", "DryRun=true"), (412, "DryRunOperation".to_owned()));
    let state = cloud.sim("GET", "/sim/state");
    assert_eq!(state["counters"]["calls_by_action"], json!({"ec2 RunInstance": 1, "ec2 RunInstances": 1}));
    assert_eq!(state["counters"]["errors_by_code"], json!({"DryRunOperation": 1, "InvalidAction": 1}));
}
