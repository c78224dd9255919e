//! Initial resources of the cloud: flavors, networks, a router, a key, security groups.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cloud::cloud::{Kind, PROJECT_ID, id};
use crate::cloud::loopback_addresses::hexadecimal;
use crate::options::Options;

pub struct Flavor {
    pub id: String,
    pub name: &'static str,
    pub vcpus: i64,
    pub ram_mib: i64,
    pub disk_gb: i64,
    /// Knobs of this flavor's servers; their metadata can contain the same keys.
    pub extra: &'static [(&'static str, &'static str)],
}

pub struct Network {
    pub id: String,
    pub name: String,
    /// Its subnets: the first is IPv4, the second, if any, is IPv6.
    pub subnets: Vec<String>,
    pub external: bool,
    /// Whether it is the second network of its name, which exists only with the knob `duplicates`.
    pub is_duplicate: bool,
}

pub struct SecurityGroup {
    pub id: String,
    pub name: &'static str,
    /// Whether it is the second group of its name, which exists only with the knob `duplicates`.
    pub is_duplicate: bool,
}

/// A kind of object whose first one can exist twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Duplicate {
    Network,
    SecurityGroup,
    Image,
}

pub struct Fixtures {
    pub flavors: Vec<Flavor>,
    /// The networks of the project in the order of the command line, the duplicate of the first, and the external one
    /// if there is one.
    pub networks: Vec<Network>,
    pub security_groups: Vec<SecurityGroup>,
    pub keys: Vec<&'static str>,
}

const SPAWN_SECONDS: &str = "loopback:spawn_seconds";
const SPAWN_ERROR: &str = "loopback:spawn_error";

impl Fixtures {
    pub fn from_options(options: &Options) -> Self {
        let mut networks = Vec::new();
        for (index, name) in options.networks.iter().enumerate() {
            let families = if options.ipv6 { 2 } else { 1 };
            networks.push(Network::new(index as u64 + 1, name, families, false));
        }
        if let Some(first) = networks.first() {
            let families = first.subnets.len() as u64;
            networks.push(Network { is_duplicate: true, ..Network::new(80, &first.name, families, false) });
        }
        if !options.external_network.is_empty() {
            networks.push(Network::new(90, &options.external_network, 1, true));
        }
        let groups = [("default", false), ("anything", false), ("default", true)].into_iter().zip(1..);
        let group =
            |((name, is_duplicate), number)| SecurityGroup { id: id(Kind::SecurityGroup, number), name, is_duplicate };
        Self { flavors: flavors(), networks, security_groups: groups.map(group).collect(), keys: vec!["test"] }
    }

    pub fn external_network(&self) -> Option<&Network> {
        self.networks.iter().find(|network| network.external)
    }

    pub fn router_id() -> String {
        id(Kind::Router, 1)
    }
}

impl Network {
    fn new(number: u64, name: &str, families: u64, external: bool) -> Self {
        let subnets = (0..families).map(|family| id(Kind::Subnet, number * 10 + family)).collect();
        Self { id: id(Kind::Network, number), name: name.to_owned(), subnets, external, is_duplicate: false }
    }

    /// JSON of its subnets without times; `index` is the position of the network.
    pub fn subnets_json(&self, index: usize) -> Vec<Value> {
        let octet = if self.external { 90 } else { 80 + index as u8 };
        let shown = |(family, subnet): (usize, &String)| {
            let (version, prefix, bits, last) = match family {
                0 => (4, format!("127.{octet}.0."), 16, format!("127.{octet}.255.254")),
                _ => {
                    let net = hexadecimal(octet);
                    (6, format!("fd00:{net:x}::"), 64, format!("fd00:{net:x}::ffff"))
                }
            };
            let first = if version == 4 { format!("{prefix}0") } else { prefix.clone() };
            json!({
                "id": subnet, "name": format!("{}-v{version}", self.name), "tenant_id": PROJECT_ID,
                "network_id": self.id, "ip_version": version, "subnetpool_id": null, "enable_dhcp": false,
                "ipv6_ra_mode": null, "ipv6_address_mode": null, "gateway_ip": format!("{prefix}1"),
                "cidr": format!("{first}/{bits}"),
                "allocation_pools": [{"start": format!("{prefix}2"), "end": last}], "host_routes": [],
                "dns_nameservers": [], "description": "", "service_types": [], "tags": [], "revision_number": 0,
                "project_id": PROJECT_ID,
            })
        };
        self.subnets.iter().enumerate().map(shown).collect()
    }
}

fn flavors() -> Vec<Flavor> {
    let flavor = |number, name, vcpus, ram_mib, disk_gb, extra| Flavor {
        id: id(Kind::Flavor, number),
        name,
        vcpus,
        ram_mib,
        disk_gb,
        extra,
    };
    vec![
        flavor(1, "tiny", 1, 512, 1, &[]),
        flavor(2, "small", 1, 2048, 10, &[]),
        flavor(3, "medium", 2, 4096, 20, &[]),
        flavor(4, "large", 4, 8192, 40, &[]),
        flavor(5, "xlarge", 8, 16384, 80, &[]),
        flavor(6, "slow", 1, 512, 1, &[(SPAWN_SECONDS, "10")]),
        flavor(7, "broken", 1, 512, 1, &[(SPAWN_ERROR, "this flavor is broken")]),
    ]
}
