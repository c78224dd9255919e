//! The service catalogue, in the formats of Keystone v3 and v2.0.

use serde_json::{Value, json};

use crate::call::Service;
use crate::cloud::cloud::{Cloud, PROJECT_ID};

/// An entry of the catalogue.
struct CatalogEntry {
    /// The service type, as clients search it.
    kind: &'static str,
    name: &'static str,
    url: String,
    /// Its position, from which the ids are derived.
    number: u64,
}

impl CatalogEntry {
    fn endpoint_id(&self, interface: u64) -> String {
        format!("a5{:030x}", self.number * 10 + interface)
    }
}

impl Cloud {
    fn catalog_entries(&self) -> Vec<CatalogEntry> {
        let present = Service::ALL.into_iter().filter(|service| self.options.has(*service));
        let entries = present.flat_map(|service| {
            let base = format!("{}/{}", self.base, service.name());
            let found = match service {
                Service::Identity => vec![("identity", self.auth_url())],
                Service::Compute => vec![("compute", format!("{base}{}", self.knobs.compute_address.path()))],
                Service::Image => vec![("image", base)],
                Service::Network => vec![("network", base)],
                Service::Volume => {
                    let types = self.knobs.volume_types.iter();
                    types.map(|kind| (kind.name(), format!("{base}/{}/{PROJECT_ID}", kind.version()))).collect()
                }
            };
            found.into_iter().map(move |(kind, url)| (kind, service.project(), url))
        });
        entries.zip(1..).map(|((kind, name, url), number)| CatalogEntry { kind, name, url, number }).collect()
    }

    pub fn catalog(&self) -> Vec<Value> {
        let shown = self.catalog_entries().into_iter().map(|entry| {
            let endpoint = |(interface, number): (&str, u64)| {
                json!({
                    "id": entry.endpoint_id(number), "interface": interface, "url": entry.url,
                    "region_id": self.options.region, "region": self.options.region,
                })
            };
            let endpoints = ["public", "internal", "admin"].into_iter().zip(0..).map(endpoint);
            json!({
                "id": format!("a6{:030x}", entry.number), "type": entry.kind, "name": entry.name,
                "endpoints": endpoints.collect::<Vec<_>>(),
            })
        });
        shown.collect()
    }

    /// The catalogue in the format of Keystone v2.0.
    pub fn catalog_v2(&self) -> Vec<Value> {
        let shown = self.catalog_entries().into_iter().map(|entry| {
            let endpoint = json!({
                "region": self.options.region, "id": entry.endpoint_id(0), "publicURL": entry.url,
                "internalURL": entry.url, "adminURL": entry.url,
            });
            json!({"type": entry.kind, "name": entry.name, "endpoints_links": [], "endpoints": [endpoint]})
        });
        shown.collect()
    }
}
