//! Network interfaces: their addresses, their JSON, and the rules of their deletion.

use serde_json::{Map, Value, json};

use crate::cloud::cloud::Cloud;
use crate::cloud::operations::Effect;
use crate::cloud::resources::{Address, IpConfiguration, IpVersion, Meta, Nic, Resource, key};
use crate::cloud::table::Table;
use crate::faults::values::NestedPublicIp;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::server::target::Kind;

impl Resource for Nic {
    const KIND: Kind = Kind::Nic;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn table(cloud: &Cloud) -> &Table<Self> {
        &cloud.nics
    }

    fn table_mut(cloud: &mut Cloud) -> &mut Table<Self> {
        &mut cloud.nics
    }

    fn describe(&self, cloud: &Cloud, json: &mut Map<String, Value>) {
        let configurations: Vec<Value> =
            self.configurations.iter().map(|one| self.configuration_json(cloud, one)).collect();
        let state = if self.is_deleting { "Deleting" } else { "Succeeded" };
        let mut properties = json!({
            "provisioningState": state, "resourceGuid": self.meta.guid, "ipConfigurations": configurations,
            "dnsSettings": {"dnsServers": [], "appliedDnsServers": []}, "macAddress": mac(&self.meta.guid),
            "primary": self.is_primary, "enableAcceleratedNetworking": false, "enableIPForwarding": false,
            "hostedWorkloads": [], "nicType": "Standard",
        });
        if let Some(vm) = self.vm.as_ref().and_then(|key| cloud.vms.get(key)) {
            properties["virtualMachine"] = json!({"id": cloud.id_of(vm)});
        }
        json.insert("etag".to_owned(), json!("W/\"1\""));
        json.insert("kind".to_owned(), json!("Regular"));
        json.insert("properties".to_owned(), properties);
    }
}

impl Nic {
    fn configuration_json(&self, cloud: &Cloud, one: &IpConfiguration) -> Value {
        let id = format!("{}/ipConfigurations/{}", cloud.id_of(self), one.name);
        let mut properties = json!({"provisioningState": "Succeeded"});
        if let Some(address) = &one.address {
            properties["privateIPAddress"] = json!(address.text());
        }
        properties["privateIPAllocationMethod"] = json!("Dynamic");
        if let Some(ip) = one.public_ip.as_ref().and_then(|key| cloud.ips.get(key)) {
            properties["publicIPAddress"] = match cloud.knobs.nested_public_ip {
                NestedPublicIp::Full => cloud.resource_json(ip),
                NestedPublicIp::Id => json!({"id": cloud.id_of(ip)}),
            };
        }
        properties["subnet"] = json!({"id": one.subnet});
        properties["primary"] = json!(one.is_primary);
        properties["privateIPAddressVersion"] = json!(one.version.name());
        json!({
            "name": one.name, "id": id, "etag": "W/\"1\"",
            "type": "Microsoft.Network/networkInterfaces/ipConfigurations", "properties": properties,
        })
    }
}

impl Cloud {
    pub fn give_private_addresses(&mut self, nic_key: &str, guid: &str) {
        let Some(nic) = self.nics.get(nic_key).filter(|nic| nic.meta.guid == guid) else { return };
        let versions: Vec<IpVersion> = nic.configurations.iter().map(|one| one.version).collect();
        // A network without a free address leaves the configuration without one.
        let addresses: Vec<Option<Address>> = versions
            .into_iter()
            .map(|version| match version {
                IpVersion::V4 => Address::allocate(&mut self.private_addresses),
                IpVersion::V6 => Some(self.new_ipv6(1)),
            })
            .collect();
        let nic = self.nics.get_mut(nic_key).expect("the interface exists");
        for (one, address) in nic.configurations.iter_mut().zip(addresses) {
            one.address = address;
        }
    }

    /// An IPv6 address in the network with this number.
    pub fn new_ipv6(&mut self, network: u32) -> Address {
        self.ipv6_addresses += 1;
        match &self.options.ipv6_address {
            Some(address) => Address::V6(address.clone()),
            None => Address::V6(format!("fd00:0:0:{network}::{:x}", self.ipv6_addresses)),
        }
    }

    /// Refuses the use of an interface by another virtual machine than `vm`, or its deletion.
    pub fn check_nic_is_free(&self, nic: &Nic, vm: Option<&str>) -> ApiResult<()> {
        if let Some((name, until)) = &nic.reserved
            && *until > self.now
            && vm.is_none_or(|vm| !vm.eq_ignore_ascii_case(name))
        {
            let id = self.id_of(nic);
            let text = format!(
                "Nic(s) in request is reserved for another Virtual Machine for {} seconds. Please provide another \
                 nic(s) or retry after {} seconds. Reserved VM: {name}. Nic: {id}",
                self.knobs.nic_reserved_s,
                (*until - self.now).as_secs() + 1
            );
            return Err(ApiError::new("NicReservedForAnotherVm", text));
        }
        if let Some(user) = nic.vm.as_ref().and_then(|key| self.vms.get(key)) {
            let (id, user) = (self.id_of(nic), self.id_of(user));
            let text = format!(
                "Network Interface {id} is used by existing resource {user}. In order to delete the network \
                                interface, it must be dissociated from the resource. To learn more, see \
                                aka.ms/deletenic."
            );
            return Err(ApiError::new("NicInUse", text));
        }
        Ok(())
    }

    pub fn delete_nic(&mut self, call: &Call, group: &str, name: &str) -> ApiResult<Response> {
        let nic_key = key(group, name);
        let Some(nic) = self.nics.get(&nic_key) else { return Ok(Response::empty(204)) };
        self.check_nic_is_free(nic, None)?;
        let (location, guid) = (nic.meta.location.clone(), nic.meta.guid.clone());
        self.history.end_asked(Kind::Nic, &guid, self.now);
        self.nics.get_mut(&nic_key).expect("the interface exists").is_deleting = true;
        let operation = self.start_usual_operation(Effect::DeleteNic(nic_key), &location);
        Ok(self.with_operation(Response::empty(202), call, &operation))
    }

    pub fn remove_nic(&mut self, nic_key: &str) {
        let Some(nic) = self.nics.remove(nic_key) else { return };
        for one in &nic.configurations {
            if let Some(ip) = one.public_ip.as_ref().and_then(|key| self.ips.get_mut(key)) {
                ip.configuration = None;
            }
            if let Some(address) = &one.address {
                address.release(&mut self.private_addresses);
            }
        }
        self.usage.remove(&nic.meta.location, &[("NetworkInterfaces".to_owned(), 1)]);
        self.ended(Kind::Nic, &nic.meta);
    }
}

/// A hardware address that depends on the guid.
fn mac(guid: &str) -> String {
    let digits: String = guid.chars().rev().filter(char::is_ascii_hexdigit).take(6).collect();
    let digits = digits.to_ascii_uppercase();
    format!("00-0D-3A-{}-{}-{}", &digits[..2], &digits[2..4], &digits[4..])
}
