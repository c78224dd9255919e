//! A server of Nova as an instance of ours: its state, its addresses, what it takes from the limits.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use super::clouds::CloudSettings;
use super::stock::{Stock, amounts};
use super::wire::{Address, Server};
use crate::model::cloud::{ExternalId, Instance, InstanceState};
use crate::model::quantity::Amounts;

/// What decides how servers are reached.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub cloud: &'a CloudSettings,
    pub region: Option<&'a str>,
    /// Whether this host has a route to the IPv6 world.
    pub has_ipv6: bool,
    pub stock: &'a Stock,
}

impl View<'_> {
    /// `sizes`: volumes and their GB, where they are known.
    pub fn instance(&self, server: Server, sizes: &HashMap<String, f64>) -> Instance {
        let public_ipv4 = self.public_ipv4(&server);
        let private_ipv4 = self.private_ipv4(&server);
        let public_ipv6 = self.public_ipv6(&server);
        let (amounts, state) = (self.amounts(&server, sizes), state(&server));
        let interface_ip = self.interface_ip(&server, &public_ipv4, &private_ipv4, &public_ipv6);
        Instance {
            interface_ip,
            private_ipv4: private_ipv4.or_else(|| public_ipv4.clone()),
            public_ipv4,
            public_ipv6,
            cloud: self.cloud.cloud.clone(),
            zone: server.zone.filter(|zone| !zone.is_empty()),
            region: self.region.map(str::to_owned),
            host_id: server.host_id.filter(|id| !id.is_empty()),
            metadata: server.metadata,
            amounts,
            state,
            ..Instance::new(ExternalId::text(server.id))
        }
    }

    fn amounts(&self, server: &Server, sizes: &HashMap<String, f64>) -> Amounts {
        let flavor = server.flavor.as_ref();
        let embedded = flavor.and_then(|flavor| Some((flavor.vcpus?, flavor.ram?)));
        let known = || {
            let known = self.stock.flavor_with_id(flavor?.id.as_deref()?)?;
            Some((known.vcpus, known.ram))
        };
        let mut total = match embedded.or_else(known) {
            Some((vcpus, ram)) => amounts(vcpus, ram),
            None => Amounts::none().with("instances", 1.0),
        };
        if !sizes.is_empty() && !server.volumes.is_empty() {
            total.set("volumes", server.volumes.len() as f64);
            total.set("volume-gb", server.volumes.iter().filter_map(|volume| sizes.get(&volume.id)).sum());
        }
        total
    }

    fn public_ipv4(&self, server: &Server) -> Option<String> {
        let networks = self.stock.networks();
        let external =
            server.addresses.iter().filter(|(name, _)| networks.external.contains(*name)).flat_map(|(_, all)| all);
        let of_external = external.clone().find(|address| is_ipv4(address)).map(|address| address.addr.clone());
        let floating = all(server).find(|address| is_ipv4(address) && is_floating(address));
        let named = server.addresses.get("public").and_then(|all| all.iter().find(|address| is_ipv4(address)));
        let routable = || all(server).find(|address| routable(&address.addr));
        given(&server.access_ipv4)
            .or(of_external)
            .or_else(|| floating.or(named).or_else(routable).map(|address| address.addr.clone()))
    }

    fn private_ipv4(&self, server: &Server) -> Option<String> {
        let floating_mac = all(server).find(|address| is_floating(address)).and_then(|address| address.mac.clone());
        let internal = |(name, _): &(&String, &Vec<Address>)| self.stock.networks().internal.contains(*name);
        let fixed = server.addresses.iter().filter(internal).flat_map(|(_, all)| all);
        let fixed: Vec<&Address> = fixed.filter(|address| is_ipv4(address) && !is_floating(address)).collect();
        let with_floating = fixed.iter().find(|address| floating_mac.is_some() && address.mac == floating_mac);
        let named = || server.addresses.get("private").and_then(|all| all.iter().find(|address| is_ipv4(address)));
        let found = with_floating.or_else(|| fixed.first()).copied().or_else(named);
        found.map(|address| address.addr.clone())
    }

    fn public_ipv6(&self, server: &Server) -> Option<String> {
        if self.cloud.force_ipv4 {
            return None;
        }
        let first = || all(server).find(|address| address.version == 6).map(|address| address.addr.clone());
        given(&server.access_ipv6).or_else(first)
    }

    /// The address that Zuul connects to. One that only has a private address is reached there or not at all.
    fn interface_ip(
        &self,
        server: &Server,
        public_ipv4: &Option<String>,
        private_ipv4: &Option<String>,
        public_ipv6: &Option<String>,
    ) -> Option<String> {
        if let Some(name) = &self.stock.networks().default_interface {
            let found = server.addresses.get(name).and_then(|all| all.first());
            if let Some(address) = found {
                return Some(address.addr.clone());
            }
        }
        let first = if self.cloud.private { private_ipv4.clone() } else { None };
        first
            .or_else(|| public_ipv6.clone().filter(|_| self.has_ipv6))
            .or_else(|| public_ipv4.clone())
            .or_else(|| private_ipv4.clone())
    }
}

/// The floating addresses that Nova shows.
pub fn floating_addresses(server: &Server) -> Vec<String> {
    all(server).filter(|address| is_ipv4(address) && is_floating(address)).map(|address| address.addr.clone()).collect()
}

fn state(server: &Server) -> InstanceState {
    let is_going = server.task_state.as_deref() == Some("deleting");
    match server.status.to_ascii_uppercase().as_str() {
        "DELETED" | "SOFT_DELETED" => InstanceState::Stopping,
        _ if is_going => InstanceState::Stopping,
        "ACTIVE" => InstanceState::Running,
        "ERROR" => InstanceState::Failed(server.fault.as_ref().map_or_else(String::new, |fault| fault.message.clone())),
        // BUILD, and words of clouds to come.
        _ => InstanceState::Starting,
    }
}

fn all(server: &Server) -> impl Iterator<Item = &Address> {
    server.addresses.values().flatten()
}

fn given(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}

fn is_ipv4(address: &Address) -> bool {
    address.version == 4
}

fn is_floating(address: &Address) -> bool {
    address.kind.as_deref() == Some("floating")
}

/// Neither private nor of this host or link, as Python's `is_private` has it for the networks that clouds use.
fn routable(text: &str) -> bool {
    let Ok(address) = text.parse::<Ipv4Addr>() else { return false };
    let is_of_this_host = address.is_loopback() || address.is_link_local() || address.is_unspecified();
    !(address.is_private() || is_of_this_host || address.is_documentation())
}

/// Whether this host has a default route for IPv6, so that public IPv6 addresses can be reached.
pub fn host_has_ipv6() -> bool {
    let Ok(routes) = std::fs::read_to_string("/proc/net/ipv6_route") else { return false };
    routes.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_default = fields.first().is_some_and(|to| to.bytes().all(|digit| digit == b'0'));
        is_default && fields.get(1) == Some(&"00") && fields.last() != Some(&"lo")
    })
}
