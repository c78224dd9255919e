//! Version documents of each service, at its root and below. They need a token only where the real services need one.

use serde_json::{Value, json};

use crate::call::{Call, MAX_MICROVERSION, MIN_MICROVERSION, Service};
use crate::cloud::cloud::Cloud;
use crate::response::Response;

impl Cloud {
    /// The response to a call for a version document; `None` for every other call.
    pub fn version_document(&self, service: Service, call: &Call) -> Option<Response> {
        if call.method != "GET" && call.method != "HEAD" || call.parts.len() > 1 {
            return None;
        }
        let base = format!("{}/{}", self.base, service.name());
        let version = call.parts.first().map(String::as_str);
        match (service, version) {
            (Service::Identity, None) => {
                let found = json!({"versions": {"values": [keystone(&base)]}});
                Some(Response::json(300, &found).with("Location", format!("{base}/v3/")))
            }
            (Service::Identity, Some("v3")) => Some(Response::ok(&json!({"version": keystone(&base)}))),
            (Service::Compute, None) => Some(Response::ok(&json!({"versions": [nova(&base)]}))),
            (Service::Compute, Some("v2.1")) => Some(Response::ok(&json!({"version": nova(&base)}))),
            (Service::Image, None) => {
                let minors = (0..=13_u32).rev();
                let versions: Vec<Value> = [15].into_iter().chain(minors).map(|minor| glance(&base, minor)).collect();
                Some(Response::json(300, &json!({"versions": versions})))
            }
            (Service::Network, None) => {
                let version = json!({"id": "v2.0", "status": "CURRENT", "links": [{"rel": "self", "href": format!("{base}/v2.0/")}]});
                Some(Response::ok(&json!({"versions": [version]})))
            }
            (Service::Network, Some("v2.0")) if call.has_trailing_slash && self.authorized(&call.token) => {
                let names = ["network", "subnet", "port"];
                let shown = names.map(|name| {
                    let href = format!("{base}/v2.0/{name}s");
                    json!({"name": name, "collection": format!("{name}s"), "links": [{"rel": "self", "href": href}]})
                });
                Some(Response::ok(&json!({"resources": shown})))
            }
            (Service::Volume, None) => Some(Response::json(300, &json!({"versions": [cinder(&base)]}))),
            (Service::Volume, Some("v3")) if self.authorized(&call.token) => {
                Some(Response::ok(&json!({"versions": [cinder(&base)]})))
            }
            _ => None,
        }
    }
}

fn keystone(base: &str) -> Value {
    json!({
        "id": "v3.14", "status": "stable", "updated": "2020-04-07T00:00:00Z",
        "links": [{"rel": "self", "href": format!("{base}/v3/")}],
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}],
    })
}

fn nova(base: &str) -> Value {
    json!({
        "id": "v2.1", "status": "CURRENT", "version": format!("2.{MAX_MICROVERSION}"), "min_version": format!("2.{MIN_MICROVERSION}"),
        "updated": "2013-07-23T11:33:21Z", "links": [{"rel": "self", "href": format!("{base}/v2.1/")}],
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.compute+json;version=2.1"}],
    })
}

fn glance(base: &str, minor: u32) -> Value {
    let status = if minor == 15 { "CURRENT" } else { "SUPPORTED" };
    json!({"id": format!("v2.{minor}"), "status": status, "links": [{"rel": "self", "href": format!("{base}/v2/")}]})
}

fn cinder(base: &str) -> Value {
    json!({
        "id": "v3.0", "status": "CURRENT", "version": "3.70", "min_version": "3.0", "updated": "2022-08-31T00:00:00Z",
        "links": [{"rel": "self", "href": format!("{base}/v3/")}],
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.volume+json;version=3"}],
    })
}
