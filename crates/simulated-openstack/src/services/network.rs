//! Neutron: networks, ports that are created and deleted with servers, floating IPs.

use serde_json::{Value, json};

use crate::call::{Call, Service};
use crate::cloud::cloud::{Cloud, Kind, PROJECT_ID, SimTime, id, number_of};
use crate::cloud::fixtures::{Fixtures, Network};
use crate::response::Response;
use crate::services::listing;
use crate::services::server::Server;

pub struct Port {
    pub network: usize,
    pub server: u64,
    /// The host part of its addresses.
    host: u16,
    zone: String,
    pub active: bool,
    created: SimTime,
}

pub struct FloatingIp {
    host: u16,
    pub port: Option<u64>,
    created: SimTime,
}

impl Cloud {
    pub fn network(&mut self, call: &Call, body: &[u8]) -> Response {
        match (call.method.as_str(), &call.below_version()[..]) {
            ("GET", ["networks"]) => self.list(call, "networks", self.networks_json()),
            ("GET", ["subnets"]) => self.list(call, "subnets", self.subnets_json()),
            ("GET", ["routers"]) => self.list(call, "routers", self.routers_json()),
            ("GET", ["security-groups"]) => self.list(call, "security_groups", self.security_groups_json()),
            ("GET", ["ports"]) => {
                let of_server = call.parameter("device_id").map(|server| number_of(Kind::Server, server));
                let shown = |(number, port): (&u64, &Port)| self.port_json(*number, port);
                let wanted = |port: &Port| of_server.is_none_or(|server| server == Some(port.server));
                self.list(call, "ports", self.ports.iter().filter(|(_, port)| wanted(port)).map(shown).collect())
            }
            ("GET", ["floatingips"]) => {
                let shown = |(number, ip): (&u64, &FloatingIp)| self.floating_ip_json(*number, ip);
                self.list(call, "floatingips", self.floating_ips.iter().map(shown).collect())
            }
            ("GET", ["extensions"]) => {
                Response::ok(&json!({"extensions": EXTENSIONS.map(|alias| json!({"alias": alias}))}))
            }
            ("GET", ["quotas", _, ..]) => self.network_quotas(call),
            ("POST", ["floatingips"]) => self.create_floating_ip(body),
            ("DELETE", ["floatingips", id]) => {
                match number_of(Kind::FloatingIp, id).filter(|number| self.floating_ips.contains_key(number)) {
                    Some(number) => {
                        let ip = self.floating_ips.remove(&number).expect("it was just found");
                        self.floating_pool.release(ip.host);
                        let server = ip.port.and_then(|port| self.ports.get(&port)).map(|port| port.server);
                        self.invalidate_rendered(server);
                        Response::empty(204)
                    }
                    None => not_found("floatingips", id),
                }
            }
            ("DELETE", ["ports", id]) => {
                match number_of(Kind::Port, id).filter(|number| self.ports.contains_key(number)) {
                    Some(number) => {
                        self.remove_port(number);
                        Response::empty(204)
                    }
                    None => not_found("ports", id),
                }
            }
            ("GET", [collection, id]) => self.show(collection, id),
            _ => Response::not_found(Service::Network),
        }
    }

    /// A page of the items that match the filters of the query.
    fn list(&self, call: &Call, name: &str, items: Vec<Value>) -> Response {
        let matches = |item: &Value| {
            let filters = call.query.iter().filter(|(key, _)| !NON_FILTER_PARAMETERS.contains(&key.as_str()));
            // Several values of a filter are alternatives.
            filters.clone().all(|(key, _)| {
                filters.clone().any(|(other, value)| other == key && listing::matches(&item[key], value))
            })
        };
        let items = items.into_iter().filter(matches).collect();
        match listing::page(call, items, self.knobs.page_size) {
            Ok(page) => Response::ok(&page.linked(name, &self.base, call)),
            Err(marker) => Response::neutron(404, "ResourceNotFound", &format!("{marker} could not be found.")),
        }
    }

    fn show(&self, collection: &str, id: &str) -> Response {
        let (name, items) = match collection {
            "networks" => ("network", self.networks_json()),
            "subnets" => ("subnet", self.subnets_json()),
            "routers" => ("router", self.routers_json()),
            "security-groups" => ("security_group", self.security_groups_json()),
            "ports" => {
                let found = number_of(Kind::Port, id).and_then(|number| Some((number, self.ports.get(&number)?)));
                ("port", found.map(|(number, port)| self.port_json(number, port)).into_iter().collect())
            }
            "floatingips" => {
                let number = number_of(Kind::FloatingIp, id);
                let found = number.and_then(|number| Some((number, self.floating_ips.get(&number)?)));
                ("floatingip", found.map(|(number, ip)| self.floating_ip_json(number, ip)).into_iter().collect())
            }
            _ => return Response::not_found(Service::Network),
        };
        match items.into_iter().find(|item| item["id"] == id) {
            Some(item) => Response::ok(&json!({name: item})),
            None => not_found(collection, id),
        }
    }

    /// Creates a port for a server; `None` if the network has no free address.
    pub fn add_port(&mut self, network: usize, server: u64, zone: &str) -> Option<u64> {
        let host = self.pools[network].allocate()?;
        let number = self.next_number();
        let port = Port { network, server, host, zone: zone.to_owned(), active: false, created: self.now };
        self.ports.insert(number, port);
        Some(number)
    }

    /// Deletes a port, and removes it from its server.
    pub fn remove_port(&mut self, number: u64) {
        let Some(port) = self.ports.remove(&number) else { return };
        self.pools[port.network].release(port.host);
        for ip in self.floating_ips.values_mut().filter(|ip| ip.port == Some(number)) {
            ip.port = None;
        }
        if let Some(server) = self.servers.get_mut(&port.server) {
            server.ports.retain(|port| *port != number);
        }
        self.invalidate_rendered(Some(port.server));
    }

    fn create_floating_ip(&mut self, body: &[u8]) -> Response {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let wanted = &body["floatingip"];
        let network = wanted["floating_network_id"].as_str().unwrap_or_default();
        let Some(external) = self.fixtures.external_network().filter(|external| external.id == network) else {
            return Response::neutron(404, "NetworkNotFound", &format!("Network {network} could not be found."));
        };
        let port = match wanted["port_id"].as_str() {
            None => None,
            Some(id) => match number_of(Kind::Port, id).filter(|port| self.ports.contains_key(port)) {
                Some(port) => Some(port),
                None => return not_found("ports", id),
            },
        };
        if let Some(port) = port
            && self.floating_ips.values().any(|ip| ip.port == Some(port))
        {
            let message = format!(
                "Cannot associate floating IP with port {} using fixed IP {}, as that fixed IP already has a floating \
                 IP on external network {}.",
                id(Kind::Port, port),
                self.address(&self.ports[&port]),
                external.id
            );
            return Response::neutron(409, "FloatingIPPortAlreadyAssociated", &message);
        }
        let limit = self.knobs.quota_floating_ips;
        if limit >= 0 && self.floating_ips.len() as i64 >= limit {
            self.stats.quota_refusals += 1;
            return Response::neutron(409, "OverQuota", "Quota exceeded for resources: ['floatingip'].");
        }
        let Some(host) = self.floating_pool.allocate() else {
            let message = format!("No more IP addresses available on network {network}.");
            return Response::neutron(409, "IpAddressGenerationFailure", &message);
        };
        let number = self.next_number();
        self.floating_ips.insert(number, FloatingIp { host, port, created: self.now });
        self.invalidate_rendered(port.map(|port| self.ports[&port].server));
        let shown = self.floating_ip_json(number, &self.floating_ips[&number]);
        Response::json(201, &json!({"floatingip": shown}))
    }

    fn address(&self, port: &Port) -> String {
        self.pools[port.network].ipv4(port.host)
    }

    fn mac(&self, port: &Port) -> String {
        let [high, low] = port.host.to_be_bytes();
        format!("fa:16:3e:{:02x}:{high:02x}:{low:02x}", port.network)
    }

    fn fixed_ips(&self, port: &Port) -> Vec<Value> {
        let pool = &self.pools[port.network];
        let addresses = [pool.ipv4(port.host), pool.ipv6(port.host)];
        let subnets = self.fixtures.networks[port.network].subnets.iter().zip(addresses);
        subnets.map(|(subnet, address)| json!({"subnet_id": subnet, "ip_address": address})).collect()
    }

    /// The addresses of a server by network, in Nova's format.
    pub fn addresses(&self, server: &Server) -> Value {
        let mut addresses = json!({});
        for number in &server.ports {
            let port = &self.ports[number];
            let (network, mac) = (&self.fixtures.networks[port.network], self.mac(port));
            let pool = &self.pools[port.network];
            let entry = |version: u8, address: String, kind: &str| json!({"version": version, "addr": address, "OS-EXT-IPS:type": kind, "OS-EXT-IPS-MAC:mac_addr": mac});
            let mut entries = vec![entry(4, pool.ipv4(port.host), "fixed")];
            if network.subnets.len() > 1 {
                entries.push(entry(6, pool.ipv6(port.host), "fixed"));
            }
            let floating = self.floating_ips.values().filter(|ip| ip.port == Some(*number));
            entries.extend(floating.map(|ip| entry(4, self.floating_pool.ipv4(ip.host), "floating")));
            addresses[&network.name] = json!(entries);
        }
        addresses
    }

    fn networks_json(&self) -> Vec<Value> {
        let made = self.timestamp(SimTime::ZERO);
        let shown = |network: &Network| {
            json!({
                "id": network.id, "name": network.name, "tenant_id": PROJECT_ID, "project_id": PROJECT_ID,
                "admin_state_up": true, "mtu": 1450, "status": "ACTIVE", "subnets": network.subnets,
                "shared": network.external, "availability_zone_hints": [], "availability_zones": [],
                "ipv4_address_scope": null, "ipv6_address_scope": null, "router:external": network.external,
                "description": "", "port_security_enabled": true, "tags": [], "created_at": made, "updated_at": made,
                "revision_number": 2,
            })
        };
        self.networks().map(|(_, network)| shown(network)).collect()
    }

    fn subnets_json(&self) -> Vec<Value> {
        let mut subnets: Vec<Value> =
            self.networks().flat_map(|(index, network)| network.subnets_json(index)).collect();
        for subnet in &mut subnets {
            subnet["created_at"] = json!(self.timestamp(SimTime::ZERO));
            subnet["updated_at"] = json!(self.timestamp(SimTime::ZERO));
        }
        subnets
    }

    fn routers_json(&self) -> Vec<Value> {
        let made = self.timestamp(SimTime::ZERO);
        let shown = |external: &Network| {
            let addresses = [json!({"subnet_id": external.subnets[0], "ip_address": "127.90.0.2"})];
            json!({
                "id": Fixtures::router_id(), "name": "router", "tenant_id": PROJECT_ID, "project_id": PROJECT_ID,
                "admin_state_up": true, "status": "ACTIVE", "description": "", "routes": [], "tags": [],
                "external_gateway_info": {"network_id": external.id, "external_fixed_ips": addresses, "enable_snat": true},
                "availability_zones": [], "availability_zone_hints": [], "flavor_id": null, "created_at": made,
                "updated_at": made, "revision_number": 4,
            })
        };
        self.fixtures.external_network().map(shown).into_iter().collect()
    }

    fn security_groups_json(&self) -> Vec<Value> {
        let shown = self.security_groups().map(|group| {
            json!({
                "id": group.id, "name": group.name, "stateful": true, "tenant_id": PROJECT_ID, "description": "",
                "shared": false, "security_group_rules": [], "tags": [], "project_id": PROJECT_ID,
            })
        });
        shown.collect()
    }

    fn port_json(&self, number: u64, port: &Port) -> Value {
        let made = self.timestamp(port.created);
        json!({
            "id": id(Kind::Port, number), "name": "", "network_id": self.fixtures.networks[port.network].id,
            "tenant_id": PROJECT_ID, "project_id": PROJECT_ID, "mac_address": self.mac(port), "admin_state_up": true,
            "status": status(port.active), "device_id": id(Kind::Server, port.server),
            "device_owner": format!("compute:{}", port.zone), "fixed_ips": self.fixed_ips(port),
            "allowed_address_pairs": [], "extra_dhcp_opts": [],
            "security_groups": [self.fixtures.security_groups[0].id], "description": "",
            "binding:vnic_type": "normal", "port_security_enabled": true, "tags": [], "created_at": made,
            "updated_at": made, "revision_number": 3,
        })
    }

    /// A port in Nova's format.
    pub fn interface_json(&self, number: u64) -> Value {
        let port = &self.ports[&number];
        json!({
            "net_id": self.fixtures.networks[port.network].id, "port_id": id(Kind::Port, number),
            "mac_addr": self.mac(port), "port_state": status(port.active), "fixed_ips": self.fixed_ips(port),
        })
    }

    fn floating_ip_json(&self, number: u64, ip: &FloatingIp) -> Value {
        let port = ip.port.map(|number| (number, &self.ports[&number]));
        let details = port.map(|(_, port)| {
            json!({
                "name": "", "network_id": self.fixtures.networks[port.network].id, "mac_address": self.mac(port),
                "admin_state_up": true, "status": status(port.active), "device_id": id(Kind::Server, port.server),
                "device_owner": format!("compute:{}", port.zone),
            })
        });
        let made = self.timestamp(ip.created);
        let external = self.fixtures.external_network().expect("floating IPs are of an external network");
        json!({
            "id": id(Kind::FloatingIp, number), "tenant_id": PROJECT_ID, "project_id": PROJECT_ID,
            "floating_ip_address": self.floating_pool.ipv4(ip.host), "floating_network_id": external.id,
            "router_id": port.map(|_| Fixtures::router_id()), "port_id": port.map(|(number, _)| id(Kind::Port, number)),
            "fixed_ip_address": port.map(|(_, port)| self.address(port)), "status": status(port.is_some()),
            "description": "", "port_details": details, "tags": [], "created_at": made, "updated_at": made,
            "revision_number": 1,
        })
    }

    fn network_quotas(&self, call: &Call) -> Response {
        let rows = [
            ("floatingip", self.knobs.quota_floating_ips, self.floating_ips.len()),
            ("port", self.knobs.quota_ports, self.ports.len()),
            ("network", 100, self.networks().count()),
            ("subnet", 100, self.networks().count()),
            ("router", 100, 1),
            ("security_group", 200, self.security_groups().count()),
        ];
        let detailed = call.parts.last().is_some_and(|part| part.starts_with("details"));
        let shown = |(name, limit, used): (&str, i64, usize)| {
            let value = if detailed { json!({"limit": limit, "used": used, "reserved": 0}) } else { json!(limit) };
            (name.to_owned(), value)
        };
        let quota: Value = rows.into_iter().map(shown).collect();
        Response::ok(&json!({"quota": quota}))
    }
}

/// Query parameters that are not filters.
const NON_FILTER_PARAMETERS: [&str; 6] = ["limit", "marker", "fields", "sort_key", "sort_dir", "page_reverse"];
const EXTENSIONS: [&str; 5] = ["router", "security-group", "external-net", "quotas", "quota_details"];

fn status(active: bool) -> &'static str {
    if active { "ACTIVE" } else { "DOWN" }
}

fn not_found(collection: &str, id: &str) -> Response {
    let (kind, message) = match collection {
        "networks" => ("NetworkNotFound", format!("Network {id} could not be found.")),
        "ports" => ("PortNotFound", format!("Port {id} could not be found.")),
        "floatingips" => ("FloatingIPNotFound", format!("Floating IP {id} could not be found")),
        "routers" => ("RouterNotFound", format!("Router {id} could not be found")),
        "subnets" => ("SubnetNotFound", format!("Subnet {id} could not be found.")),
        _ => ("SecurityGroupNotFound", format!("Security group {id} does not exist")),
    };
    Response::neutron(404, kind, &message)
}
