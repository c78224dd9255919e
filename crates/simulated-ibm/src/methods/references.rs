//! References in bodies to existing resources: by id, CRN, href or name.

use serde_json::Value;

use crate::methods::fields::Fields;
use crate::server::response::{ApiError, ApiResult};
use crate::state::table::Table;
use crate::state::world::World;

/// The keys of references to resources with ids, and of references to resources with names only.
const BY_ID: [&str; 4] = ["id", "crn", "href", "fingerprint"];
const BY_NAME: [&str; 2] = ["name", "href"];

impl World {
    /// The name of a zone that a field refers to.
    pub fn referenced_zone(&self, fields: &Fields<'_>, name: &str) -> ApiResult<Option<String>> {
        let Some(wanted) = key_of(fields, name, &BY_NAME)? else { return Ok(None) };
        match self.zone_number(&wanted) {
            Some(_) => Ok(Some(wanted)),
            None => Err(unknown(fields, name, "zone", &wanted)),
        }
    }

    /// The id of the resource group that a field refers to, by default the account's one.
    pub fn referenced_group(&self, fields: &Fields<'_>) -> ApiResult<String> {
        let group = referenced(&self.groups, fields, "resource_group", "resource group")?;
        Ok(group.unwrap_or_else(|| self.default_group.clone()))
    }
}

/// The id of the resource that a field refers to by its id, CRN or href.
pub fn referenced<T>(table: &Table<T>, fields: &Fields<'_>, name: &str, kind: &str) -> ApiResult<Option<String>> {
    match key_of(fields, name, &BY_ID)? {
        None => Ok(None),
        Some(id) if table.get(&id).is_some() => Ok(Some(id)),
        Some(id) => Err(unknown(fields, name, kind, &id)),
    }
}

/// The name of the resource that a field refers to by its name or href.
pub fn referenced_name<T>(table: &Table<T>, fields: &Fields<'_>, name: &str, kind: &str) -> ApiResult<Option<String>> {
    match key_of(fields, name, &BY_NAME)? {
        None => Ok(None),
        Some(found) if table.get(&found).is_some() => Ok(Some(found)),
        Some(found) => Err(unknown(fields, name, kind, &found)),
    }
}

/// The id or name in a reference. That of a CRN or href is its last part.
fn key_of(fields: &Fields<'_>, name: &str, keys: &[&str]) -> ApiResult<Option<String>> {
    let Some(value) = fields.value(name) else { return Ok(None) };
    identity(value, &fields.field(name), keys).map(Some)
}

/// The id of a reference that is an item of a list.
pub fn item_id(value: &Value, path: &str) -> ApiResult<String> {
    identity(value, path, &BY_ID)
}

fn identity(value: &Value, path: &str, keys: &[&str]) -> ApiResult<String> {
    let reference = Fields::new(value, path, keys)?;
    for key in keys {
        if let Some(text) = reference.text(key)? {
            let last = text.rsplit(['/', ':']).next().unwrap_or(text);
            return Ok(if *key == "fingerprint" { text.to_owned() } else { last.to_owned() });
        }
    }
    Err(reference.missing(keys[0]))
}

fn unknown(fields: &Fields<'_>, name: &str, kind: &str, wanted: &str) -> ApiError {
    let key = fields.value(name).and_then(Value::as_object).and_then(|object| object.keys().next());
    let path = format!("{}.{}", fields.field(name), key.map_or("id", String::as_str));
    let message = format!("The {kind} {wanted} cannot be found.");
    ApiError::field("bad_field", &path, wanted, message)
}
