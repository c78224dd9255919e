//! Resource manager and resource controller: resource groups, and the instance of Cloud Object Storage.

use serde_json::{Value, json};

use crate::api::lists::is_written;
use crate::methods::fields::{Fields, parsed};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::ids::ACCOUNT;
use crate::state::table::Entry;
use crate::state::world::World;

const STORAGE_GUID: &str = "c7b5d0b2-6f4e-4c1e-9a53-0d8a2f3b1e64";

impl World {
    pub fn list_resource_groups(&self, call: &Call) -> Response {
        let is_wanted =
            |field: &str, value: &Value| call.parameter(field).is_none_or(|wanted| is_written(value, wanted));
        let is_listed = |group: &&Entry<()>| {
            ["name", "account_id", "default"].iter().all(|field| is_wanted(field, &group.value()[*field]))
        };
        let groups: Vec<&Value> = self.groups.iter().filter(is_listed).map(Entry::value).collect();
        Response::json(200, &json!({"resources": groups}))
    }

    pub fn get_resource_group(&self, call: &Call) -> ApiResult<Response> {
        Ok(Response::json_text(200, self.group(call)?.text().to_owned()))
    }

    fn group(&self, call: &Call) -> ApiResult<&Entry<()>> {
        self.groups.get(call.id(0)).ok_or_else(|| ApiError::not_found("resource group", call.id(0)))
    }

    /// The response has the id and the CRN only, as that of IBM.
    pub fn create_resource_group(&mut self, call: &Call) -> ApiResult<Response> {
        let body = parsed(&call.body)?;
        let fields = Fields::new(&body, "", &["account_id", "name"])?;
        let name = self.group_name(&fields)?.ok_or_else(|| fields.missing("name"))?;
        let id = self.add_group(&name, false);
        let group = self.groups.get(&id).expect("the group was added");
        Ok(Response::json(201, &json!({"id": id, "crn": group.value()["crn"]})))
    }

    /// The name of a group in a body, which no other group may have.
    fn group_name(&self, fields: &Fields<'_>) -> ApiResult<Option<String>> {
        let Some(name) = fields.text("name")? else { return Ok(None) };
        let is_sign = |sign: char| sign.is_ascii_alphanumeric() || " -_.".contains(sign);
        if !(1..=40).contains(&name.len()) || !name.chars().all(is_sign) {
            return Err(fields.invalid("name", "invalid_name", "The name of the resource group is not valid."));
        }
        match self.groups.by_name(name) {
            None => Ok(Some(name.to_owned())),
            Some(_) => {
                let message = format!("A resource group with the name {name} exists already.");
                Err(ApiError { status: 409, ..ApiError::with_message("name_conflict", message) })
            }
        }
    }

    pub fn update_resource_group(&mut self, call: &Call) -> ApiResult<Response> {
        let (id, body) = (self.group(call)?.id.clone(), parsed(&call.body)?);
        let fields = Fields::new(&body, "", &["name", "state"])?;
        if let Some(name) = self.group_name(&fields)? {
            self.groups.rename(&id, &name);
        }
        self.get_resource_group(call)
    }

    /// A group with resources cannot be deleted.
    pub fn delete_resource_group(&mut self, call: &Call) -> ApiResult<Response> {
        let group = self.group(call)?;
        let id = group.id.clone();
        let is_of = |value: &Value| value["resource_group"]["id"] == id.as_str();
        let is_used = self.instances.iter().any(|one| is_of(one.value()))
            || self.floating_ips.iter().any(|one| is_of(one.value()))
            || self.images.iter().any(|one| is_of(one.value()))
            || self.volumes.iter().any(|one| is_of(one.value()));
        if is_used || group.value()["default"] == json!(true) {
            let message = "The resource group is the default one, or has resources.";
            return Err(ApiError::with_message("resource_group_in_use", message));
        }
        self.groups.remove(&id);
        Ok(Response::empty(204))
    }

    pub fn list_resource_instances(&self, call: &Call) -> Response {
        let storage = self.storage();
        let is_wanted = |field: &str| call.parameter(field).is_none_or(|wanted| storage[field] == wanted);
        let fields = ["guid", "name", "resource_group_id", "resource_id", "resource_plan_id", "type", "state"];
        let is_listed = fields.iter().all(|field| is_wanted(field));
        let resources = if is_listed { vec![storage.clone()] } else { Vec::new() };
        Response::json(200, &json!({"rows_count": resources.len(), "next_url": null, "resources": resources}))
    }

    pub fn get_resource_instance(&self, call: &Call) -> ApiResult<Response> {
        let storage = self.storage();
        let is_storage = ["id", "guid"].iter().any(|field| storage[*field] == call.id(0));
        match is_storage {
            true => Ok(Response::json(200, &storage)),
            false => Err(ApiError::not_found("resource instance", call.id(0))),
        }
    }

    fn storage(&self) -> Value {
        let crn = format!("crn:v1:bluemix:public:cloud-object-storage:global:a/{ACCOUNT}:{STORAGE_GUID}::");
        let group = self.groups.get(&self.default_group).map(|group| group.value()["crn"].clone());
        json!({
            "id": crn, "guid": STORAGE_GUID, "crn": crn, "url": format!("/v2/resource_instances/{STORAGE_GUID}"),
            "created_at": "2026-01-05T12:00:00Z", "updated_at": "2026-01-05T12:00:00Z",
            "name": self.options.object_storage, "region_id": "global", "account_id": ACCOUNT,
            "resource_plan_id": "744bfc56-d12c-4866-88d5-dac9139e0e5d", "resource_group_id": self.default_group,
            "resource_group_crn": group, "state": "active", "type": "service_instance",
            "resource_id": "dff97f5c-bc5e-4455-b470-411c3edbe49c", "locked": false,
        })
    }
}
