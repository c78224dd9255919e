//! Public IPs: their addresses, their JSON, and their deletion.

use serde_json::{Map, Value, json};

use crate::cloud::cloud::Cloud;
use crate::cloud::operations::Effect;
use crate::cloud::resources::{Address, IpVersion, Meta, PublicIp, Resource, key};
use crate::cloud::table::Table;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::server::target::Kind;

impl Resource for PublicIp {
    const KIND: Kind = Kind::Ip;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn table(cloud: &Cloud) -> &Table<Self> {
        &cloud.ips
    }

    fn table_mut(cloud: &mut Cloud) -> &mut Table<Self> {
        &mut cloud.ips
    }

    fn describe(&self, cloud: &Cloud, json: &mut Map<String, Value>) {
        let state = if self.is_deleting { "Deleting" } else { "Succeeded" };
        let mut properties = json!({"provisioningState": state, "resourceGuid": self.meta.guid});
        if let Some(address) = &self.address {
            properties["ipAddress"] = json!(address.text());
        }
        properties["publicIPAddressVersion"] = json!(self.version.name());
        properties["publicIPAllocationMethod"] = json!(self.allocation);
        properties["idleTimeoutInMinutes"] = json!(4);
        properties["ipTags"] = json!([]);
        properties["deleteOption"] = json!(self.on_vm_deletion.name());
        if let Some(id) = self.configuration_id(cloud) {
            properties["ipConfiguration"] = json!({"id": id});
        }
        json.insert("etag".to_owned(), json!("W/\"1\""));
        json.insert("sku".to_owned(), json!({"name": self.sku, "tier": "Regional"}));
        json.insert("properties".to_owned(), properties);
    }
}

impl PublicIp {
    /// The id of the interface's configuration that uses it.
    fn configuration_id(&self, cloud: &Cloud) -> Option<String> {
        let (nic_key, name) = self.configuration.as_ref()?;
        let (group, nic_name) = nic_key.split_once('/').expect("a key has a group and a name");
        let nic = cloud.nics.get(nic_key).map(|nic| cloud.id_of(nic));
        // The interface is created after its public IPs.
        let id = nic.unwrap_or_else(|| {
            let subscription = &cloud.options.subscription;
            format!(
                "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Network/networkInterfaces/\
                 {nic_name}"
            )
        });
        Some(format!("{id}/ipConfigurations/{name}"))
    }

    /// Amounts of the usages of the network that it counts in.
    pub fn usages(&self) -> Vec<(String, u64)> {
        let mut usages = vec![("PublicIPAddresses".to_owned(), 1)];
        if self.sku == "Standard" {
            usages.push(("StandardSkuPublicIpAddresses".to_owned(), 1));
        }
        usages
    }
}

impl Cloud {
    pub fn give_public_address(&mut self, ip_key: &str, guid: &str) {
        let Some(ip) = self.ips.get(ip_key).filter(|ip| ip.meta.guid == guid) else { return };
        let address = match ip.version {
            IpVersion::V4 => Address::allocate(&mut self.public_addresses),
            IpVersion::V6 => Some(self.new_ipv6(2)),
        };
        self.ips.get_mut(ip_key).expect("the public IP exists").address = address;
    }

    pub fn delete_ip(&mut self, call: &Call, group: &str, name: &str) -> ApiResult<Response> {
        let ip_key = key(group, name);
        let Some(ip) = self.ips.get(&ip_key) else { return Ok(Response::empty(204)) };
        if let Some(user) = ip.configuration_id(self) {
            let id = self.id_of(ip);
            let text = format!(
                "Public IP address {id} can not be deleted since it is still allocated to resource {user}. In order to \
                 delete the public IP, disassociate/detach the Public IP address from the resource. To learn how to do \
                 this, see aka.ms/deletepublicip."
            );
            return Err(ApiError::new("PublicIPAddressCannotBeDeleted", text));
        }
        let (location, guid) = (ip.meta.location.clone(), ip.meta.guid.clone());
        self.history.end_asked(Kind::Ip, &guid, self.now);
        self.ips.get_mut(&ip_key).expect("the public IP exists").is_deleting = true;
        let operation = self.start_usual_operation(Effect::DeleteIp(ip_key), &location);
        Ok(self.with_operation(Response::empty(202), call, &operation))
    }

    /// Takes a public IP from the interface that uses it.
    pub fn detach_ip(&mut self, ip_key: &str) {
        let Some((nic_key, name)) = self.ips.get_mut(ip_key).and_then(|ip| ip.configuration.take()) else { return };
        let configurations = self.nics.get_mut(&nic_key).map(|nic| &mut nic.configurations);
        for one in configurations.into_iter().flatten().filter(|one| one.name == name) {
            one.public_ip = None;
        }
    }

    pub fn remove_ip(&mut self, ip_key: &str) {
        self.detach_ip(ip_key);
        let Some(ip) = self.ips.remove(ip_key) else { return };
        if let Some(address) = &ip.address {
            address.release(&mut self.public_addresses);
        }
        self.usage.remove(&ip.meta.location, &ip.usages());
        self.ended(Kind::Ip, &ip.meta);
    }
}
