//! Conversion of a Nova server to an `Instance`: its state, its addresses, its resources.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use super::api_types::{Address, Server};
use super::catalog::catalog::{CloudCatalog, amounts};
use nodepool_driver::instance::{Instance, InstanceState};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::resources::Resources;
use openstack_clouds::CloudSettings;

/// Settings that determine which address of a server is used.
#[derive(Clone, Copy, Debug)]
pub struct InstanceMapper<'a> {
    pub cloud: &'a CloudSettings,
    pub region: Option<&'a str>,
    /// Whether this host has a default route for IPv6.
    pub has_ipv6: bool,
    pub catalog: &'a CloudCatalog,
}

impl InstanceMapper<'_> {
    /// `sizes`: known sizes of volumes, in GB.
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
            resources: amounts,
            state,
            ..Instance::new(ExternalId::text(server.id))
        }
    }

    fn amounts(&self, server: &Server, sizes: &HashMap<String, f64>) -> Resources {
        let flavor = server.flavor.as_ref();
        let embedded = flavor.and_then(|flavor| Some((flavor.vcpus?, flavor.ram?)));
        let known = || {
            let known = self.catalog.flavor_with_id(flavor?.id.as_deref()?)?;
            Some((known.vcpus, known.ram))
        };
        let mut total = match embedded.or_else(known) {
            Some((vcpus, ram)) => amounts(vcpus, ram),
            None => Resources::none().with("instances", 1.0),
        };
        if !sizes.is_empty() && !server.volumes.is_empty() {
            total.set("volumes", server.volumes.len() as f64);
            total.set("volume-gb", server.volumes.iter().filter_map(|volume| sizes.get(&volume.id)).sum());
        }
        total
    }

    fn public_ipv4(&self, server: &Server) -> Option<String> {
        let networks = self.catalog.networks();
        let external =
            server.addresses.iter().filter(|(name, _)| networks.external.contains(*name)).flat_map(|(_, all)| all);
        let of_external = external.clone().find(|address| is_ipv4(address)).map(|address| address.addr.clone());
        let floating = all_addresses(server).find(|address| is_ipv4(address) && is_floating(address));
        let public_network = server.addresses.get("public").and_then(|all| all.iter().find(|address| is_ipv4(address)));
        let routable = || all_addresses(server).find(|address| routable(&address.addr));
        given(&server.access_ipv4)
            .or(of_external)
            .or_else(|| floating.or(public_network).or_else(routable).map(|address| address.addr.clone()))
    }

    fn private_ipv4(&self, server: &Server) -> Option<String> {
        let floating_mac =
            all_addresses(server).find(|address| is_floating(address)).and_then(|address| address.mac.clone());
        let internal = |(name, _): &(&String, &Vec<Address>)| self.catalog.networks().internal.contains(*name);
        let fixed = server.addresses.iter().filter(internal).flat_map(|(_, all)| all);
        let fixed: Vec<&Address> = fixed.filter(|address| is_ipv4(address) && !is_floating(address)).collect();
        let with_floating = fixed.iter().find(|address| floating_mac.is_some() && address.mac == floating_mac);
        let private_network =
            || server.addresses.get("private").and_then(|all| all.iter().find(|address| is_ipv4(address)));
        let found = with_floating.or_else(|| fixed.first()).copied().or_else(private_network);
        found.map(|address| address.addr.clone())
    }

    fn public_ipv6(&self, server: &Server) -> Option<String> {
        if self.cloud.force_ipv4 {
            return None;
        }
        let first = || all_addresses(server).find(|address| address.version == 6).map(|address| address.addr.clone());
        given(&server.access_ipv6).or_else(first)
    }

    /// The address that Zuul connects to. The private address is the last resort.
    fn interface_ip(
        &self,
        server: &Server,
        public_ipv4: &Option<String>,
        private_ipv4: &Option<String>,
        public_ipv6: &Option<String>,
    ) -> Option<String> {
        if let Some(name) = self.catalog.default_network_name() {
            let on_it = server.addresses.get(name).into_iter().flatten();
            let of_version = |version: u8| on_it.clone().find(move |address| address.version == version);
            let ipv6 = of_version(6).filter(|_| self.has_ipv6 && !self.cloud.force_ipv4);
            if let Some(address) = ipv6.or_else(|| of_version(4)) {
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

/// The floating addresses that Nova lists.
pub fn floating_addresses(server: &Server) -> Vec<String> {
    all_addresses(server)
        .filter(|address| is_ipv4(address) && is_floating(address))
        .map(|address| address.addr.clone())
        .collect()
}

fn state(server: &Server) -> InstanceState {
    let is_deleting = server.task_state.as_deref() == Some("deleting");
    match server.status.to_ascii_uppercase().as_str() {
        "DELETED" | "SOFT_DELETED" => InstanceState::Stopping,
        _ if is_deleting => InstanceState::Stopping,
        "ACTIVE" => InstanceState::Running,
        "ERROR" => InstanceState::Failed(server.fault.as_ref().map_or_else(String::new, |fault| fault.message.clone())),
        // BUILD, and unknown states of future versions.
        _ => InstanceState::Starting,
    }
}

fn all_addresses(server: &Server) -> impl Iterator<Item = &Address> {
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

/// Whether an IPv4 address is public: neither private nor loopback, link-local, unspecified or for documentation. For
/// the networks of clouds, this is the opposite of Python's `is_private`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openstack::api_types::Network;
    use crate::openstack::catalog::catalog::Networks;
    use crate::openstack::http::Services;
    use crate::openstack::test_settings::cloud_with;
    use serde_json::{Value, json};

    /// Networks `net` (id `n1`) and `other` (id `n2`), and `outside` (id `n3`), which is external.
    fn catalog(cloud: &CloudSettings) -> CloudCatalog {
        let networks = json!([
            {"id": "n1", "name": "net"}, {"id": "n2", "name": "other"},
            {"id": "n3", "name": "outside", "router:external": true},
        ]);
        let networks: Vec<Network> = serde_json::from_value(networks).unwrap();
        CloudCatalog::new(Services::default(), Vec::new()).with_networks(Networks::new(networks, None, None, cloud))
    }

    fn fixed(address: &str) -> Value {
        json!({"addr": address, "version": if address.contains(':') { 6 } else { 4 }, "OS-EXT-IPS:type": "fixed"})
    }

    fn floating(address: &str) -> Value {
        json!({"addr": address, "version": 4, "OS-EXT-IPS:type": "floating"})
    }

    fn instance(keys: &str, has_ipv6: bool, server: Value) -> Instance {
        let cloud = cloud_with(keys);
        let catalog = catalog(&cloud);
        let mut all = json!({"id": "s", "status": "ACTIVE"});
        all.as_object_mut().unwrap().extend(server.as_object().unwrap().clone());
        let mapper = InstanceMapper { cloud: &cloud, region: None, has_ipv6, catalog: &catalog };
        mapper.instance(serde_json::from_str(&all.to_string()).unwrap(), &HashMap::new())
    }

    /// `interface_ip`, `private_ipv4`, `public_ipv4`, `public_ipv6`; `-` for none.
    fn addresses_of(keys: &str, has_ipv6: bool, server: Value) -> [String; 4] {
        let Instance { interface_ip, private_ipv4, public_ipv4, public_ipv6, .. } = instance(keys, has_ipv6, server);
        [interface_ip, private_ipv4, public_ipv4, public_ipv6].map(|ip| ip.unwrap_or_else(|| "-".to_owned()))
    }

    // The address rules of openstacksdk, one test each.
    #[test]
    fn a_private_address_is_the_last_choice_except_in_private_clouds() {
        let server = json!({"addresses": {"net": [fixed("10.0.0.5"), floating("198.51.100.7")]}});
        assert_eq!(addresses_of("", false, server.clone()), ["198.51.100.7", "10.0.0.5", "198.51.100.7", "-"]);
        assert_eq!(addresses_of("private: true", false, server), ["10.0.0.5", "10.0.0.5", "198.51.100.7", "-"]);
        let alone = json!({"addresses": {"net": [fixed("10.0.0.5")]}});
        assert_eq!(addresses_of("", false, alone), ["10.0.0.5", "10.0.0.5", "-", "-"]);
    }

    #[test]
    fn ipv6_is_used_if_reachable_unless_the_cloud_forces_ipv4() {
        let server = json!({"addresses": {"outside": [fixed("2001:db8::5"), fixed("198.51.100.5")]}});
        let public = "198.51.100.5";
        assert_eq!(addresses_of("", true, server.clone()), ["2001:db8::5", public, public, "2001:db8::5"]);
        assert_eq!(addresses_of("", false, server.clone()), [public, public, public, "2001:db8::5"]);
        assert_eq!(addresses_of("force_ipv4: true", true, server), [public, public, public, "-"]);
    }

    #[test]
    fn access_addresses_of_a_server_take_precedence() {
        let server = json!({"addresses": {"outside": [fixed("198.51.100.5")]}, "accessIPv4": "203.0.113.1",
            "accessIPv6": "2001:db8::1"});
        assert_eq!(addresses_of("", true, server), ["2001:db8::1", "203.0.113.1", "203.0.113.1", "2001:db8::1"]);
        let empty = json!({"addresses": {"outside": [fixed("198.51.100.5")]}, "accessIPv4": "", "accessIPv6": ""});
        assert_eq!(addresses_of("", true, empty)[0], "198.51.100.5");
    }

    #[test]
    fn the_default_interface_is_found_by_name_or_id_and_is_reachable() {
        let server = json!({"addresses": {"other": [fixed("fd00::9"), fixed("10.2.0.9")],
            "outside": [fixed("198.51.100.5")]}});
        for named in ["other", "n2"] {
            let keys = format!("networks: [{{name: {named}, default_interface: true}}]");
            assert_eq!(addresses_of(&keys, false, server.clone())[0], "10.2.0.9", "{named}");
            assert_eq!(addresses_of(&keys, true, server.clone())[0], "fd00::9", "{named}");
            assert_eq!(
                addresses_of(&format!("{keys}\nforce_ipv4: true"), true, server.clone())[0],
                "10.2.0.9",
                "{named}"
            );
        }
        let other_network = "networks: [{name: net, default_interface: true}]";
        assert_eq!(addresses_of(other_network, false, server)[0], "198.51.100.5");
    }

    #[test]
    fn the_private_address_is_on_the_same_port_as_the_floating_address() {
        let with_mac = |mut address: Value, mac: &str| {
            address["OS-EXT-IPS-MAC:mac_addr"] = json!(mac);
            address
        };
        let server = json!({"addresses": {"net": [with_mac(fixed("10.0.0.5"), "a")],
            "other": [with_mac(fixed("10.2.0.9"), "b"), with_mac(floating("198.51.100.7"), "b")]}});
        assert_eq!(addresses_of("", false, server), ["198.51.100.7", "10.2.0.9", "198.51.100.7", "-"]);
    }

    #[test]
    fn clouds_yaml_roles_override_network_attributes() {
        let server = json!({"addresses": {"net": [fixed("10.0.0.5")], "other": [fixed("10.2.0.9")]}});
        let keys = "networks: [{name: n2, routes_externally: true}]";
        assert_eq!(addresses_of(keys, false, server), ["10.2.0.9", "10.0.0.5", "10.2.0.9", "-"]);
    }

    #[test]
    fn without_a_hint_the_first_routable_address_is_public() {
        let server = json!({"addresses": {"unknown": [fixed("10.0.0.5"), fixed("8.8.8.8")]}});
        assert_eq!(addresses_of("", false, server), ["8.8.8.8", "8.8.8.8", "8.8.8.8", "-"]);
        let named = json!({"addresses": {"public": [fixed("10.0.0.5")], "private": [fixed("10.9.0.5")]}});
        assert_eq!(addresses_of("", false, named), ["10.0.0.5", "10.9.0.5", "10.0.0.5", "-"]);
    }
}
