//! The network interfaces of a new instance.

use serde_json::{Value, json};

use crate::methods::fields::Fields;
use crate::methods::known_fields;
use crate::server::response::ApiResult;
use crate::state::places::{BASE, reference, region_of};
use crate::state::project::Compute;

/// Networks of each project, each with a subnetwork of the same name in each region.
const NETWORKS: [&str; 2] = ["default", "nodepool"];

/// The JSON of interfaces, without addresses.
pub struct Interfaces {
    pub json: Vec<Value>,
    /// Whether the first interface has an external address.
    pub is_external: bool,
}

impl Compute<'_> {
    /// Checks the interfaces of an insert.
    pub fn interfaces(&self, resource: &Fields<'_>, zone: &str) -> ApiResult<Interfaces> {
        let list = resource.list("networkInterfaces")?;
        if list.is_empty() {
            return Err(resource.invalid("networkInterfaces", "At least one network interface is required."));
        }
        if list.len() > 1 {
            return Err(resource.invalid("networkInterfaces", "The simulation supports one network interface."));
        }
        let fields = Fields::new(&list[0], "resource.networkInterfaces[0]", known_fields::INTERFACE)?;
        for unsupported in ["networkIP", "aliasIpRanges"] {
            if fields.value(unsupported).is_some() {
                return Err(fields.invalid(unsupported, "The simulation does not support it."));
            }
        }
        let (network, subnetwork) = self.network(&fields, zone)?;
        let access = fields.list("accessConfigs")?;
        let mut configs = Vec::new();
        for value in access {
            let access =
                Fields::new(value, "resource.networkInterfaces[0].accessConfigs[0]", known_fields::ACCESS_CONFIG)?;
            let kind = access.one_of("type", &["ONE_TO_ONE_NAT"])?.unwrap_or("ONE_TO_ONE_NAT");
            let tier = access.one_of("networkTier", &["PREMIUM", "STANDARD"])?.unwrap_or("PREMIUM");
            if access.value("natIP").is_some() {
                return Err(access.invalid("natIP", "The specified external IP address was not found."));
            }
            let name = access.text("name")?.unwrap_or("external-nat");
            configs.push(json!({"kind": "compute#accessConfig", "type": kind, "name": name, "networkTier": tier}));
        }
        if configs.len() > 1 {
            return Err(fields.invalid("accessConfigs", "At most one access config currently supported."));
        }
        let is_external = !configs.is_empty();
        let mut interface = json!({
            "kind": "compute#networkInterface", "network": network, "subnetwork": subnetwork, "name": "nic0",
            "fingerprint": "", "stackType": "IPV4_ONLY",
        });
        if is_external {
            interface["accessConfigs"] = json!(configs);
        }
        Ok(Interfaces { json: vec![interface], is_external })
    }

    /// The URLs of network and subnetwork. Either one is sufficient; they may belong to another known project.
    fn network(&self, fields: &Fields<'_>, zone: &str) -> ApiResult<(String, String)> {
        let own = self.project.name.as_str();
        let is_known = |project: &str| self.world.options.projects.iter().any(|known| known == project);
        let network = match fields.text("network")? {
            None => None,
            Some(text) => match reference(text) {
                (project, path) if project.is_none_or(is_known) => match path[..] {
                    ["global", "networks", name] if NETWORKS.contains(&name) => Some((project.unwrap_or(own), name)),
                    _ => return Err(fields.invalid("network", "The referenced network resource cannot be found.")),
                },
                _ => return Err(fields.invalid("network", "The referenced network resource cannot be found.")),
            },
        };
        let missing = || fields.invalid("subnetwork", "The referenced subnetwork resource cannot be found.");
        let subnetwork = match fields.text("subnetwork")? {
            None => None,
            Some(text) => match reference(text) {
                (project, path) if project.is_none_or(is_known) => match path[..] {
                    ["regions", region, "subnetworks", name]
                        if region == region_of(zone) && NETWORKS.contains(&name) =>
                    {
                        Some((project.unwrap_or(own), name))
                    }
                    _ => return Err(missing()),
                },
                _ => return Err(missing()),
            },
        };
        if let (Some((_, network)), Some((_, subnetwork))) = (network, subnetwork)
            && network != subnetwork
        {
            return Err(fields.invalid("subnetwork", "The specified subnetwork is not part of the network."));
        }
        let (project, name) = subnetwork.or(network).unwrap_or((own, "default"));
        let base = format!("{BASE}projects/{project}");
        let region = region_of(zone);
        Ok((format!("{base}/global/networks/{name}"), format!("{base}/regions/{region}/subnetworks/{name}")))
    }
}
