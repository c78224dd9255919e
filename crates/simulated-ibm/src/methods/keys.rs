//! Operations of keys and of volumes.

use std::borrow::Cow;

use crate::api::lists::{List, ListQuery};
use crate::methods::boot_volume::not_unique;
use crate::methods::fields::{Fields, parsed};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::world::World;

const VOLUME_FILTERS: [&str; 8] = [
    "attachment_state",
    "encryption",
    "name",
    "operating_system.family",
    "operating_system.architecture",
    "storage_generation",
    "tag",
    "zone.name",
];

impl World {
    pub fn create_key(&mut self, call: &Call) -> ApiResult<Response> {
        let body = parsed(&call.body)?;
        let fields = Fields::new(&body, "", &["name", "public_key", "resource_group", "type"])?;
        let name = fields.name()?;
        if name.is_some_and(|name| self.keys.by_name(name).is_some()) {
            return Err(not_unique(&fields));
        }
        let public_key = fields.text("public_key")?.ok_or_else(|| fields.missing("public_key"))?;
        let kind = match public_key.split_whitespace().next() {
            Some("ssh-rsa") => "rsa",
            Some("ssh-ed25519") => "ed25519",
            _ => {
                let message = "The key cannot be created because the public key value is not valid.";
                return Err(fields.invalid("public_key", "key_parse_failure", message));
            }
        };
        let group = self.referenced_group(&fields)?;
        let name = name.map_or_else(|| self.new_name(), str::to_owned);
        let id = self.add_key(&name, public_key, kind, &group);
        let key = self.keys.get(&id).expect("the key was added");
        Ok(Response::json_text(201, key.text().to_owned()))
    }

    pub fn delete_key(&mut self, call: &Call) -> ApiResult<Response> {
        match self.keys.remove(call.id(0)) {
            Some(_) => Ok(Response::empty(204)),
            None => Err(ApiError::not_found("key", call.id(0))),
        }
    }

    pub fn list_volumes(&self, call: &Call) -> ApiResult<Response> {
        let query = ListQuery::new(call, &VOLUME_FILTERS, self.knobs.page)?;
        let page = query.page(&self.volumes);
        let list = List { key: "volumes", path: "volumes" };
        Ok(list.respond(self, call, &query, &page, |volume| Cow::Borrowed(volume.text())))
    }

    pub fn delete_volume(&mut self, call: &Call) -> ApiResult<Response> {
        let volume = self.volumes.get(call.id(0)).ok_or_else(|| ApiError::not_found("volume", call.id(0)))?;
        if volume.details.instance.is_some() {
            return Err(ApiError::new("volume_in_use"));
        }
        let id = volume.id.clone();
        self.remove_volume(&id, "deleted");
        Ok(Response::empty(204))
    }
}
