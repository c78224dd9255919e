//! Targets of floating IPs: network interfaces and virtual network interfaces of instances.

use serde_json::{Value, json};

use crate::methods::fields::Fields;
use crate::methods::references::item_id;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::world::World;

impl World {
    /// The id of the interface in the field `target`.
    pub fn referenced_target(&self, fields: &Fields<'_>) -> ApiResult<Option<String>> {
        let Some(value) = fields.value("target") else { return Ok(None) };
        let id = item_id(value, "target")?;
        self.checked_interface(&id)?;
        Ok(Some(id))
    }

    /// Checks that an interface exists and may have a floating IP. That of a network attachment may not: its virtual
    /// network interface may.
    fn checked_interface(&self, id: &str) -> ApiResult<()> {
        let instance = self.interfaces.get(id).and_then(|instance| self.instances.get(instance));
        let Some(instance) = instance else {
            let message = format!("The target {id} cannot be found.");
            return Err(ApiError::field("bad_field", "target.id", id, message));
        };
        match instance.details.virtual_interface.as_deref() {
            Some(virtual_id) if virtual_id != id => {
                let message = "The target is a network attachment. Use its virtual network interface.";
                Err(ApiError::field("bad_field", "target.id", id, message))
            }
            _ => Ok(()),
        }
    }

    /// The zone of an interface that exists.
    pub fn interface_zone(&self, interface: &str) -> String {
        let instance = self.interfaces.get(interface).and_then(|instance| self.instances.get(instance));
        instance.map(|instance| instance.details.zone.clone()).unwrap_or_default()
    }

    /// Attaches a floating IP to an interface that exists, unless one of them is in use.
    pub fn checked_attach(&mut self, id: &str, interface: &str) -> ApiResult<()> {
        let floating_ip = self.floating_ip(id)?;
        match floating_ip.details.interface.as_deref() {
            Some(own) if own == interface => return Ok(()),
            Some(_) => return Err(ApiError::new("floating_ip_in_use")),
            None => {}
        }
        if floating_ip.status() != "available" {
            return Err(ApiError::new("invalid_state"));
        }
        if floating_ip.details.zone != self.interface_zone(interface) {
            return Err(ApiError::new("invalid_zone"));
        }
        if self.attached.contains_key(interface) {
            return Err(ApiError::new("target_in_use"));
        }
        self.attach(id, interface);
        Ok(())
    }

    pub fn list_interface_floating_ips(&self, call: &Call) -> ApiResult<Response> {
        let interface = self.instance_of_interface(call)?.details.interface.as_str();
        let found = self.attached.get(interface).and_then(|id| self.floating_ips.get(id));
        let all: Vec<&Value> = found.map(|one| one.value()).into_iter().collect();
        Ok(Response::json(200, &json!({"floating_ips": all})))
    }

    pub fn get_interface_floating_ip(&self, call: &Call) -> ApiResult<Response> {
        let interface = self.instance_of_interface(call)?.details.interface.as_str();
        self.checked_attachment(interface, call.id(2))?;
        self.floating_ip_response(200, call.id(2))
    }

    pub fn add_interface_floating_ip(&mut self, call: &Call) -> ApiResult<Response> {
        let interface = self.instance_of_interface(call)?.details.interface.clone();
        self.checked_interface(&interface)?;
        self.checked_attach(call.id(2), &interface)?;
        self.floating_ip_response(201, call.id(2))
    }

    pub fn remove_interface_floating_ip(&mut self, call: &Call) -> ApiResult<Response> {
        let interface = self.instance_of_interface(call)?.details.interface.clone();
        self.checked_attachment(&interface, call.id(2))?;
        self.detach(call.id(2));
        Ok(Response::empty(204))
    }

    pub fn add_virtual_floating_ip(&mut self, call: &Call) -> ApiResult<Response> {
        let interface = self.virtual_interface(call)?;
        self.checked_attach(call.id(1), &interface)?;
        self.floating_ip_response(201, call.id(1))
    }

    pub fn remove_virtual_floating_ip(&mut self, call: &Call) -> ApiResult<Response> {
        let interface = self.virtual_interface(call)?;
        self.checked_attachment(&interface, call.id(1))?;
        self.detach(call.id(1));
        Ok(Response::empty(204))
    }

    fn virtual_interface(&self, call: &Call) -> ApiResult<String> {
        let id = call.id(0);
        let instance = self.interfaces.get(id).and_then(|instance| self.instances.get(instance));
        let found = instance.and_then(|instance| instance.details.virtual_interface.as_deref());
        match found == Some(id) {
            true => Ok(id.to_owned()),
            false => Err(ApiError::not_found("virtual network interface", id)),
        }
    }

    fn checked_attachment(&self, interface: &str, id: &str) -> ApiResult<()> {
        match self.attached.get(interface).is_some_and(|attached| attached == id) {
            true => Ok(()),
            false => Err(ApiError::not_found("floating IP", id)),
        }
    }
}
