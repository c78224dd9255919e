//! Subnets, which exist from the start.

use serde_json::{Value, json};

use crate::cloud::cloud::Cloud;
use crate::server::response::{ApiError, ApiResult, Response};

impl Cloud {
    pub fn subnet_path(&self, group: &str, network: &str, subnet: &str) -> String {
        let subscription = &self.options.subscription;
        format!(
            "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Network/virtualNetworks/{network}\
             /subnets/{subnet}"
        )
    }

    fn subnets(&self) -> impl Iterator<Item = [&str; 3]> {
        let split = |one: &'_ String| -> Option<[usize; 2]> { Some([one.find('/')?, one.rfind('/')?]) };
        self.options.subnets.iter().filter_map(move |one| {
            let [first, last] = split(one)?;
            Some([&one[..first], &one[first + 1..last], &one[last + 1..]])
        })
    }

    /// The id of a subnet as Azure writes it.
    pub fn subnet_id(&self, id: &str) -> Option<String> {
        let mut ids = self.subnets().map(|[group, network, subnet]| self.subnet_path(group, network, subnet));
        ids.find(|known| known.eq_ignore_ascii_case(id))
    }

    fn subnet_json(&self, [group, network, subnet]: [&str; 3]) -> Value {
        json!({
            "name": subnet, "id": self.subnet_path(group, network, subnet), "etag": "W/\"1\"",
            "properties": {
                "provisioningState": "Succeeded",
                "addressPrefixes": [self.options.network.to_string(), "fd00:0:0:1::/64"],
                "delegations": [], "privateEndpointNetworkPolicies": "Disabled",
                "privateLinkServiceNetworkPolicies": "Enabled",
            },
            "type": "Microsoft.Network/virtualNetworks/subnets",
        })
    }

    pub fn subnet(&self, group: &str, network: &str, subnet: &str) -> ApiResult<Response> {
        let wanted = [group, network, subnet];
        let is = |known: &[&str; 3]| known.iter().zip(wanted).all(|(one, other)| one.eq_ignore_ascii_case(other));
        match self.subnets().find(is) {
            Some(known) => Ok(Response::json(200, &self.subnet_json(known))),
            None => {
                let id = self.subnet_path(group, network, subnet);
                Err(ApiError::new("NotFound", format!("Resource {id} not found.")))
            }
        }
    }

    pub fn list_subnets(&self, group: &str, network: &str) -> ApiResult<Response> {
        let is = |known: &[&str; 3]| known[0].eq_ignore_ascii_case(group) && known[1].eq_ignore_ascii_case(network);
        let all: Vec<Value> = self.subnets().filter(is).map(|known| self.subnet_json(known)).collect();
        if all.is_empty() {
            let text = format!(
                "The Resource 'Microsoft.Network/virtualNetworks/{network}' under resource group '{group}' was not \
                 found. For more details please go to https://aka.ms/ARMResourceNotFoundFix"
            );
            return Err(ApiError::new("ResourceNotFound", text));
        }
        Ok(Response::json(200, &json!({"value": all})))
    }
}

/// The error of a virtual machine in a subnet that does not exist.
pub fn subnet_not_found(id: &str) -> ApiError {
    let text = format!(
        "Resource {id} referenced by resource was not found. Please make sure that the referenced resource exists, and \
         that both resources are in the same region."
    );
    ApiError::new("InvalidResourceReference", text)
}
