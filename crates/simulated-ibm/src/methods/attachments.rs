//! The parts of an instance: network interfaces and attachments, volume attachments, and its initialization.

use serde_json::{Value, json};

use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::ids::reference;
use crate::state::instance::Instance;
use crate::state::table::Entry;
use crate::state::world::World;

impl World {
    pub fn get_instance_initialization(&self, call: &Call) -> ApiResult<Response> {
        Ok(Response::json(200, &json!({"keys": self.instance(call)?.details.keys})))
    }

    pub fn list_network_interfaces(&self, call: &Call) -> ApiResult<Response> {
        let interface = self.network_interface(self.instance(call)?);
        Ok(Response::json(200, &json!({"network_interfaces": [interface]})))
    }

    pub fn get_network_interface(&self, call: &Call) -> ApiResult<Response> {
        Ok(Response::json(200, &self.network_interface(self.instance_of_interface(call)?)))
    }

    /// The instance that the path names, which has the interface of the path.
    pub fn instance_of_interface(&self, call: &Call) -> ApiResult<&Entry<Instance>> {
        let instance = self.instance(call)?;
        match instance.details.interface == call.id(1) {
            true => Ok(instance),
            false => Err(ApiError::not_found("network interface", call.id(1))),
        }
    }

    fn network_interface(&self, instance: &Entry<Instance>) -> Value {
        let value = instance.value();
        let mut interface = value["primary_network_interface"].clone();
        let floating_ip = self.floating_ip_of(&instance.details);
        let vpc = value["vpc"]["id"].as_str().unwrap_or_default();
        let groups: Vec<Value> = match instance.details.security_groups.is_empty() {
            true => self.vpcs.get(vpc).map(|vpc| vpc.value()["default_security_group"].clone()).into_iter().collect(),
            false => {
                let groups = instance.details.security_groups.iter();
                groups.filter_map(|id| self.security_groups.get(id)).map(|group| reference(group.value())).collect()
            }
        };
        for (field, found) in [
            ("allow_ip_spoofing", json!(false)),
            ("created_at", value["created_at"].clone()),
            ("floating_ips", floating_ip.into_iter().collect()),
            ("port_speed", json!(16000)),
            ("security_groups", groups.into()),
            ("status", json!("available")),
            ("type", json!("primary")),
        ] {
            interface[field] = found;
        }
        interface
    }

    /// The reference to the floating IP that an instance has.
    fn floating_ip_of(&self, instance: &Instance) -> Option<Value> {
        let interfaces = [Some(&instance.interface), instance.virtual_interface.as_ref()];
        let id = interfaces.into_iter().flatten().find_map(|interface| self.attached.get(interface))?;
        let floating_ip = self.floating_ips.get(id).filter(|one| one.value().get("target").is_some())?;
        let mut found = reference(floating_ip.value());
        found["address"] = floating_ip.value()["address"].clone();
        Some(found)
    }

    pub fn list_network_attachments(&self, call: &Call) -> ApiResult<Response> {
        let attachments: Vec<Value> = network_attachment(self.instance(call)?).into_iter().collect();
        Ok(Response::json(200, &json!({"network_attachments": attachments})))
    }

    pub fn get_network_attachment(&self, call: &Call) -> ApiResult<Response> {
        let attachment = network_attachment(self.instance_of_interface(call)?);
        let missing = || ApiError::not_found("network attachment", call.id(1));
        attachment.map(|found| Response::json(200, &found)).ok_or_else(missing)
    }

    pub fn list_volume_attachments(&self, call: &Call) -> ApiResult<Response> {
        let attachment = self.volume_attachment(self.instance(call)?);
        Ok(Response::json(200, &json!({"volume_attachments": [attachment]})))
    }

    pub fn get_volume_attachment(&self, call: &Call) -> ApiResult<Response> {
        let attachment = self.volume_attachment(self.instance(call)?);
        match attachment["id"] == call.id(1) {
            true => Ok(Response::json(200, &attachment)),
            false => Err(ApiError::not_found("volume attachment", call.id(1))),
        }
    }

    fn volume_attachment(&self, instance: &Entry<Instance>) -> Value {
        let mut attachment = instance.value()["boot_volume_attachment"].clone();
        for (field, found) in [
            ("bandwidth", json!(250)),
            ("created_at", instance.value()["created_at"].clone()),
            ("delete_volume_on_instance_delete", json!(instance.details.deletes_volume)),
            ("status", json!("attached")),
            ("type", json!("boot")),
        ] {
            attachment[field] = found;
        }
        attachment
    }
}

fn network_attachment(instance: &Entry<Instance>) -> Option<Value> {
    let mut attachment = instance.value().get("primary_network_attachment")?.clone();
    for (field, found) in [
        ("created_at", instance.value()["created_at"].clone()),
        ("lifecycle_state", json!("stable")),
        ("port_speed", json!(16000)),
        ("type", json!("primary")),
    ] {
        attachment[field] = found;
    }
    Some(attachment)
}
