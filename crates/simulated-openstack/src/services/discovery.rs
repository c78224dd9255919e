//! Version documents of each service, at its root and below. They need a token only where the real services need one.

use serde_json::{Value, json};

use crate::call::{Call, MAX_MICROVERSION, MIN_MICROVERSION, NOVA_V2, Service};
use crate::cloud::cloud::Cloud;
use crate::faults::api_versions::{IdentityVersion, VolumeType};
use crate::response::Response;

impl Cloud {
    /// The versions of a service in the order of its version document.
    pub fn versions(&self, service: Service) -> Vec<&'static str> {
        match service {
            Service::Identity => {
                let has = |version: &IdentityVersion| self.knobs.identity_versions.contains(version);
                [IdentityVersion::V3, IdentityVersion::V2].into_iter().filter(has).map(IdentityVersion::name).collect()
            }
            Service::Compute => self.knobs.compute_address.versions().to_vec(),
            Service::Image => vec!["v2"],
            Service::Network => vec!["v2.0"],
            Service::Volume => {
                let types = self.knobs.volume_types.iter().copied().map(VolumeType::version);
                let has = |version: &&str| types.clone().any(|found| found == *version);
                ["v2", "v3"].into_iter().filter(has).collect()
            }
        }
    }

    /// The response to a call for a version document; `None` for every other call.
    pub fn version_document(&self, service: Service, call: &Call) -> Option<Response> {
        if call.method != "GET" && call.method != "HEAD" || call.parts.len() > 1 {
            return None;
        }
        let version = call.version();
        if version.is_empty() {
            return Some(self.root_document(service));
        }
        if !self.versions(service).contains(&version) {
            return None;
        }
        match service {
            Service::Identity | Service::Compute => {
                Some(Response::ok(&json!({"version": self.version(service, version)})))
            }
            Service::Image => None,
            Service::Network if call.has_trailing_slash && self.authorized(&call.token) => {
                let names = ["network", "subnet", "port"];
                let shown = names.map(|name| {
                    let href = format!("{}/network/v2.0/{name}s", self.base);
                    json!({"name": name, "collection": format!("{name}s"), "links": [{"rel": "self", "href": href}]})
                });
                Some(Response::ok(&json!({"resources": shown})))
            }
            Service::Volume if self.authorized(&call.token) => {
                Some(Response::ok(&json!({"versions": [self.version(service, version)]})))
            }
            Service::Network | Service::Volume => None,
        }
    }

    /// The document at the root of a service, with all its versions.
    fn root_document(&self, service: Service) -> Response {
        let versions = self.versions(service).into_iter().map(|version| self.version(service, version));
        let versions: Vec<Value> = versions.collect();
        match service {
            Service::Identity => Response::json(300, &json!({"versions": {"values": versions}}))
                .with("Location", format!("{}/", self.auth_url())),
            Service::Compute | Service::Network => Response::ok(&json!({"versions": versions})),
            Service::Image => {
                let minors = [15].into_iter().chain((0..=13_u32).rev());
                let links = self.version_links(service, "v2");
                let versions: Vec<Value> = minors.map(|minor| glance(&links, minor)).collect();
                Response::json(300, &json!({"versions": versions}))
            }
            Service::Volume => Response::json(300, &json!({"versions": versions})),
        }
    }

    fn version_links(&self, service: Service, version: &str) -> Value {
        self.knobs.document_links.links(&self.base, service, version)
    }

    /// One version of a service in a version document.
    fn version(&self, service: Service, version: &str) -> Value {
        let links = self.version_links(service, version);
        let is_only = self.versions(service).len() == 1;
        match (service, version) {
            (Service::Identity, "v2.0") => keystone_v2(&links, if is_only { "stable" } else { "deprecated" }),
            (Service::Identity, _) => keystone_v3(&links),
            (Service::Compute, NOVA_V2) => nova_v2(&links),
            (Service::Compute, _) => nova(&links),
            (Service::Image, _) => glance(&links, 15),
            (Service::Network, _) => json!({"id": "v2.0", "status": "CURRENT", "links": links}),
            (Service::Volume, "v2") => cinder_v2(&links, if is_only { "CURRENT" } else { "DEPRECATED" }),
            (Service::Volume, _) => cinder_v3(&links),
        }
    }
}

fn media_types(kind: &str) -> Value {
    json!([{"base": "application/json", "type": format!("application/vnd.openstack.{kind}")}])
}

fn keystone_v2(links: &Value, status: &str) -> Value {
    json!({
        "id": "v2.0", "status": status, "updated": "2014-04-17T00:00:00Z", "links": links,
        "media-types": media_types("identity-v2.0+json"),
    })
}

fn keystone_v3(links: &Value) -> Value {
    json!({
        "id": "v3.14", "status": "stable", "updated": "2020-04-07T00:00:00Z", "links": links,
        "media-types": media_types("identity-v3+json"),
    })
}

fn nova_v2(links: &Value) -> Value {
    json!({
        "id": "v2.0", "status": "SUPPORTED", "version": "", "min_version": "", "updated": "2011-01-21T11:33:21Z",
        "links": links, "media-types": media_types("compute+json;version=2"),
    })
}

fn nova(links: &Value) -> Value {
    json!({
        "id": "v2.1", "status": "CURRENT", "version": format!("2.{MAX_MICROVERSION}"),
        "min_version": format!("2.{MIN_MICROVERSION}"), "updated": "2013-07-23T11:33:21Z", "links": links,
        "media-types": media_types("compute+json;version=2.1"),
    })
}

fn glance(links: &Value, minor: u32) -> Value {
    let status = if minor == 15 { "CURRENT" } else { "SUPPORTED" };
    json!({"id": format!("v2.{minor}"), "status": status, "links": links})
}

fn cinder_v2(links: &Value, status: &str) -> Value {
    json!({
        "id": "v2.0", "status": status, "version": "", "min_version": "", "updated": "2017-02-25T12:00:00Z",
        "links": links, "media-types": media_types("volume+json;version=2"),
    })
}

fn cinder_v3(links: &Value) -> Value {
    json!({
        "id": "v3.0", "status": "CURRENT", "version": "3.70", "min_version": "3.0", "updated": "2022-08-31T00:00:00Z",
        "links": links, "media-types": media_types("volume+json;version=3"),
    })
}
