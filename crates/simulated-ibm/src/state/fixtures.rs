//! The resources that exist from the start: resource groups, networks, keys and public images.

use serde_json::{Value, json};
use simulated_service::network::Addresses;

use crate::state::ids::{ACCOUNT, reference};
use crate::state::operating_systems;
use crate::state::profiles::Profile;
use crate::state::world::World;

/// Addresses that IBM reserves at the beginning and at the end of a subnet.
pub const RESERVED: (u32, u32) = (4, 1);

/// A subnet: its zone, and the addresses that it gives.
pub struct Subnet {
    pub zone: String,
    pub addresses: Addresses,
}

/// An image: whether the user owns it, and the reason for which its import will fail.
pub struct Image {
    pub is_own: bool,
    pub fate: Option<String>,
}

/// Public images, oldest first: name, operating system, GB.
const IMAGES: [(&str, &str, u64); 5] = [
    ("ibm-centos-stream-9-amd64-9", "centos-stream-9-amd64", 100),
    ("ibm-debian-12-7-minimal-amd64-1", "debian-12-amd64", 100),
    ("ibm-rocky-linux-9-4-minimal-amd64-2", "rocky-linux-9-amd64", 100),
    ("ibm-ubuntu-24-04-minimal-amd64-2", "ubuntu-24-04-amd64", 100),
    ("ibm-debian-12-9-minimal-amd64-2", "debian-12-amd64", 100),
];
/// The quota definition of resource groups.
const QUOTA: &str = "a3d7b8d01e261c24677937c29ab33f3c";
const PUBLIC_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFHa9v5e5Yr1l0K1qQn3mZ0cX3l1bq0w0f8yYt1uT7kX simulated";

/// An image to be added.
pub struct NewImage<'a> {
    pub name: &'a str,
    pub operating_system: &'a Value,
    pub size_gb: u64,
    pub group: &'a str,
    pub visibility: &'static str,
    pub status: &'static str,
}

impl World {
    pub fn add_fixtures(&mut self) {
        let group = self.add_group("Default", true);
        self.default_group = group.clone();
        for profile in Profile::all() {
            let (json, name) = (profile.json(self), profile.name.clone());
            self.profiles.insert(&name, json, profile);
        }
        for system in &operating_systems::ALL {
            let json = system.json(self);
            self.operating_systems.insert(system.name, json, ());
        }
        let zones: Vec<String> = self.zones().collect();
        self.add_vpc("nodepool", &group);
        self.add_vpc("other", &group);
        for (number, zone) in (0..).zip(&zones) {
            self.add_subnet(&format!("nodepool-{}", number + 1), "nodepool", zone, number);
        }
        self.add_subnet("other-1", "other", &zones[0], 3);
        for name in ["nodepool", "second"] {
            self.add_key(name, PUBLIC_KEY, "ed25519", &group);
        }
        for (name, system, size_gb) in IMAGES {
            self.add_public_image(name, system, size_gb);
        }
    }

    pub fn add_group(&mut self, name: &str, is_default: bool) -> String {
        let (id, now) = (self.plain_id(), self.timestamp());
        let json = json!({
            "id": id, "crn": format!("crn:v1:bluemix:public:resource-controller::a/{ACCOUNT}::resource-group:{id}"),
            "account_id": ACCOUNT, "name": name, "state": "ACTIVE", "default": is_default,
            "quota_id": QUOTA, "quota_url": format!("/v2/quota_definitions/{QUOTA}"),
            "payment_methods_url": format!("/v2/resource_groups/{id}/payment_methods"), "resource_linkages": [],
            "teams_url": format!("/v2/resource_groups/{id}/teams"), "created_at": now, "updated_at": now,
        });
        self.groups.insert(&id, json, ());
        id
    }

    /// A reference to a resource of the region that is not modelled.
    fn unmodelled(&mut self, kind: &str, path: &str) -> Value {
        let (id, name, region) = (self.regional_id(), self.new_name(), self.options.region.clone());
        json!({"crn": self.crn(&region, kind, &id), "href": self.href(&format!("{path}/{id}")), "id": id, "name": name})
    }

    fn add_vpc(&mut self, name: &str, group: &str) {
        let (id, now, region) = (self.regional_id(), self.timestamp(), self.options.region.clone());
        let security_group = self.regional_id();
        let (crn, href) = (self.crn(&region, "vpc", &id), self.href(&format!("vpcs/{id}")));
        let vpc = json!({"crn": crn, "href": href, "id": id, "name": name, "resource_type": "vpc"});
        let security_group = json!({
            "created_at": now, "crn": self.crn(&region, "security-group", &security_group),
            "href": self.href(&format!("security_groups/{security_group}")), "id": security_group,
            "name": format!("{name}-default"), "resource_group": self.group_reference(group), "rules": [],
            "targets": [], "vpc": vpc,
        });
        let acl = self.unmodelled("network-acl", "network_acls");
        let mut table = self.unmodelled("routing-table", &format!("vpcs/{id}/routing_tables"));
        table["resource_type"] = json!("routing_table");
        let mut json = vpc;
        for (field, value) in [
            ("classic_access", json!(false)),
            ("created_at", json!(now)),
            ("cse_source_ips", json!([])),
            ("default_network_acl", acl),
            ("default_routing_table", table),
            ("default_security_group", reference(&security_group)),
            (
                "dns",
                json!({"enable_hub": false, "resolution_binding_count": 0, "resolver": {
                    "servers": [{"address": "161.26.0.10"}], "type": "system", "configuration": "default"}}),
            ),
            ("health_reasons", json!([])),
            ("health_state", json!("ok")),
            ("public_address_ranges", json!([])),
            ("resource_group", self.group_reference(group)),
            ("status", json!("available")),
        ] {
            json[field] = value;
        }
        let security_group_id = security_group["id"].as_str().unwrap_or_default().to_owned();
        self.security_groups.insert(&security_group_id, security_group, ());
        self.vpcs.insert(&id, json, ());
    }

    /// Adds a subnet of a quarter of the network.
    fn add_subnet(&mut self, name: &str, vpc: &str, zone: &str, quarter: u32) {
        let (id, now) = (self.zonal_id(zone), self.timestamp());
        let addresses = Addresses::new(self.options.network.quarter(quarter), RESERVED);
        let vpc = self.vpcs.by_name(vpc).expect("the VPC of a subnet exists").value().clone();
        let json = json!({
            "available_ipv4_address_count": addresses.free(), "created_at": now, "crn": self.crn(zone, "subnet", &id),
            "href": self.href(&format!("subnets/{id}")), "id": id, "ip_version": "ipv4",
            "ipv4_cidr_block": addresses.network().to_string(), "name": name, "network_acl": vpc["default_network_acl"],
            "resource_group": vpc["resource_group"], "resource_type": "subnet",
            "routing_table": vpc["default_routing_table"], "status": "available",
            "total_ipv4_address_count": addresses.network().size(), "vpc": reference(&vpc),
            "zone": self.zone_reference(zone),
        });
        self.subnets.insert(&id, json, Subnet { zone: zone.to_owned(), addresses });
    }

    pub fn add_key(&mut self, name: &str, public_key: &str, kind: &str, group: &str) -> String {
        let (id, now, region) = (self.regional_id(), self.timestamp(), self.options.region.clone());
        let fingerprint = format!("SHA256:{}", self.plain_id());
        let json = json!({
            "created_at": now, "crn": self.crn(&region, "key", &id), "fingerprint": fingerprint,
            "href": self.href(&format!("keys/{id}")), "id": id, "length": if kind == "rsa" { 2048 } else { 256 },
            "name": name, "public_key": public_key, "resource_group": self.group_reference(group), "type": kind,
        });
        self.keys.insert(&id, json, ());
        id
    }

    /// Adds a public image. The operating system must exist.
    pub fn add_public_image(&mut self, name: &str, operating_system: &str, size_gb: u64) -> String {
        let system = self.operating_systems.get(operating_system);
        let system = system.expect("the operating system of an image exists").value().clone();
        let group = self.default_group.clone();
        let image = NewImage {
            name,
            operating_system: &system,
            size_gb,
            group: &group,
            visibility: "public",
            status: "available",
        };
        self.add_image(&image, Image { is_own: false, fate: None })
    }

    pub fn add_image(&mut self, image: &NewImage<'_>, details: Image) -> String {
        let (id, now, region) = (self.regional_id(), self.timestamp(), self.options.region.clone());
        let zones: Vec<Value> = self.zones().map(|zone| self.zone_reference(&zone)).collect();
        let mut json = json!({
            "allowed_use": {"api_version": "2024-06-23", "bare_metal_server": "true", "instance": "true"},
            "catalog_offering": {"managed": false}, "created_at": now, "crn": self.crn(&region, "image", &id),
            "encryption": "none", "file": {}, "href": self.href(&format!("images/{id}")), "id": id, "name": image.name,
            "operating_system": image.operating_system, "resource_group": self.group_reference(image.group),
            "resource_type": "image", "status": image.status, "status_reasons": [], "user_data_format": "cloud_init",
            "visibility": image.visibility, "zones": zones,
        });
        if image.status == "available" {
            finish_image(&mut json, image.size_gb);
        }
        self.images.insert(&id, json, details);
        id
    }
}

/// Adds the fields that an image has once its file was read.
pub fn finish_image(image: &mut Value, size_gb: u64) {
    image["status"] = json!("available");
    image["status_reasons"] = json!([]);
    image["minimum_provisioned_size"] = json!(size_gb);
    image["file"] = json!({"checksums": {"sha256": "0".repeat(64)}, "size": 1});
}
