//! Tests of the simulation without a network: calls are parsed, received and executed as the port would do.

mod faults;
mod operations;
mod parts;
mod quotas;
mod tokens;
mod uploads;
mod vms;

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

const COMPUTE: &str =
    "/subscriptions/cccccccc-0000-4000-8000-000000000003/resourceGroups/nodepool/providers/Microsoft.Compute";
const NETWORK: &str =
    "/subscriptions/cccccccc-0000-4000-8000-000000000003/resourceGroups/nodepool/providers/Microsoft.Network";
const LOCATION: &str =
    "/subscriptions/cccccccc-0000-4000-8000-000000000003/providers/Microsoft.Compute/locations/eastus";
const VM_VERSION: &str = "2025-04-01";
const DISK_VERSION: &str = "2020-06-30";
const IMAGE_VERSION: &str = "2020-12-01";
const NETWORK_VERSION: &str = "2020-11-01";

/// A simulation whose operations end at once, with a valid token.
struct Azure {
    simulation: Simulation,
    token: String,
}

/// A response; status 0 means that the connection was closed.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    /// Status and code of an error.
    fn error(&self) -> (u16, String) {
        (self.status, self.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
    }
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

impl Azure {
    fn new(flags: &[&str]) -> Self {
        let quick = [["--boot-s", "0"], ["--delete-s", "0"], ["--operation-s", "0"], ["--upload-minimum", "0"]];
        let quick = quick.iter().filter(|[flag, _]| !flags.contains(flag)).flatten();
        let options = Options::parse_from(["simulated-azure"].iter().chain(quick).chain(flags));
        options.check().unwrap();
        let simulation = Simulation::new(options, "http://api".to_owned(), "http://control".to_owned());
        let mut azure = Self { simulation, token: String::new() };
        azure.renew_token();
        azure
    }

    fn renew_token(&mut self) {
        let form = "grant_type=client_credentials&client_id=bbbbbbbb-0000-4000-8000-000000000002&\
                    client_secret=simulated-secret\
                    &resource=https%3A%2F%2Fmanagement.azure.com%2F";
        let answer = self.send("POST", "/aaaaaaaa-0000-4000-8000-000000000001/oauth2/token", &[], form.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text);
        self.token = answer.json()["access_token"].as_str().unwrap().to_owned();
    }

    fn send(&mut self, method: &str, uri: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let call = Call::new(parts, Bytes::copy_from_slice(body));
        self.simulation.advance();
        let response: Option<Response> = match self.simulation.receive(&call).1 {
            CallOutcome::Respond(response) => Some(response),
            CallOutcome::Disconnect(_) => None,
            CallOutcome::Execute(execution) => self.simulation.execute(&call, execution),
        };
        match response {
            None => Answer { status: 0, headers: Vec::new(), text: String::new() },
            Some(one) => {
                let text = String::from_utf8_lossy(&one.body).into_owned();
                Answer { status: one.status, headers: one.headers, text }
            }
        }
    }

    /// A call with the token. Null is no body.
    fn call(&mut self, method: &str, uri: &str, body: &Value) -> Answer {
        let authorization = format!("Bearer {}", self.token);
        let text = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, uri, &[("authorization", &authorization)], text.as_bytes())
    }

    fn get(&mut self, uri: &str) -> Answer {
        self.call("GET", uri, &Value::Null)
    }

    fn delete(&mut self, uri: &str) -> Answer {
        self.call("DELETE", uri, &Value::Null)
    }

    fn put_vm(&mut self, name: &str, body: &Value) -> Answer {
        self.call("PUT", &vm_path(name), body)
    }

    /// Creates a virtual machine.
    fn create(&mut self, name: &str) -> Answer {
        let answer = self.put_vm(name, &vm_body(name));
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer
    }

    fn names(&mut self, uri: &str) -> Vec<String> {
        let answer = self.get(uri).json();
        let all = answer["value"].as_array().unwrap_or_else(|| panic!("{uri}: {answer}"));
        all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    }

    fn nics(&mut self) -> Vec<String> {
        self.names(&format!("{NETWORK}/networkInterfaces?api-version={NETWORK_VERSION}"))
    }

    fn ips(&mut self) -> Vec<String> {
        self.names(&format!("{NETWORK}/publicIPAddresses?api-version={NETWORK_VERSION}"))
    }

    fn disks(&mut self) -> Vec<String> {
        self.names(&format!("{COMPUTE}/disks?api-version={DISK_VERSION}"))
    }

    fn vms(&mut self) -> Vec<String> {
        self.names(&format!("{COMPUTE}/virtualMachines?api-version={VM_VERSION}"))
    }

    /// The answer to a poll of the operation of a call.
    fn operation(&mut self, answer: &Answer) -> Value {
        let url = answer.header("Azure-AsyncOperation").strip_prefix("http://api").expect("an operation").to_owned();
        self.get(&url).json()
    }

    fn knobs(&mut self, knobs: Value) {
        let answer = self.send("PUT", "/sim/knobs", &[], knobs.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text);
    }

    fn sim(&mut self, method: &str, uri: &str) -> Value {
        let answer = self.send(method, uri, &[], b"");
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    /// Moves the clock.
    fn wait(&mut self, seconds: f64) {
        self.sim("POST", &format!("/sim/advance?seconds={seconds}"));
    }
}

fn vm_path(name: &str) -> String {
    format!("{COMPUTE}/virtualMachines/{name}?api-version={VM_VERSION}")
}

fn nic_path(name: &str) -> String {
    format!("{NETWORK}/networkInterfaces/{name}?api-version={NETWORK_VERSION}")
}

fn ip_path(name: &str) -> String {
    format!("{NETWORK}/publicIPAddresses/{name}?api-version={NETWORK_VERSION}")
}

fn disk_path(name: &str) -> String {
    format!("{COMPUTE}/disks/{name}?api-version={DISK_VERSION}")
}

fn image_path(name: &str) -> String {
    format!("{COMPUTE}/images/{name}?api-version={IMAGE_VERSION}")
}

fn ip_configuration(name: &str, version: &str) -> Value {
    json!({"name": format!("{name}-config"), "properties": {
        "privateIPAddressVersion": version,
        "subnet": {"id": format!("{NETWORK}/virtualNetworks/network/subnets/default")},
        "publicIPAddressConfiguration": {
            "name": format!("{name}-ip"), "sku": {"name": "Standard"}, "tags": {"part": "ip"},
            "properties": {"deleteOption": "Delete", "publicIPAllocationMethod": "Static"},
        },
    }})
}

/// The body of a virtual machine with a public IPv4 address.
fn vm_body(name: &str) -> Value {
    json!({
        "location": "eastus",
        "tags": {"nodepool_provider_name": "azure", "nodepool_node_id": name},
        "properties": {
            "hardwareProfile": {"vmSize": "Standard_D2s_v3"},
            "osProfile": {
                "computerName": name, "adminUsername": "zuul",
                "linuxConfiguration": {"disablePasswordAuthentication": true, "ssh": {"publicKeys": [
                    {"path": "/home/zuul/.ssh/authorized_keys", "keyData": "ssh-ed25519 AAAA nodepool"},
                ]}},
            },
            "storageProfile": {
                "imageReference": {"publisher": "Debian", "offer": "debian-12", "sku": "12-gen2", "version": "latest"},
                "osDisk": {"createOption": "FromImage", "deleteOption": "Delete"},
            },
            "networkProfile": {"networkApiVersion": "2020-11-01", "networkInterfaceConfigurations": [{
                "name": format!("{name}-nic"), "tags": {"part": "nic"},
                "properties": {
                    "deleteOption": "Delete", "ipConfigurations": [ip_configuration(&format!("{name}-v4"), "IPv4")],
                },
            }]},
        },
    })
}

/// The body with another value at this place.
fn changed(mut body: Value, pointer: &str, value: Value) -> Value {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = body.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer} has a parent"));
    parent[name] = value;
    body
}
