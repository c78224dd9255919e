//! Operations of instances, except for their creation and their actions.

use std::borrow::Cow;

use serde_json::Value;

use crate::api::lists::{List, ListQuery};
use crate::methods::boot_volume::not_unique;
use crate::methods::fields::{Fields, parsed};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::instance::{AddressFields, Instance, with_addresses};
use crate::state::table::{Entry, Table};
use crate::state::world::World;

/// The first version of the API whose network interfaces have `primary_ip`.
const PRIMARY_IP: &str = "2022-03-29";
const FILTERS: [&str; 21] = [
    "resource_group.id",
    "name",
    "availability.class",
    "cluster_network.id",
    "cluster_network.crn",
    "cluster_network.name",
    "dedicated_host.id",
    "dedicated_host.crn",
    "dedicated_host.name",
    "instance_group_membership.instance_group.id",
    "instance_group_membership.instance_group.crn",
    "placement_group.id",
    "placement_group.crn",
    "placement_group.name",
    "reservation_affinity.policy",
    "reservation.id",
    "reservation.crn",
    "reservation.name",
    "vpc.id",
    "vpc.crn",
    "vpc.name",
];

impl World {
    pub fn list_instances(&self, call: &Call) -> ApiResult<Response> {
        let fields = self.address_fields(call);
        let query = ListQuery::new(call, &FILTERS, self.knobs.page)?;
        let page = query.page(&self.instances);
        let list = List { key: "instances", path: "instances" };
        Ok(list.respond(self, call, &query, &page, |instance| shown(instance, fields)))
    }

    pub fn get_instance(&self, call: &Call) -> ApiResult<Response> {
        self.instance_response(call, 200, &self.instance(call)?.id)
    }

    /// The instance that the path names.
    pub fn instance(&self, call: &Call) -> ApiResult<&Entry<Instance>> {
        self.instances.get(call.id(0)).ok_or_else(|| ApiError::not_found("instance", call.id(0)))
    }

    pub fn instance_response(&self, call: &Call, status: u16, id: &str) -> ApiResult<Response> {
        let instance = self.instances.get(id).ok_or_else(|| ApiError::not_found("instance", id))?;
        Ok(Response::json_text(status, shown(instance, self.address_fields(call)).into_owned()))
    }

    /// The fields of network interfaces in the version of this call.
    pub fn address_fields(&self, call: &Call) -> AddressFields {
        match call.parameter("version") {
            _ if self.knobs.legacy_fields => AddressFields::Both,
            Some(version) if version < PRIMARY_IP => AddressFields::Old,
            _ => AddressFields::Current,
        }
    }

    /// Changes the name of an instance; other changes are not modelled.
    pub fn update_instance(&mut self, call: &Call) -> ApiResult<Response> {
        let (id, body) = (self.instance(call)?.id.clone(), parsed(&call.body)?);
        if let Some(name) = self.new_unique_name(&self.instances, &body, &id)? {
            self.instances.rename(&id, &name);
        }
        self.instance_response(call, 200, &id)
    }

    /// The name in the body of a change, which no other resource of the table has.
    pub fn new_unique_name<T>(&self, table: &Table<T>, body: &Value, id: &str) -> ApiResult<Option<String>> {
        let fields = Fields::new(body, "", &["name", "target"])?;
        let Some(name) = fields.name()? else { return Ok(None) };
        match table.by_name(name) {
            Some(other) if other.id != id => Err(not_unique(&fields)),
            _ => Ok(Some(name.to_owned())),
        }
    }

    pub fn delete_instance(&mut self, call: &Call) -> ApiResult<Response> {
        let instance = self.instance(call)?;
        let (id, is_deletable) = match instance.status() {
            "running" | "stopped" | "failed" => (instance.id.clone(), true),
            "deleting" => (instance.id.clone(), false),
            _ => (instance.id.clone(), self.knobs.delete_in_any_status),
        };
        if !is_deletable {
            return Err(ApiError::new("instance_delete_conflict"));
        }
        self.begin_delete(&id);
        Ok(Response::empty(204))
    }
}

fn shown(instance: &Entry<Instance>, fields: AddressFields) -> Cow<'_, str> {
    match fields {
        AddressFields::Current => Cow::Borrowed(instance.text()),
        AddressFields::Old | AddressFields::Both => Cow::Owned(with_addresses(instance.value(), fields).to_string()),
    }
}
